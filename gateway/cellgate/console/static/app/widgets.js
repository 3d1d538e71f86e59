/**
 * The Jupyter widgets of one session: what the record tells of them, for the outputs that show some.
 *
 * It is loaded with the first widget that a cell shows. What there is by then is asked for once; events tell the rest.
 * Each output that shows a widget has a channel, by which its frame gets the widgets that it refers to. It draws nothing.
 *
 * @typedef {{state: Record<string, any>, buffers: Map<string, {path: any[], data: string}>,
 *   shown: import("./cell_outputs.js").Shown | null, closed: boolean}} Widget
 *   `shown`: what an Output widget shows, by events; null: what its state says
 * @typedef {{state: Set<string>, echo: Set<string>, outputs: boolean}} Changes
 *   names of what has changed in a widget's state: by the kernel, and what it only confirms
 * @typedef {{id: string, number: number, data: any, buffers: string[]}} Sent
 *   what somebody did in a frame, of its own number there
 */

import { api, Problem } from "./api.js";
import { NOTHING, ofResult, reduce } from "./cell_outputs.js";
import { LIVE } from "./listing.js";
import { may } from "./me.js";
import { plain } from "../outputs/ansi.js";
import { forms, modelOf, pixels, textOf } from "../outputs/mime.js";
import { computed, signal } from "../vendor/preact.js";

const REFERENCE = "IPY_MODEL_";
const OUTPUT = "OutputModel";
/** Those whose scripts the frame has. */
const PACKAGES = new Set(["@jupyter-widgets/base", "@jupyter-widgets/controls", "@jupyter-widgets/output"]);
/** Widgets that one output shows, nested ones included; and how deep what refers to them is looked through. */
const MOST_SHOWN = 2000;
const DEEPEST = 8;
/** Outputs of one Output widget that are shown, the last ones. */
const MOST_OUTPUTS = 200;

/** Characters of one message of a frame, and messages that wait for the kernel. */
const MOST_SENT = 4_000_000;
const MOST_WAITING = 500;
/** How long a kernel that runs a cell is left alone, and how long its work takes before it is told of, in milliseconds. */
const BUSY = 400;
const LONG = 800;

const ENDED = "The session has ended: its controls show their last state and can't be moved.";
const GONE = "The kernel that had these controls is gone, so they can't be moved: run the cell again.";
const WORKS = "The kernel works on it …";
const LATE = "It took longer than a cell may, and was interrupted.";
const WAITS = "It waits for the end of the cell that runs.";
const NOT_ALLOWED = "You may read this session and not run anything in it: its controls can't be moved here.";

export class SessionWidgets {
  /** @param {import("./session_log.js").SessionLog} log */
  constructor(log) {
    this.log = log;
    this.widgets = /** @type {Map<string, Widget>} */ (new Map());
    this.channels = /** @type {Set<Channel>} */ (new Set());
    /** What came before the first answer. */
    this.early = /** @type {any[] | null} */ ([]);
    this.changed = /** @type {Map<string, Changes>} */ (new Map());
    /** Why nothing can be moved; "" if it can. */
    this.barred = computed(() => {
      if (!may("run")) return NOT_ALLOWED;
      return LIVE.includes(log.model.value?.state) ? this.refused.value : ENDED;
    });
    /** Why the gateway takes no more messages; and whose message takes long, or waits for a cell. */
    this.refused = signal("");
    this.slow = signal(/** @type {{channel: Channel, waits: boolean} | null} */ (null));
    /** The last event that counts. */
    this.seen = log.waiting.length ? log.waiting[0].seq - 1 : log.seq;
    this.due = /** @type {{channel: Channel, sent: Sent}[]} */ ([]);
    this.sending = false;
    this.reading = /** @type {Promise<void> | null} */ (null);
  }

  /** A channel to this widget, once it is known; null if nothing is known of it. @param {string} id */
  async channel(id) {
    await (this.reading ??= this.#read());
    return this.widgets.has(id) ? new Channel(this, id) : null;
  }

  async #read() {
    try {
      const { seq, widgets, closed } = await api.get(`${this.log.path}/widgets`, { signal: this.log.stopped.signal });
      for (const [id, { state, buffers = [] }] of Object.entries(widgets)) {
        const widget = { state, buffers: new Map(), shown: null, closed: closed.includes(id) };
        for (const { path, data } of buffers) widget.buffers.set(JSON.stringify(path), { path, data });
        this.widgets.set(id, widget);
      }
      const early = /** @type {any[]} */ (this.early);
      this.early = null;
      for (const event of early) if (event.seq > seq) this.#apply(event);
    } catch (error) {
      this.reading = null;
      throw error;
    }
  }

