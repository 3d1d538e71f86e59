/**
 * One cell of a session, as it runs and as it ran: its source, its outputs, how it ended, and what can be done.
 */

import { api } from "./api.js";
import { hasEnded } from "./cells.js";
import { pieces } from "./highlight.js";
import { languageOf, may, me } from "./me.js";
import { sessionHref } from "./router.js";
import { saved } from "./session_actions.js";
import { timeLeft } from "./session_log.js";
import { theme } from "./theme.js";
import { attempt, clock, copy, Icon, IconButton } from "./ui.js";
import { because, bytes, clock as inWords, counted, duration, moment, seen } from "./words.js";
import { Outputs } from "../outputs/outputs.js";
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";

/** Lines of source that are shown at first. */
const MOST_LINES = 40;

export const WORDS = {
  queued: "waiting",
  running: "running",
  ok: "done",
  error: "raised",
  timeout: "timed out",
  interrupted: "interrupted",
  died: "kernel died",
  cancelled: "cancelled",
};

/**
 * @param {{cell: import("./session_log.js").Cell, log: import("./session_log.js").SessionLog, index: number,
 *   marked: boolean, onEdit?: (code: string) => void, principal?: string | null}} props
 */
export function CellView({ cell, log, index, marked, onEdit, principal }) {
  const state = cell.state.value;
  const { status, code, count } = state;
  const ended = hasEnded(status);
  const label = `${count === null ? "Cell" : `Cell ${count}`}, ${WORDS[status] ?? status}`;
  const stop = () => attempt(() => api.post(`${log.path}/executions/${cell.id}/cancel`));
  const link = () => copy(new URL(sessionHref(log.key, { execution: cell.id, principal: named(principal) }), location.href).href);
  return html`
    <article
      class="cell cell-${status} ${state.undone ? "cell-undone" : ""} ${marked ? "cell-marked" : ""}"
      aria-label=${state.undone ? `${label}, undone` : label}
      aria-posinset=${index + 1}
      aria-setsize=${log.count.value}
      tabindex="0"
      id="cell-${cell.id}"
    >
      <div class="cell-gutter" aria-hidden="true">[${count ?? (status === "running" ? "*" : " ")}]</div>
      <div class="cell-body">
        <header class="cell-head">
          <span class="cell-status"><span class="dot" aria-hidden="true"></span>${WORDS[status] ?? status}</span>
          ${state.undone && html`<span class="tag" title="A rollback undid this cell"><${Icon} name="undo" />undone</span>`}
          ${state.silent && html`<span class="tag">silent</span>`}
          ${state.from && html`<span class="tag">${state.from}</span>`}
          <${Timing} state=${state} log=${log} />
          <${Runs} cell=${cell} log=${log} principal=${principal} />
          <div class="spring"></div>
          <div class="cell-tools">
            ${!ended && may("run") && html`<button type="button" class="small" onClick=${stop}><${Icon} name="stop" />${status === "queued" ? "Cancel" : "Interrupt"}</button>`}
            ${onEdit && state.loaded && html`<${IconButton} icon="edit" label="Put the code into the editor" onClick=${() => onEdit(code)} />`}
            ${state.loaded && html`<${IconButton} icon="copy" label="Copy the code" onClick=${() => copy(code)} />`}
            <${IconButton} icon="link" label="Copy a link to this cell" onClick=${link} />
          </div>
        </header>
        ${state.loaded ? html`<${Source} code=${code} language=${languageOf(log.model.value?.kernel)} />` : html`<div class="skeleton" aria-hidden="true"></div>`}
        <${Outcome} cell=${cell} log=${log} />
      </div>
    </article>
  `;
}

/**
 * Where the cell ran before, and where it ran again: runs of one cell of a notebook, or of the record.
 * @param {{cell: import("./session_log.js").Cell, log: import("./session_log.js").SessionLog, principal?: string | null}} props
 */
