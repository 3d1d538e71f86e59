/**
 * What can be done to a session from a list and from its own view, each with the question that it needs.
 *
 * Questions name the session. Those whose answer cannot be taken back have its name typed.
 */

import { address, api, Problem } from "./api.js";
import { info, me } from "./me.js";
import { sessionPath } from "./router.js";
import { ask, attempt, say } from "./ui.js";
import { bytes, clock, seen } from "./words.js";

/** A session's path, with its owner if that is not the reader. @param {any} session @param {string} [rest] */
export function pathOf(session, rest = "") {
  const path = `${sessionPath(session.session)}${rest}`;
  if (!session.principal || session.principal === me.value?.principal) return path;
  return `${path}${rest.includes("?") ? "&" : "?"}principal=${encodeURIComponent(session.principal)}`;
}

/** @param {any} session */
export const nameOf = (session) => seen(session.title || session.session);

/** @param {any} session */
export async function interrupt(session) {
  await attempt(() => api.post(pathOf(session, "/interrupt")));
}

/** @param {any} session */
export async function restart(session) {
  const answer = await ask({
    title: `Restart ${session.session}?`,
    text: "It gets a fresh kernel. All variables are lost and queued cells are cancelled; files stay.",
    action: "Restart",
    danger: true,
  });
  if (answer === null) return;
  if (await attempt(() => api.post(pathOf(session, "/restart")))) say(`${session.session} has a fresh kernel`);
}

/** The choice of what follows a session's idle time, where its kernel can sleep. @param {any} session @returns {import("./ui.js").Field} */
const onIdle = ({ limits }) => ({
  name: "on_idle",
  label: "After that",
  value: limits.on_idle,
  options: [
    ["sleep", "It falls asleep: variables stay"],
    ["end", "It ends: variables are lost"],
  ],
  hint: `Asleep, it is woken by its next cell, and sleeps until its lifetime of ${clock(limits.lifetime)} is over or others need its room. Files and record stay in any case.`,
});

/** @param {any} session */
export async function change(session) {
  const sleeps = session.can_sleep === true;
  const times = /** @type {[string, string, string?][]} */ ([
    ["cell_timeout", "Seconds a cell may run"],
    sleeps
      ? ["idle_timeout", "Seconds without use"]
      : ["idle_timeout", "Seconds without use until it ends", "Its variables are lost then; its files and its record stay."],
  ]);
  const answer = await ask({
    title: `Change ${session.session}`,
    action: "Save",
    fields: [
      { name: "title", label: "Title", value: session.title || "", placeholder: session.session },
      ...times.map(([name, label, hint]) => ({ name, label, hint, type: "number", value: String(session.limits[name]) })),
      ...(sleeps ? [onIdle(session)] : []),
    ],
  });
  if (answer === null) return;
  const limits = /** @type {Record<string, number | string>} */ ({});
  for (const [name] of times)
    if (answer[name] && Number(answer[name]) !== session.limits[name]) limits[name] = Number(answer[name]);
  if (sleeps && answer.on_idle !== session.limits.on_idle) limits.on_idle = answer.on_idle;
  if (await attempt(() => api.patch(pathOf(session), { title: answer.title, limits })))
    say(`${session.session} is changed`);
}

/** Whether it was ended. @param {any} session */
export async function end(session) {
  const answer = await ask({
    title: `End ${session.session}?`,
    text: "Its kernel and its files are removed. Its record stays and can be read, exported and replayed.",
    action: "End session",
    danger: true,
  });
  if (answer === null) return false;
  const done = await attempt(async () => {
    await api.delete(pathOf(session));
    return true;
  });
  if (done) say(`${session.session} has ended`);
  return done === true;
}

/** Whether it was purged. @param {any} session */
export async function purge(session) {
  const answer = await ask({
    title: `Purge ${session.session}?`,
    text: "Its kernel, its files and its record are removed for good. Only a tombstone in the audit trail stays.",
    action: "Purge",
    danger: true,
    typed: session.session,
  });
  if (answer === null) return false;
  const done = await attempt(async () => {
    await api.delete(pathOf(session, "?purge=true"));
    return true;
  });
  if (done) say(`${session.session} was purged`);
  return done === true;
}