  /** An event of a widget, or of what one shows. @param {any} event */
  receive(event) {
    if (this.early) this.early.push(event);
    else this.#apply(event);
  }

  /** @param {any} event */
  #apply(event) {
    const id = event.widget ?? event.comm_id;
    if (event.type === "comm_open") this.widgets.set(id, { state: {}, buffers: new Map(), shown: null, closed: false });
    const widget = this.widgets.get(id);
    if (widget === undefined) return;
    const changes = this.#changes(id);
    if (event.widget !== undefined) {
      widget.shown = reduce(this.#shown(widget), { ...event, widget: undefined });
      changes.outputs = true;
    } else if (event.type === "comm_close") widget.closed = true;
    else this.#update(widget, event.data, event.buffers ?? [], changes);
  }

  /** What an Output widget shows: what its state says, and what events add. @param {Widget} widget */
  #shown(widget) {
    const { outputs } = widget.state;
    widget.shown ??= Array.isArray(outputs) ? ofResult(outputs.filter((each) => each?.output_type)) : NOTHING;
    return widget.shown;
  }

  /** @param {Widget} widget @param {any} data @param {string[]} buffers @param {Changes} changes */
  #update(widget, data, buffers, changes) {
    const names = Object.keys(data.state ?? {});
    for (const name of names) {
      widget.state[name] = data.state[name];
      (data.method === "echo_update" ? changes.echo : changes.state).add(name);
      for (const [key, { path }] of widget.buffers) if (path[0] === name) widget.buffers.delete(key);
    }
    const paths = Array.isArray(data.buffer_paths) ? data.buffer_paths : [];
    for (const [index, path] of paths.entries())
      if (Array.isArray(path) && buffers[index] !== undefined) {
        widget.buffers.set(JSON.stringify(path), { path, data: buffers[index] });
        changes.state.add(path[0]);
      }
    if ("outputs" in (data.state ?? {})) {
      widget.shown = null;
      changes.outputs = true;
    }
  }

  /** @param {string} id @returns {Changes} */
  #changes(id) {
    if (this.changed.size === 0) queueMicrotask(() => this.#tell());
    const known = this.changed.get(id);
    if (known) return known;
    const made = { state: new Set(), echo: new Set(), outputs: false };
    this.changed.set(id, made);
    return made;
  }

  /** All events up to `seq` have come: who moved something is told, after what became of it. @param {number} seq */
  settle(seq) {
    this.seen = seq;
    this.#tell();
    for (const channel of this.channels) channel.settle();
  }

  #tell() {
    const { changed } = this;
    if (changed.size === 0) return;
    this.changed = new Map();
    for (const channel of this.channels) channel.tell(changed);
  }

  /** Send the kernel what somebody did, after what was done before. @param {Channel} channel @param {Sent} sent */
  async post(channel, sent) {
    if (this.due.length >= MOST_WAITING) return channel.handled(sent, null);
    this.due.push({ channel, sent });
    if (this.sending) return;
    this.sending = true;
    for (let next = this.due.shift(); next !== undefined; next = this.due.shift()) {
      const { channel, sent } = next;
      const handled = await this.#sent(channel, sent);
      this.slow.value = null;
      channel.handled(sent, handled);
    }
    this.sending = false;
  }

  /** The kernel's answer, once it is idle and has one; null if there is none. @param {Channel} channel @param {Sent} sent */
  async #sent(channel, { id, data, buffers }) {
    const { method, content, state, buffer_paths } = data;
    const body = method === "custom" ? { content, buffers } : { state, buffer_paths, buffers };
    for (;;) {
      const timer = setTimeout(() => (this.slow.value = { channel, waits: false }), LONG);
      try {
        return await api.post(`${this.log.path}/widgets/${encodeURIComponent(id)}`, body);
      } catch (error) {
        if (!(error instanceof Problem)) return null;
        if (error.reason === "busy" && !this.log.stopped.signal.aborted && !this.barred.peek()) {
          this.slow.value = { channel, waits: true };
          await new Promise((resolve) => setTimeout(resolve, BUSY));
          continue;
        }
        if (error.status === 404) channel.gone.value = GONE;
        else if (error.reason === "conflict") this.refused.value = error.message;
        else channel.told.value = error.message;
        return null;
      } finally {
        clearTimeout(timer);
      }
    }
  }

  /** Have the kernel end what it does for a widget. */
  interrupt() {
    for (const { channel, sent } of this.due.splice(0)) channel.handled(sent, null);
    return api.post(`${this.log.path}/interrupt`);
  }

  /** What an Output widget shows, as the frame draws it. @param {Widget} widget */
  outputsOf(widget) {
    return this.#shown(widget).outputs.slice(-MOST_OUTPUTS).map(part);
  }
}

