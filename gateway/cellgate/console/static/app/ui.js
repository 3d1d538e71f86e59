/**
 * Small parts that all views are made of: icons, badges, menus, tabs, questions, short messages, the clock.
 */

import { now as gatewayTime } from "./api.js";
import { ago, moment } from "./words.js";
import { effect, html, signal, useEffect, useRef, useState } from "../vendor/preact.js";

// ---- icons ------------------------------------------------------------------------------------------------

const PATHS = {
  add: "M8 3v10M3 8h10",
  auto: "M8 2a6 6 0 1 0 0 12zM8 2a6 6 0 0 1 0 12",
  back: "M10 3 5 8l5 5",
  branch: "M5 4v8M5 8c4 0 6-1 6-4",
  check: "m3 8.5 3.2 3.2L13 5",
  checkpoint: "M4 14V2.5h8L10.5 5.5 12 8.5H4",
  close: "m4 4 8 8M12 4l-8 8",
  code: "M6 4 2.5 8 6 12M10 4l3.5 4-3.5 4",
  copy: "M6 6h7v7H6zM3 10V3h7",
  cross: "m4.5 4.5 7 7M11.5 4.5l-7 7",
  dark: "M12.8 9.6A5.6 5.6 0 0 1 6.4 3.2a5.6 5.6 0 1 0 6.4 6.4z",
  down: "m4 6 4 4 4-4",
  download: "M8 2.5v7.5M4.8 7 8 10.2 11.2 7M3 13h10",
  edit: "M3 13l.7-3L10.5 3.2l2.3 2.3L6 12.3z",
  file: "M4 2h5l3 3v9H4zM9 2v3h3",
  folder: "M2 4h4l1.4 1.6H14V13H2z",
  help: "M5.8 6.2c0-3 4.6-3 4.6 0C10.4 8 8 8 8 9.8M8 12.3v.4",
  light: "M8 5.2a2.8 2.8 0 1 0 .01 0M8 1.5v1.5M8 13v1.5M1.5 8H3M13 8h1.5M3.4 3.4l1.1 1.1M11.5 11.5l1.1 1.1M12.6 3.4l-1.1 1.1M4.5 11.5l-1.1 1.1",
  link: "M6.5 9.5 9.5 6.5M7 4.8l1.5-1.5a2.9 2.9 0 0 1 4.2 4.2L11.2 9M9 11.2l-1.5 1.5a2.9 2.9 0 0 1-4.2-4.2L4.8 7",
  menu: "M3 8h.01M8 8h.01M13 8h.01",
  out: "M6 3H3v10h3M7 8h7M11 5l3 3-3 3",
  panel: "M2.5 3h11v10h-11zM10 3v10",
  play: "M5 3.2v9.6L13 8z",
  restart: "M12.8 8a4.8 4.8 0 1 1-1.6-3.6M13 2v3h-3",
  search: "M7 2.5a4.5 4.5 0 1 0 .01 0M10.3 10.3 14 14",
  stop: "M4 4h8v8H4z",
  trash: "M3 4.5h10M6 4.5V3h4v1.5M4.3 4.5 5 13.5h6l.7-9",
  undo: "M3 6h6.5a3.5 3.5 0 0 1 0 7H6M6 3 3 6l3 3",
  up: "m4 10 4-4 4 4",
  upload: "M8 10.5V3M4.8 6 8 2.8 11.2 6M3 13h10",
};

/** @param {{name: keyof typeof PATHS}} props */
export const Icon = ({ name }) => html`
  <svg class="icon icon-${name}" viewBox="0 0 16 16" aria-hidden="true"><path d=${PATHS[name]} /></svg>
`;

/**
 * A button that is an icon; its label is read aloud and shown as a hint.
 * @param {any} props
 */
export const IconButton = ({ icon, label, class: given = "", ...others }) => html`
  <button type="button" class="icon-button ${given}" aria-label=${label} title=${label} ...${others}>
    <${Icon} name=${icon} />
  </button>
`;

// ---- the clock --------------------------------------------------------------------------------------------

/** The gateway's time, in steps of a second. It stands still while nobody looks. */
export const clock = signal(gatewayTime());
setInterval(() => {
  if (!document.hidden) clock.value = gatewayTime();
}, 1000);

/** How long ago something was. @param {{at: string | null | undefined}} props */
export const Ago = ({ at }) => html`<time datetime=${at || ""} title=${moment(at)}>${ago(at, clock.value)}</time>`;

