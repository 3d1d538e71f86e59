/**
 * The cells that a branch begins with: those of the sessions that it continues, dimmed, above its own.
 *
 * A notebook without outputs tells which they are; what one showed is read when it is shown. The numbers of the branch's
 * own cells go on from theirs.
 */

import { api } from "./api.js";
import { Source } from "./cell.js";
import { ofResult } from "./cell_outputs.js";
import { languageOf } from "./me.js";
import { sessionHref, sessionPath } from "./router.js";
import { theme } from "./theme.js";
import { Failed, Icon, Spinner, useLoaded } from "./ui.js";
import { counted, seen } from "./words.js";
import { Outputs } from "../outputs/outputs.js";
import { html, useState } from "../vendor/preact.js";

/** Cells that are shown at first, the last ones, and as many more at each wish. */
const AT_ONCE = 20;

/** @typedef {{session: string, execution: string, code: string, undone: boolean, status: string}} Before */

/** @param {any} cell @returns {Before} */
function known({ source, metadata: { cellgate } }) {
  const { inherited, undone, status } = cellgate;
  return { ...inherited, code: Array.isArray(source) ? source.join("") : source, undone: undone !== undefined, status };
}

/** @param {{log: import("./session_log.js").SessionLog, principal: string | null}} props */
export function Inherited({ log, principal }) {
  const parent = log.model.value?.branched_from?.session;
  const [opened, open] = useState(log.count.peek() === 0);
  const [most, setMost] = useState(AT_ONCE);
  const [cells, problem, again] = useLoaded(
    async (given) => {
      const notebook = await api.get(`${log.path}/notebook?outputs=false`, { signal: given });
      return /** @type {Before[]} */ (notebook.cells.filter((/** @type {any} */ cell) => cell.metadata.cellgate.inherited).map(known));
    },
    [log],
  );
  if (problem) return html`<${Failed} problem=${problem} again=${again} />`;
  if (!cells) return html`<${Spinner} />`;
  const shown = cells.slice(-most);
  return html`
    <details class="inherited" open=${opened} onToggle=${(/** @type {any} */ event) => open(event.currentTarget.open)}>
      <summary><${Icon} name="branch" />${counted(cells.length, "cell")} before this branch of ${seen(parent)}</summary>
      ${opened && html`
        <section aria-label="Cells before this branch" tabindex="0">
          ${cells.length > shown.length && html`<button type="button" class="small" onClick=${() => setMost(most + AT_ONCE)}>Show earlier ones</button>`}
          ${shown.map((cell) => html`<${Cell} key=${cell.execution} cell=${cell} language=${languageOf(log.model.value?.kernel)} principal=${principal} />`)}
        </section>`}
    </details>
  `;
}

/** @param {{cell: Before, language: string, principal: string | null}} props */
function Cell({ cell: { session, execution, code, undone, status }, language, principal }) {
  const [result, problem, again] = useLoaded(
    (given) => api.get(`${sessionPath(session)}/executions/${execution}`, { signal: given }),
    [session, execution],
  );
  const count = result?.execution_count ?? " ";
  return html`
    <div class="cell ${undone ? "cell-undone" : ""} cell-${status ?? "ok"}">
      <a class="cell-gutter" href=${sessionHref(session, { execution, principal })} aria-label="Cell ${count} of ${session}">[${count}]</a>
      <div class="cell-body">
        ${undone && html`<span class="tag"><${Icon} name="undo" />undone</span>`}
        <${Source} code=${code} language=${language} />
        ${problem && html`<${Failed} problem=${problem} again=${again} />`}
        ${result && html`<div class="cell-outputs"><${Outputs} outputs=${ofResult(result.outputs ?? []).outputs} theme=${theme.value} /></div>`}
      </div>
    </div>
  `;
}