/**
 * Something that sends cells. One of which nobody knows whether it arrived does not run twice when it is sent again.
 * `cell`: the id of the cell, of a notebook or of the record, whose code it is.
 * @returns {(path: () => string, code: string, cell?: string) => Promise<any>}
 */
export function sender() {
  const unsure = /** @type {Map<string, {path: string, once: string}>} */ (new Map());
  return async (path, code, cell) => {
    const known = `${cell ?? ""} ${code}`;
    const sent = unsure.get(known) ?? { path: path(), once: made() };
    unsure.set(known, sent);
    return attempt(async () => {
      try {
        const done = await api.post(sent.path, { code, wait: false, ...(cell && { cell_id: cell }) }, { once: sent.once });
        unsure.delete(known);
        return done;
      } catch (error) {
        // Only what the gateway itself refused did not arrive for sure. Proxies answer without its reasons.
        if (error instanceof Problem && error.status > 0 && error.reason !== "unknown") unsure.delete(known);
        throw error;
      }
    });
  };
}

/** A word that nobody has used. */
const made = () => [...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(36)).join("-");

const KEY = "[A-Za-z0-9][A-Za-z0-9._~\\-]{0,127}";

/** A key that says the session's title, as far as keys may; undefined if nothing of it may be there. @param {string} title */
function keyOf(title) {
  const said = title.normalize("NFKD").replace(/\p{M}/gu, "").replace(/[^A-Za-z0-9]+/g, "-").replace(/^-+|-+$/g, "");
  return said ? `${said.slice(0, 60).toLowerCase()}-${Math.random().toString(36).slice(2, 6)}` : undefined;
}

/** The model of the session that the reader asked for; null if they would rather not. */
export async function create() {
  const about = info.value ?? {};
  const kernels = Object.entries(about.kernelspecs ?? {}).map(([name, spec]) => [name, spec.display_name || name]);
  const { memory, cell_timeout } = about.limits ?? {};
  const answer = await ask({
    title: "New session",
    action: "Start",
    fields: [
      { name: "title", label: "Title", placeholder: "none", hint: "A name of any letters, for lists and exports" },
      {
        name: "session",
        label: "Key",
        pattern: KEY,
        placeholder: "made of the title if left empty",
        hint: "Its name in addresses: letters, digits and . _ ~ -",
      },
      { name: "kernel", label: "Kernel", value: about.default_kernel, options: /** @type {any} */ (kernels) },
      { name: "memory", label: "Memory", placeholder: bytes(memory) || "default", hint: "Such as 512m or 2g" },
      { name: "cpus", label: "Processors", type: "number", placeholder: "default" },
      {
        name: "cell_timeout",
        label: "Seconds a cell may run",
        type: "number",
        placeholder: cell_timeout ? String(cell_timeout) : "no limit",
      },
      {
        name: "checkpoint",
        label: "Undo",
        value: "none",
        options: [
          ["none", "Off"],
          ["auto", "A checkpoint after each cell"],
        ],
      },
      ...(about.network?.length
        ? [{ name: "network", label: "Network", value: "none", options: [["none", "None"], ["allow", "Allowed hosts"]] }]
        : []),
    ],
  });
  if (answer === null) return null;
  const limits = /** @type {Record<string, string | number>} */ ({});
  if (answer.memory) limits.memory = answer.memory;
  for (const name of ["cpus", "cell_timeout"]) if (answer[name]) limits[name] = Number(answer[name]);
  /** @type {Record<string, unknown>} */
  const body = { kernel: answer.kernel || undefined, checkpoint: answer.checkpoint === "auto" ? "auto" : undefined };
  const title = answer.title.trim();
  body.session = answer.session || keyOf(title);
  if (title) body.metadata = { title };
  if (answer.network === "allow") body.network = "allow";
  if (Object.keys(limits).length) body.limits = limits;
  return (await attempt(() => api.post("v1/sessions", body))) ?? null;
}

/** The address of something to save. @param {string} path */
export const saved = (path) => address(path).href;
