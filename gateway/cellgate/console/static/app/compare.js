/**
 * Two sessions of one family side by side: what each of them ran since they parted.
 */

import { api, owner } from "./api.js";
import { Source } from "./cell.js";
import { condensed, reduceCell, unloaded } from "./cells.js";
import { parted } from "./family.js";
import { languageOf } from "./me.js";
import { sessionHref, sessionPath } from "./router.js";
import { theme } from "./theme.js";
import { Dialog, Failed, IconButton, Spinner, useLoaded } from "./ui.js";
import { because, counted, duration } from "./words.js";
import { Outputs } from "../outputs/outputs.js";
import { html } from "../vendor/preact.js";

/** Cells of a side. */
const MOST = 60;
const MOST_EVENTS = 4000;

/**
 * @param {import("./family.js").Stretch} stretch
 * @param {AbortSignal} given
 */
async function cellsOf({ session, after, until }, given) {
  const cells = new Map();
  let read = 0;
  for (let from = /** @type {number | null} */ (after); from !== null && read < MOST_EVENTS; ) {
    const page = await api.get(`${sessionPath(session)}/events?after=${from}`, { signal: given });
    read += page.events.length;
    for (const event of condensed(page.events)) {
      if (until !== null && event.seq > until) return [...cells.values()];
      if (!event.execution) continue;
      const begins = event.type === "queued" && !event.waiting_for;
      if (!begins && !cells.has(event.execution)) continue;
      if (begins && cells.size >= MOST) return [...cells.values()];
      const known = cells.get(event.execution) ?? { id: event.execution, session, state: unloaded("queued", event.at) };
      cells.set(event.execution, { ...known, state: reduceCell(known.state, event) });
    }
    from = page.next;
  }
  return [...cells.values()];
}

/** @param {{cell: any, same: boolean, kernel: string | undefined}} props */
const Compared = ({ cell, same, kernel }) => html`
  <div class="compared cell-${cell.state.status} ${same ? "same" : ""}">
    <div class="cell-head">
      <span class="cell-status"><span class="dot" aria-hidden="true"></span>${cell.state.status}</span>
      ${same && html`<span class="tag">same code</span>`}
      <span class="faint">${duration(cell.state.durationMs)} ${because(cell.state.cause)}</span>
      <div class="spring"></div>
      <a href=${sessionHref(cell.session, { execution: cell.id, principal: owner.value })}>open</a>
    </div>
    <${Source} code=${cell.state.code} language=${languageOf(kernel)} />
    <div class="cell-outputs"><${Outputs} outputs=${cell.state.shown.outputs} theme=${theme.value} /></div>
    ${cell.state.problem && html`<p class="note bad">${cell.state.problem}</p>`}
  </div>
`;

/**
 * @param {{known: Map<string, import("./family.js").Node>, one: string, other: string, kernel?: string,
 *   onClose: () => void}} props
 */
export function Compare({ known, one, other, kernel, onClose }) {
  const found = parted(known, one, other);
  const [sides, problem, again] = useLoaded(
    async (given) => {
      const read = (/** @type {import("./family.js").Stretch[]} */ stretches) =>
        Promise.all(stretches.map((each) => cellsOf(each, given)));
      return found === null ? [[], []] : (await Promise.all(found.sides.map(read))).map((each) => each.flat());
    },
    [one, other],
  );
  const codes = (sides ?? [[], []]).map((cells) => new Set(cells.map((each) => each.state.code)));
  return html`
    <${Dialog} label="${one} and ${other}" class="broad" onClose=${onClose}>
      <div class="dialog-head">
        <h2>Since they parted${found ? html` <span class="faint">from ${found.common}</span>` : ""}</h2>
        <div class="spring"></div>
        <${IconButton} icon="close" label="Close" onClick=${onClose} />
      </div>
      ${problem && html`<${Failed} problem=${problem} again=${again} />`}
      ${!sides && !problem && html`<${Spinner} />`}
      ${sides && html`
        <div class="sides">
          ${[one, other].map((session, index) => html`
            <section class="side" aria-label=${session} tabindex="0">
              <h3><a href=${sessionHref(session, { principal: owner.value })}>${session}</a> <span class="faint">${counted(sides[index].length, "cell")}</span></h3>
              ${sides[index].length === 0 && html`<p class="empty">Nothing ran here since.</p>`}
              ${sides[index].map((cell) => html`<${Compared} key=${cell.id} cell=${cell} kernel=${kernel} same=${codes[1 - index].has(cell.state.code)} />`)}
              ${sides[index].length >= MOST && html`<p class="note">Later cells are not shown here.</p>`}
            </section>`)}
        </div>`}
    <//>
  `;
}
