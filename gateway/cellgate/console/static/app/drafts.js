/**
 * What somebody has written and not sent, kept when the page begins anew because of a sign-out elsewhere.
 *
 * It is in this tab's storage until somebody signs in there: whoever wrote it gets it back, for others it is removed.
 */

import { base } from "./api.js";

const PLACE = `cellgate drafts ${base.pathname}`;

/** What reads the text of each field that is shown, by its name. @type {Map<string, () => string>} */
const fields = new Map();

/** What is given back, by the names of fields. @type {Map<string, string>} */
let given = new Map();

/**
 * Have the text of a field kept, until what is returned is called.
 * @param {string} name
 * @param {() => string} read
 */
export function keeps(name, read) {
  fields.set(name, read);
  return () => {
    if (fields.get(name) === read) fields.delete(name);
  };
}

/** What was written in a field before, once. @param {string} name */
export function draftOf(name) {
  const found = given.get(name) ?? "";
  given.delete(name);
  return found;
}

/** Keep all that is written now for whoever this is. @param {string} identity */
export function keepDrafts(identity) {
  const texts = [...fields].map(([name, read]) => [name, read()]).filter(([, text]) => text.trim());
  try {
    if (texts.length > 0) sessionStorage.setItem(PLACE, JSON.stringify({ identity, texts }));
  } catch {
    // There is no storage, or no room in it.
  }
}

/** Give back what was kept for them; it is no longer kept for anybody. @param {string} identity */
export function takeDrafts(identity) {
  try {
    const kept = JSON.parse(sessionStorage.getItem(PLACE) ?? "null");
    sessionStorage.removeItem(PLACE);
    if (kept?.identity === identity) given = new Map(kept.texts);
  } catch {
    // As above.
  }
}
