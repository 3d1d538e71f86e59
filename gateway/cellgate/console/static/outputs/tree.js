/**
 * JSON as a tree that is opened branch by branch, so that a large one costs no more than what is looked at.
 */

import { html, useState } from "../vendor/preact.js";

const MOST_CHILDREN = 100;
const LONGEST_TEXT = 2000;

/** @param {{value: unknown}} props */
export function Tree({ value }) {
  return html`<div class="out-tree" role="group" aria-label="JSON"><${Branch} value=${value} open=${true} /></div>`;
}

/** @param {{name?: string, value: any, open?: boolean}} props */
function Branch({ name, value, open = false }) {
  const [opened, setOpened] = useState(open);
  const [most, setMost] = useState(MOST_CHILDREN);
  const label = name === undefined ? "" : html`<span class="out-name">${name}</span>: `;
  if (typeof value !== "object" || value === null) return html`<div>${label}<${Leaf} value=${value} /></div>`;
  const names = Array.isArray(value) ? null : Object.keys(value);
  const count = names ? names.length : value.length;
  const told = names ? `{${count}}` : `[${count}]`;
  if (count === 0) return html`<div>${label}${names ? "{}" : "[]"}</div>`;
  const shown = opened ? Array.from({ length: Math.min(count, most) }, (_, index) => (names ? names[index] : index)) : [];
  return html`<details open=${opened} onToggle=${(/** @type {any} */ event) => setOpened(event.currentTarget.open)}>
    <summary>${label}<span class="out-count">${told}</span></summary>
    <div class="out-children">
      ${shown.map((each) => html`<${Branch} key=${each} name=${String(each)} value=${value[each]} />`)}
      ${opened &&
      count > most &&
      html`<button type="button" onClick=${() => setMost(most + 10 * MOST_CHILDREN)}>
        ${(count - most).toLocaleString("en")} more
      </button>`}
    </div>
  </details>`;
}

/** @param {{value: unknown}} props */
function Leaf({ value }) {
  const [whole, setWhole] = useState(false);
  const text = JSON.stringify(value) ?? "null";
  const kind = value === null ? "null" : typeof value;
  if (text.length <= LONGEST_TEXT || whole) return html`<span class=${`out-${kind}`}>${text}</span>`;
  return html`<span class=${`out-${kind}`}>${text.slice(0, LONGEST_TEXT)}</span>
    <button type="button" onClick=${() => setWhole(true)}>… ${(text.length - LONGEST_TEXT).toLocaleString("en")} more</button>`;
}
