/**
 * What somebody has written and not sent. It is there again after a reload, and when they come back to its place.
 *
 * It is in this tab's storage, also while nobody is signed in there: whoever wrote it gets it back, for others it is
 * removed. A draft that made room for something else, such as the code of an earlier cell, is put aside with it.
 *
 * @typedef {{text: string, aside: string[], given?: string}} Draft  `aside`: what was put aside, the latest last;
 *   `given`: the code that was put there and that nobody has written
 */

import { base } from "./api.js";

const PLACE = `cellgate drafts ${base.pathname}`;
/** Drafts that are kept: those that were written last. */
const MOST = 50;
/** What is put aside in one place. */
const MOST_ASIDE = 20;
/** How long typing rests before it is kept, in milliseconds; whoever leaves the page before leaves it kept. */
const PAUSE = 300;

/** By the names of places, in the order in which they were written. @type {Map<string, Draft>} */
let drafts = new Map();
/** Whose they are; "" before that is known. */
let owner = "";
let later = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined);

/** What was written in a place. @param {string} name @returns {Draft} */
export const draftOf = (name) => drafts.get(name) ?? { text: "", aside: [] };

/**
 * Keep what is written in a place now.
 * @param {string} name
 * @param {Draft} draft
 */
export function keep(name, { text, aside, given = "" }) {
  const kept = { text: text.trim() ? text : "", aside: aside.slice(-MOST_ASIDE), given };
  drafts.delete(name);
  if (kept.text || kept.aside.length > 0) drafts.set(name, kept);
  if (drafts.size > MOST) drafts.delete(/** @type {string} */ (drafts.keys().next().value));
  later ??= setTimeout(keepDrafts, PAUSE);
}

/** Put all of it into the tab's storage, now. */
export function keepDrafts() {
  clearTimeout(later);
  later = undefined;
  if (!owner) return;
  try {
    if (drafts.size > 0) sessionStorage.setItem(PLACE, JSON.stringify({ identity: owner, drafts: [...drafts] }));
    else sessionStorage.removeItem(PLACE);
  } catch {
    // There is no storage, or no room in it.
  }
}

/** From now on keep them for this reader; what the tab has of theirs is there again. @param {string} identity */
export function takeDrafts(identity) {
  owner = identity;
  try {
    const kept = JSON.parse(sessionStorage.getItem(PLACE) ?? "null");
    if (kept?.identity === identity && Array.isArray(kept.drafts)) drafts = new Map(kept.drafts);
    else sessionStorage.removeItem(PLACE);
  } catch {
    // As above.
  }
}

globalThis.addEventListener?.("pagehide", keepDrafts);
globalThis.document?.addEventListener("visibilitychange", () => document.hidden && keepDrafts());
