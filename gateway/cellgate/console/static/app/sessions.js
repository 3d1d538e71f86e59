/**
 * The list of sessions: `#/`. It is asked for again every two seconds while somebody looks.
 *
 * What has not ended is in the gateway's memory and costs it little. The ended ones, of which there may be very
 * many, are read from the record when the reader asks for them, and not again and again.
 */

import { api, connection } from "./api.js";
import { Editor } from "./editor.js";
import { cellsOf, cpuOf, fits, identity, LIVE, memoryOf, sorted, UPWARDS, withProcessors } from "./listing.js";
import { info, isAdmin, languageOf, may, me, seesOthers } from "./me.js";
import { go, sessionHref, sessionPath } from "./router.js";
import { create, end, interrupt, nameOf, purge, restart, sender } from "./session_actions.js";
import { Ago, attempt, Failed, Icon, Menu, Spinner, State, useModule } from "./ui.js";
import { because, bytes, counted } from "./words.js";
import { computed, effect, html, signal, useEffect, useRef, useState } from "../vendor/preact.js";

const EVERY = 2000;
/** A gateway that takes long to answer is asked less often: at most this part of the time it works for one reader. */
const MOST_BUSY = 0.04;
const AT_ONCE = 1000;
const ENDED_AT_ONCE = 200;

const live = signal(/** @type {any[] | null} */ (null));
const ended = signal(/** @type {any[]} */ ([]));
const moreEnded = signal(/** @type {string | null} */ (null));
const failure = signal(/** @type {any} */ (null));
const filter = signal({ search: "", state: "live", principal: "" });
const order = signal({ column: "used", down: true });
const everybody = signal(true);
/** Sessions that were found by their cells, and the word that was looked for. */
const hits = signal({ word: "", sessions: /** @type {any[]} */ ([]), next: /** @type {string | null} */ (null), busy: false });

const scope = computed(() => (seesOthers.value && everybody.value ? "&principal=*" : ""));
const wantsEnded = computed(() => !["live", ...LIVE].includes(filter.value.state));

const shown = computed(() => {
  const { word, sessions } = hits.value;
  if (word && word === filter.value.search.trim())
    return sorted(sessions.filter((each) => fits(each, { ...filter.value, search: "" })), order.value);
  const known = new Map();
  for (const each of wantsEnded.value ? ended.value : []) known.set(identity(each), each);
  for (const each of live.value ?? []) known.set(identity(each), each);
  return sorted([...known.values()].filter((each) => fits(each, filter.value)), order.value);
});

/** @param {AbortSignal} given */
async function loadLive(given) {
  const page = await api.get(`v1/sessions?state=live&usage=true&newest=true&limit=${AT_ONCE}${scope.peek()}`, {
    signal: given,
  });
  const before = new Map((live.peek() ?? []).map((each) => [identity(each), each]));
  const at = performance.now();
  return page.sessions.map((/** @type {any} */ each) => withProcessors(each, before.get(identity(each)), at));
}

/** Those that ended, the last ones first. @param {string | null} after */
async function loadEnded(after) {
  const place = after ? `&after=${encodeURIComponent(after)}` : "";
  const path = `v1/sessions?state=ended&usage=true&newest=true&limit=${ENDED_AT_ONCE}${place}${scope.peek()}`;
  const page = await attempt(() => api.get(path));
  if (!page) return;
  ended.value = after ? [...ended.peek(), ...page.sessions] : page.sessions;
  moreEnded.value = page.next;
}

/** Look for a word in the cells of sessions too, also of those that ended. @param {string} word @param {string | null} [after] */
async function findByCells(word, after = null) {
  if (!word || hits.peek().busy) return;
  const before = after ? hits.peek().sessions : [];
  hits.value = { word, sessions: before, next: null, busy: true };
  filter.value = { ...filter.peek(), state: "all" };
  const place = after ? `&after=${encodeURIComponent(after)}` : "";
  const path = `v1/sessions?search=${encodeURIComponent(word)}&cells=true&usage=true&newest=true&limit=${ENDED_AT_ONCE}${place}${scope.peek()}`;
  const page = await attempt(() => api.get(path));
  hits.value = { word, sessions: [...before, ...(page?.sessions ?? [])], next: page?.next ?? null, busy: false };
}

