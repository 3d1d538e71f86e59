/**
 * Where a cell is written: CodeMirror, loaded when an editor is shown for the first time, a plain field until then.
 *
 * It is in a shadow root, where its styles are constructed sheets; the page allows no others. Tab completes or
 * indents, Escape leaves it, and after Escape Tab goes on to what follows, so nobody who uses the keyboard alone is
 * caught in it. In an empty editor, arrow up brings the code of earlier cells.
 */

import { draftOf, keep } from "./drafts.js";
import { theme } from "./theme.js";
import { Icon, say } from "./ui.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";

/** @type {Promise<any> | undefined} */
let loading;
const codemirror = () => (loading ??= import("../vendor/codemirror.js"));

/** Whether a focus brings up no keyboard on the screen. */
const typesAtOnce = !matchMedia("(pointer: coarse)").matches;
/** How long typing rests before the kernel is asked, in milliseconds. */
const PAUSE = 150;
/** Kinds of names as kernels say them, as the editor has icons for. */
const KINDS = new Map([
  ["instance", "variable"],
  ["module", "namespace"],
  ["statement", "keyword"],
  ["param", "variable"],
  ["path", "text"],
]);

/**
 * @typedef {{matches: string[], start: number, end: number, types?: string[]}} Completion
 * @typedef {{
 *   language: string, label: string, draft: string, onRun: (code: string) => Promise<boolean> | boolean, focus?: boolean,
 *   hint?: boolean, onEscape?: () => void, runs?: boolean, keeps?: boolean, onWrite?: (text: string) => void,
 *   complete?: (code: string, cursor: number) => Promise<Completion>,
 *   inspect?: (code: string, cursor: number) => void,
 *   earlier?: (steps: number) => Promise<string | undefined>,
 *   handle?: {current: {edit: (code: string) => void, focus: () => void} | null},
 * }} Props
 *   `draft`: the name of the place, under which is kept what is written in it; another place is another editor (`key`).
 *   `keeps`: whether what has run stays here. `onWrite`: told of each change.
 *   `earlier`: the code that ran so many cells ago, 1 for the last one; undefined if there were not so many.
 *   `edit` puts code into it, and what was there aside
 */

