/**
 * When a session ends by itself: a page that somebody works with is a use of its session, and the page tells an end
 * before it comes.
 */

import { api, now } from "./api.js";
import { may } from "./me.js";
import { attempt, clock } from "./ui.js";
import { because, clock as inWords } from "./words.js";
import { html, useEffect, useState } from "../vendor/preact.js";

/** A use of the page counts as one of its session so often, in milliseconds. */
const USE_EVERY = 60_000;
/** How long before its end a session's page tells it, in milliseconds. */
const NOTICE = 300_000;
/** What is left of a session that ended by such a cause, if not its files and its record. @type {Record<string, string>} */
const LEFT = {
  deleted: "Its variables and files are gone; its record stays.",
  // Files of most of these go with them; of some, their maker keeps them.
  explored: "Its variables are gone; its record stays.",
  one_shot: "Its variables are gone; its record stays.",
};
const SIGNS = ["pointerdown", "pointermove", "keydown", "wheel", "touchmove"];

/** Use a session. A gateway that can't be reached is told of elsewhere. @param {import("./session_log.js").SessionLog} log */
const use = (log) => api.patch(log.path, {}).then(() => log.refresh(), () => {});

/**
 * Use a live session for as long as somebody works with its page.
 * @param {import("./session_log.js").SessionLog} log @param {boolean} alive
 */
export function useKept(log, alive) {
  useEffect(() => {
    if (!alive || !may("run")) return;
    let last = performance.now();
    const sign = () => {
      if (document.hidden || performance.now() - last < USE_EVERY) return;
      last = performance.now();
      use(log);
    };
    for (const name of SIGNS) addEventListener(name, sign, { passive: true });
    return () => {
      for (const name of SIGNS) removeEventListener(name, sign);
    };
  }, [log, alive]);
}

/** What is told of a session's end, or of its sleep, before it comes. @param {{log: import("./session_log.js").SessionLog}} props */
export function EndsSoon({ log }) {
  const [asked, ask] = useState(false);
  const { ends, limits, sleeps_at: sleeps } = log.model.value ?? {};
  const at = sleeps ?? ends?.at;
  const left = at && clock.value && Date.parse(at) - now();
  if (!at || left > NOTICE) return null;
  const time = inWords(Math.max(0, left) / 1000);
  if (!sleeps && ends.cause !== "idle_timeout")
    return html`<p class="note warn" role="status">This session ends in ${time}: its lifetime of ${inWords(limits.lifetime)} is over. Its variables go then; its files and its record stay.</p>`;
  const keep = async () => {
    ask(true);
    await attempt(() => api.patch(log.path, {}));
    log.refresh();
    ask(false);
  };
  const button = (/** @type {string} */ text) =>
    may("run") && html`<button type="button" class="small" disabled=${asked} onClick=${keep}>${text}</button>`;
  if (sleeps)
    return html`<p class="note" role="status">
      This session falls asleep in ${time}, for it was not used for long. Its variables stay, and its next cell wakes it.
      ${button("Keep it awake")}
    </p>`;
  return html`<p class="note warn" role="status">
    This session ends in ${time}, for it was not used for long. Its variables go then; its files and its record stay.
    ${button("Keep it")}
  </p>`;
}

/** What is left of a session that has ended, and how it goes on. @param {{model: any}} props */
export function HasEnded({ model }) {
  if (model?.state === "purging") return html`<p class="note" role="status">This session was purged.</p>`;
  const files = LEFT[model?.cause] ?? "Its variables are gone; its files and its record stay.";
  return html`<p class="note" role="status">This session has ended${model?.cause ? ` – ${because(model.cause)}` : ""}. ${files} A cell gives it a fresh kernel.</p>`;
}
