/**
 * Reads the text that Prometheus scrapes: as much of the format as the gateway writes, and no more text than it does. Pure.
 *
 * @typedef {{name: string, labels: Record<string, string>, value: number}} Sample
 */

const MOST_TEXT = 4 * 1024 * 1024;
const MOST_SAMPLES = 20_000;
const LINE = /^([a-zA-Z_:][\w:]*)(?:\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)(?: -?\d+)?$/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const ESCAPED = new Map([
  ["n", "\n"],
  ["\\", "\\"],
  ['"', '"'],
]);

/**
 * The samples by name. Lines that are none are left out, as are those after the first 20,000.
 * @param {string} text
 * @returns {Map<string, Sample[]>}
 */
export function parse(text) {
  const found = /** @type {Map<string, Sample[]>} */ (new Map());
  let count = 0;
  for (const line of text.slice(0, MOST_TEXT).split("\n")) {
    if (line === "" || line[0] === "#") continue;
    const parts = LINE.exec(line);
    if (parts === null) continue;
    if ((count += 1) > MOST_SAMPLES) break;
    const [, name, labels = "", value] = parts;
    const samples = found.get(name) || [];
    samples.push({ name, labels: labelsOf(labels), value: number(value) });
    found.set(name, samples);
  }
  return found;
}

/** @param {string} text */
function labelsOf(text) {
  const labels = Object.create(null);
  for (const [, name, value] of text.matchAll(LABEL))
    labels[name] = value.replace(/\\(.)/g, (whole, escaped) => ESCAPED.get(escaped) ?? whole);
  return labels;
}

/** @param {string} text */
function number(text) {
  if (text === "+Inf") return Infinity;
  return text === "-Inf" ? -Infinity : Number(text);
}

/**
 * The sum of a metric's samples, of those alone whose labels are as given; undefined if there is none.
 * @param {Map<string, Sample[]>} metrics
 * @param {string} name
 * @param {Record<string, string | string[]>} [wanted]
 */
export function sum(metrics, name, wanted = {}) {
  const fits = (/** @type {Sample} */ { labels }) =>
    Object.entries(wanted).every(([label, value]) => [value].flat().includes(labels[label]));
  const values = (metrics.get(name) || []).filter(fits).map((sample) => sample.value);
  return values.length ? values.reduce((total, value) => total + value, 0) : undefined;
}

/**
 * A metric's values by the values of one label.
 * @param {Map<string, Sample[]>} metrics
 * @param {string} name
 * @param {string} label
 * @returns {Record<string, number>}
 */
export function by(metrics, name, label) {
  const found = Object.create(null);
  for (const { labels, value } of metrics.get(name) || []) found[labels[label]] = (found[labels[label]] || 0) + value;
  return found;
}
