/**
 * What the outputs' frame draws each kind of output with. Renderers are fetched from the gateway when one is needed.
 *
 * What they are given is hostile, and so may the result be: whoever runs here has the frame, and nothing else.
 */

"use strict";

/** Where the gateway's files for the page are. */
const FILES = new URL("../", /** @type {HTMLScriptElement} */ (document.currentScript).src);

/** @type {Map<string, Promise<void>>} */
const loading = new Map();

/** @param {string} name of a renderer in vendor/renderers.js */
function needed(name) {
  if (!loading.has(name)) {
    const script = document.createElement("script");
    script.src = new URL(`vendor/${window.RENDERERS[name]}`, FILES).href;
    const loaded = /** @type {Promise<void>} */ (new Promise((resolve, reject) => {
      script.onload = () => resolve();
      script.onerror = () => reject(new Error(`The gateway did not send what draws this output (${name}).`));
    }));
    loading.set(name, loaded);
    document.head.append(script);
  }
  return loading.get(name);
}

/**
 * Fetch what draws an output, and say so in its place until it is there: the largest one has megabytes.
 * @param {HTMLElement} place
 * @param {...string} names
 * @returns {Promise<boolean>} whether it is still wanted: something else may have come into the place meanwhile
 */
async function withRenderers(place, ...names) {
  const line = document.createElement("p");
  line.className = "loading";
  line.role = "status";
  line.textContent = `Loading what draws this output (${names[0]}) …`;
  place.append(line);
  try {
    await Promise.all(names.map(needed));
    return line.isConnected;
  } finally {
    line.remove();
  }
}

/** @param {unknown} value */
const asText = (value) => (Array.isArray(value) ? value.join("") : String(value));

/** @param {unknown} value */
const asObject = (value) => (typeof value === "string" ? JSON.parse(value) : value);

/**
 * Markup with its scripts, which run when they are put into the document.
 * @param {HTMLElement} place
 * @param {string} markup
 */
function putMarkup(place, markup) {
  place.append(document.createRange().createContextualFragment(markup));
}

/** @typedef {{place: HTMLElement, value: any, metadata: any, theme: string, follow: (url: string) => void}} Wanted */

/** @typedef {(wanted: Wanted) => unknown} Drawer draws a form of output; what it returns, if anything, ends what it began */

/** @type {[RegExp, Drawer][]} */
const DRAWERS = [
  [/^text\/html$/, ({ place, value }) => putMarkup(place, asText(value))],
  [/^text\/markdown$/, drawMarkdown],
  [/^text\/latex$/, drawLatex],
  [/javascript$/, ({ place, value }) => void new Function("element", asText(value))(place)],
  [/^application\/vnd\.plotly\./, drawPlotly],
  [/^application\/vnd\.vegalite\./, (wanted) => drawVega(wanted, "vega-lite")],
  [/^application\/vnd\.vega\./, (wanted) => drawVega(wanted, "vega")],
  [/^application\/vnd\.jupyter\.widget-view\+json$/, (/** @type {any} */ wanted) => drawWidget(wanted)],
];

/** Those whose colours are chosen when they are drawn. @param {string} mime */
const isThemed = (mime) => /^application\/vnd\.vega/.test(mime);

/** @param {Wanted} wanted */
async function drawMarkdown({ place, value }) {
  if (!(await withRenderers(place, "markdown-it", "katex"))) return;
  const markdown = new window.MarkdownIt({ html: true, linkify: true });
  markdown.use(addMath);
  putMarkup(place, markdown.render(asText(value)));
}

/** @param {Wanted} wanted */
async function drawLatex({ place, value }) {
  if (!(await withRenderers(place, "katex"))) return;
  place.append(latexOf(asText(value)));
}

const OF_MAPS = /^(?:choropleth|scattergeo)$/;
/** The height of a figure that asks for none, in pixels; plotly's own. */
const USUAL_HEIGHT = 450;
/** Whoever asks for more scrolls within the figure's place. */
const MOST_HEIGHT = 20_000;

/** @param {Wanted} wanted */
async function drawPlotly({ place, value }) {
  const figure = asObject(value);
  const layout = figure.layout || {};
  const hasMaps = (figure.data || []).some((/** @type {any} */ trace) => OF_MAPS.test(trace?.type)) || layout.geo;
  if (!(await withRenderers(place, "plotly", ...(hasMaps ? ["plotly-maps"] : [])))) return undefined;
  // A figure that follows its place takes the height of that, and an empty one has none.
  const element = document.createElement("div");
  const asked = Number(layout.height ?? layout.template?.layout?.height);
  element.style.height = `${asked > 0 ? Math.min(asked, MOST_HEIGHT) : USUAL_HEIGHT}px`;
  place.append(element);
  // A frame saves no files and asks nobody: these buttons would do nothing.
  const config = { ...figure.config, responsive: true, displaylogo: false, showLink: false };
  config.modeBarButtonsToRemove = [...(figure.config?.modeBarButtonsToRemove || []), "toImage", "sendDataToCloud"];
  await window.Plotly.newPlot(element, figure.data || [], layout, config);
  if (figure.frames) await window.Plotly.addFrames(element, figure.frames);
  return () => window.Plotly.purge(element);
}

/** @param {Wanted} wanted @param {string} mode */
async function drawVega({ place, value, metadata, theme, follow }, mode) {
  if (!(await withRenderers(place, "vega"))) return undefined;
  const loader = window.vega.loader();
  const sanitize = loader.sanitize.bind(loader);
  loader.sanitize = (/** @type {unknown} */ uri, /** @type {any} */ options) => {
    if (options?.context !== "href") return sanitize(uri, options);
    follow(String(uri));
    return Promise.reject(new Error("Links are followed by the page."));
  };
  const told = metadata?.embed_options || {};
  const options = { theme: told.theme ?? (theme === "dark" ? "dark" : undefined), padding: told.padding };
  const drawn = await window.vegaEmbed(place, asObject(value), { ...options, mode, loader, actions: false, renderer: "svg" });
  return () => drawn.finalize();
}

/**
 * @param {string} mime
 * @param {Wanted} wanted
 * @returns {Promise<(() => void) | void>}
 */
async function drawOutput(mime, wanted) {
  const found = DRAWERS.find(([pattern]) => pattern.test(mime));
  if (!found) throw new Error(`Outputs of the type ${mime} can't be shown.`);
  return /** @type {(() => void) | void} */ (await found[1](wanted));
}
