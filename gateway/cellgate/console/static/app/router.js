/**
 * What the page shows, as its fragment says it: `#/`, `#/sessions/KEY`, `#/sessions/KEY/EXECUTION`,
 * `#/gateway`, `#/users`.
 *
 * `?principal=NAME` behind a session names its owner, where that is not the reader.
 */

import { signal } from "../vendor/preact.js";

/**
 * @typedef {{view: "sessions" | "session" | "gateway" | "users" | "unknown", session?: string, execution?: string,
 *   principal?: string | null}} Route
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
  if (view === "sessions" && parts.length <= 3)
    return { view: "session", session, execution, principal: new URLSearchParams(query).get("principal") };
  return { view: "unknown" };
}

/**
 * The fragment of a session, or of one of its executions.
 * @param {string} session
 * @param {{execution?: string | null, principal?: string | null}} [options]
 */
export function sessionHref(session, { execution, principal } = {}) {
  const path = ["#", "sessions", session, ...(execution ? [execution] : [])];
  const query = principal ? `?principal=${encodeURIComponent(principal)}` : "";
  return path.map((part, index) => (index ? encodeURIComponent(part) : part)).join("/") + query;
}

/** @param {string} session */
export const sessionPath = (session) => `v1/sessions/${encodeURIComponent(session)}`;

export const route = signal(parse(globalThis.location?.hash ?? ""));
globalThis.addEventListener?.("hashchange", () => (route.value = parse(location.hash)));

/** @param {string} href */
export function go(href) {
  location.hash = href;
}
