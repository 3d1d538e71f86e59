/**
 * The first rows of a CSV or Parquet file of the workspace, read by the page: no kernel is asked, so that it may work on
 * something else, or have ended. `files.js` opens it. Of a large file only what these rows need is read.
 */

import { address } from "./api.js";
import { Table } from "./rows.js";
import { Dialog, Failed, IconButton, Spinner, useLoaded } from "./ui.js";
import { counted, seen } from "./words.js";
import { useSheet } from "../outputs/sheet.js";
import { html } from "../vendor/preact.js";

const ROWS = 200;
const COLUMNS = 100;
/** Characters of a value. */
const MOST_TEXT = 200;
/** Bytes of a CSV file that are read for its first rows. */
const OF_TEXT = 512 * 1024;
/** Bytes of a Parquet file's columns that are read for them: of all, if they have no more, and of the beginning of each. */
const OF_COLUMNS = 64 * 1024 * 1024;
const OF_BEGINNINGS = 32 * 1024 * 1024;
/** Bytes of a column's beginning: its dictionary and its first page, which libraries make of a MiB each. */
const OF_COLUMN = 1.25 * 1024 * 1024;
/** Bytes of a page when it is unpacked. */
const OF_PAGE = 64 * 1024 * 1024;

/**
 * @typedef {import("./rows.js").Column} Column
 * @typedef {import("./rows.js").Cell} Cell
 * @typedef {{columns: Column[], rows: Cell[][], all_rows: number | null, all_columns: number}} Head
 *   `all_rows`: null where the file does not say
 */

/** @param {unknown} value */
const isMissing = (value) => value === null || value === undefined;

/** @param {string} text @returns {Cell} */
const cut = (text) => (text.length > MOST_TEXT ? { text: text.slice(0, MOST_TEXT), length: text.length } : text);

/** A value of a Parquet file as it is shown. @param {unknown} value @returns {Cell} */
function shown(value) {
  if (isMissing(value)) return null;
  if (typeof value === "boolean" || typeof value === "number") return value;
  if (typeof value === "bigint") return String(value);
  if (value instanceof Date) {
    if (Number.isNaN(value.getTime())) return null;
    return value.toISOString().replace("T", " ").replace(/(?:\.000)?Z$/, "").replace(/ 00:00:00$/, "");
  }
  if (typeof value === "string") return cut(value);
  if (value instanceof Uint8Array) return `${counted(value.length, "byte")}`;
  return cut(JSON.stringify(value, (_, each) => (typeof each === "bigint" ? String(each) : each)));
}

/** How text in one column is shown: numbers stand at the right. @param {string[]} values */
const kindOf = (values) =>
  values.some((value) => value !== "") && values.every((value) => value === "" || /^\s*[-+]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\s*$/.test(value))
    ? "number"
    : "text";

/**
 * The first rows of a CSV file. Pure.
 * @param {string} text  The file's beginning.
 * @param {boolean} whole  Whether that is all of it.
 * @param {typeof import("../vendor/tables.js")} library
 * @returns {Head}
 */
export function rowsOfText(text, whole, { parse }) {
  const plain = text.replace(/^\uFEFF/, "");
  const { data } = parse(plain, { preview: ROWS + 2, skipEmptyLines: true, delimitersToGuess: [",", ";", "\t", "|"] });
  // The last line may have been cut.
  const lines = whole || data.length > ROWS + 1 ? data : data.slice(0, -1);
  const [head = [], ...rest] = lines;
  const all = Math.max(head.length, ...rest.slice(0, ROWS).map((row) => row.length));
  const width = Math.min(all, COLUMNS);
  const rows = rest.slice(0, ROWS).map((row) => Array.from({ length: width }, (_, at) => row[at] ?? ""));
  const columns = Array.from({ length: width }, (_, at) => {
    const kind = kindOf(rows.map((row) => row[at]));
    return { name: head[at] ?? "", type: kind, kind, index: false };
  });
  const all_rows = whole && rest.length <= ROWS ? rest.length : null;
  return { columns, rows: rows.map((row) => row.map((value) => (value === "" ? null : cut(value)))), all_rows, all_columns: all };
}

/**
 * The first rows of a Parquet file. Raises Error for one that is none, or of which too much would have to be read.
 * @param {{byteLength: number, slice: (start: number, end?: number) => Promise<ArrayBuffer>}} file
 * @param {typeof import("../vendor/tables.js")} library
 * @returns {Promise<Head>}
 */
export async function rowsOfParquet(file, library) {
  const metadata = await library.parquetMetadataAsync(file);
  const fields = library.parquetSchema(metadata).children;
  const read = fields.slice(0, COLUMNS).map(({ element }) => element.name);
  const named = new Set(read);
  const [part] = metadata.row_groups;
  const rowEnd = Math.min(ROWS, Number(metadata.num_rows), Number(part?.num_rows ?? 0));
  const options = { file, columns: read, rowStart: 0, rowEnd, compressors: decompressors(library) };
  let found = /** @type {Record<string, unknown>[]} */ ([]);
  if (rowEnd > 0) {
    const columns = part.columns.filter(({ meta_data: told }) => told && named.has(told.path_in_schema[0]));
    if (bytesOfColumns(columns.filter(({ meta_data: told }) => told && told.path_in_schema.length > 1)) > OF_COLUMNS) throw tooLarge();
    const most = BigInt(Math.round(Math.max(OF_COLUMN, OF_BEGINNINGS / columns.length)));
    const begun = part.columns.map((column) => {
      const told = column.meta_data;
      // What is nested is read to its end.
      if (!told || told.path_in_schema.length > 1 || told.total_compressed_size <= most) return column;
      return { ...column, meta_data: { ...told, total_compressed_size: most } };
    });
    try {
      found = await library.parquetReadObjects({ ...options, metadata: { ...metadata, row_groups: [{ ...part, columns: begun }] } });
    } catch (error) {
      // A page ends behind what was read of its column.
      if (!(error instanceof RangeError)) throw error;
      if (bytesOfColumns(columns) > OF_COLUMNS) throw tooLarge();
      found = await library.parquetReadObjects({ ...options, metadata: { ...metadata, row_groups: [part] } });
    }
  }
  const columns = fields.slice(0, COLUMNS).map(({ element, children }) => {
    const type = children.length ? "nested" : (element.logical_type?.type ?? element.converted_type ?? element.type ?? "").toLowerCase();
    const kind = /int|float|double|decimal/.test(type) ? "number" : "text";
    return { name: element.name, type: TYPES.get(type) ?? type, kind, index: false };
  });
  return { columns, rows: found.map((row) => read.map((name) => shown(row[name]))), all_rows: Number(metadata.num_rows), all_columns: fields.length };
}

