/**
 * Jupyter's widgets in the outputs' frame: the models that the page sends, and the views of those that an output shows.
 *
 * The page has the state of all widgets of the session, as its record tells of them. It sends those that this output
 * refers to, and what becomes of them; what somebody does to one goes back to the page, which looks at it before it
 * sends it to the kernel. Jupyter's own widgets draw themselves; those of other packages have no scripts here.
 */

"use strict";

/** What the page tells of widgets, for the output that shows them. @type {(news: any) => void} */
let hearWidgets = () => {};

/**
 * @param {{place: HTMLElement, value: any, theme: string, follow: (url: string) => void,
 *   tell: (message: object) => void, widgets: {models: any[], live: boolean}}} wanted
 */
async function drawWidget({ place, value, theme, follow, tell, widgets }) {
  const early = /** @type {any[]} */ ([]);
  let hear = /** @type {(news: any) => void} */ ((news) => early.push(news));
  hearWidgets = (news) => hear(news);
  if (!(await withRenderers(place, "widgets"))) return undefined;
  styleWidgets();
  const draw = (/** @type {any} */ part, /** @type {HTMLElement} */ inside) =>
    drawOutput(part.mime, { place: inside, value: part.value, metadata: part.metadata, theme, follow });
  const manager = new (widgetManager())({ live: widgets.live, tell, draw });
  manager.open(widgets.models);
  hear = (news) => manager.hear(news);
  early.forEach(hear);
  await manager.show(value.model_id, place);
  return () => {
    hearWidgets = () => {};
    return manager.clear_state();
  };
}

/** Jupyter's styles, and the colours that they name. */
function styleWidgets() {
  if (document.querySelector("style.of-widgets")) return;
  for (const text of window.JupyterWidgets.styles) {
    const style = document.createElement("style");
    style.className = "of-widgets";
    style.textContent = text;
    document.head.append(style);
  }
  const colours = document.createElement("link");
  colours.rel = "stylesheet";
  colours.href = new URL("frame/widgets.css", FILES).href;
  document.head.append(colours);
}

/** @param {string} base64 */
function bytesOf(base64) {
  const binary = atob(base64);
  const bytes = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index += 1) bytes[index] = binary.charCodeAt(index);
  return new DataView(bytes.buffer);
}

/** @param {ArrayBuffer | ArrayBufferView} given */
function base64Of(given) {
  const bytes = ArrayBuffer.isView(given) ? new Uint8Array(given.buffer, given.byteOffset, given.byteLength) : new Uint8Array(given);
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary);
}

/**
 * A part of what an Output widget shows.
 * @param {any} part @param {any} manager
 */
function drawPart(part, manager) {
  const element = document.createElement(part.kind === "text" ? "pre" : "div");
  if (part.kind === "text") {
    element.className = part.name;
    element.textContent = part.text;
  } else if (part.kind === "picture") {
    const picture = document.createElement("img");
    picture.alt = part.alt;
    picture.src = part.url;
    if (part.width) picture.width = part.width;
    element.append(picture);
  } else {
    // It draws when it is in the document: some measure the place that they have.
    const drawn = part.kind === "widget" ? () => manager.show(part.model, element) : () => manager.draw(part, element);
    queueMicrotask(() =>
      Promise.resolve(drawn()).catch((/** @type {any} */ error) => {
        element.className = "failed";
        element.textContent = String(error);
      }),
    );
  }
  return element;
}

/** A name for what shows a value to those who do not see it. @param {any} view */
function nameView(view) {
  const { model, el } = view;
  const bar = /Progress/.test(model.name) ? el.querySelector(".progress, .jupyter-widget-progress-bar, .widget-progress") || el : null;
  const name = () => {
    const label = String(model.get("description") || model.get("tooltip") || "").replace(/<[^>]*>/g, "");
    // What has no tooltip has the word.
    for (const each of el.querySelectorAll('[title="null"]')) each.removeAttribute("title");
    for (const handle of el.querySelectorAll(".noUi-handle")) if (label) handle.setAttribute("aria-label", label);
    if (bar === null) return;
    bar.setAttribute("role", "progressbar");
    bar.setAttribute("aria-label", label || "Progress");
    for (const [attribute, key] of [["valuemin", "min"], ["valuemax", "max"], ["valuenow", "value"]])
      bar.setAttribute(`aria-${attribute}`, String(model.get(key)));
  };
  name();
  view.listenTo(model, "change", name);
}