/** The state of a session. @param {{state: string}} props */
export const State = ({ state }) => html`
  <span class="state state-${state}"><span class="dot" aria-hidden="true"></span>${state}</span>
`;

// ---- messages -----------------------------------------------------------------------------------------------

/** @type {import("../vendor/preact.js").Signal<{id: number, text: string, kind: "info" | "problem"}[]>} */
const messages = signal([]);
let told = 0;

/**
 * Tell the reader something, for some seconds.
 * @param {string} text
 * @param {"info" | "problem"} [kind]
 */
export function say(text, kind = "info") {
  const id = (told += 1);
  messages.value = [...messages.value.slice(-3), { id, text, kind }];
  setTimeout(() => dismiss(id), kind === "problem" ? 12_000 : 4000);
}

/** @param {number} id */
function dismiss(id) {
  messages.value = messages.value.filter((each) => each.id !== id);
}

/**
 * Do something that may be refused; a refusal is told.
 * @template T
 * @param {() => Promise<T>} work
 * @returns {Promise<T | undefined>}
 */
export async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    if (error?.name !== "AbortError" && error?.status !== 401) say(String(error?.message || error), "problem");
    return undefined;
  }
}

export const Messages = () => html`
  <div class="messages" role="status" aria-live="polite">
    ${messages.value.map(
      ({ id, text, kind }) => html`
        <div class="message message-${kind}" key=${id}>
          <span>${text}</span>
          <${IconButton} icon="close" label="Dismiss" onClick=${() => dismiss(id)} />
        </div>
      `,
    )}
  </div>
`;

// ---- questions ----------------------------------------------------------------------------------------------

/**
 * @typedef {{name: string, label: string, value?: string, type?: string, options?: [string, string][],
 *   hint?: string, pattern?: string, required?: boolean, placeholder?: string}} Field
 * @typedef {{title: string, text?: any, action: string, danger?: boolean, fields?: Field[],
 *   typed?: string}} Question
 * @type {import("../vendor/preact.js").Signal<{question: Question, answer: (given: any) => void} | null>}
 */
const asked = signal(null);

/**
 * Ask something: the values of the fields by name, or null if the reader would rather not. With `typed`, the
 * reader has to type that word.
 * @param {Question} question
 * @returns {Promise<Record<string, string> | null>}
 */
export function ask(question) {
  asked.peek()?.answer(null);
  return new Promise((resolve) => {
    asked.value = {
      question,
      answer: (given) => {
        asked.value = null;
        resolve(given);
      },
    };
  });
}

// What is asked is about what was shown: elsewhere, the answer would be for something else.
globalThis.addEventListener?.("hashchange", () => asked.peek()?.answer(null));

/**
 * A modal dialog; the element keeps the focus inside, and Escape closes it.
 * @param {{onClose: () => void, label: string, class?: string, children?: any}} props
 */
export function Dialog({ onClose, label, class: given = "", children }) {
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    const own = element.current;
    own?.showModal();
    return () => {
      // As long as it is open, nothing else takes the focus.
      own?.close();
      if (before?.isConnected) before.focus();
    };
  }, []);
  /** @param {Event} event */
  const cancel = (event) => {
    event.preventDefault();
    onClose();
  };
  /** @param {MouseEvent} event */
  const outside = (event) => {
    if (event.target === element.current) onClose();
  };
  return html`
    <dialog ref=${element} class="dialog ${given}" aria-label=${label} onCancel=${cancel} onMouseDown=${outside}>
      <div class="dialog-inner">${children}</div>
    </dialog>
  `;
}

/** @param {{field: Field, onInput: (value: string) => void, value: string}} props */
function FieldInput({ field, onInput, value }) {
  const id = `field-${field.name}`;
  const common = { id, name: field.name, "aria-describedby": field.hint ? `${id}-hint` : undefined };
  return html`
    <div class="field">
      <label for=${id}>${field.label}</label>
      ${
        field.options
          ? html`<select ...${common} value=${value} onChange=${(/** @type {any} */ event) => onInput(event.target.value)}>
              ${field.options.map(([key, label]) => html`<option value=${key} selected=${key === value}>${label}</option>`)}
            </select>`
          : html`<input
              ...${common}
              type=${field.type || "text"}
              value=${value}
              pattern=${field.pattern}
              title=${field.pattern && field.hint}
              required=${field.required}
              placeholder=${field.placeholder}
              autocomplete="off"
              spellcheck="false"
              onInput=${(/** @type {any} */ event) => onInput(event.target.value)}
            />`
      }
      ${field.hint && html`<small id="${id}-hint">${field.hint}</small>`}
    </div>
  `;
}

