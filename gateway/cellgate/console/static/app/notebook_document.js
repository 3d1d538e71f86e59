/**
 * A notebook of a session's workspace while somebody works on it: read, changed, run and saved.
 *
 * The record is what happened, and grows by each cell that runs; the notebook is a file, in the order that its author
 * wants. Each of its cells names the execution that its outputs are of. It draws nothing; `notebook_view.js` does. It
 * stays while the page shows its session, so that cells go on running while something else of the session is looked at.
 */

import { api } from "./api.js";
import { hasEnded } from "./cells.js";
import { encoded } from "./files.js";
import { LIVE } from "./listing.js";
import { info, languageOf, may } from "./me.js";
import { changed, inserted, MOST_BYTES, newCell, ofRecord, read, savedAs, written } from "./notebook_file.js";
import { go, sessionHref } from "./router.js";
import { sender } from "./session_actions.js";
import { ask, say } from "./ui.js";
import { effect, signal } from "../vendor/preact.js";

/** How long typing rests before the file is saved, in milliseconds. */
const PAUSE = 1000;
/** Cells that can be brought back after they were deleted. */
const MOST_DELETED = 50;

/** @typedef {import("./notebook_file.js").NotebookCell} NotebookCell */
/** @typedef {import("./session_log.js").SessionLog} SessionLog */
/** @typedef {"saved" | "changed" | "saving" | "failed" | "conflict"} Saving */