/** Ask again and again, until stopped. @returns {() => void} */
function watch() {
  const stop = new AbortController();
  let timer = /** @type {any} */ (0);
  const look = async () => {
    clearTimeout(timer);
    if (document.hidden || connection.peek().lost) return;
    const before = performance.now();
    try {
      live.value = await loadLive(stop.signal);
      failure.value = null;
    } catch (error) {
      if (stop.signal.aborted) return;
      if (error.status) failure.value = error;
    }
    const took = performance.now() - before;
    timer = setTimeout(look, Math.max(EVERY, took / MOST_BUSY));
  };
  const leave = effect(() => {
    void scope.value;
    if (!connection.value.lost) queueMicrotask(look);
  });
  document.addEventListener("visibilitychange", look);
  again = look;
  return () => {
    stop.abort();
    clearTimeout(timer);
    leave();
    document.removeEventListener("visibilitychange", look);
  };
}

let again = () => {};

// ---- the view -----------------------------------------------------------------------------------------------

const HEADS = /** @type {[column: string, text: string, kind: string][]} */ ([
  ["state", "State", ""],
  ["session", "Session", ""],
  ["principal", "Owner", "others wide"],
  ["kernel", "Kernel", "medium"],
  ["isolation", "Isolation", "wide"],
  ["memory", "Memory", "number medium"],
  ["cpu", "CPU", "number medium"],
  ["cells", "Cells", "number small"],
  ["queue", "Queue", "number medium"],
  ["used", "Last use", "number"],
]);

/** @param {{column: string, text: string, kind: string}} props */
function Head({ column, text, kind }) {
  const { column: by, down } = order.value;
  const turn = () => {
    order.value = by === column ? { column, down: !down } : { column, down: !UPWARDS.has(column) };
  };
  const sort = by === column ? (down ? "descending" : "ascending") : "none";
  return html`
    <th scope="col" class=${kind} aria-sort=${sort}>
      <button type="button" class="sort" onClick=${turn}>
        ${text}<span class="sort-mark" aria-hidden="true">${by === column ? (down ? "↓" : "↑") : ""}</span>
      </button>
    </th>
  `;
}

/** @param {any} session */
const hrefOf = (session) =>
  sessionHref(session.session, { principal: session.principal === me.value?.principal ? null : session.principal });

/** Memory beside its limit. @param {{session: any}} props */
export function Memory({ session }) {
  const used = memoryOf(session);
  if (used === null) return html`<span class="faint">–</span>`;
  const limit = session.limits?.memory;
  return html`
    <span class="memory">
      ${bytes(used)}
      ${limit && html`<meter min="0" max=${limit} high=${0.85 * limit} value=${used} title="of ${bytes(limit)}" aria-label="Memory of ${bytes(limit)}"></meter>`}
    </span>
  `;
}

/** @param {{session: any}} props */
export function Cpu({ session }) {
  const used = cpuOf(session);
  return used === null ? html`<span class="faint">–</span>` : html`${Math.round(100 * used)} %`;
}

