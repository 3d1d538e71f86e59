/**
 * A notebook file as the page edits it: its cells, read from `.ipynb`, `.py` or `.md`, and written as `.ipynb`. Pure.
 *
 * `notebook_view.js` shows it. What the page does not know, such as metadata of other programs, stays as it was.
 *
 * @typedef {"code" | "markdown" | "raw"} Kind
 * @typedef {{id: string, kind: Kind, source: string, metadata: Record<string, any>, outputs: any[], count: number | null,
 *   attachments?: any}} NotebookCell  `outputs` and `count` as nbformat has them; `metadata.cellgate` names the execution
 *   that they are of
 * @typedef {{cells: readonly NotebookCell[], metadata: Record<string, any>}} NotebookFile
 */

/** Bytes of a file that is opened here. */
export const MOST_BYTES = 32 * 1024 * 1024;
/** Cells of a notebook that is opened here: all of them are in the document. */
export const MOST_CELLS = 2000;
const KINDS = new Set(["code", "markdown", "raw"]);
/** Ids that nbformat 4.5 allows. */
const ID = /^[a-zA-Z0-9_-]{1,64}$/;
const OPENS = /\.(?:ipynb|py|md)$/i;

/** Whether a file has cells to show. @param {string} path */
export const opens = (path) => OPENS.test(path);

/** Where a file is saved: only notebooks keep outputs. @param {string} path */
export const savedAs = (path) => path.replace(OPENS, ".ipynb");

/** A new id of a cell. */
export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/**
 * A new cell.
 * @param {Kind} kind
 * @param {string} [source]
 * @returns {NotebookCell}
 */
export const newCell = (kind, source = "") => ({ id: newId(), kind, source, metadata: {}, outputs: [], count: null });

/**
 * The cells of a file. Throws an Error that says why there are none.
 * @param {string} path  Its ending tells what it is.
 * @param {string} text
 * @returns {NotebookFile}
 */
export function read(path, text) {
  const plain = text.replace(/^\uFEFF/, "").replace(/\r\n?/g, "\n");
  const found = /\.ipynb$/i.test(path)
    ? readNotebook(plain)
    : { cells: /\.md$/i.test(path) ? readMarkdown(plain) : readScript(plain), metadata: {} };
  if (found.cells.length > MOST_CELLS)
    throw new Error(`The notebook has ${found.cells.length} cells; ${MOST_CELLS} can be opened here.`);
  return found.cells.length ? found : { ...found, cells: [newCell("code")] };
}

