/**
 * Who reads the page, what they may do, and what the gateway is: asked once after the sign-in.
 */

import { api, base, signedIn } from "./api.js";
import { keepDrafts, takeDrafts } from "./drafts.js";
import { computed, signal } from "../vendor/preact.js";

/** `GET /v1/me`. */
export const me = signal(/** @type {any} */ (null));

/** `GET /v1/info`. */
export const info = signal(/** @type {any} */ (null));

/** Administrators and auditors see others' sessions. */
export const seesOthers = computed(() => ["admin", "auditor"].includes(me.value?.role));
export const isAdmin = computed(() => me.value?.role === "admin");

/** @param {string} permission */
export const may = (permission) => me.value?.scopes?.includes(permission) === true;

/** Administrators add users, and change them. */
export const seesUsers = computed(() => isAdmin.value && may("users"));

/** Whom the page was for; what it shows, and has in memory, is theirs. */
let before = "";

export async function meet() {
  const [found, about] = await Promise.all([api.get("v1/me"), api.get("v1/info")]);
  const identity = JSON.stringify([found.principal, found.role, found.scopes]);
  if (before && before !== identity) {
    location.reload();
    await new Promise(() => undefined); // nothing more happens here
  }
  if (!before) takeDrafts(identity);
  before = identity;
  [me.value, info.value] = [found, about];
  pages?.postMessage(identity);
}

/** Tell the browser's other pages that nobody is signed in any more. */
export const leave = () => pages?.postMessage("");

/** Begin anew, with nothing of whom the page was for but what they have written. */
function beginAnew() {
  keepDrafts();
  location.reload();
}

/** Pages of one gateway share the cookie, and so who is signed in. */
const pages = globalThis.BroadcastChannel ? new BroadcastChannel(`cellgate ${base.pathname}`) : null;
pages?.addEventListener("message", ({ data }) => {
  if (before && data !== before) beginAnew();
  else if (data && signedIn.peek() === false) signedIn.value = true;
});
globalThis.addEventListener?.("pageshow", (event) => {
  if (!event.persisted || !before) return;
  // The browser had put the page aside as it was, perhaps before a sign-out: nothing is seen until that is known.
  const { body } = document;
  body.hidden = true;
  meet().then(() => (body.hidden = false), beginAnew);
});

/** The language of a kernelspec. @param {string | undefined} kernel @returns {string} */
export const languageOf = (kernel) => info.value?.kernelspecs?.[kernel ?? ""]?.language ?? "python";
