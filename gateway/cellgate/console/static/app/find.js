/**
 * Finding cells of a session by what their code and their outputs say: the gateway looks, for most cells are not here.
 */

import { api } from "./api.js";
import { IconButton } from "./ui.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";

/** How long typing rests before the gateway looks, in milliseconds. */
const PAUSE = 250;
/** Cells that are gone through. */
const MOST = 1000;

/**
 * The cells that have a text, the first ones.
 * @param {import("./session_log.js").SessionLog} log @param {string} text @param {AbortSignal} signal
 * @returns {Promise<{found: string[], whole: boolean}>}
 */
async function search(log, text, signal) {
  const found = /** @type {string[]} */ ([]);
  for (let after = 0; ; ) {
    const path = `${log.path}/executions?limit=${MOST}&after=${after}&search=${encodeURIComponent(text)}`;
    const page = await api.get(path, { signal });
    for (const each of page.executions) found.push(each.execution);
    if (page.next === null || found.length >= MOST) return { found: found.slice(0, MOST), whole: page.next === null };
    after = page.next;
  }
}

/**
 * @param {{log: import("./session_log.js").SessionLog, onCell: (id: string | null) => void, onClose: () => void}} props
 *   `onCell`: a cell to go to, or none any more
 */
export function Find({ log, onCell, onClose }) {
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [text, setText] = useState("");
  const [told, tell] = useState("");
  const [hits, setHits] = useState({ found: /** @type {string[]} */ ([]), whole: true, at: 0 });
  const show = (/** @type {typeof hits} */ next) => {
    setHits(next);
    const { found, whole, at } = next;
    tell(found.length ? `${at + 1} of ${found.length.toLocaleString("en")}${whole ? "" : " or more"}` : "No cell has it");
    onCell(found[at] ?? null);
  };
  // At once: what is typed next is meant for the field, not for the page's keys.
  useLayoutEffect(() => {
    field.current?.focus();
    return () => onCell(null);
  }, []);
  useEffect(() => {
    const stop = new AbortController();
    if (!text.trim()) {
      tell("");
      onCell(null);
      return;
    }
    const timer = setTimeout(async () => {
      tell("Looking …");
      try {
        // The last ones are what most look for.
        const { found, whole } = await search(log, text, stop.signal);
        show({ found, whole, at: Math.max(0, found.length - 1) });
      } catch (error) {
        if (!stop.signal.aborted) tell(error.message);
      }
    }, PAUSE);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [text, log]);
  const step = (/** @type {number} */ by) => {
    const count = hits.found.length;
    if (count) show({ ...hits, at: (hits.at + by + count) % count });
  };
  /** @param {KeyboardEvent} event */
  const key = (event) => {
    if (event.key === "Enter") step(event.shiftKey ? 1 : -1);
    else if (event.key === "Escape") onClose();
    else return;
    event.preventDefault();
  };
  const none = hits.found.length === 0;
  return html`
    <search class="find">
      <input ref=${field} type="search" aria-label="Find in code and outputs" placeholder="Find in code and outputs" value=${text}
        onInput=${(/** @type {any} */ event) => setText(event.target.value)} onKeyDown=${key} spellcheck="false" autocomplete="off" />
      <span class="faint" role="status">${told}</span>
      <div class="spring"></div>
      <${IconButton} icon="up" label="Earlier cell" disabled=${none} onClick=${() => step(-1)} />
      <${IconButton} icon="down" label="Later cell" disabled=${none} onClick=${() => step(1)} />
      <${IconButton} icon="close" label="Close" onClick=${onClose} />
    </search>
  `;
}
