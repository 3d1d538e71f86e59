/**
 * The state of a session's record: its head, and whether its chain holds, which is computed here from its rows.
 *
 * The gateway is asked as well; that it agrees with itself proves less than what this browser found. ./chain.js checks.
 */

import { address, api, Problem } from "../app/api.js";
import { bytes, counted } from "../app/words.js";
import { useSheet } from "../outputs/sheet.js";
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { signatureHolds, verifySession } from "./chain.js";

export { verifySession } from "./chain.js";

/**
 * @typedef {{rows: number, bytes: number}} Progress
 * @typedef {{found: import("./chain.js").Found, gateway: any, signed: boolean | null | undefined}} Checked
 */

/**
 * Check a session's record, here and by the gateway.
 * @param {string} session
 * @param {{signal: AbortSignal, onProgress: (progress: Progress) => void}} options
 * @returns {Promise<Checked>}
 */
async function check(session, { signal, onProgress }) {
  const path = `v1/sessions/${encodeURIComponent(session)}`;
  const model = await api.get(path, { signal });
  const fetchRows = async () => {
    const answer = await fetch(address(`${path}/audit`), { credentials: "same-origin", cache: "no-store", signal });
    if (answer.ok) return answer;
    throw new Problem({ status: answer.status, ...(await answer.json().catch(() => ({}))) });
  };
  const known = {
    session: model.session,
    rows: model.seq,
    head: model.head,
    onProgress: (/** @type {number} */ rows, /** @type {number} */ size) => onProgress({ rows, bytes: size }),
  };
  const found = await verifySession(fetchRows, known).catch((error) => {
    if (error?.reason === "storage_error") return error;
    throw error;
  });
  const gateway = await api.get(`${path}/audit/verify`, { signal });
  if (found instanceof Problem) return { found: notGiven(found, gateway), gateway, signed: undefined };
  const { principal } = model;
  const signed = gateway.signature
    ? await signatureHolds({ ...gateway, principal, session: model.session })
    : undefined;
  return { found, gateway, signed };
}

/**
 * What is to be said of rows that the gateway does not give, because one of them is missing.
 * @param {Problem} problem
 * @param {any} gateway
 */
function notGiven(problem, { valid, rows, head, first_bad }) {
  if (valid) throw problem;
  return { valid: false, rows, head, broken_at: first_bad, why: `row ${first_bad} did not come: ${problem.message}` };
}

/**
 * @param {{session: string}} props
 */
export function ChainState({ session }) {
  useSheet("../record/record.css");
  const [progress, setProgress] = useState(/** @type {Progress | null} */ (null));
  const [checked, setChecked] = useState(/** @type {Checked | null} */ (null));
  const [failure, setFailure] = useState("");
  const running = useRef(/** @type {AbortController | null} */ (null));
  const forget = () => {
    running.current?.abort();
    running.current = null;
    setProgress(null);
    setChecked(null);
    setFailure("");
  };
  useEffect(() => {
    forget();
    return () => running.current?.abort();
  }, [session]);

  const start = async () => {
    forget();
    const mine = new AbortController();
    running.current = mine;
    setProgress({ rows: 0, bytes: 0 });
    try {
      const done = await check(session, { signal: mine.signal, onProgress: setProgress });
      if (running.current === mine) setChecked(done);
    } catch (error) {
      if (running.current === mine) setFailure(String(error?.message || error));
    }
    if (running.current === mine) setProgress(null);
  };

  return html`<section class="record-chain" aria-label="The record's hash chain">
    <p>
      <button type="button" disabled=${progress !== null} onClick=${start}>Verify in this browser</button>
      ${progress && html` <button type="button" onClick=${forget}>Stop</button>`}
    </p>
    <div role="status">
      ${progress && html`<p>${counted(progress.rows, "row")} checked, ${bytes(progress.bytes)}</p>`}
      ${failure && html`<p class="record-bad">It could not be checked: ${failure}</p>`}
      ${checked && html`<${Verdict} ...${checked} />`}
    </div>
  </section>`;
}

/** @param {Checked} props */
function Verdict({ found, gateway, signed }) {
  const agrees = gateway.valid === found.valid && (!found.valid || gateway.head === found.head || gateway.rows > found.rows);
  return html`
    <p class=${found.valid ? "record-good" : "record-bad"}>
      ${found.valid ? html`<strong>Valid:</strong> ${counted(found.rows, "row")}` : html`<strong>Not valid:</strong> ${found.why}`}
    </p>
    <dl>
      <dt>Head after ${counted(found.rows, "row")}</dt>
      <dd><code>${found.head}</code></dd>
      ${gateway.key &&
      html`<dt>Signed by</dt>
        <dd><code>${gateway.key}</code> ${SIGNED.get(signed ?? null)}</dd>`}
    </dl>
    ${!agrees &&
    html`<p class="record-bad">
      The gateway itself says that the record is ${gateway.valid ? "valid" : `not valid from row ${gateway.first_bad}`}.
    </p>`}
  `;
}

const SIGNED = new Map([
  [true, "(the signature holds)"],
  [false, "(the signature does not hold)"],
  [null, "(this browser can't check it)"],
]);