/** @param {string} text @returns {NotebookFile} */
function readNotebook(text) {
  if (!text.trim()) return { cells: [], metadata: {} };
  let given;
  try {
    given = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is no notebook: ${error.message}`);
  }
  if (given?.nbformat < 4) throw new Error("The notebook is of an older format than 4. `cellgate run` converts such files.");
  if (given?.nbformat !== 4 || !Array.isArray(given.cells)) throw new Error("This is no notebook: it has no cells of nbformat 4.");
  const ids = new Set();
  const cells = given.cells.map((/** @type {any} */ each) => {
    const known = typeof each?.id === "string" && ID.test(each.id) && !ids.has(each.id);
    const id = known ? each.id : newId();
    ids.add(id);
    return {
      id,
      kind: KINDS.has(each?.cell_type) ? each.cell_type : "raw",
      source: joined(each?.source),
      metadata: object(each?.metadata),
      outputs: Array.isArray(each?.outputs) ? each.outputs.filter((/** @type {any} */ one) => one && typeof one === "object") : [],
      count: Number.isInteger(each?.execution_count) ? each.execution_count : null,
      ...(each?.attachments ? { attachments: each.attachments } : {}),
    };
  });
  return { cells, metadata: object(given.metadata) };
}

/** @param {unknown} value @returns {Record<string, any>} */
const object = (value) => (value && typeof value === "object" && !Array.isArray(value) ? value : {});

/** nbformat's multi-line strings. @param {unknown} source */
const joined = (source) => (Array.isArray(source) ? source.join("") : typeof source === "string" ? source : "");

const MARK = /^# ?%%(.*)$/;
const OF_TEXT = /\[(?:markdown|md)\]/i;

/**
 * A script's cells, which begin with `# %%` lines as in VS Code, Spyder and Jupytext; without such lines, one cell.
 * @param {string} text
 */
function readScript(text) {
  // Jupytext's header is about its own files.
  const body = text.replace(/^# ---\n(?:#.*\n)*?# ---\n/, "");
  const parts = [{ text: false, lines: /** @type {string[]} */ ([]) }];
  for (const line of body.split("\n")) {
    const mark = MARK.exec(line);
    if (mark) parts.push({ text: OF_TEXT.test(mark[1]), lines: [] });
    else parts[parts.length - 1].lines.push(line);
  }
  return parts.flatMap((part) => {
    const lines = part.text ? part.lines.map((line) => line.replace(/^# ?/, "")) : part.lines;
    const source = trimmed(lines.join("\n"));
    return source ? [newCell(part.text ? "markdown" : "code", source)] : [];
  });
}

const FENCE = /^(`{3,}|~{3,})\s*\{?(?:python|python3|py|ipython|ipython3|code-cell)\b[^`]*$/i;
const ANY_FENCE = /^(`{3,}|~{3,})/;

/**
 * A Markdown file's cells: fenced blocks of Python are code, all between them is text.
 * @param {string} text
 */
function readMarkdown(text) {
  const cells = /** @type {NotebookCell[]} */ ([]);
  let lines = /** @type {string[]} */ ([]);
  /** The fence that is open, and whether its lines are code. */
  let fence = "";
  let code = false;
  const close = (/** @type {Kind} */ kind) => {
    const source = trimmed(lines.join("\n"));
    if (source) cells.push(newCell(kind, source));
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (fence) {
      const ends = line.startsWith(fence) && line.replace(/[`~\s]/g, "") === "";
      if (ends && code) close("code");
      else lines.push(line);
      if (ends) fence = "";
      continue;
    }
    const opened = ANY_FENCE.exec(line);
    code = opened !== null && FENCE.test(line);
    fence = opened?.[1] ?? "";
    if (code) close("markdown");
    else lines.push(line);
  }
  close(fence && code ? "code" : "markdown");
  return cells;
}

/** @param {string} text */
const trimmed = (text) => text.replace(/^(?:[ \t]*\n)+/, "").trimEnd();

/**
 * The notebook as a file of nbformat 4.5, with a line for each line of source as Jupyter writes it.
 * @param {NotebookFile} notebook
 * @param {{name: string, display_name: string, language: string}} kernel  For notebooks that name none.
 */
export function written(notebook, kernel) {
  const cells = notebook.cells.map((cell) => ({
    cell_type: cell.kind,
    id: cell.id,
    metadata: cell.metadata,
    source: cell.source.match(/[^\n]*\n|[^\n]+$/g) ?? [],
    ...(cell.kind === "code" ? { execution_count: cell.count, outputs: cell.outputs } : {}),
    ...(cell.kind !== "code" && cell.attachments ? { attachments: cell.attachments } : {}),
  }));
  const kernelspec = { display_name: kernel.display_name, language: kernel.language, name: kernel.name };
  const metadata = { kernelspec, language_info: { name: kernel.language }, ...notebook.metadata };
  return `${JSON.stringify({ cells, metadata, nbformat: 4, nbformat_minor: 5 }, null, 1)}\n`;
}

// ---- changes ------------------------------------------------------------------------------------------------

/**
 * @param {readonly NotebookCell[]} cells
 * @param {string} id
 * @param {Partial<NotebookCell>} part
 */
export const changed = (cells, id, part) => cells.map((cell) => (cell.id === id ? { ...cell, ...part } : cell));

/** A cell as another kind. Outputs are of code. @param {NotebookCell} cell @param {Kind} kind */
export const asKind = (cell, kind) => ({ kind, ...(kind === "code" ? {} : { outputs: [], count: null, metadata: without(cell.metadata, "cellgate") }) });

/** @param {Record<string, any>} from @param {string} name */
function without(from, name) {
  const { [name]: _, ...others } = from;
  return others;
}

/**
 * @param {readonly NotebookCell[]} cells
 * @param {number} place
 * @param {NotebookCell} cell
 */
export const inserted = (cells, place, cell) => [...cells.slice(0, place), cell, ...cells.slice(place)];

/** The cells with one moved by a step; the same list if it is at the end. @param {readonly NotebookCell[]} cells @param {number} place @param {number} step */
export function moved(cells, place, step) {
  const to = place + step;
  if (to < 0 || to >= cells.length) return cells;
  const others = cells.filter((_, index) => index !== place);
  return inserted(others, to, cells[place]);
}

/**
 * The notebook that a session's record is, as a file of one's own: the record's seal is of what it has, in its order.
 * @param {any} exported
 */
export function ofRecord(exported) {
  const { cells, metadata } = readNotebook(JSON.stringify(exported));
  return { cells, metadata: without(metadata, "cellgate") };
}
