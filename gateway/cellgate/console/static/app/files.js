/**
 * The files of a session's workspace: folders, uploads by drag and drop, downloads, renames, removals.
 */

import { api } from "./api.js";
import { may } from "./me.js";
import { sessionHref } from "./router.js";
import { saved } from "./session_actions.js";
import { Ago, ask, attempt, copy, Failed, Icon, IconButton, Menu, say, Spinner, useLoaded, useModule } from "./ui.js";
import { bytes, counted, seen } from "./words.js";
import { html, signal, useRef, useState } from "../vendor/preact.js";

/** Files whose first rows are shown. */
const HAS_ROWS = /\.(?:csv|tsv|parquet)$/i;

/** Entries of one listing; a workspace may have more, which the list says. */
const MOST = 10_000;
/** Files that are uploaded at once. */
const MOST_DROPPED = 1000;
const tooMany = () =>
  new Error(`More than ${counted(MOST_DROPPED, "file")} at once: put them into an archive, and that here.`);
/** Entries of one folder that are in the document. */
const SHOWN = 300;

/** Files that open as notebooks. */
const OPENS = /\.(?:ipynb|py|md)$/i;

/** @param {string} path */
export const encoded = (path) => path.split("/").map(encodeURIComponent).join("/");

/**
 * What is in one folder, folders first. Pure.
 * @param {any[]} files
 * @param {string} folder The folder's path with a slash at its end; "" for the workspace.
 */
export function within(files, folder) {
  const found = new Map();
  for (const file of files) {
    if (!file.path.startsWith(folder) || file.path === folder) continue;
    const rest = file.path.slice(folder.length);
    const slash = rest.indexOf("/");
    const name = slash === -1 ? rest : rest.slice(0, slash);
    if (slash === -1) found.set(name, { ...file, name, folder: false });
    else if (!found.has(name)) found.set(name, { path: `${folder}${name}/`, name, folder: true });
  }
  return [...found.values()].sort(
    (one, other) => Number(other.folder) - Number(one.folder) || one.name.localeCompare(other.name, "en", { numeric: true }),
  );
}

// ---- uploads ------------------------------------------------------------------------------------------------

/**
 * @typedef {{id: number, name: string, size: number, sent: number, problem: string | null, stop: () => void}} Upload
 * @type {WeakMap<object, import("../vendor/preact.js").Signal<Upload[]>>}
 */
const running = new WeakMap();
let numbers = 0;

/** The uploads to a session; they go on when the panel is closed. @param {object} log */
function uploadsOf(log) {
  let found = running.get(log);
  if (!found) running.set(log, (found = signal([])));
  return found;
}

/**
 * Return what makes addresses of paths. They name the owner of what is shown now: the reader may go elsewhere meanwhile.
 * @param {import("./session_log.js").SessionLog} log
 */
function addressesIn(log) {
  const workspace = saved(`${log.path}/files/`);
  return (/** @type {string} */ path) => {
    const address = new URL(workspace);
    address.pathname += encoded(path);
    return address.href;
  };
}

/**
 * @param {import("./session_log.js").SessionLog} log
 * @param {{path: string, file: File}[]} files
 * @param {Set<string>} known Paths that are taken.
 * @param {(path: string) => string} [addressOf] Made when they were chosen, if that was before.
 */
export async function upload(log, files, known, addressOf = addressesIn(log)) {
  if (files.length > MOST_DROPPED) throw tooMany();
  const taken = files.filter(({ path }) => known.has(path)).map(({ path }) => path);
  if (taken.length) {
    const title = taken.length === 1 ? `Replace ${seen(taken[0])}?` : `Replace ${taken.length} files?`;
    const text = `${taken.slice(0, 5).map((path) => seen(path)).join(", ")}${taken.length > 5 ? ", …" : ""}: the session has ${taken.length === 1 ? "it" : "them"} already.`;
    if ((await ask({ title, text, action: "Replace", danger: true })) === null) return;
  }
  const list = uploadsOf(log);
  for (const { path, file } of files) {
    const stop = new AbortController();
    const id = (numbers += 1);
    const change = (/** @type {Partial<Upload>} */ part) =>
      (list.value = list.value.map((each) => (each.id === id ? { ...each, ...part } : each)));
    const gone = () => (list.value = list.value.filter((each) => each.id !== id));
    const leave = () => {
      stop.abort();
      gone();
    };
    list.value = [...list.value, { id, name: path, size: file.size, sent: 0, problem: null, stop: leave }];
    try {
      await api.upload(addressOf(path), file, { onProgress: (sent) => change({ sent }), signal: stop.signal });
      gone();
      log.filesChanged.value += 1;
    } catch (error) {
      if (error?.name !== "AbortError") change({ problem: String(error?.message || error) });
    }
  }
}