/** @param {Props} props */
export function Editor(props) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const plain = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const view = useRef(/** @type {any} */ (null));
  const latest = useRef(props);
  const takesFocus = useRef(false);
  /** Texts that are on their way, and when the last of them has arrived. */
  const sending = useRef({ texts: /** @type {Set<string>} */ (new Set()), last: Promise.resolve() });
  latest.current = props;
  const [ready, setReady] = useState(false);
  const [running, setRunning] = useState(0);
  const [aside, setAside] = useState(() => draftOf(props.draft).aside);

  const text = () => view.current?.state.doc.toString() ?? plain.current?.value ?? "";
  const put = (/** @type {string} */ code) => {
    if (view.current) {
      const { doc } = view.current.state;
      view.current.dispatch({
        changes: { from: 0, to: doc.length, insert: code },
        selection: { anchor: code.length },
        scrollIntoView: true,
      });
    } else if (plain.current) {
      plain.current.value = code;
      written();
    }
  };
  const written = () => {
    // An editor that is gone has no text; what was in it stays kept.
    if (!view.current && !plain.current) return;
    keep(props.draft, { ...draftOf(props.draft), text: text() });
    latest.current.onWrite?.(text());
  };
  const show = (/** @type {import("./drafts.js").Draft} */ draft) => {
    put(draft.text);
    keep(props.draft, draft);
    setAside(draftOf(props.draft).aside);
  };
  /** What was put aside, with what is written here now if that would be lost. */
  const putAside = (/** @type {string} */ code) => {
    const { aside: texts, given } = draftOf(props.draft);
    const now = text();
    return now.trim() && now !== code && now !== given ? [...texts, now] : texts;
  };
  const edit = (/** @type {string} */ code) => show({ text: code, aside: putAside(code), given: code });
  /** Put back what was put aside last. */
  const back = () => {
    const before = draftOf(props.draft).aside;
    const last = before.at(-1) ?? "";
    const added = putAside(last).slice(before.length);
    show({ text: last, aside: [...added, ...before.slice(0, -1)] });
    focus();
  };
  const focus = () => (view.current ?? plain.current)?.focus();
  /** It has run: what was put aside for it comes back, and what was typed meanwhile stays. */
  const sent = (/** @type {string} */ code) => {
    if (props.keeps) return;
    const { text: kept, aside: texts } = draftOf(props.draft);
    if (!view.current && !plain.current) {
      // Its session is shown by now, in place of this editor.
      if (kept === code) keep(props.draft, { text: texts.at(-1) ?? "", aside: texts.slice(0, -1) });
    } else if (text() === code) {
      put("");
      if (texts.length > 0) back();
    }
  };
  const run = async () => {
    const code = text();
    const { texts, last } = sending.current;
    // A key that is held down, or pressed again while an answer takes long, runs the cell once.
    if (!code.trim() || latest.current.runs === false || texts.has(code)) return;
    texts.add(code);
    setRunning(texts.size);
    const { onRun } = latest.current;
    const send = async () => {
      try {
        if (await onRun(code)) sent(code);
      } finally {
        texts.delete(code);
        setRunning(texts.size);
      }
    };
    // Others go behind it, in order: it may take minutes until there is a kernel for the first.
    sending.current.last = last.then(send, send);
    await sending.current.last;
  };

  useEffect(() => {
    let gone = false;
    const draft = draftOf(props.draft);
    if (draft.text) put(draft.text);
    codemirror().then(
      (cm) => {
        if (gone || !place.current) return;
        const field = plain.current;
        const hadFocus = field !== null && document.activeElement === field;
        view.current = made(cm, place.current, field?.value ?? "", latest, { run, written, put });
        const free = !document.activeElement || document.activeElement === document.body;
        takesFocus.current = hadFocus || (latest.current.focus === true && typesAtOnce && free);
        setReady(true);
      },
      () => say("The editor could not be loaded; a plain field does the same", "problem"),
    );
    if (props.focus && typesAtOnce) focus();
    return () => {
      gone = true;
      view.current?.destroy();
      view.current = null;
    };
  }, []);
  useEffect(() => {
    if (props.handle) props.handle.current = { edit, focus };
  });
  useLayoutEffect(() => {
    // The plain field is gone by now, and with it the focus that it had.
    if (ready && takesFocus.current) focus();
  }, [ready]);
  useEffect(() => {
    if (ready) view.current?.setLook(theme.value, props.language);
  }, [ready, theme.value, props.language]);

  /** @param {KeyboardEvent} event */
  const key = (event) => {
    if (event.key === "Enter" && (event.shiftKey || event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run();
    } else if (event.key === "Escape") {
      plain.current?.blur();
      props.onEscape?.();
    }
  };
  return html`
    <div class="editor">
      ${aside.length > 0 &&
      html`<p class="editor-aside" role="status">
        What you had written here was put aside. <button type="button" onClick=${back}>Put it back</button>
      </p>`}
      <div class="editor-place" ref=${place}></div>
      ${!ready && html`<textarea class="editor-plain" ref=${plain} rows="3" aria-label=${props.label} spellcheck="false" autocapitalize="off" autocomplete="off" onKeyDown=${key} onInput=${written}></textarea>`}
      <button type="button" class="primary run" onClick=${run} disabled=${props.runs === false} aria-busy=${String(running > 0)} title="Run (Shift-Enter)">
        <${Icon} name="play" />Run
      </button>
      ${props.hint && html`<p class="editor-hint"><kbd>Shift</kbd> <kbd>Enter</kbd> runs it, in a session of its own.</p>`}
    </div>
  `;
}

/**
 * @param {any} cm
 * @param {HTMLElement} place
 * @param {string} text
 * @param {{current: Props}} latest
 * @param {{run: () => void, written: () => void, put: (code: string) => void}} acts
 */
