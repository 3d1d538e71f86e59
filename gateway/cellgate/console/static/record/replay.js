/**
 * Runs a session's cells again in a fresh kernel and shows beside the record what differs. The gateway does all of it.
 */

import { api, owner, Problem } from "../app/api.js";
import { sessionHref } from "../app/router.js";
import { counted } from "../app/words.js";
import { useSheet } from "../outputs/sheet.js";
import { save } from "../outputs/taking.js";
import { Text } from "../outputs/text.js";
import { html, useEffect, useRef, useState } from "../vendor/preact.js";

/** The report's words, and what they mean to people. */
const VERDICTS = new Map([
  ["equal", "gave the same"],
  ["normalised", "gave the same, but for what is known to vary"],
  ["unjudged", "can't be judged"],
  ["different", "gave something different"],
  ["skipped", "was not compared"],
]);

/**
 * @param {{session: string}} props
 */
export function Replay({ session }) {
  useSheet("../record/record.css");
  useSheet();
  const [anyway, setAnyway] = useState(false);
  const [rtol, setRtol] = useState("0");
  const [ran, setRan] = useState(/** @type {any[] | null} */ (null));
  const [report, setReport] = useState(/** @type {any} */ (null));
  const [failure, setFailure] = useState(/** @type {Problem | null} */ (null));
  const running = useRef(/** @type {AbortController | null} */ (null));
  const stop = () => {
    running.current?.abort();
    running.current = null;
    setRan(null);
  };
  useEffect(() => {
    setReport(null);
    setFailure(null);
    return stop;
  }, [session]);

  /** @param {boolean} whatever  the environment is */
  const start = async (whatever) => {
    stop();
    const mine = new AbortController();
    running.current = mine;
    setReport(null);
    setFailure(null);
    setRan([]);
    const path = `v1/sessions/${encodeURIComponent(session)}/replay`;
    const body = { anyway: whatever, rtol: Number(rtol) || 0 };
    const onEvent = (/** @type {any} */ event) => {
      if (running.current !== mine) return;
      if (event.type === "cell") setRan((cells) => [...(cells || []), event]);
      if (event.type === "report") setReport(event);
    };
    try {
      await api.stream(path, { method: "POST", body, onEvent, signal: mine.signal });
    } catch (error) {
      if (running.current === mine) setFailure(error);
    }
    if (running.current === mine) stop();
  };

  return html`<section class="replay" aria-label="Replay">
    <form
      onSubmit=${(/** @type {any} */ event) => {
        event.preventDefault();
        start(anyway);
      }}
    >
      <label>
        Numbers may differ by
        <input type="number" min="0" max="1" step="any" value=${rtol} onInput=${(/** @type {any} */ event) => setRtol(event.currentTarget.value)} />
      </label>
      <label>
        <input type="checkbox" checked=${anyway} onChange=${(/** @type {any} */ event) => setAnyway(event.currentTarget.checked)} />
        Also if the packages differ
      </label>
      <button type="submit" disabled=${ran !== null}>Run all cells again</button>
      ${ran && html`<button type="button" onClick=${stop}>Stop</button>`}
    </form>
    <div role="status">
      ${ran && html`<p>${ran.length ? `${counted(ran.length, "cell")} ran; the last ended as ${ran.at(-1).status ?? "skipped"}` : "A fresh kernel starts"}</p>`}
      ${failure &&
      html`<p class="record-bad">
        ${failure.message}
        ${failure.reason === "environment_differs" && html` <button type="button" onClick=${() => start(true)}>Run it anyway</button>`}
      </p>`}
      ${report && html`<p class=${`replay-${report.verdict}`}><strong>${summary(report)}</strong></p>`}
    </div>
    ${report && html`<${Report} report=${report} session=${session} />`}
  </section>`;
}

/** @param {any} report */
function summary(report) {
  const counts = ["same", "different", "unjudged", "skipped"].filter((name) => report[name]);
  return counts.map((name) => `${report[name].toLocaleString("en")} ${name}`).join(", ") || "There are no cells.";
}

const WORST = ["different", "unjudged", "skipped", "normalised", "equal"];

/** What differs comes first; cells of one verdict have the notebook's order. @param {any} one @param {any} other */
const worstFirst = (one, other) => WORST.indexOf(one.verdict) - WORST.indexOf(other.verdict) || one.cell - other.cell;

/** @param {{report: any, session: string}} props */
function Report({ report, session }) {
  const { environment, hash_seed: seed, files } = report;
  const missing = files.filter((/** @type {any} */ file) => !file.restored);
  return html`
    <p>
      ${ENVIRONMENTS.get(environment.agreement) || environment.agreement}
      ${seed.recorded === null && " The order of sets may differ: the record names no hash seed."}
      ${missing.length > 0 && ` ${counted(missing.length, "input file")} could not be restored: ${missing.slice(0, 10).map((/** @type {any} */ file) => file.path).join(", ")}.`}
    </p>
    <ol class="replay-cells">
      ${report.cells.toSorted(worstFirst).map((/** @type {any} */ cell) => html`<${Cell} key=${cell.cell} cell=${cell} session=${session} />`)}
    </ol>
    <p>
      <button type="button" onClick=${() => save(`${session}-replay.json`, "application/json", JSON.stringify(report, null, 1))}>
        Download the report
      </button>
    </p>
  `;
}

const ENVIRONMENTS = new Map([
  ["same", "The packages are the recorded ones."],
  ["different", "The packages differ from the recorded ones."],
  ["unknown", "The record has no list of packages to compare."],
]);

/** @param {{cell: any, session: string}} props */
function Cell({ cell, session }) {
  const parts = cell.differences || [];
  const first = cell.source.trimStart().split("\n", 1)[0].slice(0, 120) || "(empty)";
  const link = sessionHref(cell.inherited || session, { execution: cell.execution, principal: owner.value });
  return html`<li value=${cell.cell} class=${`replay-cell replay-${cell.verdict}`}>
    <a href=${link}><code>${first}</code></a>
    <span>${VERDICTS.get(cell.verdict) || cell.verdict}${cell.inherited && `, in ${cell.inherited}`}</span>
    ${(cell.difference || cell.reason) && html`<p>${cell.difference} ${cell.reason}</p>`}
    ${parts.map(
      (/** @type {any} */ part) => html`<details key=${part.part}>
        <summary>${part.part}: ${part.note}</summary>
        ${part.diff !== undefined && html`<${Text} text=${part.diff} label=${`Difference in ${part.part}`} name="difference.diff" />`}
        ${isPicture(part.picture) && html`<img src=${part.picture} alt="Recorded, now, and what differs in red" />`}
      </details>`,
    )}
  </li>`;
}

/** @param {unknown} picture */
const isPicture = (picture) => typeof picture === "string" && picture.startsWith("data:image/png;base64,");