/** @param {{question: Question, answer: (given: any) => void}} props */
function Asked({ question, answer }) {
  const fields = question.fields || [];
  const [values, setValues] = useState(Object.fromEntries(fields.map((field) => [field.name, field.value || ""])));
  const [word, setWord] = useState("");
  const ready = !question.typed || word === question.typed;
  /** @param {Event} event */
  const submit = (event) => {
    event.preventDefault();
    if (ready) answer(values);
  };
  return html`
    <${Dialog} label=${question.title} onClose=${() => answer(null)}>
      <form onSubmit=${submit}>
        <h2>${question.title}</h2>
        ${question.text && html`<p>${question.text}</p>`}
        ${fields.map(
          (field) => html`
            <${FieldInput}
              key=${field.name}
              field=${field}
              value=${values[field.name]}
              onInput=${(/** @type {string} */ value) => setValues({ ...values, [field.name]: value })}
            />
          `,
        )}
        ${
          question.typed &&
          html`<${FieldInput}
            field=${{ name: "typed", label: `Type ${question.typed} to confirm` }}
            value=${word}
            onInput=${setWord}
          />`
        }
        <div class="dialog-buttons">
          <button type="button" onClick=${() => answer(null)}>Cancel</button>
          <button type="submit" class=${question.danger ? "danger" : "primary"} disabled=${!ready}>
            ${question.action}
          </button>
        </div>
      </form>
    <//>
  `;
}

export const Questions = () => asked.value && html`<${Asked} key=${asked.value} ...${asked.value} />`;

// ---- menus --------------------------------------------------------------------------------------------------

/**
 * An entry of a menu.
 * @typedef {{text: string, act: () => void, icon?: keyof typeof PATHS, danger?: boolean, disabled?: boolean,
 *   href?: string, download?: boolean, checked?: boolean}} Item
 */

/**
 * A button with a menu. Arrow keys move in it, Escape closes it. It is placed by hand: lists around it scroll.
 * @param {{label: string, icon?: keyof typeof PATHS, text?: string, items: (Item | null | false | undefined | "")[]}} props
 */
export function Menu({ label, icon = "menu", text, items }) {
  const [open, setOpen] = useState(false);
  const button = useRef(/** @type {HTMLButtonElement | null} */ (null));
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  const shown = /** @type {Item[]} */ (items.filter(Boolean));
  const close = () => {
    setOpen(false);
    button.current?.focus();
  };
  useEffect(() => {
    if (!open || !list.current || !button.current) return undefined;
    const around = button.current.getBoundingClientRect();
    const { offsetWidth, offsetHeight, style } = list.current;
    style.left = `${Math.max(8, Math.min(around.right - offsetWidth, innerWidth - offsetWidth - 8))}px`;
    const below = around.bottom + 4;
    style.top = `${below + offsetHeight > innerHeight ? Math.max(8, around.top - offsetHeight - 4) : below}px`;
    /** @type {HTMLElement | null} */ (list.current.querySelector("[role^=menuitem]:not([aria-disabled=true])"))?.focus();
    /** @param {Event} event */
    const away = (event) => {
      const target = /** @type {Node} */ (event.target);
      if (!list.current?.contains(target) && !button.current?.contains(target)) setOpen(false);
    };
    addEventListener("pointerdown", away);
    addEventListener("scroll", away, true);
    addEventListener("resize", away);
    return () => {
      removeEventListener("pointerdown", away);
      removeEventListener("scroll", away, true);
      removeEventListener("resize", away);
    };
  }, [open]);
  /** @param {KeyboardEvent} event */
  const key = (event) => {
    const entries = /** @type {HTMLElement[]} */ ([...(list.current?.querySelectorAll("[role^=menuitem]") ?? [])]);
    const place = entries.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const moves = { ArrowDown: place + 1, ArrowUp: place - 1 + entries.length, Home: 0, End: entries.length - 1 };
    if (event.key in moves) {
      entries[moves[/** @type {keyof typeof moves} */ (event.key)] % entries.length]?.focus();
    } else if (event.key === "Escape") close();
    else if (event.key === "Tab") return setOpen(false);
    else return undefined;
    event.preventDefault();
    event.stopPropagation();
    return undefined;
  };
  return html`
    <span class="menu">
      <button
        type="button"
        ref=${button}
        class=${text ? "" : "icon-button"}
        aria-haspopup="menu"
        aria-expanded=${open ? "true" : "false"}
        aria-label=${text ? undefined : label}
        title=${label}
        onClick=${() => setOpen(!open)}
      >
        ${text}<${Icon} name=${icon} />
      </button>
      ${
        open &&
        html`<div class="menu-list" role="menu" aria-label=${label} ref=${list} onKeyDown=${key}>
          ${shown.map((item) => {
            const inside = html`<${Icon} name=${item.checked ? "check" : item.icon || "menu"} />${item.text}`;
            const shared = { class: `menu-item ${item.danger ? "danger" : ""} ${item.icon || item.checked ? "" : "no-icon"}`, tabindex: -1 };
            if (item.href)
              return html`<a ...${shared} role="menuitem" href=${item.href} download=${item.download ? "" : undefined} onClick=${close}>${inside}</a>`;
            const act = () => {
              if (item.disabled) return;
              close();
              item.act();
            };
            return html`<button
              type="button"
              ...${shared}
              role=${item.checked === undefined ? "menuitem" : "menuitemradio"}
              aria-checked=${item.checked === undefined ? undefined : String(item.checked)}
              aria-disabled=${item.disabled ? "true" : undefined}
              onClick=${act}
            >
              ${inside}
            </button>`;
          })}
        </div>`
      }
    </span>
  `;
}

