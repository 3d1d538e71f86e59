/**
 * The rows of a data frame, series or array, as they are in the kernel's memory: a page at a time, sorted and filtered
 * by the kernel. `variables.js` opens it.
 */

import { api } from "./api.js";
import { Dialog, Failed, Icon, IconButton, Spinner } from "./ui.js";
import { counted, seen } from "./words.js";
import { html, useEffect, useState } from "../vendor/preact.js";

/** Rows of a page: so many are drawn within a frame or two. */
const PAGE = 100;
/** How long typing has to rest before the kernel is asked, in milliseconds. */
const REST = 300;

/**
 * @typedef {{name: string, type: string, kind: string, index: boolean}} Column
 * @typedef {boolean | number | string | {text: string, length: number} | null} Cell
 * @typedef {{name: string, type: string, columns: Column[], rows: Cell[][], offset: number, total: number,
 *   all_rows: number, first_column: number, all_columns: number}} Page
 * @typedef {{offset: number, first_column: number, sort: string | null, descending: boolean, filter: string,
 *   column: string}} Wanted
 */

/** @type {Wanted} */
const FIRST = { offset: 0, first_column: 0, sort: null, descending: false, filter: "", column: "" };

/** The query that asks for a page. Pure. @param {Wanted} wanted */
export function queryOf(wanted) {
  const given = Object.entries({ limit: PAGE, ...wanted }).filter(([, value]) => value);
  return new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
}

/** What a click on a column's head asks for: its order, the reverse, none. Pure. @param {Wanted} wanted @param {string} name */
export function sortedBy(wanted, name) {
  if (wanted.sort !== name) return { ...wanted, offset: 0, sort: name, descending: false };
  return wanted.descending
    ? { ...wanted, offset: 0, sort: null, descending: false }
    : { ...wanted, offset: 0, descending: true };
}

/** @param {string} text */
const inOneLine = (text) => seen(text.replace(/\r?\n/g, "↵").replace(/\t/g, "⇥"));

/** @param {{cell: Cell}} props */
function Value({ cell }) {
  if (cell === null) return html`<span class="rows-missing">missing</span>`;
  if (typeof cell === "boolean") return cell ? "True" : "False";
  if (typeof cell === "object")
    return html`<span class="tag">${counted(cell.length, "character")}</span> ${inOneLine(cell.text)}`;
  return typeof cell === "string" ? inOneLine(cell) : String(cell);
}

/** @param {{column: Column, wanted: Wanted | null, onSort?: (name: string) => void}} props */
function Head({ column, wanted, onSort }) {
  const named = html`<span class="rows-name">${seen(column.name)}</span>`;
  const typed = html`<span class="rows-type">${column.type}</span>`;
  if (!wanted || !onSort) return html`<th scope="col" class=${column.kind}><span class="rows-head">${named}${typed}</span></th>`;
  const sorts = wanted.sort === column.name;
  const order = sorts ? (wanted.descending ? "descending" : "ascending") : "none";
  return html`
    <th scope="col" class=${column.kind} aria-sort=${order}>
      <button type="button" onClick=${() => onSort(column.name)}>
        ${named}${sorts && html`<${Icon} name=${wanted.descending ? "down" : "up"} />`}
        ${typed}
      </button>
    </th>
  `;
}

/**
 * The rows of a page; without `wanted` and `onSort` they stay in their order.
 * @param {{page: Page, wanted: Wanted | null, busy: boolean, onSort?: (name: string) => void}} props
 */
export function Table({ page, wanted, busy, onSort }) {
  const { columns, rows, offset } = page;
  // Where a table names no rows, their places do.
  const numbered = !columns.some((column) => column.index);
  return html`
    <div class="table-box rows-box" tabindex="0" role="region" aria-label="Rows of ${page.name}" aria-busy=${String(busy)}>
      <table class="rows" aria-rowcount=${page.total + 1}>
        <thead>
          <tr>
            ${numbered && html`<th scope="col" class="number"><span class="unseen">Place</span></th>`}
            ${columns.map((column, at) => html`<${Head} key=${at} column=${column} wanted=${wanted} onSort=${onSort} />`)}
          </tr>
        </thead>
        <tbody>
          ${rows.map((row, place) => html`
            <tr key=${place} aria-rowindex=${offset + place + 2}>
              ${numbered && html`<th scope="row" class="number">${offset + place}</th>`}
              ${row.map((cell, at) => {
                const { kind, index } = columns[at];
                const title = typeof cell === "string" && cell.length > 30 ? cell : undefined;
                return index
                  ? html`<th scope="row" class=${kind} title=${title}><${Value} cell=${cell} /></th>`
                  : html`<td class=${kind} title=${title}><${Value} cell=${cell} /></td>`;
              })}
            </tr>`)}
        </tbody>
      </table>
    </div>
  `;
}

/** @param {{page: Page | null, wanted: Wanted, change: (part: Partial<Wanted>) => void}} props */
function Filter({ page, wanted, change }) {
  const [text, setText] = useState(wanted.filter);
  useEffect(() => {
    if (text === wanted.filter) return undefined;
    const timer = setTimeout(() => change({ filter: text }), REST);
    return () => clearTimeout(timer);
  }, [text]);
  /** @param {Event} event */
  const now = (event) => {
    event.preventDefault();
    change({ filter: text });
  };
  const names = page?.columns.map((column) => column.name) ?? [];
  const all = wanted.column && !names.includes(wanted.column) ? [wanted.column, ...names] : names;
  return html`
    <form class="rows-filter" role="search" onSubmit=${now}>
      <select aria-label="Column to filter" value=${wanted.column} onChange=${(/** @type {any} */ event) => change({ column: event.target.value })}>
        <option value="">all columns</option>
        ${all.map((name) => html`<option key=${name} value=${name} selected=${name === wanted.column}>${seen(name, 40)}</option>`)}
      </select>
      <input
        type="search"
        aria-label="Filter rows"
        placeholder=${wanted.column ? "text, or >= 5, or = alone for what is missing" : "text in any cell"}
        spellcheck="false"
        autocomplete="off"
        value=${text}
        onInput=${(/** @type {any} */ event) => setText(event.target.value)}
      />
    </form>
  `;
}

