/**
 * Which sessions of a list are shown, and in which order. Pure.
 *
 * @typedef {{search: string, state: string, principal: string}} Filter
 * @typedef {{column: string, down: boolean}} Order
 */

/** States of sessions that have not ended. */
export const LIVE = ["starting", "idle", "asleep", "busy", "dead"];

/**
 * @param {any} session
 * @param {Filter} filter
 */
export function fits(session, { search, state, principal }) {
  if (state === "live" ? !LIVE.includes(session.state) : state !== "all" && session.state !== state) return false;
  if (principal && session.principal !== principal) return false;
  const text = [session.session, session.title, session.principal, session.kernel].join(" ").toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** What each column is ordered by. Text is ordered upwards at first, all else downwards: the most first. */
export const COLUMNS = /** @type {Record<string, (session: any) => string | number>} */ ({
  session: (session) => String(session.title || session.session).toLowerCase(),
  state: (session) => ["busy", "starting", "idle", "asleep", "dead", "ended", "purging"].indexOf(session.state),
  principal: (session) => session.principal.toLowerCase(),
  kernel: (session) => session.kernel.toLowerCase(),
  isolation: (session) => session.isolation || "",
  memory: (session) => memoryOf(session) ?? -1,
  cpu: (session) => cpuOf(session) ?? -1,
  used: (session) => Date.parse(session.last_activity) || 0,
  cells: (session) => cellsOf(session),
  queue: (session) => session.queue_length,
});

/** Columns that begin with the smallest. */
export const UPWARDS = new Set(["session", "state", "principal", "kernel", "isolation"]);

/**
 * @param {any[]} sessions
 * @param {Order} order
 */
export function sorted(sessions, { column, down }) {
  const value = COLUMNS[column] ?? COLUMNS.used;
  const sign = down ? -1 : 1;
  return sessions.toSorted((one, other) => {
    const [left, right] = [value(one), value(other)];
    if (left !== right) return left < right ? -sign : sign;
    return one.session < other.session ? -1 : 1;
  });
}

/** Bytes of memory that a session's kernel uses, if known. @param {any} session @returns {number | null} */
export const memoryOf = (session) => session?.memory ?? null;

/** How many processors a session's kernel used lately, if known. @param {any} session @returns {number | null} */
export const cpuOf = (session) => session?.processors ?? null;

/** How many cells a session's record has. @param {any} session @returns {number} */
export const cellsOf = (session) => session?.executions ?? 0;

/** The gateway measures less often where that is dear to it: what it tells may be this old, in milliseconds. */
const MEASURED_WITHIN = 10_000;

/**
 * A model with `processors`, how many of them its kernel used since the model before. A kernel's processor time
 * begins anew with each kernel; of a time too short to tell, what was known stays. The same time twice may be the
 * same measurement: of a session that works on a cell, what was known stays then, too, though not for long.
 * @param {any} model
 * @param {any} before
 * @param {number} at When the model was told, in milliseconds.
 */
export function withProcessors(model, before, at) {
  if (typeof model.cpu !== "number") return { ...model, told_at: at };
  const comparable = before && before.kernel_id === model.kernel_id && typeof before.cpu === "number";
  if (!comparable) return { ...model, told_at: at };
  const passed = at - before.told_at;
  const known = { ...model, cpu: before.cpu, processors: before.processors, told_at: before.told_at };
  if (passed < 1000) return known;
  if (model.cpu === before.cpu && passed < MEASURED_WITHIN)
    return { ...known, processors: model.state === "busy" ? before.processors : 0 };
  return { ...model, processors: Math.max(0, (1000 * (model.cpu - before.cpu)) / passed), told_at: at };
}

/** One session among those of several owners. @param {any} session */
export const identity = (session) => `${session.principal}/${session.session}`;
