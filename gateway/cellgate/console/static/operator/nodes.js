/**
 * The gateways of a cluster: whether each is up, and what room it has. A gateway without a cluster shows nothing here.
 */

import { now } from "../app/api.js";
import { ago } from "../app/words.js";
import { html } from "../vendor/preact.js";
import { useAnswer } from "./use_answer.js";

/** As many digits of a gateway's id as the ids that it makes begin with. */
const DIGITS = 8;
const STATES = /** @type {Record<string, string>} */ ({
  up: "up",
  draining: "draining: opens no more sessions",
  late: "late: no sign of life for half a lease",
  down: "down",
});

/** @param {string} moment */
function agoInWords(moment) {
  const told = ago(moment, now());
  return told === "now" ? told : `${told} ago`;
}

/** @param {{shown: string}} props `shown`: the id of the gateway whose numbers the page has */
export function Nodes({ shown }) {
  const cluster = useAnswer("v1/cluster");
  if (!cluster?.nodes.length) return null;
  return html`<section aria-label="Gateways of the cluster">
    <h2>Gateways of the cluster</h2>
    <table class="operator-quotas">
      <thead>
        <tr><th scope="col">Gateway</th><th scope="col">Address</th><th scope="col">State</th><th scope="col">Kernels</th><th scope="col">Warm</th><th scope="col">Last sign of life</th></tr>
      </thead>
      <tbody>
        ${cluster.nodes.map((/** @type {any} */ { node, url, state, capacity, used, warm, beat_at }) => {
          const isDown = state === "down";
          return html`<tr key=${node}>
            <th scope="row"><code title=${node}>${node.slice(0, DIGITS)}</code>${node === shown ? " (the numbers above)" : ""}</th>
            <td>${url}</td>
            <td class=${state === "up" ? "" : "operator-problem"}>${STATES[state] || state}</td>
            <td>
              ${isDown || !capacity ? "–" : `${used} of ${capacity} `}
              ${!isDown && capacity ? html`<meter min="0" max=${capacity} value=${used} aria-label=${`Kernels of ${node.slice(0, DIGITS)}`}></meter>` : ""}
            </td>
            <td>${isDown ? "–" : warm}</td>
            <td>${agoInWords(beat_at)}</td>
          </tr>`;
        })}
      </tbody>
    </table>
    <p>Sessions that gateways have taken over from others since their start: ${cluster.takeovers}</p>
  </section>`;
}
