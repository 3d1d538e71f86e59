/**
 * Numbers, times and the gateway's stable words, as people read them. Pure.
 */

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** @param {number | null | undefined} count */
export function bytes(count) {
  if (count == null || !Number.isFinite(count)) return "";
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 10 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

/** How long something took or will take, from milliseconds. @param {number | null | undefined} ms */
export function duration(ms) {
  if (ms == null || !Number.isFinite(ms)) return "";
  if (ms < 1) return "< 1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  return clock(Math.round(seconds));
}

/** Whole seconds as "42 s", "3 min 20 s", "2 h 5 min", "3 d 4 h". @param {number} seconds */
export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  const pairs = /** @type {const} */ ([
    [86_400, "d", 3600, "h"],
    [3600, "h", 60, "min"],
    [60, "min", 1, "s"],
  ]);
  for (const [large, name, small, below] of pairs) {
    if (whole < large) continue;
    const rest = Math.floor((whole % large) / small);
    return `${Math.floor(whole / large)} ${name}${rest ? ` ${rest} ${below}` : ""}`;
  }
  return `${whole} s`;
}

/** How long ago a moment is, in one unit. @param {string | null | undefined} moment @param {number} now */
export function ago(moment, now) {
  const then = Date.parse(moment || "");
  if (Number.isNaN(then)) return "";
  const seconds = Math.max(0, (now - then) / 1000);
  if (seconds < 5) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}

/** A moment in the reader's time zone. @param {string | null | undefined} moment */
export function moment(moment) {
  const then = new Date(moment || "");
  return Number.isNaN(then.getTime()) ? "" : then.toLocaleString();
}

/** @param {number} count @param {string} one @param {string} [many] */
export function counted(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

// Such characters change the order of what is around them, or are not seen at all.
const UNSEEN =
  /[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\u3164\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

/**
 * A name that user code or others chose, as it can be shown in a line: what could make it look like another is marked.
 * @param {unknown} name
 * @param {number} [most] characters
 */
export function seen(name, most = 300) {
  const text = String(name);
  return `${text.slice(0, most).replace(UNSEEN, "\ufffd")}${text.length > most ? "…" : ""}`;
}

/** Causes of ends, deaths and refusals, as the half of a sentence that follows a dash. */
const CAUSES = new Map(
  Object.entries({
    cancelled: "taken out of the queue",
    cell_timeout: "its deadline passed",
    chosen: "the session went on as it did",
    client_disconnected: "its client left",
    deleted: "its session was ended",
    disk_full: "its disk was full",
    engine_lost: "the container engine was lost",
    explored: "the exploration was over",
    gateway_restart: "the gateway was restarted",
    gateway_shutdown: "the gateway stopped",
    idle_timeout: "its session was not used",
    internal_error: "the gateway failed",
    interrupt_requested: "somebody interrupted it",
    kernel_died: "the kernel died before it",
    kernel_exit: "the kernel exited",
    kernel_replaced: "the kernel was replaced",
    kernel_restarted: "the kernel was restarted",
    kernel_start_failed: "no kernel could be started",
    lifetime: "the session's lifetime was over",
    no_kernel: "no kernel was free in time",
    one_shot: "it was for one cell",
    out_of_memory: "the kernel ran out of memory",
    pids_limit: "it had too many processes",
    pool_exhausted: "no kernel was free",
    rolled_back: "the session went back",
    room_needed: "it slept beyond its idle time, and another session needed its room",
    running_quota: "too many cells of its owner ran",
    storage_full: "the gateway's disk was full",
  }),
);

/**
 * @param {string | null | undefined} cause
 * @param {string | null} [by] Who interrupted it.
 * @param {string} [reader] Who looks.
 */
export const because = (cause, by, reader) =>
  by ? `interrupted by ${by === reader ? "you" : seen(by)}` : cause ? CAUSES.get(cause) || cause.replaceAll("_", " ") : "";
