/**
 * Two sessions of one family side by side: what each of them ran since they parted.
 */

import { api, owner } from "./api.js";
import { Source } from "./cell.js";
import { condensed, reduceCell, unloaded } from "./cells.js";
import { parted } from "./family.js";
import { LIVE } from "./listing.js";
import { languageOf, may } from "./me.js";
import { go, sessionHref, sessionPath } from "./router.js";
import { end } from "./session_actions.js";
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

/**
 * How cells of one side stand to those of the other: the first of the other side with the same code is theirs.
 * @param {any[]} own @param {any[]} others
 * @returns {Map<string, string>}  of each cell's id, a word of `WORDS`
 */
function standing(own, others) {
  const known = new Map();
  const left = [...others];
  for (const { id, state } of own) {
    const place = left.findIndex((each) => each.state.code === state.code);
    const [other] = place < 0 ? [] : left.splice(place, 1);
    known.set(id, other ? (shownBy(other) === shownBy({ state }) ? "same" : "output") : "alone");
  }
  return known;
}

/** What a cell showed, and how it ended, as a text to be compared. @param {{state: import("./cells.js").CellState}} cell */
const shownBy = ({ state }) =>
  JSON.stringify([state.status, state.shown.outputs.map((output) => ({ ...output, display_id: undefined, seq: undefined }))]);

const WORDS = { same: "the same", output: "same code, another output", alone: "only here" };

/** @param {{cell: any, stands: keyof typeof WORDS, kernel: string | undefined}} props */
const Compared = ({ cell, stands, kernel }) => html`
  <div class="compared cell-${cell.state.status} compared-${stands}">
    <div class="cell-head">
      <span class="cell-status"><span class="dot" aria-hidden="true"></span>${cell.state.status}</span>
      <span class="tag">${WORDS[stands]}</span>
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
  const stands = sides && [standing(sides[0], sides[1]), standing(sides[1], sides[0])];
  /** End the others' session, and go on with this one. @param {string} session @param {string} gone */
  const keep = async (session, gone) => {
    if (!(await end({ session: gone, principal: owner.value }))) return;
    onClose();
    go(sessionHref(session, { principal: owner.value }));
  };
  const lives = (/** @type {string} */ session) => LIVE.includes(known.get(session)?.state ?? "");
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
              <h3><a href=${sessionHref(session, { principal: owner.value })}>${session}</a> <span class="faint">${counted(sides[index].length, "cell")}</span>
                ${may("run") && lives(one) && lives(other) && html`<button type="button" class="small" onClick=${() => keep(session, [other, one][index])}>Keep this one…</button>`}</h3>
              ${sides[index].length === 0 && html`<p class="empty">Nothing ran here since.</p>`}
              ${sides[index].map((cell) => html`<${Compared} key=${cell.id} cell=${cell} kernel=${kernel} stands=${stands?.[index].get(cell.id)} />`)}
              ${sides[index].length >= MOST && html`<p class="note">Later cells are not shown here.</p>`}
            </section>`)}
        </div>`}
    <//>
  `;
}
