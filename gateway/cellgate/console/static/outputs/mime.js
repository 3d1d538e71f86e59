/**
 * Which of an output's forms is shown, and how. Pure.
 *
 * The order is the one that Jupyter's users know: figures that their own library draws, then HTML, and plain text last.
 * A form that cannot be drawn here does not count.
 *
 * @typedef {"frame" | "picture" | "tree" | "text" | "widget"} Way
 */

/** @type {[RegExp, Way, string][]} */
const FORMS = [
  [/^application\/vnd\.jupyter\.widget-view\+json$/, "widget", "Widget"],
  [/^application\/vnd\.plotly\.v1\+json$/, "frame", "Plotly"],
  // Altair 6 ends the name of its type with ".json".
  [/^application\/vnd\.vegalite\.v[1-6](?:\.\d+)*[+.]json$/, "frame", "Vega-Lite"],
  [/^application\/vnd\.vega\.v[1-6](?:\.\d+)*[+.]json$/, "frame", "Vega"],
  [/^text\/html$/, "frame", "HTML"],
  [/^text\/markdown$/, "frame", "Markdown"],
  [/^text\/latex$/, "frame", "LaTeX"],
  [/^image\/svg\+xml$/, "picture", "SVG"],
  [/^image\/(?:png|jpeg|gif|webp|avif|bmp)$/, "picture", "picture"],
  [/^application\/(?:geo\+)?json$/, "tree", "JSON"],
  [/^application\/javascript$|^text\/javascript$/, "frame", "JavaScript"],
  [/^text\/plain$/, "text", "text"],
];

/** @param {string} mime */
const rank = (mime) => FORMS.findIndex(([pattern]) => pattern.test(mime));

/**
 * The forms that can be shown, the richest first.
 * @param {Record<string, unknown>} data
 * @param {boolean} [widgets] whether there is somebody who knows them
 * @returns {{mime: string, way: Way, name: string}[]}
 */
export function forms(data, widgets = false) {
  return Object.keys(data)
    .filter((mime) => rank(mime) !== -1 && data[mime] != null && (rank(mime) !== 0 || (widgets && modelOf(data[mime]))))
    .sort((a, b) => rank(a) - rank(b))
    .map((mime) => ({ mime, way: FORMS[rank(mime)][1], name: FORMS[rank(mime)][2] }));
}

/** The id of the widget that a widget's view is of; "" if it is of none. @param {any} value @returns {string} */
export const modelOf = (value) => (typeof value?.model_id === "string" ? value.model_id : "");

const BOKEH =
  "Bokeh draws this figure with scripts of another output, and each output is drawn by itself here. " +
  'HTML(bokeh.embed.file_html(figure, "inline")) shows it.';

/** What a reader is told of an output that can't show what it is; "" of all others. @param {Record<string, unknown>} data */
export function remark(data) {
  return Object.keys(data).some((mime) => /^application\/vnd\.bokehjs_exec\./.test(mime)) ? BOKEH : "";
}

/** The value of a form as text. @param {unknown} value @returns {string} */
export function textOf(value) {
  if (typeof value === "string") return value;
  if (Array.isArray(value) && value.every((each) => typeof each === "string")) return value.join("");
  return JSON.stringify(value, null, 1);
}

const ENDINGS = new Map([
  ["text/html", "html"],
  ["text/markdown", "md"],
  ["text/latex", "tex"],
  ["image/svg+xml", "svg"],
  ["image/jpeg", "jpg"],
  ["application/javascript", "js"],
  ["text/javascript", "js"],
  ["text/plain", "txt"],
]);

/** @param {string} mime */
export function ending(mime) {
  const known = ENDINGS.get(mime);
  if (known) return known;
  if (mime.endsWith("json")) return "json";
  return /^image\/(\w+)$/.exec(mime)?.[1] || "txt";
}

/** A length in pixels that an output may ask for; undefined if it asks for none that is one. @param {unknown} value */
export function pixels(value) {
  const number = typeof value === "string" ? Number.parseFloat(value) : value;
  return typeof number === "number" && number >= 1 && number <= 10_000 ? Math.round(number) : undefined;
}
