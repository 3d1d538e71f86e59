/**
 * The variables of a session's kernel, asked for after each cell while the panel is open: tables first, which open as
 * rows, then other data; what is not data is folded.
 */

import { api } from "./api.js";
import { may } from "./me.js";
import { Rows } from "./rows.js";
import { Failed, IconButton, Spinner } from "./ui.js";
import { bytes, counted, seen } from "./words.js";
import { useSheet } from "../outputs/sheet.js";
import { html, useEffect, useState } from "../vendor/preact.js";

/** @typedef {{name: string, type: string, summary: string, size?: number, rows?: number}} Variable */

const NO_DATA = new Set(["module", "function", "type", "ABCMeta", "method", "builtin_function_or_method", "ufunc"]);

/** Variables as they are listed: tables, other data, what is none. Pure. @param {Variable[]} variables */
export function grouped(variables) {
  const data = variables.filter((each) => !NO_DATA.has(each.type));
  return {
    data: [...data.filter((each) => each.rows !== undefined), ...data.filter((each) => each.rows === undefined)],
    others: variables.filter((each) => NO_DATA.has(each.type)),
  };
}

/** @param {{log: import("./session_log.js").SessionLog}} props */
export function Variables({ log }) {
  // Before a table is opened, so that it is not drawn twice.
  useSheet("../app/rows.css");
  const [word, setWord] = useState("");
  const [told, setTold] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState(/** @type {any} */ (null));
  const [open, setOpen] = useState("");
  const [table, setTable] = useState("");
  const [times, setTimes] = useState(0);
  const model = log.model.value;
  const idle = model?.state === "idle" || (model?.state === "asleep" && told === null);
  useEffect(() => {
    // A kernel that works on a cell is asked when it has ended.
    if (!idle || !may("run")) return undefined;
    const stop = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const found = await api.get(`${log.path}/variables`, { signal: stop.signal });
        setTold(found);
        setProblem(null);
      } catch (error) {
        if (!stop.signal.aborted && error.reason !== "busy") setProblem(error);
      }
    }, 100);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [log, idle, log.cellsEnded.value, model?.kernel_id, times]);
  if (!may("run")) return html`<p class="note">Your token does not ask kernels.</p>`;
  const found = (told?.variables ?? []).filter((/** @type {any} */ each) =>
    `${each.name} ${each.type}`.toLowerCase().includes(word.toLowerCase()),
  );
  const { data, others } = grouped(found);
  const list = (/** @type {Variable[]} */ variables, /** @type {string} */ label) => html`
    <ul class="entries variable-list" aria-label=${label}>
      ${variables.map((each) => html`
        <${Entry} key=${each.name} variable=${each} log=${log} open=${open === each.name} onOpen=${() => setOpen(open === each.name ? "" : each.name)} onRows=${() => setTable(each.name)} />`)}
    </ul>
  `;
  return html`
    <div class="variables">
      <div class="panel-tools">
        <input type="search" aria-label="Search variables" placeholder="Search" value=${word} onInput=${(/** @type {any} */ event) => setWord(event.target.value)} />
        <${IconButton} icon="restart" label="Ask again" onClick=${() => setTimes(times + 1)} />
      </div>
      ${model && !idle && html`<p class="note" role="status">${model.state === "busy" ? "The kernel is working; its variables are asked for when it is done." : "Variables are those of a live kernel."}</p>`}
      ${problem && html`<${Failed} problem=${problem} again=${() => setTimes(times + 1)} />`}
      ${!told && !problem && idle && html`<${Spinner} />`}
      ${told && found.length === 0 && html`<p class="empty">${word ? "No variable fits." : "No variables yet."}</p>`}
      ${data.length > 0 && list(data, "Variables")}
      ${others.length > 0 && html`
        <details class="variable-fold" open=${word !== ""}>
          <summary>${counted(others.length, "module, function or class", "modules, functions and classes")}</summary>
          ${list(others, "Modules, functions and classes")}
        </details>`}
      ${told?.truncated && html`<p class="note">There are more than are listed here.</p>`}
      ${table && html`<${Rows} key=${table} log=${log} name=${table} onClose=${() => setTable("")} />`}
    </div>
  `;
}

/**
 * @param {{variable: Variable, log: import("./session_log.js").SessionLog, open: boolean, onOpen: () => void,
 *   onRows: () => void}} props
 */
function Entry({ variable, log, open, onOpen, onRows }) {
  const { name, type, summary, size, rows } = variable;
  const opened = open ? "true" : "false";
  return html`
    <li class="variable">
      ${rows === undefined
        ? html`<button type="button" class="name" aria-expanded=${opened} onClick=${onOpen}>${seen(name)}</button>`
        : html`<button type="button" class="name" aria-haspopup="dialog" title="Show the rows" onClick=${onRows}>${seen(name)}</button>`}
      <span class="type">${type}</span>
      <span class="summary" title=${summary}>${summary}</span>
      <span class="faint size">${size === undefined ? "" : bytes(size)}</span>
      ${rows !== undefined && html`<${IconButton} icon="help" label="Describe ${seen(name)}" aria-expanded=${opened} onClick=${onOpen} />`}
      ${open && html`<${About} log=${log} name=${name} />`}
    </li>
  `;
}

/** What the kernel knows of one. @param {{log: import("./session_log.js").SessionLog, name: string}} props */
function About({ log, name }) {
  const [text, setText] = useState(/** @type {string | null} */ (null));
  useEffect(() => {
    api.post(`${log.path}/inspect`, { code: name }).then(
      (found) => setText(found.found ? found.text : "The kernel says nothing about it."),
      (error) => setText(error.message),
    );
  }, [log, name, log.cellsEnded.value]);
  return text === null ? html`<${Spinner} />` : html`<pre class="about" tabindex="0" aria-label="About ${name}">${text}</pre>`;
}
