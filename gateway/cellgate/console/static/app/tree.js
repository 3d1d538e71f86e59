/**
 * The family of a session: what it continues, its branches and theirs, and the checkpoints it can go back to.
 */

import { api } from "./api.js";
import { branchesOf, lineOf, nodes } from "./family.js";
import { may } from "./me.js";
import { go, sessionHref, sessionPath } from "./router.js";
import { Ago, ask, attempt, Failed, Icon, Menu, say, Spinner, State, useLoaded, useModule } from "./ui.js";
import { bytes, counted } from "./words.js";
import { html, useState } from "../vendor/preact.js";

const NAME = "[A-Za-z0-9_][A-Za-z0-9._\\-]{0,63}";
const KEY = "[A-Za-z0-9][A-Za-z0-9._~\\-]{0,127}";

/**
 * Do something that obstacles may prevent, such as an open socket; the reader may want it all the same.
 * @template T
 * @param {string} what
 * @param {(anyway: boolean) => Promise<T>} work
 * @returns {Promise<T | undefined>}
 */
async function despite(what, work) {
  return attempt(async () => {
    try {
      return await work(false);
    } catch (error) {
      const obstacles = error?.reason === "cannot_branch" ? (error.body?.obstacles ?? []) : [];
      if (obstacles.length === 0 || obstacles.some((/** @type {any} */ each) => each.kind === "kernel")) throw error;
      const named = obstacles.slice(0, 8).map((/** @type {any} */ each) => `${each.kind} ${each.name}`).join(", ");
      const text = `Not everything comes along: ${named}. ${error.message}`;
      if ((await ask({ title: `${what} anyway?`, text, action: `${what} anyway` })) === null) return undefined;
      return work(true);
    }
  });
}

/** @param {import("./session_log.js").SessionLog} log @param {string | null} principal */
export async function branch(log, principal) {
  const answer = await ask({
    title: `Branch ${log.key}`,
    text: "The branch goes on with all variables of this moment. What either does from then on, the other does not see.",
    action: "Branch",
    fields: [
      { name: "session", label: "Key", pattern: KEY, placeholder: "made up if left empty" },
      { name: "workspace", label: "Files", value: "copy", options: [["copy", "A copy of them"], ["shared", "The same files"]] },
    ],
  });
  if (answer === null) return;
  const body = { session: answer.session || undefined, workspace: answer.workspace };
  const made = await despite("Branch", (anyway) => api.post(`${log.path}/branch`, { ...body, anyway }));
  if (made) go(sessionHref(made.session, { principal }));
}

/** @param {import("./session_log.js").SessionLog} log */
export async function checkpoint(log) {
  const answer = await ask({
    title: "Make a checkpoint",
    text: "All variables and files as they are now. The session can go back to it while it lives.",
    action: "Make",
    fields: [{ name: "name", label: "Name", pattern: NAME, placeholder: "made up if left empty" }],
  });
  if (answer === null) return;
  const name = answer.name || undefined;
  const made = await despite("Make it", (anyway) => api.post(`${log.path}/checkpoints`, { name, anyway }));
  if (made) {
    say(`Checkpoint ${made.name}`);
    log.treeChanged.value += 1;
  }
}

/** @param {any} model */
const undone = (model) => {
  const { checkpoint: name, undone: count } = model.rolled_back ?? {};
  say(`Back at ${name}; ${counted(count ?? 0, "cell")} undone`);
};

/**
 * @param {import("./session_log.js").SessionLog} log
 * @param {{asks?: boolean}} [options] `asks`: it may have been meant for a field that has just gone
 */
export async function undo(log, { asks = false } = {}) {
  const question = { title: "Undo the last cell?", text: "Variables and files become what they were before it.", action: "Undo" };
  if (asks && (await ask(question)) === null) return;
  const model = await attempt(() => api.post(`${log.path}/undo`));
  if (model) undone(model);
}

/** @param {import("./session_log.js").SessionLog} log @param {any} point */
async function rollBack(log, point) {
  const answer = await ask({
    title: `Go back to ${point.name}?`,
    text: `Variables and files become what they were after ${counted(point.cells, "cell")}. Later cells stay in the record as undone; later checkpoints end.`,
    action: "Go back",
    danger: true,
  });
  if (answer === null) return;
  const model = await attempt(() => api.post(`${log.path}/rollback`, { checkpoint: point.name }));
  if (model) undone(model);
}

/** @param {import("./session_log.js").SessionLog} log @param {any} point */
async function forget(log, point) {
  const question = { title: `End checkpoint ${point.name}?`, text: "The session can't go back to it then.", action: "End it", danger: true };
  if ((await ask(question)) === null) return;
  await attempt(() => api.delete(`${log.path}/checkpoints/${encodeURIComponent(point.name)}`));
  log.treeChanged.value += 1;
}

