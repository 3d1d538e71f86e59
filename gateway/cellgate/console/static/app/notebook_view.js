/**
 * A notebook of a session's workspace, to be read, edited and run: `#/sessions/KEY?file=PATH`.
 *
 * `notebook_document.js` has what is shown. A cell that has the focus takes keys as JupyterLab's do; `KEYS` below.
 */

import { api } from "./api.js";
import { Outcome, Source, Timing, WORDS } from "./cell.js";
import { ofResult } from "./cell_outputs.js";
import { hasEnded } from "./cells.js";
import { keep } from "./drafts.js";
import { Editor } from "./editor.js";
import { languageOf, may } from "./me.js";
import { documentOf, executionOf } from "./notebook_document.js";
import { asKind, inserted, moved, newCell } from "./notebook_file.js";
import { sessionHref } from "./router.js";
import { interrupt, saved } from "./session_actions.js";
import { theme } from "./theme.js";
import { attempt, Failed, Icon, IconButton, Menu, Spinner } from "./ui.js";
import { counted, seen } from "./words.js";
import { encoded } from "./files.js";
import { Outputs } from "../outputs/outputs.js";
import { useSheet } from "../outputs/sheet.js";
import { html, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";

/** @typedef {import("./notebook_document.js").NotebookDocument} NotebookDocument */
/** @typedef {import("./notebook_file.js").NotebookCell} NotebookCell */
/** @typedef {import("./session_log.js").SessionLog} SessionLog */

const KINDS = /** @type {const} */ ({ code: "code", markdown: "text", raw: "raw text" });

/** @param {{log: SessionLog, path: string, principal: string | null}} props */
export function NotebookView({ log, path, principal }) {
  useSheet("../app/notebook.css");
  const notebook = useMemo(() => documentOf(log, path), [log, path]);
  const cells = notebook.cells.value;
  const opened = cells !== null;
  const count = log.count.value;
  useEffect(() => {
    notebook.open();
  }, [notebook]);
  useEffect(() => {
    if (!cells) return;
    const ran = cells.map((/** @type {NotebookCell} */ cell) => log.byId.get(executionOf(cell))).filter((/** @type {any} */ each) => each !== undefined);
    log.near(ran);
  }, [log, cells, count]);
  useLeaving(notebook);
  return html`
    <${Tools} notebook=${notebook} log=${log} principal=${principal} />
    ${notebook.failure.value && html`<div class="notebook-note"><${Failed} problem=${notebook.failure.value} again=${() => notebook.open()} /></div>`}
    ${!opened && !notebook.failure.value && html`<${Spinner} label="Opening the notebook" />`}
    ${opened && html`<${Sheet} notebook=${notebook} log=${log} cells=${cells} principal=${principal} />`}
  `;
}

/** Save before the page goes, and let nobody leave unasked with what is not saved. @param {NotebookDocument} notebook */
function useLeaving(notebook) {
  useEffect(() => {
    /** @param {BeforeUnloadEvent} event */
    const leaves = (event) => {
      if (notebook.saving.peek() === "saved" || !notebook.isOpen) return;
      event.preventDefault();
      notebook.save();
    };
    addEventListener("beforeunload", leaves);
    return () => {
      removeEventListener("beforeunload", leaves);
      if (notebook.saving.peek() === "changed") notebook.save();
    };
  }, [notebook]);
}

/** @param {{notebook: NotebookDocument, log: SessionLog, principal: string | null}} props */
function Tools({ notebook, log, principal }) {
  const model = log.model.value;
  const cells = notebook.cells.value ?? [];
  const busy = notebook.current.value !== "";
  const waiting = notebook.waiting.value.length;
  const writes = notebook.isOpen;
  const runs = writes && may("run");
  const add = (/** @type {"code" | "markdown"} */ kind) => notebook.set([...(notebook.list ?? []), newCell(kind)]);
  const stop = () => {
    notebook.stop();
    if (model?.state === "busy") interrupt(model);
  };
  return html`
    <div class="notebook-tools" role="toolbar" aria-label="Notebook">
      <a class="icon-button" href=${sessionHref(log.key, { principal })} aria-label="What ran" title="What ran"><${Icon} name="back" /></a>
      <h2 title=${notebook.path}>${seen(notebook.path)}</h2>
      <${Saved} notebook=${notebook} />
      <div class="spring"></div>
      ${busy && html`<span class="faint" role="status">${waiting ? `${counted(waiting, "cell")} to go` : "running"}</span>`}
      ${runs && busy && html`<button type="button" class="small" onClick=${stop}><${Icon} name="stop" />Stop</button>`}
      ${runs && !busy && html`<button type="button" class="small primary" onClick=${() => notebook.run(cells.map((cell) => cell.id))}><${Icon} name="play" />Run all</button>`}
      <${Menu} label="Actions for the notebook" items=${[
        writes && { text: "Add code at the end", icon: "code", act: () => add("code") },
        writes && { text: "Add text at the end", icon: "edit", act: () => add("markdown") },
        writes && notebook.deleted.value.length > 0 && { text: "Bring back the deleted cell", icon: "undo", act: () => notebook.restore() },
        writes && { text: "Save now", icon: "check", act: () => notebook.save() },
        notebook.tag && { text: "Export with a seal", icon: "download", href: saved(`${log.path}/notebook?order=page&file=${encodeURIComponent(notebook.target)}`), download: true },
        { text: "Download", icon: "download", href: saved(`${log.path}/files/${encoded(notebook.tag ? notebook.target : notebook.path)}`), download: true },
      ]} />
    </div>
  `;
}

/** Whether the file has what is shown. @param {{notebook: NotebookDocument}} props */
function Saved({ notebook }) {
  const { target, path } = notebook;
  switch (notebook.saving.value) {
    case "saved":
      return html`<span class="faint" role="status">${target === path || notebook.tag ? "saved" : ""}</span>`;
    case "conflict":
      return html`
        <span class="bad" role="alert">${target === path ? "The file was changed elsewhere." : `There is a file ${seen(target)} already.`}</span>
        <button type="button" class="small" onClick=${() => notebook.save({ replaces: true })}>${target === path ? "Keep what is here" : "Replace it"}</button>
        ${target === path && html`<button type="button" class="small" onClick=${() => attempt(() => notebook.reread())}>Read it again</button>`}
      `;
    case "failed":
      return html`
        <span class="bad" role="alert">Not saved: ${notebook.problem.value}</span>
        <button type="button" class="small" onClick=${() => notebook.save()}>Try again</button>
      `;
    default:
      return html`<span class="faint" role="status">${notebook.isOpen ? "saving…" : "not saved: the session has ended"}</span>`;
  }
}

/** @param {{notebook: NotebookDocument, log: SessionLog, cells: readonly NotebookCell[], principal: string | null}} props */
function Sheet({ notebook, log, cells, principal }) {
  const [edited, setEdited] = useState("");
  const editor = useRef(/** @type {{edit: (code: string) => void, focus: () => void} | null} */ (null));
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  /** The cell that gets the focus once it is drawn. */
  const wanted = useRef("");
  const writes = notebook.isOpen;
  const draft = `${log.path} ${principal ?? ""} ${notebook.path}`;
  const focus = useCallback((/** @type {string} */ id) => {
    wanted.current = id;
    const element = elementOf(box.current, id);
    element?.focus();
    if (element === document.activeElement && element) wanted.current = "";
  }, []);
  useLayoutEffect(() => {
    if (!wanted.current) return;
    const element = elementOf(box.current, wanted.current);
    if (!element) return;
    wanted.current = "";
    element.focus();
  });
  const edit = (/** @type {string} */ id) => {
    if (!writes) return;
    notebook.draw();
    keep(draft, { text: notebook.cell(id)?.source ?? "", aside: [] });
    setEdited(id);
  };
  const leave = () => {
    const id = edited;
    notebook.draw();
    setEdited("");
    keep(draft, { text: "", aside: [] });
    if (id) focus(id);
  };
  /** @param {string} id @param {number} step */
  const beside = (id, step) => (notebook.list ?? [])[notebook.placeOf(id) + step]?.id;
  /** @param {string} id @param {number} step @param {"code" | "markdown"} [kind] */
  const add = (id, step, kind = "code") => {
    const cell = newCell(kind);
    const now = notebook.list ?? [];
    notebook.set(inserted(now, notebook.placeOf(id) + (step > 0 ? 1 : 0), cell));
    edit(cell.id);
  };
  /** Run a cell, and go on to the next one. @param {string} id */
  const run = (id) => {
    notebook.draw();
    notebook.run([id]);
    setEdited("");
    const next = beside(id, 1);
    if (next) focus(next);
    else add(id, 1);
  };
  /** @param {string} id */
  const remove = (id) => {
    const next = beside(id, 1) ?? beside(id, -1);
    notebook.remove(id);
    focus(next ?? notebook.list?.[0]?.id ?? "");
  };
  const acts = { edit, leave, add, run, remove, focus, beside };
  return html`
    <div class="feed-box notebook-sheet" ref=${box} onKeyDown=${(/** @type {KeyboardEvent} */ event) => pressed(event, notebook, acts)}>
      <div role="feed" aria-label="Cells of the notebook" aria-busy="false">
        ${cells.map((cell, place) => html`
          <${CellOfNotebook}
            key=${cell.id}
            cell=${cell}
            place=${place}
            size=${cells.length}
            notebook=${notebook}
            log=${log}
            principal=${principal}
            edited=${cell.id === edited}
            editor=${editor}
            draft=${draft}
            acts=${acts}
          />`)}
      </div>
      ${writes && html`
        <p class="notebook-end">
          <button type="button" class="small" onClick=${() => add(cells[cells.length - 1].id, 1)}><${Icon} name="add" />Code</button>
          <button type="button" class="small" onClick=${() => add(cells[cells.length - 1].id, 1, "markdown")}><${Icon} name="add" />Text</button>
        </p>`}
    </div>
  `;
}

/** @param {HTMLElement | null} box @param {string} id @returns {HTMLElement | null} */
const elementOf = (box, id) => box?.querySelector(`#notebook-${CSS.escape(id)}`) ?? null;

/**
 * @typedef {{edit: (id: string) => void, leave: () => void, add: (id: string, step: number, kind?: "code" | "markdown") => void,
 *   run: (id: string) => void, remove: (id: string) => void, focus: (id: string) => void,
 *   beside: (id: string, step: number) => string | undefined}} Acts
 * @param {KeyboardEvent} event
 * @param {NotebookDocument} notebook
 * @param {Acts} acts
 */
function pressed(event, notebook, acts) {
  const target = /** @type {HTMLElement} */ (event.target);
  const id = target.getAttribute("data-cell");
  if (!id || event.ctrlKey || event.metaKey) return;
  const shift = event.shiftKey ? "Shift " : "";
  const alt = event.altKey ? "Alt " : "";
  const act = KEYS[`${alt}${shift}${event.key}`];
  if (!act || (event.repeat && !MOVES.has(event.key))) return;
  const reads = MOVES.has(event.key) && !event.altKey;
  if (!reads && !notebook.isOpen) return;
  event.preventDefault();
  act(id, notebook, acts);
}

const MOVES = new Set(["j", "k", "ArrowDown", "ArrowUp"]);

/** @param {number} step @returns {(id: string, notebook: NotebookDocument, acts: Acts) => void} */
const to = (step) => (id, _, acts) => {
  const next = acts.beside(id, step);
  if (next) acts.focus(next);
};
/** @param {number} step @returns {(id: string, notebook: NotebookDocument, acts: Acts) => void} */
const move = (step) => (id, notebook, acts) => {
  notebook.set(moved(notebook.list ?? [], notebook.placeOf(id), step));
  acts.focus(id);
};
/** @param {"code" | "markdown"} kind @returns {(id: string, notebook: NotebookDocument, acts: Acts) => void} */
const turn = (kind) => (id, notebook, acts) => {
  const cell = notebook.cell(id);
  if (cell && cell.kind !== kind) notebook.change(id, asKind(cell, kind));
  acts.focus(id);
};

/** @type {Record<string, (id: string, notebook: NotebookDocument, acts: Acts) => void>} */
const KEYS = {
  Enter: (id, _, acts) => acts.edit(id),
  "Shift Enter": (id, _, acts) => acts.run(id),
  j: to(1),
  ArrowDown: to(1),
  k: to(-1),
  ArrowUp: to(-1),
  a: (id, _, acts) => acts.add(id, 0),
  b: (id, _, acts) => acts.add(id, 1),
  d: (id, _, acts) => acts.remove(id),
  z: (_, notebook, acts) => acts.focus(notebook.restore()),
  m: turn("markdown"),
  y: turn("code"),
  "Alt ArrowUp": move(-1),
  "Alt ArrowDown": move(1),
};

/**
 * @param {{cell: NotebookCell, place: number, size: number, notebook: NotebookDocument, log: SessionLog,
 *   principal: string | null, edited: boolean, editor: {current: any}, draft: string, acts: Acts}} props
 */
function CellOfNotebook({ cell, place, size, notebook, log, principal, edited, editor, draft, acts }) {
  const { id, kind } = cell;
  const execution = executionOf(cell);
  // A new one is known when its first event has come.
  void log.count.value;
  const ran = log.byId.get(execution);
  const state = ran?.state.value;
  const waits = notebook.waiting.value.includes(id);
  const status = waits ? "queued" : state?.status ?? "";
  const word = waits ? "waiting" : state ? WORDS[state.status] ?? state.status : "";
  const count = state?.count ?? cell.count;
  const writes = notebook.isOpen;
  const runs = writes && may("run");
  const stale = state?.loaded === true && state.code !== cell.source;
  const rest = () => (notebook.list ?? []).slice(notebook.placeOf(id)).map((each) => each.id);
  const label = `Cell ${place + 1}, ${KINDS[kind]}${word && kind === "code" ? `, ${word}` : ""}`;
  return html`
    <article
      class="cell notebook-cell ${status && kind === "code" ? `cell-${status}` : ""}"
      id="notebook-${id}"
      data-cell=${id}
      tabindex="0"
      aria-label=${label}
      aria-posinset=${place + 1}
      aria-setsize=${size}
      onDblClick=${(/** @type {MouseEvent} */ event) => opensBy(event) && acts.edit(id)}
    >
      <div class="cell-gutter" aria-hidden="true">${kind === "code" ? `[${count ?? (status === "running" ? "*" : " ")}]` : ""}</div>
      <div class="cell-body">
        <header class="cell-head">
          ${kind === "code" && word && html`<span class="cell-status"><span class="dot" aria-hidden="true"></span>${word}</span>`}
          ${kind === "code" && state && !waits && html`<${Timing} state=${state} log=${log} />`}
          ${kind === "code" && stale && hasEnded(state?.status ?? "") && html`<span class="tag" title="The outputs are of the code before it was changed">changed since it ran</span>`}
          ${kind === "code" && !state && !waits && cell.outputs.length > 0 && html`<span class="faint">outputs as the file has them</span>`}
          ${kind === "raw" && html`<span class="faint">raw text</span>`}
          <div class="spring"></div>
          <div class="cell-tools">
            ${runs && kind === "code" && html`<${IconButton} icon="play" label="Run this cell" disabled=${waits || notebook.current.value === id} onClick=${() => notebook.run([id])} />`}
            ${writes && !edited && html`<${IconButton} icon="edit" label="Edit" onClick=${() => acts.edit(id)} />`}
            <${Menu} label="Actions for cell ${place + 1}" items=${[
              runs && kind === "code" && { text: "Run from here", icon: "play", act: () => notebook.run(rest()) },
              writes && { text: "Add code above", icon: "add", act: () => acts.add(id, 0) },
              writes && { text: "Add code below", icon: "add", act: () => acts.add(id, 1) },
              writes && { text: "Add text below", icon: "add", act: () => acts.add(id, 1, "markdown") },
              writes && place > 0 && { text: "Move up", icon: "up", act: () => KEYS["Alt ArrowUp"](id, notebook, acts) },
              writes && place < size - 1 && { text: "Move down", icon: "down", act: () => KEYS["Alt ArrowDown"](id, notebook, acts) },
              writes && kind !== "markdown" && { text: "Make it text", icon: "edit", act: () => turn("markdown")(id, notebook, acts) },
              writes && kind !== "code" && { text: "Make it code", icon: "code", act: () => turn("code")(id, notebook, acts) },
              ran && { text: "Show it in the record", icon: "link", href: sessionHref(log.key, { execution, principal }) },
              writes && { text: "Delete", icon: "trash", danger: true, disabled: notebook.current.value === id, act: () => acts.remove(id) },
            ]} />
          </div>
        </header>
        ${edited
          ? html`<${Writing} cell=${cell} place=${place} notebook=${notebook} log=${log} editor=${editor} draft=${draft} acts=${acts} />`
          : html`<${Reading} cell=${cell} language=${languageOf(log.model.value?.kernel)} />`}
        ${kind === "code" && (ran ? html`<${Outcome} cell=${ran} log=${log} />` : html`<${Kept} cell=${cell} />`)}
      </div>
    </article>
  `;
}

/** Whether a double click is meant for the cell, and not for what is in it. @param {MouseEvent} event */
const opensBy = (event) => !(/** @type {HTMLElement} */ (event.target).closest("button, a, input, textarea, .editor, .cell-outputs, .outputs .out-menu"));

/** A cell's source as it is read. @param {{cell: NotebookCell, language: string}} props */
function Reading({ cell, language }) {
  const { kind, source } = cell;
  const shown = useMemo(() => [{ kind: "display", data: { "text/markdown": source }, metadata: {} }], [source]);
  if (!source.trim()) return html`<p class="faint notebook-empty">${kind === "code" ? "No code yet" : "No text yet"}</p>`;
  if (kind === "markdown") return html`<div class="notebook-text"><${Outputs} outputs=${shown} theme=${theme.value} /></div>`;
  return html`<${Source} code=${source} language=${kind === "code" ? language : ""} />`;
}

/** The outputs that the file has. @param {{cell: NotebookCell}} props */
function Kept({ cell }) {
  const shown = useMemo(() => ofResult(cell.outputs).outputs, [cell.outputs]);
  return shown.length > 0 && html`<div class="cell-outputs"><${Outputs} outputs=${shown} theme=${theme.value} /></div>`;
}

/**
 * A cell's source as it is written.
 * @param {{cell: NotebookCell, place: number, notebook: NotebookDocument, log: SessionLog, editor: {current: any},
 *   draft: string, acts: Acts}} props
 */
function Writing({ cell, place, notebook, log, editor, draft, acts }) {
  const { id, kind } = cell;
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const label = `${kind === "code" ? "Code" : "Text"} of cell ${place + 1}`;
  useEffect(() => {
    if (kind === "code") editor.current?.focus();
    else field.current?.focus();
  }, [kind]);
  const grow = () => {
    if (field.current) field.current.style.height = `${field.current.scrollHeight + 2}px`;
  };
  useLayoutEffect(grow, []);
  if (kind === "code")
    return html`
      <${Editor}
        language=${languageOf(log.model.value?.kernel)}
        label=${label}
        draft=${draft}
        keeps=${true}
        runs=${may("run")}
        onRun=${() => (acts.run(id), true)}
        onWrite=${(/** @type {string} */ text) => notebook.write(id, text)}
        onEscape=${acts.leave}
        complete=${(/** @type {string} */ code, /** @type {number} */ cursor) => api.post(`${log.path}/complete`, { code, cursor })}
        handle=${editor}
      />`;
  /** @param {KeyboardEvent} event */
  const key = (event) => {
    if (event.key !== "Escape" && !(event.key === "Enter" && (event.shiftKey || event.ctrlKey || event.metaKey))) return;
    event.preventDefault();
    if (event.key === "Escape") acts.leave();
    else acts.run(id);
  };
  return html`<textarea
    ref=${field}
    class="notebook-writing"
    aria-label=${label}
    rows="3"
    spellcheck="true"
    value=${notebook.cell(id)?.source ?? ""}
    onInput=${(/** @type {any} */ event) => (notebook.write(id, event.target.value), grow())}
    onKeyDown=${key}
  ></textarea>`;
}
