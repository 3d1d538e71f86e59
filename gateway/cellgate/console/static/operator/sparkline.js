/**
 * A number with how it came about: a label, the value, and a line of the last minutes.
 */

import { html } from "../vendor/preact.js";
import { KEPT } from "./history.js";

const WIDTH = 160;
const HEIGHT = 32;
const EDGE = 2;
/** The least that the line's width stands for, in milliseconds. */
const LEAST = 10_000;

/**
 * The points of a line, the newest at the right edge. It begins at 0, so that its height is the value's.
 * @param {[number, number][]} pairs
 * @param {number} [top]  what is as high as the picture, at least
 */
export function points(pairs, top = 0) {
  if (pairs.length === 0) return "";
  const end = pairs[pairs.length - 1][0];
  const highest = Math.max(top, ...pairs.map(([, value]) => value)) || 1;
  const span = Math.min(KEPT, Math.max(LEAST, end - pairs[0][0]));
  const x = (/** @type {number} */ at) => WIDTH - EDGE - ((end - at) / span) * (WIDTH - 2 * EDGE);
  const y = (/** @type {number} */ value) => HEIGHT - EDGE - (Math.max(0, value) / highest) * (HEIGHT - 2 * EDGE);
  return pairs.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
}

/** What is below a line. @param {string} line */
function area(line) {
  const places = line.split(" ");
  const [first, last] = [places[0], places[places.length - 1]].map((place) => place.split(",")[0]);
  return `${first},${HEIGHT} ${line} ${last},${HEIGHT}`;
}

/**
 * @param {{label: string, value: string, detail?: string, pairs?: [number, number][], top?: number}} props
 */
export function Gauge({ label, value, detail, pairs = [], top }) {
  const line = pairs.length > 1 ? points(pairs, top) : "";
  return html`<div class="gauge">
    <dt>${label}</dt>
    <dd>
      <div><strong>${value}</strong>${detail && html` <small>${detail}</small>`}</div>
      ${pairs.length > 0 &&
      html`<svg class="sparkline" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
        ${line && html`<polygon points=${area(line)} /><polyline points=${line} />`}
      </svg>`}
    </dd>
  </div>`;
}
