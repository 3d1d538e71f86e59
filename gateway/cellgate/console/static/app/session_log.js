/**
 * The record of one session as the page has it: its cells, and what else happened, followed as it happens.
 *
 * The list of executions tells which cells there are; what they were and showed is read when they come near the
 * screen. One stream of events, which begins before the first cell that has not ended, tells all that is new.
 * After a lost connection it begins behind the last event that was seen: nothing is missed, nothing comes twice.
 * It draws nothing.
 */

import { api, connection, now, signedIn, turn, whenConnected, Problem } from "./api.js";
import { condensed, hasEnded, reduceCell, unloaded, withResult, withUpdate } from "./cells.js";
import { withProcessors } from "./listing.js";
import { sessionPath } from "./router.js";
import { effect, signal } from "../vendor/preact.js";

const EXECUTIONS_AT_ONCE = 1000;
/** Cells of more events than about four pages of them are read as a result, which has a limited size. */
const MOST_PAGES = 4;
const LOADS_AT_ONCE = 2;
/** Cells that stay in memory with their outputs, when they are far from the screen. */
const MOST_KEPT = 400;
const MOST_KEPT_CHARACTERS = 30_000_000;
/** How often the model of a live session is read: its memory and processor time are in no event. */
const MODEL_EVERY = 8000;
/** How long a page that nobody sees goes on following. Each stream takes one of the six connections of a browser. */
const HIDDEN_FOLLOWS = 60_000;
const SOON = 200;
const FIRST_WAIT = 1000;
const LONGEST_WAIT = 15_000;

/** One cell: where it is in the record, and what is known of it. */
export class Cell {
  /** @param {{execution: string, number: number, first_seq: number, last_seq: number | null, status: string,
   *   created_at: string | null}} model */
  constructor(model) {
    this.id = model.execution;
    this.number = model.number;
    this.firstSeq = model.first_seq;
    this.lastSeq = model.last_seq ?? model.first_seq;
    this.applied = 0;
    this.used = 0;
    /** The cell, of a notebook or of the record, that ran here; and the runs of it before and after this one. */
    this.cellId = model.execution;
    this.earlier = signal(/** @type {Cell | null} */ (null));
    this.later = signal(/** @type {Cell | null} */ (null));
    this.state = signal(unloaded(model.status, model.created_at));
  }
}

export class SessionLog {
  /** @param {string} key */
  constructor(key) {
    this.key = key;
    this.path = sessionPath(key);
    /** The session's model, as it was told last. */
    this.model = signal(/** @type {any} */ (null));
    /** @type {Cell[]} */
    this.cells = [];
    /** How many cells there are: it changes when the list does. */
    this.count = signal(0);
    /** "opening", "following", "ended", "waiting" for the gateway, or "gone". */
    this.phase = signal("opening");
    this.failure = signal(/** @type {Problem | null} */ (null));
    /** They count changes of what panels show. */
    this.filesChanged = signal(0);
    this.treeChanged = signal(0);
    this.cellsEnded = signal(0);
    this.byId = /** @type {Map<string, Cell>} */ (new Map());
    this.updates = /** @type {Map<string, any>} */ (new Map());
    this.rollbacks = /** @type {Map<number, number>} */ (new Map());
    this.runs = /** @type {Map<string, Cell[]>} */ (new Map());
    this.nearby = /** @type {Cell[]} */ ([]);
    /** The widgets, once a cell shows one. @type {import("./widgets.js").SessionWidgets | null} */
    this.widgets = null;
    this.seq = 0;
    this.waiting = /** @type {any[]} */ ([]);
    this.wanted = /** @type {Cell[]} */ ([]);
    this.loading = new Set();
    this.uses = 0;
    this.stopped = new AbortController();
    this.pause = new AbortController();
    this.wake = () => {};
  }