function Runs({ cell, log, principal }) {
  const earlier = cell.earlier.value;
  const later = cell.later.value;
  const link = (/** @type {import("./session_log.js").Cell} */ other) => {
    const count = other.state.value.count;
    return html`<a href=${sessionHref(log.key, { execution: other.id, principal })} aria-label=${count === null ? undefined : `Cell ${count}`}>${count === null ? "there" : `[${count}]`}</a>`;
  };
  return html`
    ${earlier && html`<span class="faint">again: ${link(earlier)}</span>`}
    ${later && html`<span class="faint">ran again, see ${link(later)}</span>`}
  `;
}

/**
 * What a cell has shown, what it asks, and how it ended.
 * @param {{cell: import("./session_log.js").Cell, log: import("./session_log.js").SessionLog}} props
 */
export function Outcome({ cell, log }) {
  const state = cell.state.value;
  return html`
    ${state.shown.outputs.length > 0 && html`<div class="cell-outputs"><${Outputs} outputs=${state.shown.outputs} theme=${theme.value} widgets=${log} /></div>`}
    <${LeftOut} cell=${cell} state=${state} log=${log} />
    ${state.asking && !hasEnded(state.status) && html`<${Input} key=${state.asking.seq} asking=${state.asking} cell=${cell} log=${log} />`}
    <${Ending} state=${state} limit=${log.model.value?.limits?.memory} />
  `;
}

/** The only principal of a gateway without users. */
const ALONE = "default";

/**
 * The owner that a link names: whoever gets it may be an administrator or an auditor, for whom the key is not enough.
 * @param {string | null | undefined} principal The session's owner, if not the reader.
 */
function named(principal) {
  const own = me.value?.principal;
  return principal || (own === ALONE ? null : own);
}

/** @param {{code: string, language: string}} props */
export function Source({ code, language }) {
  const lines = useMemo(() => code.split("\n"), [code]);
  const [whole, setWhole] = useState(false);
  const folded = lines.length > MOST_LINES + 5 && !whole;
  const shown = folded ? lines.slice(0, MOST_LINES).join("\n") : code;
  const coloured = useMemo(() => pieces(shown, language), [shown, language]);
  if (!code) return null;
  return html`
    <pre class="source"><code>${coloured.map(([kind, text]) => (kind ? html`<span class="hl-${kind}">${text}</span>` : text))}</code></pre>
    ${folded && html`<button type="button" class="unfold" onClick=${() => setWhole(true)}>Show all ${counted(lines.length, "line")}</button>`}
  `;
}

/** @param {{state: import("./cells.js").CellState, log: import("./session_log.js").SessionLog}} props */
export function Timing({ state, log }) {
  const { status } = state;
  if (status === "queued") {
    if (state.waitingFor) return html`<span class="faint">in line for a ${state.waitingFor}${state.position ? `, ${counted(state.position, "session")} ahead` : ""}</span>`;
    return state.position ? html`<span class="faint">${counted(state.position, "cell")} ahead</span>` : null;
  }
  if (status === "running") {
    const since = state.startedAt ? clock.value - Date.parse(state.startedAt) : 0;
    const left = timeLeft(state, log.model.value);
    const low = left !== null && left < 10_000;
    return html`
      <span class="faint">${inWords(since / 1000)}</span>
      ${left !== null && html`<span class="deadline ${low ? "low" : ""}" title="Until its deadline">${left > 0 ? `${inWords(left / 1000)} left` : "deadline passed"}</span>`}
    `;
  }
  return html`
    ${state.durationMs !== null && html`<span class="faint" title=${moment(state.finishedAt)}>${duration(state.durationMs)}</span>`}
    ${state.queueMs !== null && state.queueMs > 1000 && html`<span class="faint">waited ${duration(state.queueMs)}</span>`}
    ${state.cause && html`<span class="faint">${because(state.cause, state.interruptedBy, me.value?.principal)}</span>`}
  `;
}