/**
 * What was dropped, with the contents of folders.
 * @param {DataTransfer} dropped
 * @returns {Promise<{path: string, file: File}[]>}
 */
export async function contentsOf(dropped) {
  const entries = [...dropped.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.some((entry) => entry?.isDirectory))
    return [...dropped.files].map((file) => ({ path: file.name, file }));
  const found = /** @type {{path: string, file: File}[]} */ ([]);
  /** @param {any} entry @param {string} folder */
  const walk = async (entry, folder) => {
    const path = folder + entry.name;
    if (entry.isFile) {
      // Whoever drops a folder of very many need not wait until all are found.
      if (found.length >= MOST_DROPPED) throw tooMany();
      found.push({ path, file: await new Promise((resolve, reject) => entry.file(resolve, reject)) });
      return;
    }
    const reader = entry.createReader();
    for (;;) {
      const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
      if (some.length === 0) return;
      for (const each of some) await walk(each, `${path}/`);
    }
  };
  for (const entry of entries) await walk(entry, "");
  return found;
}

/** @param {{log: import("./session_log.js").SessionLog}} props */
function Uploads({ log }) {
  const list = uploadsOf(log).value;
  if (list.length === 0) return null;
  return html`
    <ul class="uploads" aria-label="Uploads">
      ${list.map(
        (each) => html`
          <li key=${each.id}>
            <span class="name">${seen(each.name)}</span>
            ${
              each.problem
                ? html`<span class="bad" role="alert">${each.problem}</span>`
                : html`<progress max=${each.size || 1} value=${each.sent} aria-label="Upload of ${each.name}"></progress>`
            }
            <${IconButton} icon="close" label=${each.problem ? "Dismiss" : `Stop the upload of ${each.name}`} onClick=${each.stop} />
          </li>
        `,
      )}
    </ul>
  `;
}

/** The first rows of a file. @param {any} props */
function RowsOf(props) {
  const module = useModule(() => import("./file_rows.js"));
  return module ? html`<${module.FileRows} ...${props} />` : null;
}

// ---- the panel ----------------------------------------------------------------------------------------------