  /** Begin; `stop` ends what it begins. */
  start() {
    this.#run().catch((error) => this.#fail(error));
    const seen = () => this.#seen();
    document.addEventListener("visibilitychange", seen);
    const timer = setInterval(() => this.#look(), MODEL_EVERY);
    this.stopped.signal.addEventListener("abort", () => {
      document.removeEventListener("visibilitychange", seen);
      clearInterval(timer);
      clearTimeout(this.hiding);
    });
  }

  stop() {
    this.stopped.abort();
    this.pause.abort();
    this.wake();
  }

  /** What is asked for now, instead of in a while: somebody did something to the session. */
  async refresh() {
    try {
      this.#told(await api.get(`${this.path}?usage=true`, { signal: this.stopped.signal }));
    } catch (error) {
      if (!this.stopped.signal.aborted) this.#missed(error);
    }
  }

  // ---- following --------------------------------------------------------------------------------------------

  async #run() {
    let wait = FIRST_WAIT;
    while (!this.stopped.signal.aborted) {
      try {
        if (this.phase.peek() === "opening") await this.#open();
        await this.#follow();
        wait = FIRST_WAIT;
      } catch (error) {
        if (this.stopped.signal.aborted) return;
        if (!(error instanceof Problem)) {
          if (error?.name !== "AbortError") throw error;
          await this.#untilSeen(); // the page was hidden
          continue;
        }
        if (error.status === 404 || error.status === 410 || error.status === 400 || error.status === 403)
          return this.#fail(error);
        if (this.phase.peek() !== "opening") this.phase.value = "waiting";
        if (error.status === 0) {
          await this.#sleepAside(SOON);
          await whenConnected(this.stopped.signal);
        } else if (error.status === 401) await this.#untilSignedIn();
        else await this.#sleep((wait = Math.min(2 * wait, LONGEST_WAIT)));
      }
    }
  }