/** @param {{session: any}} props */
function Row({ session }) {
  const alive = LIVE.includes(session.state);
  const runs = may("run");
  const after = async (/** @type {Promise<any>} */ work) => {
    await work;
    again();
    if (wantsEnded.value) loadEnded(null);
  };
  return html`
    <tr class=${alive ? "" : "over"}>
      <td class="state-cell"><${State} state=${session.state} /></td>
      <th scope="row" class="session-cell">
        <a href=${hrefOf(session)}>${nameOf(session)}</a>
        ${session.title && html`<span class="faint key">${session.session}</span>`}
        ${session.branched_from && html`<span class="tag" title="Branch of ${session.branched_from.session}"><${Icon} name="branch" />${session.branched_from.session}</span>`}
        ${session.checkpoint && html`<span class="tag" title="A checkpoint is made after each cell"><${Icon} name="undo" />undo</span>`}
        ${session.problem && html`<span class="tag bad" title=${session.problem}>not recorded</span>`}
        ${session.cause && !alive && html`<span class="faint cause">${because(session.cause)}</span>`}
      </th>
      <td class="others wide">${session.principal}</td>
      <td class="medium">${session.kernel}</td>
      <td class="wide">${session.isolation || html`<span class="faint">–</span>`}</td>
      <td class="number medium"><${Memory} session=${session} /></td>
      <td class="number medium"><${Cpu} session=${session} /></td>
      <td class="number small">${cellsOf(session)}</td>
      <td class="number medium">${session.queue_length || html`<span class="faint">0</span>`}</td>
      <td class="number"><${Ago} at=${session.last_activity} /></td>
      <td class="actions">
        <${Menu}
          label="Actions for ${session.session}"
          items=${[
            { text: "Interrupt", icon: "stop", act: () => after(interrupt(session)), disabled: !runs || session.state !== "busy" },
            { text: "Restart…", icon: "restart", act: () => after(restart(session)), disabled: !runs || !alive },
            { text: "End…", icon: "cross", danger: true, act: () => after(end(session)), disabled: !runs || !alive },
            isAdmin.value && { text: "Purge…", icon: "trash", danger: true, act: () => after(purge(session)) },
          ]}
        />
      </td>
    </tr>
  `;
}

/** Sessions that are shown with what they showed last. */
const RECENT = 4;
/** Rows that are in the document at once; a list of thousands has more on demand. */
const ROWS = 200;

function Table() {
  const [most, setMost] = useState(ROWS);
  const rows = shown.value;
  const others = seesOthers.value && everybody.value;
  return html`
    <div class="table-box" tabindex="0" role="region" aria-label="Sessions">
      <table class="sessions ${others ? "with-owners" : ""}">
        <thead>
          <tr>
            ${HEADS.map(([column, text, kind]) => html`<${Head} key=${column} column=${column} text=${text} kind=${kind} />`)}
            <th scope="col" class="actions"><span class="unseen">Actions</span></th>
          </tr>
        </thead>
        <tbody>
          ${rows.slice(0, most).map((session) => html`<${Row} key=${identity(session)} session=${session} />`)}
        </tbody>
      </table>
    </div>
    ${rows.length > most && html`<button type="button" class="more" onClick=${() => setMost(most + ROWS)}>Show more of ${counted(rows.length, "session")}</button>`}
    ${rows.length <= most && wantsEnded.value && moreEnded.value && html`<button type="button" class="more" onClick=${() => loadEnded(moreEnded.peek())}>Load more ended sessions</button>`}
  `;
}

/** One's own sessions that were used last, with what they showed; nothing moves when it comes. @param {{sessions: any[]}} props */
function Latest({ sessions }) {
  const module = useModule(() => import("./recent.js"));
  const used = sessions.filter((each) => each.principal === me.value?.principal && cellsOf(each)).sort((one, other) => (one.last_activity < other.last_activity ? 1 : -1)).slice(0, RECENT);
  if (used.length === 0) return null;
  return html`
    <section class="recent" aria-label="Used last">
      ${module && html`<ul>${used.map((session) => html`<${module.Recent} key=${identity(session)} session=${session} href=${hrefOf(session)} />`)}</ul>`}
    </section>
  `;
}

const send = sender();

/** Run a cell in a session that is made for it, and show that. @param {string} code */
async function begin(code) {
  const done = await send(() => `${sessionPath(`s-${Math.random().toString(36).slice(2, 8)}`)}/execute`, code);
  if (done) go(sessionHref(done.session));
  return done !== undefined;
}

/** A cell for a new session: what a newcomer sees first. @param {{first: boolean}} props */
function Begin({ first }) {
  const kernel = info.value?.default_kernel;
  return html`
    <section class="begin" aria-labelledby="begin">
      <h2 id="begin">${first ? "Run your first cell" : "Run a cell in a new session"}</h2>
      <${Editor} language=${languageOf(kernel)} onRun=${begin} focus=${first} draft="new" label="Code of the first cell" hint=${first} />
    </section>
  `;
}