/** Text that is too long for the page is fetched from the gateway as a file. @param {any} props */
function LeftOut({ cell, state, log }) {
  if (!hasEnded(state.status)) return null;
  const long = [...state.shown.outputs.entries()].filter(([, each]) => each.left_out);
  const what = (/** @type {any} */ each, /** @type {number} */ index) => {
    if (long.length === 1) return "";
    const same = long.filter(([, { name }]) => name === each.name);
    const number = same.findIndex(([place]) => place === index) + 1;
    return ` of ${each.name}${same.length > 1 ? `, part ${number}` : ""}`;
  };
  return long.map(
    ([index, each]) => html`<p class="note" key=${index}><a href=${saved(`${log.path}/executions/${cell.id}/output/${index}`)} download="">Download the whole text${what(each, index)}</a></p>`,
  );
}

/**
 * A cell's `input()`, answered in place.
 * @param {{asking: {prompt: string, password: boolean, seq: number}, cell: any, log: any}} props
 */
function Input({ asking, cell, log }) {
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [sending, setSending] = useState(false);
  useEffect(() => {
    // Whoever types elsewhere is not interrupted.
    const active = document.activeElement;
    const here = active === field.current?.closest("article");
    if (!active || active === document.body || here || active.closest(".composer")) field.current?.focus();
  }, []);
  /** @param {Event} event */
  const answer = async (event) => {
    event.preventDefault();
    setSending(true);
    const value = field.current?.value ?? "";
    const path = `${log.path}/executions/${cell.id}/input`;
    const done = await attempt(async () => {
      await api.post(path, { value });
      return true;
    });
    setSending(false);
    if (done && document.activeElement === field.current) goOn(field.current?.closest("article"));
    if (done && cell.state.peek().asking === asking) cell.state.value = { ...cell.state.peek(), asking: null };
  };
  const id = `input-${cell.id}`;
  return html`
    <form class="cell-input" onSubmit=${answer}>
      <label for=${id}>${asking.prompt || "The cell asks for a line of input"}</label>
      <input ref=${field} id=${id} type=${asking.password ? "password" : "text"} autocomplete="off" spellcheck="false" disabled=${!may("run")} />
      <button type="submit" disabled=${sending || !may("run")}>Send</button>
    </form>
  `;
}

/**
 * Give the focus of a field that goes to its cell. What is typed there is meant for the cell's next question, as long as the
 * cell runs and nobody has left it; `isTyping` looks for that.
 * @param {HTMLElement | null | undefined} article
 */
function goOn(article) {
  if (!article) return;
  const over = new AbortController();
  const end = () => {
    over.abort();
    article.removeAttribute("data-answered");
  };
  article.focus();
  article.setAttribute("data-answered", "");
  article.addEventListener("focusout", end, { signal: over.signal });
  article.addEventListener("keydown", (event) => event.key === "Escape" && end(), { signal: over.signal });
}

/** @param {{state: import("./cells.js").CellState, limit?: number}} props  `limit`: bytes of memory that the session may use */
function Ending({ state, limit }) {
  const lacked = state.shown.outputs.some((output) => output.kind === "error" && output.ename === "MemoryError");
  return html`
    ${lacked && limit && html`<p class="note">This session may use ${bytes(limit)} of memory.</p>`}
    ${state.problem && html`<p class="note bad">${state.problem}</p>`}
    ${state.truncated && html`<p class="note">Some of the output was left out: it was more than the record keeps of one cell.</p>`}
    ${state.memoryKills > 0 && html`<p class="note warn">${state.memoryKills === 1 ? "A process of this cell was" : `${state.memoryKills} processes of this cell were`} killed: the session had reached its limit of memory.</p>`}
    ${state.replaced && html`<p class="note warn">The kernel was replaced before this cell (${because(state.replaced)}): earlier variables are gone.</p>`}
    ${state.packages.length > 0 && html`<p class="note">Packages: ${state.packages.join(", ")}</p>`}
    ${state.files.length > 0 && html`<p class="note">Files: ${state.files.slice(0, 8).map((each) => html`<code class="file-${each.action}">${seen(each.path)}</code> `)}${state.files.length > 8 ? `and ${state.files.length - 8} more` : ""}</p>`}
  `;
}