const tooLarge = () =>
  new Error("The first part of this file is too large for the page. A cell reads it, for example with pandas.read_parquet.");

/** @param {{meta_data?: {total_compressed_size: bigint}}[]} columns */
const bytesOfColumns = (columns) => columns.reduce((sum, { meta_data: told }) => sum + Number(told?.total_compressed_size ?? 0), 0);

/** What Parquet calls otherwise. */
const TYPES = new Map([["utf8", "string"], ["byte_array", "bytes"], ["integer", "int"]]);

/** A page that says it unpacks to more than `OF_PAGE` is not unpacked. @param {typeof import("../vendor/tables.js")} library */
function decompressors(library) {
  const known = {
    SNAPPY: (/** @type {Uint8Array} */ input, /** @type {number} */ size) => {
      const page = new Uint8Array(size);
      library.snappyUncompress(input, page);
      return page;
    },
    GZIP: library.decompressGzip,
    ZSTD: (/** @type {Uint8Array} */ input, /** @type {number} */ size) => library.decompressZstd(input, new Uint8Array(size)),
    LZ4: library.decompressLz4,
    LZ4_RAW: library.decompressLz4Raw,
  };
  return Object.fromEntries(
    Object.entries(known).map(([name, unpack]) => [
      name,
      (/** @type {Uint8Array} */ input, /** @type {number} */ size) => {
        if (!(size >= 0 && size <= OF_PAGE)) throw new Error("A page of this file is too large to be unpacked here.");
        return unpack(input, size);
      },
    ]),
  );
}

/**
 * A part of a file of the workspace.
 * @param {string} path  Below the gateway's URL.
 * @param {number} start @param {number} end  Behind the last byte.
 * @param {AbortSignal} [given]
 */
async function bytesOf(path, start, end, given) {
  if (end <= start) return new ArrayBuffer(0);
  // How long its parts are, the file itself says.
  if (end - start > OF_COLUMNS) throw tooLarge();
  const headers = { Range: `bytes=${start}-${end - 1}` };
  const answer = await fetch(address(path), { credentials: "same-origin", cache: "no-store", headers, signal: given });
  if (!answer.ok) {
    const told = await answer.json().catch(() => ({}));
    throw new Error(told.detail || "The file could not be read.");
  }
  return answer.arrayBuffer();
}

/** @param {ArrayBuffer} buffer */
function decoded(buffer) {
  try {
    // A letter that was cut at the end is no fault.
    return new TextDecoder("utf-8", { fatal: true }).decode(buffer, { stream: true });
  } catch {
    return new TextDecoder("windows-1252").decode(buffer);
  }
}

/** @param {{path: string, name: string, size: number, onClose: () => void}} props  `path`: below the gateway's URL */
export function FileRows({ path, name, size, onClose }) {
  useSheet("../app/rows.css");
  const [head, problem, again] = useLoaded(async (given) => {
    const library = await import("../vendor/tables.js");
    if (/\.parquet$/i.test(name))
      return rowsOfParquet({ byteLength: size, slice: (start, end = size) => bytesOf(path, start, Math.min(end, size), given) }, library);
    const end = Math.min(size, OF_TEXT);
    return rowsOfText(decoded(await bytesOf(path, 0, end, given)), end === size, library);
  }, [path, size]);
  return html`
    <${Dialog} label="Rows of ${name}" class="broad rows-dialog" onClose=${onClose}>
      <div class="dialog-head">
        <h2>${seen(name)}</h2>
        <span class="faint">${head && `${head.all_rows === null ? "" : `${counted(head.all_rows, "row")}, `}${counted(head.all_columns, "column")}`}</span>
        <div class="spring"></div>
        <${IconButton} icon="restart" label="Read again" onClick=${again} />
        <${IconButton} icon="close" label="Close" onClick=${onClose} />
      </div>
      ${problem && html`<${Failed} problem=${problem} again=${again} />`}
      ${!head && !problem && html`<${Spinner} />`}
      ${head && html`
        <${Table} page=${{ ...head, name, offset: 0, total: head.all_rows ?? head.rows.length, first_column: 0 }} wanted=${null} busy=${false} />
        <p class="note">${told(head)}</p>
      `}
    <//>
  `;
}

/** What is shown of the file, in words. @param {Head} head */
function told({ rows, all_rows, columns, all_columns }) {
  if (rows.length === all_rows && columns.length === all_columns) return "All of the file, as it is there.";
  const part = rows.length === all_rows ? counted(rows.length, "row") : `The first ${counted(rows.length, "row")}`;
  return `${part}${columns.length < all_columns ? ` and ${columns.length} columns` : ""}, as the file has them. A cell reads all of it.`;
}
