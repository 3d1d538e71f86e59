/**
 * A session that was used lately, with what it showed last: a picture, or else the end of its last text.
 *
 * It is read from a few of the session's last cells, and again when the session has gone on and rests. Loaded once the
 * list of sessions is there. Of others' sessions nothing is read unasked.
 */

import { api } from "./api.js";
import { hasEnded } from "./cells.js";
import { sessionPath } from "./router.js";
import { nameOf } from "./session_actions.js";
import { Ago } from "./ui.js";
import { html, useEffect, useState } from "../vendor/preact.js";

/** Cells of a session that are looked at. */
const CELLS = 4;
const MOST_TEXT = 600;
/** Bytes of a picture that is shown. */
const MOST_PICTURE = 2_000_000;
const LINES = 4;

/** @typedef {{picture?: Blob, text: string}} Shown */

/**
 * What a session's last cells showed, the last picture first.
 * @param {string} path @param {AbortSignal} given
 * @returns {Promise<Shown>}
 */
async function lastOf(path, given) {
  const page = await api.get(`${path}/executions?newest=true&limit=${CELLS}`, { signal: given });
  let text = "";
  for (const { execution, status } of page.executions) {
    if (!hasEnded(status)) continue;
    const query = `images=url&plain=true&max_text=${MOST_TEXT}`;
    const result = await api.get(`${path}/executions/${execution}?${query}`, { signal: given });
    for (const output of (result.outputs ?? []).toReversed()) {
      const picture = await pictureOf(output);
      if (picture) return { picture, text: "" };
      text ||= textOf(output);
    }
  }
  return { text };
}

/** @param {any} output @returns {Promise<Blob | undefined>} */
async function pictureOf({ metadata = {} }) {
  const [type, told] = Object.entries(metadata).find(([name, value]) => name.startsWith("image/") && value?.url) ?? [];
  if (!type) return undefined;
  try {
    const { blob } = await api.file(told.url, MOST_PICTURE);
    return new Blob([blob], { type });
  } catch {
    return undefined; // too large, or gone: then there is a text
  }
}

/** @param {any} output */
function textOf({ text, data, ename, evalue }) {
  const whole = String(ename ? `${ename}: ${evalue}` : text ?? data?.["text/plain"] ?? "");
  return whole.trimEnd().split("\n").slice(-LINES).join("\n");
}

/** @param {{session: any, href: string}} props */
export function Recent({ session, href }) {
  const [shown, setShown] = useState(/** @type {Shown} */ ({ text: "" }));
  const [url, setUrl] = useState("");
  const rests = session.state === "busy" ? 0 : session.seq;
  useEffect(() => {
    const stop = new AbortController();
    // Without it the card still leads to its session.
    lastOf(sessionPath(session.session), stop.signal).then(setShown, () => undefined);
    return () => stop.abort();
  }, [session.session, rests]);
  useEffect(() => {
    const made = shown.picture ? URL.createObjectURL(shown.picture) : "";
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [shown.picture]);
  const name = nameOf(session);
  return html`
    <li>
      <a class="recent-card" href=${href}>
        ${url ? html`<img src=${url} alt="Its last picture" />` : html`<span class="recent-text">${shown.text || "no output"}</span>`}
        <span class="recent-name">${name}</span>
        <span class="faint"><${Ago} at=${session.last_activity} /></span>
      </a>
    </li>
  `;
}
