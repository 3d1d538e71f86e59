/**
 * A cell of a session as its events make it: pure. `session_log.js` fetches the events, `cell.js` draws the cell.
 *
 * @typedef {"queued" | "running" | "ok" | "error" | "timeout" | "interrupted" | "died" | "cancelled"} Status
 * @typedef {{
 *   loaded: boolean, status: Status, cause: string | null, code: string, count: number | null,
 *   queuedAt: string | null, startedAt: string | null, finishedAt: string | null,
 *   durationMs: number | null, queueMs: number | null, timeout: number | null | undefined,
 *   position: number | null, waitingFor: string | null, silent: boolean, from: string | null,
 *   asking: {prompt: string, password: boolean, seq: number} | null,
 *   shown: import("./cell_outputs.js").Shown, problem: string | null, truncated: boolean, memoryKills: number, replaced: string | null, undone: boolean,
 *   interruptedBy: string | null,
 *   files: {path: string, action: string}[], packages: string[],
 * }} CellState
 */

import { NOTHING, ofResult, reduce, updated } from "./cell_outputs.js";

/** Changed files of one cell that are shown. */
const MOST_FILES = 100;

const ENDED = new Set(["ok", "error", "timeout", "interrupted", "died", "cancelled"]);

/** @param {string} status */
export const hasEnded = (status) => ENDED.has(status);

/**
 * A cell of which only what a list of executions tells is known.
 * @param {string} status
 * @param {string | null} queuedAt
 * @returns {CellState}
 */
export function unloaded(status, queuedAt) {
  return {
    loaded: false,
    status: /** @type {Status} */ (status),
    cause: null,
    code: "",
    count: null,
    queuedAt,
    startedAt: null,
    finishedAt: null,
    durationMs: null,
    queueMs: null,
    timeout: undefined,
    position: null,
    waitingFor: null,
    silent: false,
    from: null,
    asking: null,
    shown: NOTHING,
    problem: null,
    truncated: false,
    memoryKills: 0,
    replaced: null,
    undone: false,
    interruptedBy: null,
    files: [],
    packages: [],
  };
}

/**
 * The cell after one of its events.
 * @param {CellState} cell
 * @param {any} event
 * @returns {CellState}
 */
export function reduceCell(cell, event) {
  switch (event.type) {
    case "queued":
      return queued(cell, event);
    case "started":
      return {
        ...cell,
        status: "running",
        code: event.code || cell.code,
        count: event.execution_count ?? null,
        startedAt: event.at,
        position: null,
        waitingFor: null,
      };
    case "input_request":
      return { ...cell, asking: { prompt: String(event.prompt), password: event.password === true, seq: event.seq } };
    case "input_reply": {
      // A password is never told.
      const text = `${event.prompt}${event.value ?? ""}\n`;
      return { ...cell, asking: null, shown: reduce(cell.shown, { type: "stream", name: "stdout", text }) };
    }
    case "file":
      if (cell.files.length >= MOST_FILES) return cell;
      return { ...cell, files: [...cell.files, { path: String(event.path), action: String(event.action) }] };
    case "packages": {
      const names = (event.packages || []).map((/** @type {any} */ each) => `${each.name} ${each.version}`);
      return { ...cell, packages: [...cell.packages, ...names] };
    }
    case "finished":
      return finished(cell, event);
    default: {
      const shown = reduce(cell.shown, event);
      // What comes after a question means that it was answered.
      return shown === cell.shown ? cell : { ...cell, shown, asking: null };
    }
  }
}

/**
 * @param {CellState} cell
 * @param {any} event
 * @returns {CellState}
 */
function queued(cell, event) {
  if (event.waiting_for) return { ...cell, position: event.position, waitingFor: String(event.waiting_for) };
  return {
    ...unloaded("queued", event.at),
    loaded: true,
    undone: cell.undone,
    code: event.code,
    position: event.position,
    timeout: event.timeout,
    silent: event.silent === true,
    // Of a Jupyter client's cell the record always has the deadline.
    from: event.ran_in ? `alternative in ${event.ran_in}` : "cell_id" in event && "timeout" in event ? "Jupyter client" : null,
  };
}

/**
 * @param {CellState} cell
 * @param {any} event
 * @returns {CellState}
 */
function finished(cell, event) {
  const told = cell.shown.outputs.some((output) => output.kind === "error");
  const kernel = event.kernel || {};
  return {
    ...cell,
    status: event.status,
    cause: event.cause ?? null,
    interruptedBy: event.interrupted_by ?? null,
    count: event.execution_count ?? cell.count,
    startedAt: event.started_at ?? cell.startedAt,
    finishedAt: event.finished_at ?? event.at,
    durationMs: event.duration_ms ?? null,
    queueMs: event.queue_ms ?? null,
    truncated: event.truncated === true,
    memoryKills: event.memory_kills ?? 0,
    problem: event.error && !told ? String(event.error.evalue || event.error.ename) : null,
    replaced: kernel.replaced === true ? String(kernel.cause || "unknown") : null,
    asking: null,
    position: null,
    waitingFor: null,
  };
}

/**
 * The cell with the outputs that its result has: for one of so many events that reading them all would be slow.
 * @param {CellState} cell
 * @param {any} result
 * @returns {CellState}
 */
export function withResult(cell, result) {
  const files = (result.files || []).slice(0, MOST_FILES);
  const shown = ofResult(result.outputs || []);
  const ended = finished({ ...cell, shown, files }, { ...result, at: result.finished_at });
  return { ...ended, loaded: true };
}

/**
 * The cell with a display replaced that another cell updated.
 * @param {CellState} cell
 * @param {any} event
 * @returns {CellState}
 */
export function withUpdate(cell, event) {
  const shown = updated(cell.shown, event);
  return shown === cell.shown ? cell : { ...cell, shown };
}

/**
 * Events in a row, with texts of one stream of one cell joined: a flood of small pieces is then one change.
 * @param {any[]} events
 */
export function condensed(events) {
  const kept = [];
  let last = /** @type {any} */ (null);
  let texts = /** @type {string[]} */ ([]);
  const close = () => {
    if (texts.length > 1) kept[kept.length - 1] = { ...last, text: texts.join("") };
    texts = [];
  };
  for (const event of events) {
    const joins =
      event.type === "stream" &&
      last?.type === "stream" &&
      event.execution === last.execution &&
      event.name === last.name &&
      event.widget === last.widget;
    if (!joins) {
      close();
      kept.push(event);
    }
    if (event.type === "stream") texts.push(String(event.text));
    last = event;
  }
  close();
  return kept;
}
