/**
 * One session as a live notebook: `#/sessions/KEY`. Its cells, an editor for the next one, and panels beside them.
 */

import { api } from "./api.js";
import { CellView } from "./cell.js";
import { Editor } from "./editor.js";
import { Files } from "./files.js";
import { Find } from "./find.js";
import { cellsOf, LIVE } from "./listing.js";
import { isAdmin, languageOf, may } from "./me.js";
import { go, sessionHref, tellTitle } from "./router.js";
import { change, end, interrupt, nameOf, purge, restart, saved, sender } from "./session_actions.js";
import { EndsSoon, HasEnded, useKept } from "./session_end.js";
import { SessionLog } from "./session_log.js";
import { Cpu, isTyping, Memory } from "./sessions.js";
import { attempt, Failed, Icon, IconButton, Menu, Spinner, State, Tabs, useModule } from "./ui.js";
import { because, counted } from "./words.js";
import { VirtualList } from "./virtual_list.js";
import { effect, html, signal, useCallback, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";

/** Ids of cells that nbformat allows. */
const ID = /^[A-Za-z0-9_-]{1,64}$/;

/** So wide that panels are shown beside the cells, in pixels; narrower, they are above them when asked for. */
const WIDE = 1080;

const panelOpen = signal(innerWidth >= WIDE);
const panel = signal("files");

/**
 * @param {{session: string, execution?: string, principal?: string | null, file?: string | null}} props
 *   `file`: a notebook of the workspace that is shown instead of what ran
 */
export function SessionView({ session, execution, principal = null, file = null }) {
  const log = useMemo(() => new SessionLog(session), [session, principal]);
  useEffect(() => {
    log.start();
    return () => log.stop();
  }, [log]);
  const title = log.model.value?.title ?? "";
  // Also after each step within the session.
  useEffect(() => tellTitle(session, title), [session, title, execution, file]);
  const failure = log.failure.value;
  if (failure)
    return html`
      <main class="view" id="main">
        <h1>${session}</h1>
        <${Failed} problem=${failure.status === 404 ? "There is no such session, or it is not yours." : failure} />
        <p><a href="#/">All sessions</a></p>
      </main>
    `;
  return html`<${Opened} key=${log} log=${log} execution=${execution} principal=${principal} file=${file} />`;
}

/** @param {{log: SessionLog, execution?: string, principal: string | null, file: string | null}} props */
function Opened({ log, execution, principal, file }) {
  const list = useRef(/** @type {import("./virtual_list.js").Handle | null} */ (null));
  const editor = useRef(/** @type {{edit: (code: string) => void, focus: () => void} | null} */ (null));
  const model = log.model.value;
  const opening = log.phase.value === "opening";
  const alive = model ? LIVE.includes(model.state) : false;
  const runs = may("run");
  const send = useMemo(sender, [log]);
  useKept(log, alive);
  const [finding, find] = useState(false);
  const [hit, setHit] = useState(/** @type {string | null} */ (null));
  const stopFinding = useCallback(() => {
    find(false);
    list.current?.focusBy(0);
  }, []);

  const edit = useCallback((/** @type {string} */ code) => {
    editor.current?.edit(code);
    editor.current?.focus();
  }, []);
  useEffect(() => {
    /** @param {KeyboardEvent} event */
    const key = (event) => {
      if (isTyping(event) || event.defaultPrevented || (event.repeat && event.key !== "j" && event.key !== "k")) return;
      const acts = {
        j: () => list.current?.focusBy(1),
        k: () => list.current?.focusBy(-1),
        G: () => list.current?.toEnd(),
        i: () => editor.current?.focus(),
        "/": () => find(true),
        e: () => editFocused(log, edit),
        p: () => (panelOpen.value = !panelOpen.value),
        r: () => runs && again(),
        x: () => runs && model?.state === "busy" && interrupt(model),
        u: () => model?.checkpoint && runs && inTree("undo", log, { asks: true }),
      };
      const act = acts[/** @type {keyof typeof acts} */ (event.key)];
      if (!act) return;
      event.preventDefault();
      act();
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, [log, model?.checkpoint, model?.state]);

  /** Run the code of the cell that has the focus once more. */
  const again = async () => {
    const cell = focusedCell(log);
    const code = cell && (await attempt(() => log.codeOf(cell)));
    if (!code) return;
    list.current?.toEnd();
    if (await send(() => `${log.path}/execute`, code, ID.test(cell.cellId) ? cell.cellId : undefined)) log.refresh();
  };
  const focusCells = useCallback(() => list.current?.focusBy(0), []);
  return html`
    <div class="session-view ${panelOpen.value ? "with-panel" : ""}">
      <main class="notebook" id="main">
        <${Head} log=${log} principal=${principal} onFind=${file ? null : () => find(true)} />
        ${!opening && file && html`<${Later} key=${file} load=${PANELS.notebook} name="NotebookView" log=${log} path=${file} principal=${principal} />`}
        ${finding && !file && html`<${Find} log=${log} onCell=${setHit} onClose=${stopFinding} />`}
        ${opening && html`<${Spinner} label="Opening the session" />`}
        ${!opening && !file && model?.branched_from && html`<${Later} load=${PANELS.inherited} name="Inherited" log=${log} principal=${principal} />`}
        ${!opening && !file && html`<${Cells} log=${log} execution=${hit ?? execution} principal=${principal} list=${list} onEdit=${runs ? edit : undefined} />`}
        ${!opening && runs && !file && html`<${Composer} log=${log} principal=${principal} alive=${alive} editor=${editor} list=${list} onEscape=${focusCells} />`}
      </main>
      ${panelOpen.value && !opening && html`<${Panel} log=${log} principal=${principal} />`}
    </div>
  `;
}

/** @param {SessionLog} log */
function focusedCell(log) {
  const place = document.activeElement?.closest?.("[data-item]")?.getAttribute("data-item");
  return place == null ? undefined : log.cells[Number(place)];
}

/**
 * Put the code of the cell that has the focus into the editor: once it has been read, if the focus is still there.
 * @param {SessionLog} log @param {(code: string) => void} edit
 */
function editFocused(log, edit) {
  const cell = focusedCell(log);
  if (!cell) return;
  const stop = effect(() => {
    if (!cell.state.value.loaded) return;
    // Not within the effect, which what is done here would run again.
    queueMicrotask(() => {
      stop();
      if (focusedCell(log) === cell) edit(cell.state.peek().code);
    });
  });
}

/** @param {{log: SessionLog, principal: string | null, onFind: (() => void) | null}} props */
function Head({ log, principal, onFind }) {
  const model = log.model.value;
  const alive = model ? LIVE.includes(model.state) : false;
  const runs = may("run");
  if (!model) return html`<header class="session-head"><h1>${log.key}</h1></header>`;
  const named = { ...model, principal: model.principal };
  const act = async (/** @type {Promise<any>} */ work) => {
    await work;
    log.refresh();
  };
  const leave = async (/** @type {Promise<boolean>} */ work) => {
    if (await work) go("#/");
  };
  return html`
    <header class="session-head">
      <a class="icon-button back" href="#/" aria-label="All sessions" title="All sessions"><${Icon} name="back" /></a>
      <div class="session-title">
        <h1 title=${model.session}>${nameOf(model)}</h1>
        <div class="facts">
          <${State} state=${model.state} />
          ${!alive && model.cause && html`<span>${because(model.cause)}</span>`}
          <span>${model.kernel}</span>
          ${model.isolation && html`<span>${model.isolation}</span>`}
          ${principal && html`<span>of ${principal}</span>`}
          <span>${counted(log.count.value || cellsOf(model), "cell")}</span>
          ${model.queue_length > 0 && html`<span>${model.queue_length} queued</span>`}
          ${alive && html`<span class="wide-fact"><${Memory} session=${model} /></span><span class="wide-fact">CPU <${Cpu} session=${model} /></span>`}
          ${model.branched_from && html`<a href=${sessionHref(model.branched_from.session, { principal })}><${Icon} name="branch" />${model.branched_from.session}</a>`}
          ${model.problem && html`<span class="tag bad" title=${model.problem}>not recorded</span>`}
        </div>
      </div>
      <div class="spring"></div>
      <div class="head-actions">
        ${runs && model.state === "busy" && html`<button type="button" aria-label="Interrupt" title="Interrupt" onClick=${() => interrupt(named)}><${Icon} name="stop" /><span class="wide-text">Interrupt</span></button>`}
        ${runs && alive && model.checkpoint && html`<button type="button" aria-label="Undo" onClick=${() => inTree("undo", log)} title="Undo the last cell (u)"><${Icon} name="undo" /><span class="wide-text">Undo</span></button>`}
        <${Menu} label="Actions for ${model.session}" items=${[
          runs && alive && { text: "Branch…", icon: "branch", act: () => inTree("branch", log, principal) },
          runs && alive && { text: "Checkpoint…", icon: "checkpoint", act: () => inTree("checkpoint", log) },
          { text: "Download notebook", icon: "download", href: saved(`${log.path}/notebook`), download: true },
          runs && alive && may("files") && { text: "Arrange as a notebook…", icon: "file", act: () => arrange(log, principal) },
          runs && alive && { text: "Title and times…", icon: "edit", act: () => act(change(named)) },
          runs && alive && { text: "Restart…", icon: "restart", act: () => act(restart(named)) },
          runs && alive && { text: "End…", icon: "cross", danger: true, act: () => act(end(named)) },
          isAdmin.value && { text: "Purge…", icon: "trash", danger: true, act: () => leave(purge(named)) },
        ]} />
        ${onFind && html`<${IconButton} icon="search" label="Find in cells (/)" onClick=${onFind} />`}
        <${IconButton} icon="panel" label=${panelOpen.value ? "Hide the panel" : "Show the panel"} aria-pressed=${String(panelOpen.value)} onClick=${() => (panelOpen.value = !panelOpen.value)} />
      </div>
    </header>
  `;
}

/**
 * @param {{log: SessionLog, execution?: string, principal: string | null, list: {current: any},
 *   onEdit?: (code: string) => void}} props
 */
function Cells({ log, execution, principal, list, onEdit }) {
  const count = log.count.value;
  const [atEnd, setAtEnd] = useState(true);
  const place = useMemo(() => {
    const found = execution ? log.byId.get(execution) : undefined;
    return found ? log.cells.indexOf(found) : null;
  }, []);
  const draw = (/** @type {any} */ cell, /** @type {number} */ index) => html`
    <${CellView} cell=${cell} log=${log} index=${index} marked=${cell.id === execution} onEdit=${onEdit} principal=${principal} />
  `;
  const first = useRef(true);
  useEffect(() => {
    // The first one is where the list starts.
    if (first.current) {
      first.current = false;
      return;
    }
    const found = execution ? log.byId.get(execution) : undefined;
    if (found) list.current?.scrollTo(log.cells.indexOf(found));
  }, [execution]);
  if (count === 0)
    return html`<div class="feed-box none"><p class="empty">${log.model.value?.branched_from ? "Nothing ran in this branch yet." : "No cell has run here yet."}</p></div>`;
  return html`
    <div class="feed-place">
      <${VirtualList}
        items=${log.cells}
        count=${count}
        keyOf=${(/** @type {any} */ cell) => cell.id}
        draw=${draw}
        onRange=${(/** @type {any[]} */ cells) => log.near(cells)}
        onEnd=${setAtEnd}
        label="Cells"
        handle=${list}
        start=${place}
      />
      ${!atEnd && html`<div class="to-end"><button type="button" class="small" onClick=${() => list.current?.toEnd()}><${Icon} name="down" />Latest</button></div>`}
    </div>
  `;
}

/**
 * @param {{log: SessionLog, principal: string | null, alive: boolean, editor: {current: any}, list: {current: any}, onEscape: () => void}} props
 */
function Composer({ log, principal, alive, editor, list, onEscape }) {
  const [about, setAbout] = useState(/** @type {string | null} */ (null));
  const model = log.model.value;
  const send = useMemo(sender, [log]);
  const run = useCallback(
    async (/** @type {string} */ code) => {
      setAbout(null);
      list.current?.toEnd();
      const done = await send(() => `${log.path}/execute`, code);
      if (done) log.refresh();
      return done !== undefined;
    },
    [log],
  );
  const earlier = async (/** @type {number} */ steps) => {
    const cell = log.cells.at(-steps);
    return cell && log.codeOf(cell);
  };
  const complete = (/** @type {string} */ code, /** @type {number} */ cursor) =>
    api.post(`${log.path}/complete`, { code, cursor });
  const inspect = async (/** @type {string} */ code, /** @type {number} */ cursor) => {
    try {
      const found = await api.post(`${log.path}/inspect`, { code, cursor });
      setAbout(found.found ? found.text : null);
    } catch (error) {
      if (error.reason !== "busy") setAbout(error.message);
    }
  };
  return html`
    <section class="composer" aria-label="New cell">
      ${about && html`<div class="about-box"><pre class="about" tabindex="0" aria-label="Documentation">${about}</pre><${IconButton} icon="close" label="Close" onClick=${() => setAbout(null)} /></div>`}
      ${alive ? html`<${EndsSoon} log=${log} />` : html`<${HasEnded} model=${model} />`}
      <${Editor}
        language=${languageOf(model?.kernel)}
        label="Code of the next cell"
        draft=${`${log.path} ${principal ?? ""}`}
        focus=${true}
        runs=${model?.state !== "purging"}
        onRun=${run}
        onEscape=${onEscape}
        complete=${alive ? complete : undefined}
        inspect=${alive ? inspect : undefined}
        earlier=${earlier}
        handle=${editor}
      />
    </section>
  `;
}

/** Make a notebook of what has run, to be edited. @param {SessionLog} log @param {string | null} principal */
const arrange = (log, principal) => attempt(async () => (await import("./notebook_document.js")).arrange(log, principal));

/** Parts that are loaded when they are shown for the first time. */
const PANELS = {
  inherited: () => import("./inherited.js"),
  notebook: () => import("./notebook_view.js"),
  packages: () => import("./packages.js"),
  record: () => import("./record_panel.js"),
  tree: () => import("./tree.js"),
  variables: () => import("./variables.js"),
};

/** Do something of the module of branches and checkpoints. @param {"branch" | "checkpoint" | "undo"} name @param {any[]} given */
const inTree = (name, ...given) =>
  attempt(async () => {
    const act = /** @type {(...given: any[]) => any} */ ((await PANELS.tree())[name]);
    await act(...given);
  });

/** A part of a module. @param {{load: () => Promise<any>, name: string, [prop: string]: any}} props */
function Later({ load, name, ...props }) {
  const module = useModule(load);
  return module ? html`<${module[name]} ...${props} />` : html`<${Spinner} />`;
}

/** @param {{log: SessionLog, principal: string | null}} props */
function Panel({ log, principal }) {
  const tabs = /** @type {[string, string, () => any][]} */ ([
    ["files", "Files", () => html`<${Files} log=${log} principal=${principal} />`],
    ["variables", "Variables", () => html`<${Later} key="variables" load=${PANELS.variables} name="Variables" log=${log} />`],
    ["packages", "Packages", () => html`<${Later} key="packages" load=${PANELS.packages} name="Packages" log=${log} />`],
    ["tree", "Tree", () => html`<${Later} key="tree" load=${PANELS.tree} name="Tree" log=${log} principal=${principal} />`],
    ["record", "Record", () => html`<${Later} key="record" load=${PANELS.record} name="RecordPanel" log=${log} />`],
  ]);
  const close = () => (panelOpen.value = false);
  /** @param {KeyboardEvent} event */
  const key = (event) => {
    if (event.key === "Escape" && innerWidth < WIDE && !event.defaultPrevented) close();
  };
  return html`
    <aside class="panel" aria-label="Panels" onKeyDown=${key}>
      <${Tabs}
        label="Panels"
        tabs=${tabs}
        chosen=${panel.value}
        onChoose=${(/** @type {string} */ id) => (panel.value = id)}
        extra=${html`<${IconButton} icon="close" class="panel-close" label="Close the panel" onClick=${close} />`}
      />
    </aside>
  `;
}