export class NotebookDocument {
  /** @param {SessionLog} log @param {string} path */
  constructor(log, path) {
    this.log = log;
    this.path = path;
    /** The file that it is saved as: of a script, the notebook beside it. */
    this.target = savedAs(path);
    /** The cells, as they are now; null before they were read. */
    this.list = /** @type {readonly NotebookCell[] | null} */ (null);
    /** The cells as they are drawn: what somebody types is drawn by its editor alone. */
    this.cells = signal(this.list);
    this.failure = signal(/** @type {any} */ (null));
    this.saving = signal(/** @type {Saving} */ ("saved"));
    this.problem = signal("");
    /** Cells that will run, in this order, and the one that runs. */
    this.waiting = signal(/** @type {readonly string[]} */ ([]));
    this.current = signal("");
    /** What was deleted, the latest last, with its place. */
    this.deleted = signal(/** @type {readonly {place: number, cell: NotebookCell}[]} */ ([]));
    this.metadata = /** @type {Record<string, any>} */ ({});
    this.tag = /** @type {string | null} */ (null);
    this.opening = false;
    this.timer = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined);
    this.send = sender();
  }

  /** Whether it can be changed here. */
  get isOpen() {
    const state = this.log.model.value?.state;
    return may("files") && LIVE.includes(state);
  }

  // ---- the file ---------------------------------------------------------------------------------------------

  /** Read the file, unless it was read. */
  async open() {
    if (this.opening || this.list) return;
    this.opening = true;
    try {
      await this.#read();
      this.failure.value = null;
    } catch (error) {
      this.failure.value = error;
    } finally {
      this.opening = false;
    }
  }

  async #read() {
    const address = fileOf(this.log, this.path);
    const { blob, tag } = await api.file(address, MOST_BYTES);
    const { cells, metadata } = read(this.path, await blob.text());
    this.metadata = metadata;
    this.tag = this.target === this.path ? tag : null;
    this.list = cells;
    this.draw();
    this.saving.value = "saved";
    for (const cell of cells) {
      const execution = executionOf(cell);
      // The page was left before its outputs came.
      if (execution && cell.count === null && cell.outputs.length === 0 && this.log.byId.has(execution)) this.#follow(cell.id, execution);
    }
  }

  /** Read the file again, and give up what was changed here. */
  async reread() {
    clearTimeout(this.timer);
    await this.#read();
  }

  /** Save the file, now. @param {{replaces?: boolean}} [options]  `replaces`: whatever is there by now */
  async save({ replaces = false } = {}) {
    clearTimeout(this.timer);
    const cells = this.list;
    if (!cells || !this.isOpen || this.saving.peek() === "saving") return;
    this.saving.value = "saving";
    const address = fileOf(this.log, this.target);
    try {
      const text = written({ cells, metadata: this.metadata }, kernelOf(this.log));
      this.tag = await api.write(address, new Blob([text]), replaces ? {} : { over: this.tag });
      this.problem.value = "";
      this.saving.value = this.list === cells ? "saved" : "changed";
      if (this.saving.peek() === "changed") this.#saveLater();
    } catch (error) {
      this.problem.value = String(error?.message || error);
      this.saving.value = error?.status === 412 ? "conflict" : "failed";
    }
  }

  #saveLater() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.save(), PAUSE);
  }

  // ---- changes ----------------------------------------------------------------------------------------------

  /** Draw the cells as they are now. */
  draw() {
    this.cells.value = this.list;
  }

  /** @param {readonly NotebookCell[]} cells */
  set(cells) {
    this.#take(cells);
    this.draw();
  }

  /** @param {readonly NotebookCell[]} cells */
  #take(cells) {
    if (cells === this.list) return;
    this.list = cells;
    // Somebody decides first which of two files is kept.
    if (this.saving.peek() === "conflict") return;
    if (this.saving.peek() !== "saving") this.saving.value = "changed";
    this.#saveLater();
  }

  /** @param {string} id */
  placeOf(id) {
    return (this.list ?? []).findIndex((cell) => cell.id === id);
  }

  /** @param {string} id */
  cell(id) {
    return this.list?.find((cell) => cell.id === id);
  }

  /** @param {string} id @param {Partial<NotebookCell>} part */
  change(id, part) {
    if (this.list && this.cell(id)) this.set(changed(this.list, id, part));
  }

  /** Take what is typed. @param {string} id @param {string} source */
  write(id, source) {
    if (this.list && this.cell(id) && this.cell(id)?.source !== source) this.#take(changed(this.list, id, { source }));
  }

  /** @param {string} id */
  remove(id) {
    const place = this.placeOf(id);
    const cells = this.list ?? [];
    if (place < 0 || id === this.current.peek()) return;
    this.waiting.value = this.waiting.peek().filter((each) => each !== id);
    this.deleted.value = [...this.deleted.peek(), { place, cell: cells[place] }].slice(-MOST_DELETED);
    const left = cells.filter((cell) => cell.id !== id);
    this.set(left.length ? left : [newCell("code")]);
  }

  /** Bring back the cell that was deleted last. Returns its id. */
  restore() {
    const last = this.deleted.peek().at(-1);
    const cells = this.list;
    if (!last || !cells) return "";
    this.deleted.value = this.deleted.peek().slice(0, -1);
    this.set(inserted(cells, Math.min(last.place, cells.length), last.cell));
    return last.cell.id;
  }

  // ---- runs -------------------------------------------------------------------------------------------------

  /** Run cells one after another; those behind one that fails do not run. @param {string[]} ids */
  run(ids) {
    const taken = new Set([...this.waiting.peek(), this.current.peek()]);
    const code = ids.filter((id) => !taken.has(id) && this.cell(id)?.kind === "code" && this.cell(id)?.source.trim());
    this.waiting.value = [...this.waiting.peek(), ...code];
    if (!this.current.peek()) this.#runWaiting();
  }

  /** Run none of those that wait. */
  stop() {
    this.waiting.value = [];
  }

  async #runWaiting() {
    for (;;) {
      const [id, ...others] = this.waiting.peek();
      if (id === undefined) break;
      this.waiting.value = others;
      this.current.value = id;
      const status = await this.#runOne(id);
      this.current.value = "";
      const left = this.waiting.peek().length;
      if (status !== "ok") {
        this.waiting.value = [];
        if (left) say(`${left === 1 ? "The cell behind it was" : `The ${left} cells behind it were`} not run: the notebook stops at a cell that fails.`, "problem");
      }
    }
  }

  /** @param {string} id */
  async #runOne(id) {
    const cell = this.cell(id);
    if (!cell) return "ok";
    const done = await this.send(() => `${this.log.path}/execute`, cell.source, id);
    if (!done) return "refused";
    const now = this.cell(id);
    if (now) this.change(id, { metadata: { ...now.metadata, cellgate: { execution: done.execution } }, outputs: [], count: null });
    this.log.refresh();
    return this.#follow(id, done.execution);
  }

  /** Wait until an execution has ended, and keep its outputs with the cell. @param {string} id @param {string} execution */
  async #follow(id, execution) {
    const status = await endOf(this.log, execution);
    try {
      const result = await api.get(`${this.log.path}/executions/${execution}`);
      const cell = this.cell(id);
      if (cell && executionOf(cell) === execution)
        this.change(id, { outputs: (result.outputs ?? []).map((/** @type {any} */ each) => ofNbformat(each, result.execution_count)), count: result.execution_count ?? null });
    } catch (error) {
      say(`The outputs of a cell could not be kept in the notebook: ${error.message}. The record has them.`, "problem");
    }
    return status;
  }
}