/** @param {{page: Page, busy: boolean, change: (part: Partial<Wanted>) => void}} props */
function Pages({ page, busy, change }) {
  const { offset, total, rows, all_rows: all } = page;
  const end = offset + rows.length;
  const data = page.columns.filter((column) => !column.index).length;
  const last = Math.max(0, Math.floor((total - 1) / PAGE) * PAGE);
  const to = (/** @type {string} */ text, /** @type {number} */ at, /** @type {boolean} */ can) => html`
    <button type="button" class="small" aria-disabled=${can && !busy ? undefined : "true"} onClick=${() => can && !busy && change({ offset: at })}>${text}</button>
  `;
  /** @param {any} event */
  const go = ({ target }) => {
    const row = Math.floor(Number(target.value));
    if (target.value !== "" && row >= 0) change({ offset: Math.min(row, Math.max(0, total - 1)) });
    target.value = "";
  };
  const columnsFrom = (/** @type {string} */ text, /** @type {number} */ first, /** @type {boolean} */ can) => html`
    <button type="button" class="small" aria-disabled=${can ? undefined : "true"} onClick=${() => can && change({ first_column: first })}>${text}</button>
  `;
  return html`
    <div class="rows-pages">
      <span role="status">
        ${total === 0 ? "No row fits" : `Rows ${offset.toLocaleString("en")} to ${(end - 1).toLocaleString("en")} of ${total.toLocaleString("en")}`}${total === all ? "" : `, filtered from ${all.toLocaleString("en")}`}
      </span>
      <div class="spring"></div>
      ${data < page.all_columns && html`
        <span>Columns ${page.first_column} to ${page.first_column + data - 1} of ${page.all_columns.toLocaleString("en")}</span>
        ${columnsFrom("Fewer", Math.max(0, page.first_column - 100), page.first_column > 0)}
        ${columnsFrom("More", page.first_column + data, page.first_column + data < page.all_columns)}
      `}
      ${to("First", 0, offset > 0)}
      ${to("Previous", Math.max(0, offset - PAGE), offset > 0)}
      <input type="number" min="0" max=${Math.max(0, total - 1)} aria-label="Go to row" placeholder="row" onChange=${go} />
      ${to("Next", end, end < total)}
      ${to("Last", last, end < total)}
    </div>
  `;
}

/** @param {{log: import("./session_log.js").SessionLog, name: string, onClose: () => void}} props */
export function Rows({ log, name, onClose }) {
  const [wanted, setWanted] = useState(FIRST);
  const [page, setPage] = useState(/** @type {Page | null} */ (null));
  const [problem, setProblem] = useState(/** @type {any} */ (null));
  const [loading, setLoading] = useState(false);
  const [times, setTimes] = useState(0);
  const model = log.model.value;
  const idle = model?.state !== "busy";
  const change = (/** @type {Partial<Wanted>} */ part) =>
    setWanted((before) => ({ ...before, ..."filter" in part || "column" in part ? { offset: 0 } : {}, ...part }));
  useEffect(() => {
    // A kernel that works on a cell is asked when it has ended.
    if (!idle) return undefined;
    const stop = new AbortController();
    setLoading(true);
    api.get(`${log.path}/variables/${encodeURIComponent(name)}?${queryOf(wanted)}`, { signal: stop.signal }).then(
      (found) => {
        if (stop.signal.aborted) return;
        setPage(found);
        setProblem(null);
        setLoading(false);
      },
      (error) => {
        if (stop.signal.aborted) return;
        setProblem(error);
        setLoading(false);
      },
    );
    return () => stop.abort();
  }, [log, name, wanted, idle, log.cellsEnded.value, model?.kernel_id, times]);
  const works = !idle || problem?.reason === "busy";
  return html`
    <${Dialog} label="Rows of ${name}" class="broad rows-dialog" onClose=${onClose}>
      <div class="dialog-head">
        <h2>${seen(name)}</h2>
        <span class="faint">${page && `${page.type}, ${counted(page.all_rows, "row")}, ${counted(page.all_columns, "column")}`}</span>
        <div class="spring"></div>
        <${IconButton} icon="restart" label="Read again" onClick=${() => setTimes(times + 1)} />
        <${IconButton} icon="close" label="Close" onClick=${onClose} />
      </div>
      <${Filter} page=${page} wanted=${wanted} change=${change} />
      ${works && html`<p class="note" role="status">The kernel is working; the rows are read when it is done.</p>`}
      ${problem && !works && html`<${Failed} problem=${problem} again=${() => setTimes(times + 1)} />`}
      ${!page && !problem && idle && html`<${Spinner} />`}
      ${page && html`
        <${Table} page=${page} wanted=${wanted} busy=${loading} onSort=${(/** @type {string} */ column) => setWanted(sortedBy(wanted, column))} />
        <${Pages} page=${page} busy=${loading} change=${change} />
      `}
    <//>
  `;
}