/** @param {{log: import("./session_log.js").SessionLog, principal: string | null}} props */
export function Tree({ log, principal }) {
  const [compared, setCompared] = useState("");
  const model = log.model.value;
  const [found, problem, again] = useLoaded(
    async (given) => {
      const own = await api.get(`${log.path}/tree`, { signal: given });
      const oldest = own.ancestors[0]?.session;
      if (oldest === undefined) return { own, known: nodes(own, log.model.peek()) };
      const root = sessionPath(oldest);
      const [tree, first] = await Promise.all([
        api.get(`${root}/tree`, { signal: given }),
        api.get(root, { signal: given }),
      ]);
      return { own, known: nodes(tree, first) };
    },
    [log, log.treeChanged.value, log.cellsEnded.value, model?.state],
  );
  if (problem) return html`<${Failed} problem=${problem} again=${again} />`;
  if (!found) return html`<${Spinner} />`;
  const { own, known } = found;
  const top = lineOf(known, log.key).at(-1) ?? log.key;
  const runs = may("run");
  const live = model && !["ended", "purging"].includes(model.state);
  return html`
    <div class="tree">
      ${runs && live && html`
        <div class="panel-tools">
          <button type="button" onClick=${() => branch(log, principal)}><${Icon} name="branch" />Branch…</button>
          <button type="button" onClick=${() => checkpoint(log)}><${Icon} name="checkpoint" />Checkpoint…</button>
        </div>`}
      <h2 class="panel-heading">Branches</h2>
      ${own.ancestor_left_out && html`<p class="note">${own.ancestor_left_out === "purged" ? "What it continues was purged." : "What it continues is out of your reach."}</p>`}
      <ul class="branches" aria-label="Branches">
        <${Branch} session=${top} known=${known} current=${log.key} principal=${principal} onCompare=${setCompared} />
      </ul>
      ${!own.complete && html`<p class="note">There are more branches than are named here.</p>`}
      <h2 class="panel-heading">Checkpoints</h2>
      ${own.checkpoints.length === 0 && html`<p class="empty">${model?.checkpoint ? "None yet." : "None. A session that was started with undo makes one after each cell."}</p>`}
      ${own.checkpoints.length > 0 && html`
        <ul class="entries" aria-label="Checkpoints">
          ${own.checkpoints.toReversed().map((/** @type {any} */ each) => html`
            <li key=${each.name}>
              <${Icon} name="checkpoint" />
              <span class="name">${each.name}</span>
              <span class="faint">${counted(each.cells, "cell")}</span>
              <span class="faint size">${each.memory ? bytes(each.memory) : ""}</span>
              <span class="faint time"><${Ago} at=${each.created_at} /></span>
              ${runs && html`<${Menu} label="Actions for checkpoint ${each.name}" items=${[
                { text: "Go back to it…", icon: "undo", act: () => rollBack(log, each) },
                { text: "End it…", icon: "trash", danger: true, act: () => forget(log, each) },
              ]} />`}
            </li>`)}
        </ul>`}
      ${compared && html`<${Comparison} known=${known} one=${log.key} other=${compared} kernel=${model?.kernel} onClose=${() => setCompared("")} />`}
    </div>
  `;
}

/** It is loaded when it is asked for. @param {any} props */
function Comparison(props) {
  const module = useModule(() => import("./compare.js"));
  return module ? html`<${module.Compare} ...${props} />` : html`<${Spinner} />`;
}

/**
 * @param {{session: string, known: Map<string, import("./family.js").Node>, current: string,
 *   principal: string | null, onCompare: (session: string) => void, depth?: number}} props
 */
function Branch({ session, known, current, principal, onCompare, depth = 0 }) {
  const node = known.get(session);
  const below = depth < 50 ? branchesOf(known, session) : [];
  return html`
    <li>
      <div class="branch ${session === current ? "current" : ""}">
        <a href=${sessionHref(session, { principal })} title=${session} aria-current=${session === current ? "page" : undefined}>${session}</a>
        ${node?.state && html`<${State} state=${node.state} />`}
        <span class="faint"><${Ago} at=${node?.created_at} /></span>
        <div class="spring"></div>
        ${session !== current && html`<button type="button" class="small" onClick=${() => onCompare(session)} aria-label="Compare with ${session}">Compare</button>`}
      </div>
      ${below.length > 0 && html`<ul>${below.map((each) => html`<${Branch} key=${each.session} session=${each.session} known=${known} current=${current} principal=${principal} onCompare=${onCompare} depth=${depth + 1} />`)}</ul>`}
    </li>
  `;
}