/** The class of managers, once there is what it is made of. */
function widgetManager() {
  const { base, controls, ManagerBase } = window.JupyterWidgets;

  class OutputModel extends base.DOMWidgetModel {
    defaults() {
      const own = { _model_name: "OutputModel", _model_module: OUTPUT, _view_name: "OutputView", _view_module: OUTPUT };
      return { ...super.defaults(), ...own, msg_id: "", outputs: [] };
    }
  }

  class OutputView extends base.DOMWidgetView {
    render() {
      super.render();
      this.shown = /** @type {Map<number, HTMLElement>} */ (new Map());
      this.el.classList.add("jupyter-widgets", "widget-output");
      this.listenTo(this.model, "change:outputs", this.show);
      this.show();
    }

    /** What is the same as before stays as it is. */
    show() {
      const before = this.shown ?? new Map();
      this.shown = new Map();
      for (const part of this.model.get("outputs") || [])
        this.shown.set(part.key, before.get(part.key) ?? drawPart(part, this.model.widget_manager));
      this.el.replaceChildren(...this.shown.values());
    }
  }

  class ElsewhereModel extends base.DOMWidgetModel {
    defaults() {
      return { ...super.defaults(), _view_name: null };
    }
  }

  class ElsewhereView extends base.DOMWidgetView {
    render() {
      super.render();
      this.el.className = "elsewhere";
      this.el.textContent = `The package ${String(this.model.module).slice(0, 100)} draws this widget, and its scripts are not here.`;
    }
  }

  const OUTPUT = "@jupyter-widgets/output";
  /** @type {Record<string, any>} */
  const PACKAGES = {
    "@jupyter-widgets/base": base,
    "@jupyter-widgets/controls": controls,
    [OUTPUT]: { OutputModel, OutputView },
  };

  /** Of a widget that was closed, or of which nothing is known. */
  class NoView extends base.DOMWidgetView {
    render() {
      this.el.hidden = true;
    }
  }

  return class extends ManagerBase {
    /** @param {{live: boolean, tell: (message: object) => void, draw: (part: any, inside: HTMLElement) => unknown}} given */
    constructor({ live, tell, draw }) {
      super();
      this.live = live;
      this.tell = tell;
      this.draw = draw;
      this.sent = 0;
      this.callbacksOf = new Map();
    }

    /** @param {string} name @param {string} module */
    async loadModelClass(name, module) {
      return PACKAGES[module]?.[name] ?? ElsewhereModel;
    }

    /** @param {string} name @param {string} module */
    async loadViewClass(name, module) {
      if (!name) return NoView;
      return PACKAGES[module]?.[name] ?? ElsewhereView;
    }

    /** @param {any} model @param {any} [options] */
    async create_view(model, options) {
      const view = await super.create_view(model, options);
      nameView(view);
      return view;
    }

    /** Show a widget within an element of the document. @param {string} id @param {HTMLElement} place */
    async show(id, place) {
      const view = await this.create_view(await this.get_model(id));
      base.JupyterLuminoWidget.attach(view.luminoWidget, place);
    }

    /** @param {any[]} models */
    open(models) {
      for (const { id, name, module, version, state, buffers } of models) {
        if (this.has_model(id)) continue;
        this.fill(state, buffers);
        const options = { model_id: id, model_name: name, model_module: module, model_module_version: version };
        this.new_model({ ...options, comm: this.live ? this.comm(id) : undefined }, state).catch(console.error);
      }
    }

    /** Put buffers into their places. A control that nothing would happen to is none. @param {any} state @param {any[]} buffers */
    fill(state, buffers) {
      if (!this.live && "disabled" in state) state.disabled = true;
      base.put_buffers(state, buffers.map(({ path }) => path), buffers.map(({ data }) => bytesOf(data)));
    }

    /** @param {{models?: any[], changes?: any[], closed?: string[], done?: number[]}} news */
    hear({ models = [], changes = [], closed = [], done = [] }) {
      this.open(models);
      for (const { id, state, buffers } of changes) {
        if (!this.has_model(id)) continue;
        this.fill(state, buffers);
        this._models[id].then((/** @type {any} */ model) => model._handle_comm_msg({ content: { data: { method: "update", state } } }));
      }
      for (const id of closed) this._models[id]?.then((/** @type {any} */ model) => model._handle_comm_closed());
      for (const number of done) {
        const callbacks = this.callbacksOf.get(number);
        this.callbacksOf.delete(number);
        callbacks?.iopub?.status?.({ content: { execution_state: "idle" } });
      }
    }

    /** What a model sends by. @param {string} id */
    comm(id) {
      const nothing = () => "";
      const send = (/** @type {any} */ data, /** @type {any} */ callbacks, /** @type {any} */ _, /** @type {any[]} */ buffers) => {
        this.sent += 1;
        this.callbacksOf.set(this.sent, callbacks);
        this.tell({ widget: { id, number: this.sent, data, buffers: (buffers || []).map(base64Of) } });
        return String(this.sent);
      };
      return { comm_id: id, target_name: "jupyter.widget", send, open: nothing, close: nothing, on_msg: nothing, on_close: nothing };
    }
  };
}