// ---- tabs ---------------------------------------------------------------------------------------------------

/**
 * @param {{label: string, tabs: [id: string, text: string, render: () => any][], chosen: string,
 *   onChoose: (id: string) => void, extra?: any}} props
 */
export function Tabs({ label, tabs, chosen, onChoose, extra }) {
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  const place = Math.max(0, tabs.findIndex(([id]) => id === chosen));
  /** @param {KeyboardEvent} event */
  const key = (event) => {
    const to = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = (to + tabs.length) % tabs.length;
    onChoose(tabs[next][0]);
    /** @type {HTMLElement | undefined} */ (list.current?.querySelectorAll("[role=tab]")[next])?.focus();
  };
  return html`
    <div class="tabs">
      <div class="tab-row">
        <div class="tab-list" role="tablist" aria-label=${label} ref=${list} onKeyDown=${key}>
          ${tabs.map(
            ([id, text], index) => html`
              <button
                type="button"
                role="tab"
                id="tab-${id}"
                aria-controls="panel-${id}"
                aria-selected=${index === place ? "true" : "false"}
                tabindex=${index === place ? 0 : -1}
                onClick=${() => onChoose(id)}
              >
                ${text}
              </button>
            `,
          )}
        </div>
        ${extra}
      </div>
      <div class="tab-panel" role="tabpanel" id="panel-${tabs[place][0]}" aria-labelledby="tab-${tabs[place][0]}" tabindex="0">
        ${tabs[place][2]()}
      </div>
    </div>
  `;
}

// ---- waiting and failing ------------------------------------------------------------------------------------

export const Spinner = ({ label = "Loading" }) => html`<span class="spinner" role="status" aria-label=${label}></span>`;

/** @param {{problem: any, again?: () => void}} props */
export const Failed = ({ problem, again }) => html`
  <div class="failed" role="alert">
    <p>${String(problem?.message || problem)}</p>
    ${again && html`<button type="button" onClick=${again}>Try again</button>`}
  </div>
`;

/**
 * What `load` gives, loaded again when one of `causes` changes: [value, problem, again].
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {unknown[]} causes
 * @returns {[T | undefined, any, () => void]}
 */
export function useLoaded(load, causes) {
  const [value, setValue] = useState(/** @type {T | undefined} */ (undefined));
  const [problem, setProblem] = useState(/** @type {any} */ (null));
  const [times, setTimes] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    load(stop.signal).then(
      (found) => {
        if (stop.signal.aborted) return;
        setValue(() => found);
        setProblem(null);
      },
      (error) => {
        if (!stop.signal.aborted) setProblem(error);
      },
    );
    return () => stop.abort();
  }, [...causes, times]);
  return [value, problem, () => setTimes(times + 1)];
}

/** A lazily loaded module; undefined until it is there. @param {() => Promise<any>} load */
export function useModule(load) {
  const [found, setFound] = useState(/** @type {any} */ (undefined));
  useEffect(() => {
    load().then(
      (module) => setFound(module),
      (error) => say(`A part of the page could not be loaded: ${error.message}`, "problem"),
    );
  }, []);
  return found;
}

/** @param {string} text */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied");
  } catch {
    say("The browser does not let this page copy", "problem");
  }
}

/** The text of the page's title follows what is shown. @param {() => string} make */
export function titled(make) {
  return effect(() => {
    document.title = make();
  });
}