function made(cm, place, text, latest, { run, written, put }) {
  const root = place.shadowRoot ?? place.attachShadow({ mode: "open" });
  const look = new cm.Compartment();
  const language = new cm.Compartment();
  /** Whether Escape was pressed, and nothing typed since: Tab is the browser's then. */
  let escaped = false;
  /** How many cells ago the code ran that was brought here, and the code. */
  let brought = { steps: 0, code: "" };
  /** Bring the code of an earlier cell, or of a later one: a step by which lines are left as they are. */
  const bring = (/** @type {number} */ step) => (/** @type {any} */ view) => {
    const { state } = view;
    const code = state.doc.toString();
    const steps = code === brought.code ? brought.steps : 0;
    const { earlier } = latest.current;
    const line = state.doc.lineAt(state.selection.main.head).number;
    const within = line !== (step > 0 ? 1 : state.doc.lines);
    if (!earlier || within || cm.completionStatus(state) === "active" || (steps === 0 && (code !== "" || step < 0)))
      return false;
    const show = (/** @type {string | undefined} */ found) => {
      if (found === undefined || state.doc !== view.state.doc) return;
      brought = { steps: steps + step, code: found };
      put(found);
    };
    if (steps + step === 0) show("");
    else earlier(steps + step).then(show, () => {});
    return true;
  };
  const ask = (/** @type {any} */ view) => {
    const { state } = view;
    latest.current.inspect?.(state.doc.toString(), points(state.sliceDoc(0, state.selection.main.head)));
    return latest.current.inspect !== undefined;
  };
  const tab = (/** @type {any} */ view) => {
    const { state } = view;
    if (escaped) return false;
    const { from, empty } = state.selection.main;
    const before = state.sliceDoc(state.doc.lineAt(from).from, from);
    if (!empty || !before.trim() || !latest.current.complete) return cm.indentMore(view);
    return cm.acceptCompletion(view) || cm.startCompletion(view);
  };
  const leave = (/** @type {any} */ view) => {
    const list = cm.completionStatus(view.state);
    if (list) cm.closeCompletion(view);
    // One that is only being asked for is nothing that anybody would close.
    if (list === "active") return true;
    escaped = true;
    view.contentDOM.blur();
    latest.current.onEscape?.();
    return true;
  };
  const start = () => {
    run();
    return true;
  };
  const view = new cm.EditorView({
    root,
    parent: root,
    state: cm.EditorState.create({
      doc: text,
      selection: { anchor: text.length },
      extensions: [
        cm.Prec.highest(
          cm.keymap.of([
            { key: "Shift-Enter", run: start },
            { key: "Mod-Enter", run: start },
            { key: "Tab", run: tab, shift: (/** @type {any} */ view) => ask(view) || cm.indentLess(view) },
            { key: "Escape", run: leave },
            { key: "ArrowUp", run: bring(1) },
            { key: "ArrowDown", run: bring(-1) },
          ]),
        ),
        cm.history(),
        cm.drawSelection(),
        cm.indentOnInput(),
        cm.bracketMatching(),
        cm.closeBrackets(),
        cm.highlightSpecialChars(),
        cm.EditorState.allowMultipleSelections.of(true),
        cm.indentUnit.of("    "),
        cm.autocompletion({
          override: [(/** @type {any} */ context) => completions(context, latest)],
          activateOnTypingDelay: PAUSE,
          icons: true,
        }),
        cm.keymap.of([
          ...cm.closeBracketsKeymap,
          ...cm.completionKeymap.filter((/** @type {any} */ each) => each.key !== "Escape"),
          ...cm.historyKeymap,
          ...cm.defaultKeymap,
        ]),
        cm.placeholder(latest.current.earlier ? "Shift-Enter runs, Tab completes, ↑ brings earlier cells, Esc then Tab leaves" : "Shift-Enter runs, Tab completes, Esc then Tab leaves"),
        cm.EditorView.lineWrapping,
        cm.EditorView.updateListener.of((/** @type {any} */ update) => {
          if (!update.docChanged) return;
          escaped = false;
          queueMicrotask(written);
        }),
        cm.EditorView.contentAttributes.of({ "aria-label": latest.current.label, "aria-multiline": "true" }),
        language.of([]),
        look.of([]),
        STYLE(cm),
      ],
    }),
  });
  view.setLook = (/** @type {string} */ shade, /** @type {string} */ name) => {
    const dark = shade === "dark";
    const colours = cm.syntaxHighlighting(dark ? cm.darkHighlightStyle : cm.lightHighlightStyle);
    view.dispatch({
      effects: [
        look.reconfigure([colours, cm.EditorView.theme({}, { dark })]),
        language.reconfigure(parser(cm, name)),
      ],
    });
  };
  return view;
}