export function Sessions() {
  const search = useRef(/** @type {HTMLInputElement | null} */ (null));
  useEffect(watch, []);
  useEffect(() => {
    if (wantsEnded.value) loadEnded(null);
  }, [wantsEnded.value, scope.value]);
  useEffect(() => {
    /** @param {KeyboardEvent} event */
    const key = (event) => {
      if (event.key === "/" && !isTyping(event)) {
        event.preventDefault();
        search.current?.focus();
      } else if (event.key === "n" && !event.repeat && !isTyping(event) && may("run")) {
        event.preventDefault();
        startNew();
      }
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
  const sessions = live.value;
  const { search: word, state, principal } = filter.value;
  const set = (/** @type {any} */ change) => (filter.value = { ...filter.value, ...change });
  const owners = [...new Set((sessions ?? []).concat(ended.value).map((each) => each.principal))].sort();
  const lookFor = (/** @type {Event} */ event) => {
    event.preventDefault();
    findByCells(word.trim());
  };
  const { word: sought, next } = hits.value;
  const none = sessions !== null && sessions.length === 0 && state === "live" && !principal;
  const counts = new Map();
  for (const each of sessions ?? []) counts.set(each.state, (counts.get(each.state) ?? 0) + 1);
  const option = (/** @type {string} */ value, /** @type {string} */ text) =>
    html`<option value=${value} selected=${state === value}>${text}${counts.has(value) ? ` (${counts.get(value)})` : ""}</option>`;
  return html`
    <main class="view sessions-view" id="main">
      <div class="view-head">
        <h1>Sessions</h1>
        ${sessions && html`<p class="faint count" role="status">${counted(shown.value.length, "session")}</p>`}
        <div class="spring"></div>
        ${may("run") && html`<button type="button" class="primary" onClick=${startNew}><${Icon} name="add" />New session</button>`}
      </div>
      ${sessions && may("run") && html`<${Begin} first=${none} />`}
      ${sessions && state === "live" && !word && !principal && html`<${Latest} sessions=${sessions} />`}
      ${sessions !== null && html`
        <form class="filters" role="search" onSubmit=${lookFor}>
          <label class="search">
            <span class="unseen">Search sessions</span><${Icon} name="search" />
            <input ref=${search} type="search" placeholder="Search" value=${word} onInput=${(/** @type {any} */ event) => set({ search: event.target.value })} />
          </label>
          <label><span class="unseen">State</span>
            <select onChange=${(/** @type {any} */ event) => set({ state: event.target.value })}>
              ${option("live", "Live")}${LIVE.map((each) => option(each, each[0].toUpperCase() + each.slice(1)))}
              ${option("ended", "Ended")}${option("all", "All")}
            </select>
          </label>
          ${seesOthers.value && html`
            <label><span class="unseen">Owner</span>
              <select onChange=${(/** @type {any} */ event) => {
                everybody.value = event.target.value !== "mine";
                set({ principal: event.target.value === "mine" ? "" : event.target.value });
              }}>
                <option value="" selected=${!principal && everybody.value}>All owners</option>
                <option value="mine" selected=${!everybody.value}>Mine</option>
                ${owners.map((each) => html`<option value=${each} selected=${principal === each}>${each}</option>`)}
              </select>
            </label>
          `}
          ${word.trim() && html`<button type="submit" class="small" aria-busy=${String(hits.value.busy)}>Search cells</button>`}
        </form>
      `}
      ${failure.value && html`<${Failed} problem=${failure.value} again=${again} />`}
      ${sessions === null && !failure.value && html`<${Spinner} />`}
      ${sessions && !none && (shown.value.length ? html`<${Table} />` : html`<p class="empty">${hits.value.busy ? "Looking at the cells…" : "No session fits."}</p>`)}
      ${next && sought === word.trim() && html`<button type="button" class="more" onClick=${() => findByCells(sought, next)}>Look at more sessions</button>`}
    </main>
  `;
}

async function startNew() {
  const model = await create();
  if (model) go(sessionHref(model.session));
}

/** Whether a key is meant for a field. @param {KeyboardEvent} event */
export function isTyping(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return true;
  const target = /** @type {HTMLElement} */ (event.composedPath()[0]);
  if (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return true;
  // A question, or a cell that was answered and may ask for more.
  return target.closest?.("dialog, .cell-running[data-answered]") !== null;
}