/** @param {{log: import("./session_log.js").SessionLog, principal: string | null}} props */
export function Files({ log, principal }) {
  const [folder, setFolder] = useState("");
  const [over, setOver] = useState(false);
  const [rowsOf, showRows] = useState(/** @type {any} */ (null));
  const chooser = useRef(/** @type {HTMLInputElement | null} */ (null));
  const changed = log.filesChanged.value;
  const [listing, problem, again] = useLoaded(
    (given) => api.get(`${log.path}/files?folders=true&limit=${MOST}`, { signal: given }),
    [log, changed],
  );
  const files = listing?.files ?? [];
  const writes = may("files");
  const known = new Set(files.map((/** @type {any} */ each) => each.path));
  const entries = within(files, folder);

  /** @param {() => Promise<{path: string, file: File}[]> | {path: string, file: File}[]} find */
  const send = (find) =>
    attempt(async () => {
      const addressOf = addressesIn(log);
      const found = await find();
      await upload(log, found.map(({ path, file }) => ({ path: folder + path, file })), known, addressOf);
    });
  /** @param {DragEvent} event */
  const drop = async (event) => {
    event.preventDefault();
    setOver(false);
    const { dataTransfer } = event;
    if (dataTransfer) await send(() => contentsOf(dataTransfer));
  };
  /** @param {DragEvent} event */
  const drag = (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
    setOver(true);
  };
  /** @param {DragEvent} event */
  const leave = (event) => {
    if (!(/** @type {HTMLElement} */ (event.currentTarget).contains(/** @type {Node} */ (event.relatedTarget)))) setOver(false);
  };
  const chosen = () => {
    const field = /** @type {HTMLInputElement} */ (chooser.current);
    const files = [...(field.files ?? [])].map((file) => ({ path: file.name, file }));
    send(() => files);
    field.value = "";
  };
  const pathOf = (/** @type {string} */ path) => `${log.path}/files/${encoded(path)}`;
  const makeFolder = async () => {
    const answer = await ask({ title: "New folder", action: "Make", fields: [{ name: "name", label: "Name", required: true }] });
    if (!answer?.name) return;
    if (await attempt(() => api.post(`${pathOf(folder + answer.name)}?mkdir=true`))) again();
  };
  const rename = async (/** @type {any} */ entry) => {
    const path = entry.path.replace(/\/$/, "");
    const answer = await ask({ title: `Rename ${seen(entry.name)}`, action: "Rename", fields: [{ name: "path", label: "New path", value: path, required: true }] });
    if (!answer?.path || answer.path === path) return;
    if (await attempt(() => api.post(`${pathOf(path)}?move_to=${encodeURIComponent(answer.path)}`))) again();
  };
  const remove = async (/** @type {any} */ entry) => {
    const text = entry.folder ? "A folder can be deleted when it is empty." : "The file is gone then; the record keeps only its hash.";
    if ((await ask({ title: `Delete ${seen(entry.name)}?`, text, action: "Delete", danger: true })) === null) return;
    await attempt(async () => {
      await api.delete(pathOf(entry.path.replace(/\/$/, "")));
      say(`${seen(entry.name)} was deleted`);
    });
    again();
  };
  const steps = folder.split("/").filter(Boolean);
  return html`
    <div class="files ${over ? "dropping" : ""}" onDragEnter=${drag} onDragOver=${drag} onDragLeave=${leave} onDrop=${drop}>
      <div class="panel-tools">
        <nav class="crumbs" aria-label="Folder">
          <button type="button" class="crumb" onClick=${() => setFolder("")} aria-current=${steps.length ? undefined : "true"}>workspace</button>
          ${steps.map((name, place) => html`<span aria-hidden="true">/</span><button type="button" class="crumb" onClick=${() => setFolder(`${steps.slice(0, place + 1).join("/")}/`)} aria-current=${place === steps.length - 1 ? "true" : undefined}>${name}</button>`)}
        </nav>
        <div class="spring"></div>
        ${writes && html`
          <${IconButton} icon="upload" label="Upload files" onClick=${() => chooser.current?.click()} />
          <${IconButton} icon="add" label="New notebook" onClick=${() => attempt(async () => (await import("./notebook_document.js")).begin(log, principal, folder))} />
          <${IconButton} icon="folder" label="New folder" onClick=${makeFolder} />
          <input ref=${chooser} type="file" multiple hidden aria-hidden="true" tabindex="-1" onChange=${chosen} />
        `}
      </div>
      <${Uploads} log=${log} />
      ${problem && html`<${Failed} problem=${problem} again=${again} />`}
      ${!listing && !problem && html`<${Spinner} />`}
      ${listing && entries.length === 0 && html`<p class="empty">${folder ? "This folder is empty." : "No files yet."} ${writes && "Drop some here, or let a cell write some."}</p>`}
      ${entries.length > 0 && html`
        <ul class="entries" aria-label="Files">
          ${entries.slice(0, SHOWN).map(
            (entry) => html`
              <li key=${entry.path}>
                <${Icon} name=${entry.folder ? "folder" : "file"} />
                ${entry.folder
                  ? html`<button type="button" class="name" onClick=${() => setFolder(entry.path)}>${seen(entry.name)}</button>`
                  : OPENS.test(entry.name)
                    ? html`<a class="name" href=${sessionHref(log.key, { principal, file: entry.path })}>${seen(entry.name)}</a>`
                    : HAS_ROWS.test(entry.name)
                      ? html`<button type="button" class="name" onClick=${() => showRows(entry)}>${seen(entry.name)}</button>`
                      : html`<a class="name" href=${saved(pathOf(entry.path))} download="">${seen(entry.name)}</a>`}
                <span class="faint size">${entry.folder ? "" : bytes(entry.size)}</span>
                <span class="faint time">${entry.modified && html`<${Ago} at=${entry.modified} />`}</span>
                <${Menu} label="Actions for ${seen(entry.name)}" items=${[
                  !entry.folder && { text: "Download", icon: "download", href: saved(pathOf(entry.path)), download: true },
                  { text: "Copy path", icon: "copy", act: () => copy(entry.path) },
                  writes && { text: "Rename…", icon: "edit", act: () => rename(entry) },
                  writes && { text: "Delete…", icon: "trash", danger: true, act: () => remove(entry) },
                ]} />
              </li>
            `,
          )}
        </ul>
      `}
      ${entries.length > SHOWN && html`<p class="note">${counted(entries.length - SHOWN, "more entry", "more entries")} are not shown.</p>`}
      ${listing && (listing.next !== null || !listing.complete) && html`<p class="note">The workspace has more than is listed here.</p>`}
      ${rowsOf && html`<${RowsOf} key=${rowsOf.path} path=${pathOf(rowsOf.path)} name=${rowsOf.name} size=${rowsOf.size} onClose=${() => showRows(null)} />`}
      ${over && html`<div class="drop-hint" aria-hidden="true"><${Icon} name="upload" />Drop to upload${folder ? ` into ${folder}` : ""}</div>`}
    </div>
  `;
}