/** @param {any} cm @param {string} name */
function parser(cm, name) {
  const known = name.toLowerCase();
  if (known === "python") return cm.python();
  if (known === "javascript" || known === "typescript") return cm.javascript({ typescript: known === "typescript" });
  return [];
}

/** The page's custom properties reach into a shadow root. @param {any} cm */
const STYLE = (cm) =>
  cm.EditorView.theme({
    "&": { color: "var(--text)", backgroundColor: "transparent", fontSize: "var(--code-size)", maxHeight: "38vh" },
    "&.cm-focused": { outline: "none" },
    ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.5", overflow: "auto" },
    ".cm-content": { padding: "8px 0", minHeight: "3.4em", caretColor: "var(--text)" },
    ".cm-placeholder": { color: "var(--muted)" },
    ".cm-line": { padding: "0 10px" },
    ".cm-cursor": { borderLeftColor: "var(--text)", borderLeftWidth: "2px" },
    "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
      background: "var(--selection)",
    },
    ".cm-tooltip": {
      background: "var(--raised)",
      color: "var(--text)",
      border: "1px solid var(--line)",
      borderRadius: "6px",
      boxShadow: "var(--shadow)",
      overflow: "hidden",
    },
    ".cm-tooltip.cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)", maxHeight: "16em" },
    ".cm-tooltip.cm-tooltip-autocomplete > ul > li": { padding: "2px 8px", lineHeight: "1.5" },
    ".cm-tooltip-autocomplete ul li[aria-selected]": { background: "var(--accent)", color: "var(--on-accent)" },
    ".cm-completionMatchedText": { textDecoration: "none", fontWeight: "700" },
    ".cm-matchingBracket, &.cm-focused .cm-matchingBracket": { background: "var(--selection)", color: "inherit" },
  });

/**
 * @param {any} context
 * @param {{current: Props}} latest
 */
async function completions(context, latest) {
  const { complete } = latest.current;
  const word = context.matchBefore(/[\p{L}\p{N}_.%!/]+$/u);
  if (!complete || (!context.explicit && (!word || (word.text.length < 2 && !word.text.endsWith("."))))) return null;
  if (!context.explicit && /^[\d.]+$/.test(word.text)) return null;
  const code = context.state.doc.toString();
  let found;
  try {
    found = await complete(code, points(code.slice(0, context.pos)));
  } catch {
    return null; // a kernel that works on a cell has no time for it
  }
  if (context.aborted || found.matches.length === 0) return null;
  return {
    from: units(code, found.start),
    to: context.pos,
    filter: true,
    validFor: /^[\p{L}\p{N}_]*$/u,
    options: found.matches.map((label, index) => {
      const type = found.types?.[index] ?? "";
      return { label, type: KINDS.get(type) ?? type, boost: label.startsWith("_") ? -1 : 0 };
    }),
  };
}

/** How many code points a text has: kernels count those. @param {string} text */
const points = (text) => {
  let count = 0;
  for (const _ of text) count += 1;
  return count;
};

/** Where a code point begins in a text, in UTF-16 units: browsers count those. @param {string} text @param {number} place */
function units(text, place) {
  let count = 0;
  let at = 0;
  for (const character of text) {
    if (count === place) break;
    count += 1;
    at += character.length;
  }
  return at;
}
