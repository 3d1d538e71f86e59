/**
 * The gateway as its operator sees it: kernels and their places, queue, deaths, storage, load, and what everybody uses.
 *
 * Metrics and the use of others are for whoever may read them; others see their own quotas and nothing else.
 */

import { api } from "../app/api.js";
import { Spinner } from "../app/ui.js";
import { bytes, clock, duration } from "../app/words.js";
import { useSheet } from "../outputs/sheet.js";
import { html, useEffect, useState } from "../vendor/preact.js";
import { alerts } from "./alerts.js";
import { counts, follow, history, last, quantile, rates, rises, total, values } from "./history.js";
import { Nodes } from "./nodes.js";
import { by } from "./prometheus.js";
import { Gauge } from "./sparkline.js";
import { useAnswer } from "./use_answer.js";

const PRINCIPALS = 100;
const MOST_PRINCIPALS = 1000;
const NEARLY_FULL = 0.8; // of a quota
/** Moments between which there are rates. */
const RATED = 2;
const RUNBOOK = "docs/how-to/runbook.md";

export function Operator() {
  useSheet("../operator/operator.css");
  const [info, setInfo] = useState(/** @type {any} */ (null));
  useEffect(() => {
    api.get("v1/info").then(setInfo, () => undefined);
    return follow();
  }, []);
  const { moments, problem, node } = history.value;
  const isForbidden = problem?.status === 403;
  return html`<div class="operator">
    <h1>Gateway</h1>
    ${info && html`<p class="operator-about">Cellgate ${info.version}, isolation: ${info.isolation}, doors: ${info.doors?.join(", ") || "none"}</p>`}
    ${info?.isolation_gaps?.length > 0 &&
    html`<section aria-label="What the isolation does not hold">
      <p>Kernels are not in sandboxes (${info.isolation}). What that means:</p>
      <ul>${info.isolation_gaps.map((/** @type {string} */ gap) => html`<li key=${gap}>${gap}</li>`)}</ul>
    </section>`}
    ${problem && !isForbidden && html`<p class="operator-problem" role="status">The metrics could not be read: ${problem.message}</p>`}
    ${isForbidden
      ? html`<p>Your token may not read the gateway's metrics. An administrator's or an auditor's may.</p>`
      : html`<${Alerts} moments=${moments} />
          ${moments.length < RATED && !problem ? html`<${Spinner} label="Measuring" />` : html`<${Numbers} moments=${moments} />`}`}
    <${Nodes} shown=${node} />
    <${Quotas} />
  </div>`;
}

/** @typedef {import("./history.js").Moment} Moment */

/** @param {{moments: Moment[]}} props */
function Alerts({ moments }) {
  const on = alerts(moments);
  return html`<section aria-label="Alerts">
    <h2>Alerts</h2>
    <div role="status">
      ${on.length === 0
        ? html`<p>${moments.length ? "None of what this page can see." : "Nothing is known yet."}</p>`
        : html`<ul class="operator-alerts">
            ${on.map(
              ({ name, text }) => html`<li key=${name}>
                ${text}. <span>What to do: <code>${RUNBOOK}#${name.toLowerCase()}</code></span>
              </li>`,
            )}
          </ul>`}
    </div>
  </section>`;
}

const whole = (/** @type {number | undefined} */ value) => (value === undefined ? "–" : Math.round(value).toLocaleString("en"));
const size = (/** @type {number | undefined} */ value) => (value === undefined ? "–" : bytes(value));
const seconds = (/** @type {number | undefined} */ value) =>
  value === undefined ? "–" : Number.isFinite(value) ? duration(1000 * value) : "longer than is counted";
const percent = (/** @type {number | undefined} */ share) => (share === undefined ? "–" : `${Math.round(100 * share)} %`);
const perSecond = (/** @type {number | undefined} */ value) => (value === undefined ? "–" : `${value.toFixed(value < 10 ? 1 : 0)} / s`);
const within = (/** @type {Moment[]} */ moments) => clock(((moments.at(-1)?.at || 0) - (moments[0]?.at || 0)) / 1000);

/** @param {{moments: Moment[]}} props */
function Numbers({ moments }) {
  const of = (/** @type {string} */ name, /** @type {any} */ wanted = undefined) => values(moments, name, wanted);
  const inUse = of("cellgate_kernels", { state: ["in_use", "starting", "ending"] });
  const places = last(of("cellgate_pool_places"));
  const waiting = of("cellgate_pool_waiting_claims");
  const oldest = last(of("cellgate_pool_longest_wait_seconds"));
  const queued = of("cellgate_queued_executions");
  const cells = rates(of("cellgate_executions_total"));
  const failed = rises(of("cellgate_executions_total", { status: ["timeout", "died"] }));
  const free = of("cellgate_storage_free_bytes");
  const storage = last(of("cellgate_storage_bytes"));
  const requests = rates(of("cellgate_http_responses_total"));
  const processor = rates(of("process_cpu_seconds_total"));
  const end = moments.at(-1)?.metrics || new Map();
  const states = by(end, "cellgate_kernels", "state");
  const sessions = by(end, "cellgate_sessions", "state");
  return html`
    <section aria-label="Kernels">
      <h2>Kernels</h2>
      <dl class="gauges">
        <${Gauge} label="In use, of places" value=${`${whole(last(inUse))} of ${whole(places)}`} pairs=${inUse} top=${places} />
        <${Gauge} label="Warm" value=${whole(states.warm)} detail=${`${whole(states.starting)} starting, ${whole(states.ending)} ending`} pairs=${of("cellgate_kernels", { state: "warm" })} top=${places} />
        <${Gauge} label="Claims waiting" value=${whole(last(waiting))} detail=${oldest ? `the oldest for ${seconds(oldest)}` : ""} pairs=${waiting} />
        <${Gauge} label="Memory of all" value=${size(last(of("cellgate_kernels_memory_bytes")))} detail=${`largest: ${size(last(of("cellgate_largest_kernel_memory_bytes")))}`} pairs=${of("cellgate_kernels_memory_bytes")} />
      </dl>
      <${Counts} title="Deaths by cause" name="cellgate_kernel_deaths_total" label="cause" moments=${moments} />
    </section>
    <section aria-label="Cells">
      <h2>Cells and sessions</h2>
      <dl class="gauges">
        <${Gauge} label="Sessions" value=${whole(total(Object.values(sessions).map((value) => [0, value])))} detail=${Object.entries(sessions).filter(([, value]) => value).map(([state, value]) => `${whole(value)} ${state}`).join(", ")} pairs=${of("cellgate_sessions")} />
        <${Gauge} label="Cells in queues" value=${whole(last(queued))} pairs=${queued} />
        <${Gauge} label="Cells that ended" value=${perSecond(last(cells))} detail=${`${whole(total(failed))} by deadline or death`} pairs=${cells} />
        <${Gauge} label="Wait in the queue" value=${seconds(quantile(moments, "cellgate_execution_queue_seconds", 0.95))} detail="95 of 100 cells, at most" />
      </dl>
    </section>
    <section aria-label="Storage">
      <h2>Storage</h2>
      <dl class="gauges">
        <${Gauge} label="Record" value=${size(last(of("cellgate_record_bytes")))} pairs=${of("cellgate_record_bytes")} />
        <${Gauge} label="Free on its disk" value=${size(last(free))} detail=${`of ${size(storage)}`} pairs=${free} top=${storage} />
        <${Gauge} label="Waits to be written" value=${size(last(of("cellgate_record_pending_bytes")))} pairs=${of("cellgate_record_pending_bytes")} />
        <${Gauge} label="A cell's commit" value=${seconds(quantile(moments, "cellgate_execution_commit_seconds", 0.99))} detail="99 of 100, at most" />
      </dl>
    </section>
    <section aria-label="Load">
      <h2>Load</h2>
      <dl class="gauges">
        <${Gauge} label="Answers" value=${perSecond(last(requests))} pairs=${requests} />
        <${Gauge} label="Processor" value=${percent(last(processor))} detail="of one" pairs=${processor} top=${1} />
        <${Gauge} label="Event loop is late" value=${seconds(quantile(moments, "cellgate_loop_lag_seconds", 0.99))} detail="99 of 100 times, at most" />
        <${Gauge} label="Connections" value=${whole(last(of("cellgate_connections")))} pairs=${of("cellgate_connections")} />
      </dl>
      <${Counts} title="Refusals by reason" name="cellgate_http_refusals_total" label="reason" moments=${moments} />
      <${Counts} title="Refusals by quota" name="cellgate_quota_refusals_total" label="quota" moments=${moments} />
    </section>
  `;
}

/**
 * A counter by the values of its label: how far it has come since the gateway's start, and what of it this page saw.
 * @param {{title: string, name: string, label: string, moments: Moment[]}} props
 */
function Counts({ title, name, label, moments }) {
  const counted = counts(moments, name, label);
  return html`<section aria-label=${title}>
    <h3>${title} <span class="since">since the gateway's start</span></h3>
    ${counted.length === 0
      ? html`<p>${moments.length ? "None" : "–"}</p>`
      : html`<dl class="gauges">
          ${counted.map(
            ({ value, count, pairs, seen }) =>
              html`<${Gauge} key=${value} label=${value.replaceAll("_", " ")} value=${whole(count)} detail=${seen ? `${whole(seen)} in ${within(moments)}` : ""} pairs=${pairs} />`,
          )}
        </dl>`}
  </section>`;
}

/** Quotas that are sizes; the others are numbers. */
const SIZES = new Set(["memory", "disk", "record", "bytes_per_minute", "network_bytes_per_minute"]);

/** @param {string} name @param {number} value */
const told = (name, value) => (SIZES.has(name) ? size(value) : value.toLocaleString("en"));

/** @param {{name: string, used: number, limit: number, whose?: string}} props */
const Filled = ({ name, used, limit, whose = "" }) =>
  html`<meter min="0" max=${limit} high=${NEARLY_FULL * limit} value=${used} aria-label=${`Used of ${name}${whose}`}></meter>`;

function Quotas() {
  const me = useAnswer("v1/me");
  if (me === null) return null;
  const quotas = Object.entries(me.quotas);
  return html`<section aria-label="Quotas">
    <h2>Quotas of ${me.principal}</h2>
    <table class="operator-quotas">
      <thead>
        <tr><th scope="col">Quota</th><th scope="col">Used</th><th scope="col">Limit</th></tr>
      </thead>
      <tbody>
        ${quotas.map(([name, { used, limit }]) => {
          return html`<tr key=${name}>
            <th scope="row">${name.replaceAll("_", " ")}</th>
            <td>
              ${used === null ? "–" : told(name, used)}
              ${used !== null && limit ? html` <${Filled} name=${name} used=${used} limit=${limit} />` : ""}
            </td>
            <td>${limit === null ? "none" : told(name, limit)}</td>
          </tr>`;
        })}
      </tbody>
    </table>
  </section>
  ${me.role !== "user" && html`<${Everybody} />`}`;
}

/** What each principal uses, of what they may. */
function Everybody() {
  const [most, setMost] = useState(PRINCIPALS);
  const page = useAnswer(`v1/usage?limit=${most}`);
  if (page === null) return null;
  return html`<section aria-label="Use by principal">
    <h2>Use by principal</h2>
    ${page.principals.length === 0
      ? html`<p>Nobody uses anything.</p>`
      : html`<table class="operator-quotas">
          <thead>
            <tr><th scope="col">Principal</th><th scope="col">Role</th><th scope="col">Uses</th></tr>
          </thead>
          <tbody>
            ${page.principals.map(
              (/** @type {any} */ { principal, role, quotas }) => html`<tr key=${principal}>
                <th scope="row">${principal}</th>
                <td>${role}</td>
                <td><${Uses} principal=${principal} quotas=${quotas} /></td>
              </tr>`,
            )}
          </tbody>
        </table>`}
    ${page.next && most < MOST_PRINCIPALS && html`<button type="button" onClick=${() => setMost(Math.min(MOST_PRINCIPALS, most + PRINCIPALS))}>Show more</button>`}
    ${page.next && most >= MOST_PRINCIPALS && html`<p>There are more: <code>GET /v1/usage</code> has all.</p>`}
  </section>`;
}

/** What is used, or limited. @param {{principal: string, quotas: Record<string, {used: number | null, limit: number | null}>}} props */
function Uses({ principal, quotas }) {
  const shown = Object.entries(quotas).filter(([, { used, limit }]) => used || (used !== null && limit !== null));
  if (shown.length === 0) return "–";
  return html`<ul class="operator-uses">
    ${shown.map(([name, { used, limit }]) => {
      const amount = used ?? 0;
      const of = limit === null ? "" : ` of ${told(name, limit)}`;
      return html`<li key=${name}>
        ${`${name.replaceAll("_", " ")} ${told(name, amount)}${of}`}
        ${limit ? html` <${Filled} name=${name} used=${amount} limit=${limit} whose=${` by ${principal}`} />` : ""}
      </li>`;
    })}
  </ul>`;
}