/** The execution that a cell's outputs are of. @param {NotebookCell} cell @returns {string} */
export const executionOf = (cell) => (typeof cell.metadata.cellgate?.execution === "string" ? cell.metadata.cellgate.execution : "");

/** Settled with its status when an execution has ended. @param {SessionLog} log @param {string} execution @returns {Promise<string>} */
function endOf(log, execution) {
  return new Promise((resolve) => {
    const stop = effect(() => {
      void log.count.value;
      const status = log.byId.get(execution)?.state.value.status;
      if (!status || !hasEnded(status)) return;
      // Not within the effect, which is not known yet when it runs for the first time.
      queueMicrotask(() => {
        stop();
        resolve(status);
      });
    });
  });
}

/** An output as nbformat has it, without what results tell beside. @param {any} output @param {number | null} count */
function ofNbformat(output, count) {
  const { output_type, name, text, data, metadata = {}, ename, evalue, traceback } = output;
  switch (output_type) {
    case "stream":
      return { output_type, name, text };
    case "error":
      return { output_type, ename, evalue, traceback };
    case "execute_result":
      return { output_type, data, metadata, execution_count: output.execution_count ?? count };
    default:
      return { output_type, data, metadata };
  }
}

/** @param {SessionLog} log @param {string} path */
const fileOf = (log, path) => `${log.path}/files/${encoded(path)}`;

/** A file's tag; null if there is none. @param {string} address */
async function tagOf(address) {
  try {
    return await api.tag(address);
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

/** Files of a listing. */
const MOST_LISTED = 10_000;

/** Whether the workspace has a file. @param {SessionLog} log @param {string} path */
async function isThere(log, path) {
  const listing = await api.get(`${log.path}/files?limit=${MOST_LISTED}`);
  const listed = listing.files.some((/** @type {any} */ each) => each.path === path);
  return listed || (listing.next !== null && (await tagOf(fileOf(log, path))) !== null);
}

/** @param {SessionLog} log */
function kernelOf(log) {
  const name = log.model.peek()?.kernel ?? "python3";
  return { name, display_name: info.peek()?.kernelspecs?.[name]?.display_name || name, language: languageOf(name) };
}

/** @type {WeakMap<SessionLog, Map<string, NotebookDocument>>} */
const documents = new WeakMap();

/** The document of a path, the same for as long as its session is shown. @param {SessionLog} log @param {string} path */
export function documentOf(log, path) {
  const known = documents.get(log) ?? new Map();
  documents.set(log, known);
  const found = known.get(path) ?? new NotebookDocument(log, path);
  known.set(path, found);
  return found;
}

/** Make a notebook of what has run, without what was undone. @param {SessionLog} log @param {string | null} principal */
export async function arrange(log, principal) {
  const { title, session } = log.model.peek();
  const text = "A file of the workspace, with what has run, to be edited, put in order and run again. The record stays as it is.";
  const path = await asked({ title: "Arrange as a notebook", text, value: `${String(title || session).replace(/[/\\:*?"<>|\0]/g, "-")}.ipynb` });
  if (!path) return;
  const exported = await api.get(`${log.path}/notebook`);
  await make(log, principal, path, ofRecord(exported));
}

/** Make an empty notebook. @param {SessionLog} log @param {string | null} principal @param {string} folder */
export async function begin(log, principal, folder) {
  const path = await asked({ title: "New notebook", value: `${folder}notebook.ipynb` });
  if (path) await make(log, principal, path, { cells: [newCell("code")], metadata: {} });
}

/** @param {{title: string, text?: string, value: string}} question */
async function asked({ title, text, value }) {
  const answer = await ask({ title, text, action: "Make", fields: [{ name: "path", label: "Name", value, required: true }] });
  const path = answer?.path.trim();
  return path && (path.endsWith(".ipynb") ? path : `${path}.ipynb`);
}

/**
 * @param {SessionLog} log @param {string | null} principal @param {string} path
 * @param {import("./notebook_file.js").NotebookFile} notebook
 */
async function make(log, principal, path, notebook) {
  const replaces = await isThere(log, path);
  if (replaces) {
    const text = "The workspace has a file of this name.";
    if ((await ask({ title: `Replace ${path}?`, text, action: "Replace", danger: true })) === null) return;
  }
  const file = new Blob([written(notebook, kernelOf(log))]);
  await api.write(fileOf(log, path), file, replaces ? {} : { over: null });
  documents.get(log)?.delete(path);
  log.filesChanged.value += 1;
  go(sessionHref(log.key, { principal, file: path }));
}