/** The widgets of one output, for its frame. */
export class Channel {
  /** @param {SessionWidgets} widgets @param {string} root */
  constructor(widgets, root) {
    this.widgets = widgets;
    this.root = root;
    this.known = new Set();
    /** Messages that the kernel has not handled yet, or of which events are to come, up to a number. */
    this.pending = /** @type {Map<Sent, number>} */ (new Map());
    /** What the kernel printed at the last message; and that it has no such widget. */
    this.told = signal("");
    this.gone = signal("");
    this.barred = computed(() => widgets.barred.value || this.gone.value);
    /** What is said while the kernel works on what somebody did, or can't yet. */
    this.slow = computed(() => {
      const slow = widgets.slow.value;
      if (slow?.channel !== this) return "";
      return slow.waits ? WAITS : WORKS;
    });
    this.closed = signal(widgets.widgets.get(root)?.closed === true);
    this.send = /** @type {(message: object) => void} */ (() => {});
  }

  /** The package that draws it, if its scripts are not here; else "". */
  get elsewhere() {
    const { _model_module: module } = this.widgets.widgets.get(this.root)?.state ?? {};
    return PACKAGES.has(module) ? "" : String(module);
  }

  /** Begin to tell a frame; what is returned it gets with what it is to draw. @param {(message: object) => void} send */
  begin(send) {
    this.send = send;
    this.known.clear();
    this.pending.clear();
    this.widgets.channels.add(this);
    return { models: this.#fresh([this.root]), live: this.barred.peek() === "" };
  }

  end() {
    this.widgets.channels.delete(this);
    this.pending.clear();
  }

  /**
   * What a frame says that somebody did. It may say anything: what counts is of a widget that it shows, and small.
   * @param {any} sent
   */
  hear(sent) {
    const { id, number, data, buffers } = sent ?? {};
    if (this.barred.peek() || !this.known.has(id) || typeof number !== "number" || !Array.isArray(buffers)) return;
    const isUpdate = data?.method === "update" && typeof data.state === "object" && data.state !== null;
    if (!isUpdate && data?.method !== "custom") return;
    let size = 0;
    try {
      size = JSON.stringify([data, buffers]).length;
    } catch {
      return; // it refers to itself
    }
    if (size > MOST_SENT) {
      this.told.value = "This is more than a widget may send at once.";
      this.send({ widgets: { done: [number] } });
      return;
    }
    const taken = { id, number, data, buffers };
    this.pending.set(taken, Infinity);
    this.widgets.post(this, taken);
  }

  /** Whether the kernel works on what somebody did. */
  get works() {
    return this.slow.value === WORKS;
  }

  interrupt() {
    return this.widgets.interrupt();
  }

  /** @param {Sent} sent @param {{seq: number, text: string, late: boolean} | null} handled */
  handled(sent, handled) {
    if (!this.pending.has(sent)) return; // it was another frame's
    if (handled) this.told.value = handled.text + (handled.late ? LATE : "");
    this.pending.set(sent, handled?.seq ?? 0);
    this.settle();
  }

  /** Tell the frame of messages of which all events have come. */
  settle() {
    const done = [...this.pending].filter(([, until]) => until <= this.widgets.seen).map(([sent]) => sent);
    for (const sent of done) this.pending.delete(sent);
    if (done.length) this.send({ widgets: { done: done.map(({ number }) => number) } });
  }

  /** Names of what somebody has changed here and the kernel has not handled yet. @param {string} id */
  #sentOf(id) {
    const names = new Set();
    for (const sent of this.pending.keys())
      if (sent.id === id) for (const name of Object.keys(sent.data.state ?? {})) names.add(name);
    return names;
  }

