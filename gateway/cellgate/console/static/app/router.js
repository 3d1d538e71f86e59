/**
 * What the page shows, as its fragment says it: `#/`, `#/sessions/KEY`, `#/sessions/KEY/EXECUTION`,
 * `#/gateway`, `#/users`.
 *
 * Behind a session, `?principal=NAME` names its owner, where that is not the reader, and `?file=PATH` a notebook of
 * its workspace that is shown instead of what ran. `?title=TEXT` is for people alone.
 */

import { signal } from "../vendor/preact.js";

/** Letters of a title in an address. */
const MOST_TITLE = 60;

/**
 * @typedef {{view: "sessions" | "session" | "gateway" | "users" | "unknown", session?: string, execution?: string,
 *   principal?: string | null, file?: string | null}} Route
 */

/**
 * @param {string} fragment
 * @returns {Route}
 */
export function parse(fragment) {
  const [path, query = ""] = fragment.replace(/^#/, "").split("?", 2);
  let parts;
  try {
    parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    return { view: "unknown" };
  }
  const [view, session, execution] = parts;
  if (view === undefined) return { view: "sessions" };
  if ((view === "gateway" || view === "users") && parts.length === 1) return { view };
  if (view === "sessions" && parts.length === 1) return { view: "sessions" };
  if (view === "sessions" && parts.length <= 3) {
    const given = new URLSearchParams(query);
    return { view: "session", session, execution, principal: given.get("principal"), file: given.get("file") };
  }
  return { view: "unknown" };
}

/**
 * The fragment of a session, of one of its executions, or of a notebook of its workspace.
 * @param {string} session
 * @param {{execution?: string | null, principal?: string | null, file?: string}} [options]
 */
export function sessionHref(session, { execution, principal, file } = {}) {
  const path = ["#", "sessions", session, ...(execution ? [execution] : [])];
  const named = Object.entries({ principal, file }).filter(([, value]) => value);
  const query = named.map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`).join("&");
  return path.map((part, index) => (index ? encodeURIComponent(part) : part)).join("/") + (query && `?${query}`);
}

/** @param {string} session */
export const sessionPath = (session) => `v1/sessions/${encodeURIComponent(session)}`;

export const route = signal(parse(globalThis.location?.hash ?? ""));
globalThis.addEventListener?.("hashchange", () => (route.value = parse(location.hash)));

/** @param {string} href */
export function go(href) {
  location.hash = href;
}

/** What is told of the session that is shown, for the title of the page. */
export const about = signal({ session: "", title: "" });

/** Let the page's title and its address say a session's title, without a step of the history. @param {string} session @param {string} title */
export function tellTitle(session, title) {
  about.value = { session, title };
  const [path, query = ""] = location.hash.split("?", 2);
  const kept = query.split("&").filter((each) => each && !each.startsWith("title="));
  const words = title.replace(/[^\p{L}\p{M}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, MOST_TITLE);
  const told = [...kept, ...(words ? [`title=${encodeURIComponent(words)}`] : [])].join("&");
  if (parse(path).session === session && told !== query) history.replaceState(history.state, "", path + (told && `?${told}`));
}