  async #open() {
    const given = { signal: this.stopped.signal };
    const model = await api.get(`${this.path}?usage=true`, given);
    this.model.value = withProcessors(model, null, performance.now());
    let after = this.cells.at(-1)?.number ?? 0;
    for (let more = true; more; ) {
      const page = await api.get(`${this.path}/executions?limit=${EXECUTIONS_AT_ONCE}&after=${after}`, given);
      for (const each of page.executions) {
        const cell = new Cell(each);
        this.cells.push(cell);
        this.byId.set(cell.id, cell);
      }
      more = page.next !== null;
      after = page.next ?? after;
    }
    const unfinished = this.cells.find((cell) => !hasEnded(cell.state.peek().status));
    this.seq = Math.min(model.seq, (unfinished?.firstSeq ?? Infinity) - 1);
    this.count.value = this.cells.length;
    this.#findMarks();
  }

  async #follow() {
    const before = this.seq;
    this.pause = new AbortController();
    this.phase.value = "following";
    this.#load();
    await api.stream(`${this.path}/events`, {
      signal: this.pause.signal,
      lastEventId: this.seq,
      onEvent: (event) => this.#receive(event),
    });
    this.#flush();
    if (this.stopped.signal.aborted) return;
    // The session has ended; its key may be used again.
    this.phase.value = "ended";
    await this.refresh();
    if (this.seq === before) await this.#sleep(FIRST_WAIT);
    while (!this.stopped.signal.aborted && this.model.peek()?.seq <= this.seq) {
      await this.#sleep(MODEL_EVERY);
      if (!document.hidden) await this.refresh();
    }
  }

  /** @param {any} event */
  #receive(event) {
    if (typeof event.seq !== "number" || event.seq <= this.seq) return;
    this.seq = event.seq;
    this.waiting.push(event);
    if (this.waiting.length > 1) return;
    // What comes within one frame is drawn once. A page that nobody sees has no frames.
    if (document.hidden) setTimeout(() => this.#flush(), 250);
    else requestAnimationFrame(() => this.#flush());
  }

  #flush() {
    const events = this.waiting;
    if (events.length === 0) return;
    this.waiting = [];
    /** @type {Map<Cell, import("./cells.js").CellState>} */
    const changed = new Map();
    for (const event of events) if (event.comm_id || event.widget) this.widgets?.receive(event);
    for (const event of condensed(events)) {
      if (event.execution) this.#ofCell(event, changed);
      else this.#ofSession(event);
      if (event.type === "file") this.filesChanged.value += 1;
    }
    for (const [cell, state] of changed) cell.state.value = state;
    this.widgets?.settle(this.seq);
    if (this.count.peek() !== this.cells.length) this.count.value = this.cells.length;
  }

  /**
   * @param {any} event
   * @param {Map<Cell, import("./cells.js").CellState>} changed
   */
  #ofCell(event, changed) {
    let cell = this.byId.get(event.execution);
    if (cell === undefined) {
      if (event.type !== "queued" || event.waiting_for) return;
      const number = (this.cells.at(-1)?.number ?? 0) + 1;
      const { execution, seq, at } = event;
      cell = new Cell({ execution, number, first_seq: seq, last_seq: seq, status: "queued", created_at: at });
      this.cells.push(cell);
      this.byId.set(cell.id, cell);
      this.#ran(cell, event.cell_id ?? execution);
    }
    cell.lastSeq = Math.max(cell.lastSeq, event.seq);
    if (event.type === "started") this.#turned({ state: "busy" });
    if (event.type === "finished" && event.kernel?.state) this.#turned({ state: event.kernel.state });
    const state = changed.get(cell) ?? cell.state.peek();
    if (event.type === "finished") this.cellsEnded.value += 1;
    if (event.type === "update_display_data") this.#update(event, changed);
    if (!state.loaded && !(event.type === "queued" && !event.waiting_for)) {
      // It began before the stream did, so the rest is read from the record when somebody looks.
      if (event.type === "finished") changed.set(cell, { ...state, status: event.status, cause: event.cause });
      return;
    }
    if (event.seq <= cell.applied) return;
    cell.applied = event.seq;
    changed.set(cell, reduceCell(state, event));
  }

  /** What events tell of the session's state, until the model is read again. @param {{state: string}} news */
  #turned(news) {
    const model = this.model.peek();
    if (model && model.state !== news.state) this.model.value = { ...model, ...news };
  }

  /** @param {any} event @param {Map<Cell, import("./cells.js").CellState>} changed */
  #update(event, changed) {
    if (!event.display_id) return;
    this.updates.set(event.display_id, event);
    for (const cell of this.cells) {
      if (cell.id === event.execution) continue;
      const state = changed.get(cell) ?? cell.state.peek();
      const next = state.loaded ? withUpdate(state, event) : state;
      if (next !== state) changed.set(cell, next);
    }
  }

  /** @param {any} event */
  #ofSession(event) {
    switch (event.type) {
      case "session": {
        const model = this.model.peek();
        if (model && event.seq > model.seq)
          this.model.value = { ...model, state: event.state, cause: event.cause, seq: event.seq };
        this.#lookSoon();
        break;
      }
      case "rolled_back":
        this.#undo(event.to_seq, event.seq);
        this.treeChanged.value += 1;
        this.filesChanged.value += 1;
        break;
      case "branched":
      case "checkpointed":
        this.treeChanged.value += 1;
        break;
      case "packages":
        this.cellsEnded.value += 1;
        break;
    }
  }

  // ---- undone cells -----------------------------------------------------------------------------------------

  /** @param {number} from @param {number} until */
  #undo(from, until) {
    this.rollbacks.set(until, from);
    for (const cell of this.cells)
      if (cell.firstSeq > from && cell.firstSeq < until && !cell.state.peek().undone)
        cell.state.value = { ...cell.state.peek(), undone: true };
  }

  /** Of cells from before the page came, the notebook without outputs tells which were undone, and which ran again. */
  async #findMarks() {
    if (this.cells.length === 0) return;
    const path = `${this.path}/notebook?outputs=false&inherited=false`;
    let notebook;
    try {
      notebook = await api.get(path, { signal: this.stopped.signal });
    } catch {
      return; // marks are missing then; cells are not
    }
    for (const each of notebook.cells ?? []) {
      const told = each.metadata?.cellgate;
      const cell = this.byId.get(told?.execution);
      if (!cell) continue;
      if (told.undone && !cell.state.peek().undone) cell.state.value = { ...cell.state.peek(), undone: true };
      this.#ran(cell, told.repeats ?? each.id);
    }
    this.near(this.nearby);
  }

  /** Note that a cell was a run of the cell with this id. @param {Cell} cell @param {string} id */
  #ran(cell, id) {
    const runs = this.runs.get(id) ?? [];
    let place = runs.length;
    while (place > 0 && runs[place - 1].number >= cell.number) place -= 1;
    if (runs[place] === cell) return;
    runs.splice(place, 0, cell);
    this.runs.set(id, runs);
    cell.cellId = id;
    for (const [one, other] of [[runs[place - 1], cell], [cell, runs[place + 1]]]) {
      if (!one || !other) continue;
      one.later.value = other;
      other.earlier.value = one;
    }
  }

  // ---- loading what is near the screen ----------------------------------------------------------------------

  /**
   * The cells that are near the screen, the most wanted first.
   * @param {Cell[]} cells
   */
  near(cells) {
    this.uses += 1;
    this.nearby = cells;
    // Links to other runs of a cell name their numbers.
    const named = cells.flatMap((cell) => [cell.earlier.peek(), cell.later.peek()]).filter((cell) => cell !== null);
    const wanted = [...cells, ...named];
    for (const cell of wanted) cell.used = this.uses;
    this.wanted = wanted.filter((cell) => this.#lacks(cell));
    this.#load();
  }

  /** @param {Cell} cell */
  #lacks(cell) {
    // What begins behind `seq` comes by the stream.
    return !cell.state.peek().loaded && cell.firstSeq <= this.seq && !this.loading.has(cell);
  }

  /** The code of a cell, read from the gateway if it is not here. @param {Cell} cell */
  async codeOf(cell) {
    if (!cell.state.peek().loaded) await this.#read(cell);
    return cell.state.peek().code;
  }

  #load() {
    while (this.loading.size < LOADS_AT_ONCE) {
      const cell = this.wanted.find((each) => this.#lacks(each));
      if (cell === undefined || this.stopped.signal.aborted) return;
      this.loading.add(cell);
      this.#read(cell)
        .catch((error) => {
          this.#missed(error);
          return this.#sleepAside(FIRST_WAIT);
        })
        .finally(() => {
          this.loading.delete(cell);
          if (!connection.peek().lost) this.#load();
        });
    }
  }

  /** Read a cell's events. Of short cells a page has many, so those that it has whole are done too. @param {Cell} wanted */
  async #read(wanted) {
    /** @type {Map<Cell, import("./cells.js").CellState>} */
    const drafts = new Map();
    let after = wanted.firstSeq - 1;
    for (let pages = 1; ; pages += 1) {
      const path = `${this.path}/events?after=${after}`;
      const page = await api.get(path, { signal: this.stopped.signal });
      const events = condensed(page.events);
      for (const event of events) {
        const cell = this.byId.get(event.execution);
        if (cell === undefined || (cell !== wanted && !this.#lacks(cell))) continue;
        const begins = event.type === "queued" && !event.waiting_for;
        if (!begins && !drafts.has(cell)) continue;
        drafts.set(cell, reduceCell(drafts.get(cell) ?? cell.state.peek(), event));
      }
      after = page.next ?? Infinity;
      for (const [cell, state] of drafts) {
        if (cell.lastSeq > after) continue;
        this.#keep(cell, state);
        drafts.delete(cell);
      }
      if (!drafts.has(wanted) || page.next === null) break;
      const draft = /** @type {import("./cells.js").CellState} */ (drafts.get(wanted));
      if (pages >= MOST_PAGES) {
        const result = await api.get(`${this.path}/executions/${wanted.id}`, { signal: this.stopped.signal });
        this.#keep(wanted, withResult(draft, result));
        break;
      }
      await turn();
    }
    this.#forget();
  }

  /** @param {Cell} cell @param {import("./cells.js").CellState} state */
  #keep(cell, state) {
    if (cell.state.peek().loaded) return; // the stream was faster
    let kept = { ...state, undone: cell.state.peek().undone };
    for (const output of state.shown.outputs) {
      const update = "display_id" in output ? this.updates.get(output.display_id ?? "") : undefined;
      if (update && update.seq > cell.lastSeq) kept = withUpdate(kept, update);
    }
    cell.applied = cell.lastSeq;
    cell.used = this.uses;
    cell.state.value = kept;
  }

  /** Let go of the outputs of cells that were not near the screen for long. */
  #forget() {
    const loaded = this.cells.filter((cell) => cell.state.peek().loaded);
    let characters = 0;
    const sized = loaded
      .sort((one, other) => other.used - one.used)
      .map((cell) => ({ cell, characters: (characters += size(cell.state.peek())) }));
    for (const [place, { cell, characters: until }] of sized.entries()) {
      const state = cell.state.peek();
      if (place < MOST_KEPT && until < MOST_KEPT_CHARACTERS) continue;
      if (cell.used === this.uses || !hasEnded(state.status)) continue;
      cell.state.value = { ...unloaded(state.status, state.queuedAt), cause: state.cause, undone: state.undone };
    }
  }

  /** A channel to the widget of this id, for an output that shows it. @param {string} id */
  async channel(id) {
    const { SessionWidgets } = await import("./widgets.js");
    return (this.widgets ??= new SessionWidgets(this)).channel(id);
  }

  // ---- the model --------------------------------------------------------------------------------------------

  #look() {
    if (this.phase.peek() === "following" && !document.hidden && !connection.peek().lost) this.refresh();
  }

  #lookSoon() {
    clearTimeout(this.looking);
    this.looking = setTimeout(() => this.refresh(), 150);
  }

  /** @param {any} model */
  #told(model) {
    const before = this.model.peek();
    this.model.value = withProcessors(model, before, performance.now());
    if (before && before.created_at !== model.created_at && model.seq < this.seq) this.#reopen();
    else this.wake();
  }

  /** The record was purged, and another one began under its key. */
  #reopen() {
    this.cells.length = 0;
    this.byId.clear();
    this.updates.clear();
    this.runs.clear();
    this.nearby = [];
    this.widgets = null;
    this.count.value = 0;
    this.phase.value = "opening";
    this.pause.abort();
    this.wake();
  }

  /** @param {any} error */
  #missed(error) {
    if (error instanceof Problem && (error.status === 404 || error.status === 410)) this.#fail(error);
  }

  /** @param {any} error */
  #fail(error) {
    if (this.stopped.signal.aborted) return;
    this.failure.value =
      error instanceof Problem ? error : new Problem({ detail: `The page failed at this session: ${error}` });
    this.phase.value = "gone";
    this.stopped.abort();
    this.pause.abort();
    if (!(error instanceof Problem)) throw error;
  }

  // ---- waiting ----------------------------------------------------------------------------------------------

  /** @param {number} ms */
  #sleepAside(ms) {
    return new Promise((resolve) => setTimeout(resolve, ms));
  }

  /** A wait that `wake` ends. @param {number} ms */
  #sleep(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.wake = () => {
        clearTimeout(timer);
        resolve(undefined);
      };
    });
  }

  #seen() {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => this.pause.abort(), HIDDEN_FOLLOWS);
    else this.#look();
  }

  #untilSeen() {
    return new Promise((resolve) => {
      const seen = () => {
        if (document.hidden && !this.stopped.signal.aborted) return;
        document.removeEventListener("visibilitychange", seen);
        resolve(undefined);
      };
      document.addEventListener("visibilitychange", seen);
      this.stopped.signal.addEventListener("abort", seen);
      seen();
    });
  }

  #untilSignedIn() {
    return new Promise((resolve) => {
      const stop = effect(() => {
        if (signedIn.value !== false || this.stopped.signal.aborted) queueMicrotask(() => (stop(), resolve(undefined)));
      });
      this.stopped.signal.addEventListener("abort", resolve);
    });
  }
}

/** @type {WeakMap<object, number>} */
const sizes = new WeakMap();

/**
 * About how many characters a cell's outputs have.
 * @param {import("./cells.js").CellState} state
 */
function size(state) {
  const known = sizes.get(state.shown);
  if (known !== undefined) return known;
  let sum = state.code.length;
  for (const output of state.shown.outputs) {
    if (output.kind === "stream") sum += output.text.length;
    else if (output.kind === "error") sum += output.traceback.join("").length;
    else
      for (const value of Object.values(output.data))
        sum += typeof value === "string" ? value.length : JSON.stringify(value).length;
  }
  sizes.set(state.shown, sum);
  return sum;
}

/**
 * Milliseconds that a running cell has left before its deadline; null if it has none.
 * @param {import("./cells.js").CellState} state
 * @param {any} model
 */
export function timeLeft(state, model) {
  if (state.status !== "running" || !state.startedAt) return null;
  const timeout = state.timeout === undefined ? model?.limits?.cell_timeout : state.timeout;
  return timeout ? Date.parse(state.startedAt) + 1000 * timeout - now() : null;
}