  /** These and those that they refer to, without what the frame has. @param {string[]} due */
  #fresh(due) {
    const found = [];
    for (let id = due.pop(); id !== undefined; id = due.pop()) {
      const widget = this.widgets.widgets.get(id);
      if (this.known.has(id) || this.known.size >= MOST_SHOWN) continue;
      this.known.add(id);
      if (widget === undefined || widget.closed) {
        // What refers to it waits for it.
        found.push({ id, name: "", module: "", version: "", state: {}, buffers: [] });
        continue;
      }
      const { _model_name: name, _model_module: module, _model_module_version: version } = widget.state;
      const { state, buffers } = this.#told(widget, Object.keys(widget.state));
      found.push({ id, name, module, version, state, buffers });
      due.push(...referred(state));
    }
    return found;
  }

  /** @param {Widget} widget @param {string[]} names */
  #told(widget, names) {
    const state = Object.fromEntries(names.map((name) => [name, widget.state[name]]));
    if (widget.state._model_name === OUTPUT && names.includes("outputs")) state.outputs = this.widgets.outputsOf(widget);
    return { state, buffers: [...widget.buffers.values()].filter(({ path }) => names.includes(path[0])) };
  }

  /** @param {Map<string, Changes>} changed */
  tell(changed) {
    const changes = [];
    const closed = [];
    const due = [];
    for (const [id, { state, echo, outputs }] of changed) {
      const widget = this.widgets.widgets.get(id);
      if (widget === undefined || !this.known.has(id)) continue;
      if (widget.closed) {
        this.known.delete(id);
        closed.push(id);
        if (id === this.root) this.closed.value = true;
        continue;
      }
      // What the kernel confirms of what is being moved is behind the hand that moves it.
      const own = this.#sentOf(id);
      const names = new Set([...state, ...[...echo].filter((name) => !own.has(name))]);
      if (outputs) names.add("outputs");
      if (names.size === 0) continue;
      const told = { id, ...this.#told(widget, [...names]) };
      due.push(...referred(told.state));
      changes.push(told);
    }
    const models = this.#fresh(due);
    if (models.length || changes.length || closed.length) this.send({ widgets: { models, changes, closed } });
  }
}

/** The widgets that a state refers to. @param {Record<string, any>} state */
function referred(state) {
  const found = /** @type {string[]} */ ([]);
  /** @param {unknown} value @param {number} depth */
  const look = (value, depth) => {
    if (typeof value === "string" && value.startsWith(REFERENCE)) found.push(value.slice(REFERENCE.length));
    else if (typeof value === "object" && value !== null && depth < DEEPEST)
      for (const each of Object.values(value)) look(each, depth + 1);
  };
  for (const [name, value] of Object.entries(state)) {
    if (name !== "outputs") look(value, 0);
    else for (const each of value ?? []) if (each.kind === "widget") found.push(each.model);
  }
  return found;
}

/** @type {WeakMap<object, any>} */
const parts = new WeakMap();
let made = 0;

/** An output as the frame draws it; the same one has the same key. @param {import("./cell_outputs.js").Output} output */
function part(output) {
  const known = parts.get(output);
  if (known) return known;
  const drawn = { key: (made += 1), ...drawing(output) };
  parts.set(output, drawn);
  return drawn;
}

/** @param {import("./cell_outputs.js").Output} output */
function drawing(output) {
  if (output.kind === "stream") return { kind: "text", name: output.name, text: plain(output.text) };
  if (output.kind === "error") {
    const { ename, evalue, traceback } = output;
    return { kind: "text", name: "error", text: plain(traceback.length ? traceback.join("\n") : `${ename}: ${evalue}`) };
  }
  const { data, metadata } = output;
  const [form] = forms(data, true);
  if (form === undefined) return { kind: "text", name: "stdout", text: "This output can't be shown here." };
  const { mime, way } = form;
  const value = data[mime];
  if (way === "widget") return { kind: "widget", model: modelOf(value) };
  if (way === "frame") return { kind: "drawn", mime, value, metadata };
  if (way !== "picture") return { kind: "text", name: "stdout", text: plain(textOf(value)) };
  const text = textOf(value);
  const url = mime === "image/svg+xml" ? `data:${mime},${encodeURIComponent(text)}` : `data:${mime};base64,${text.replace(/\s+/g, "")}`;
  return { kind: "picture", url, alt: "Picture", width: pixels((metadata[mime] ?? metadata).width) };
}
