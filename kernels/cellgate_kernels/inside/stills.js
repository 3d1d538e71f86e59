/**
 * Draws charts as SVG: a program of Deno's that ``stills.py`` starts beside a kernel for what one cell shows.
 *
 * A line of its input is a chart, a line of its output that chart's still or why there is none. It may read the files of
 * the environment and nothing else: no network, no programs. Charts come from code of users; what goes wrong with one is
 * its own. Vega draws without a page. plotly.js needs one: a document without a browser, in which text is as large as letters
 * usually are; so stills have plotly's look, not its last pixel. What only WebGL draws, or what is fetched, has no still.
 *
 * Arguments: the address of plotly.js.
 */

const [PLOTLY] = Deno.args;
const WIDTH = 700;
const HEIGHT = 450;
/** How long one may wait for something that will never come, in milliseconds. */
const LONGEST = 5000;
/** Kinds of traces that are drawn as SVG. */
const DRAWN = new Set(
  ("scatter bar histogram box violin pie funnel funnelarea waterfall ohlc candlestick heatmap histogram2d contour " +
    "histogram2dcontour sunburst treemap icicle sankey parcats indicator table scatterpolar barpolar scatterternary " +
    "carpet scattercarpet contourcarpet scattersmith image " +
    "choropleth scattergeo").split(" "),
);

const OF_MAPS = /^(?:choropleth|scattergeo)$/;

/** @type {Set<string>} */
const ran = new Set();

/**
 * What a script puts under this name. It is no module: Deno takes half a second to look through a large one.
 */
function loaded(script, name) {
  if (!ran.has(script)) (0, eval)(Deno.readTextFileSync(new URL(script, import.meta.url)));
  ran.add(script);
  return globalThis[name];
}

const answer = (found) => Deno.stdout.writeSync(new TextEncoder().encode(JSON.stringify(found) + "\n"));

/** Why a chart has no still that a browser with all that belongs to one can draw. */
class Elsewhere extends Error {}

// ---- Vega ------------------------------------------------------------------------------------------------------------

const quiet = { error: () => quiet, warn: () => quiet, info: () => quiet, debug: () => quiet, level: () => quiet };

async function drawVega(spec, mode) {
  const { vega, compile } = loaded("./drawing/stills_vega.js", "stills_vega");
  vega.resetSVGDefIds();
  const whole = mode === "vega-lite" ? compile(spec, { logger: quiet }).spec : spec;
  const loader = vega.loader();
  let missing = null;
  loader.load = (address) => {
    missing ??= `it loads ${String(address).slice(0, 200)}`;
    return Promise.reject(new Error(missing));
  };
  const view = new vega.View(vega.parse(whole), { renderer: "none", loader, logger: quiet });
  try {
    const svg = await view.toSVG();
    // What was not loaded only lacks in the picture.
    if (missing !== null) throw new Error(missing);
    return svg;
  } finally {
    view.finalize();
  }
}

// ---- a page for plotly.js --------------------------------------------------------------------------------------------

/** Widths of the letters from the space to the tilde in a sans-serif font, in thousandths of its size. */
const LETTERS =
  "278 278 355 556 556 889 667 191 333 333 389 584 278 333 278 278 556 556 556 556 556 556 556 556 556 556 278 278 584 " +
  "584 584 556 1015 667 667 722 722 667 611 778 722 278 500 667 556 833 722 778 667 778 722 667 611 722 667 944 667 667 " +
  "611 278 278 278 469 556 333 556 556 500 556 556 278 556 556 222 222 500 222 833 556 556 556 556 333 500 278 556 500 " +
  "722 500 500 500 334 260 334 584";
const WIDTHS = LETTERS.split(" ").map((width) => Number(width) / 1000);
/** The fonts that readers have are a little wider. */
const WIDER = 1.08;

const widthOf = (text, size) => {
  let sum = 0;
  for (const letter of text) {
    const code = letter.codePointAt(0);
    sum += WIDTHS[code - 32] ?? (code > 0x2e7f ? 1 : 0.6);
  }
  return sum * size * WIDER;
};

/** Rules of style that hold for what is inside an element too. */
const INHERITED = new Set(["font-size", "font-family", "font-weight", "font-style", "text-anchor", "fill", "stroke", "visibility"]);
const USUAL = { "font-size": "12px", "text-anchor": "start", "font-family": "sans-serif", "font-weight": "400", visibility: "visible", display: "block", opacity: "1" };

function styleOf(element, name) {
  for (let each = element; each?.getAttribute; each = each.parentNode) {
    const said = each.style?.getPropertyValue?.(name) || each.getAttribute(name);
    if (said) return said;
    if (!INHERITED.has(name)) break;
  }
  return USUAL[name] ?? "";
}

const number = (text, usual = 0) => (Number.isFinite(Number.parseFloat(text)) ? Number.parseFloat(text) : usual);
const sizeOf = (element) => number(styleOf(element, "font-size"), 12);
const length = (text, size) => (/em\s*$/.test(text ?? "") ? number(text) * size : number(text));

const times = ([a, b, c, d, e, f], [g, h, i, j, k, l]) => [
  a * g + c * h, b * g + d * h, a * i + c * j, b * i + d * j, a * k + c * l + e, b * k + d * l + f,
];

/** What an element's `transform` makes of the place of its parent. */
function transformOf(element) {
  let whole = [1, 0, 0, 1, 0, 0];
  for (const [, name, told] of (element.getAttribute?.("transform") ?? "").matchAll(/(\w+)\s*\(([^)]*)\)/g)) {
    const [p = 0, q, r = 0, s, t, u] = told.split(/[\s,]+/).filter(Boolean).map(Number);
    const turn = (p * Math.PI) / 180;
    if (name === "translate") whole = times(whole, [1, 0, 0, 1, p, q ?? 0]);
    else if (name === "scale") whole = times(whole, [p, 0, 0, q ?? p, 0, 0]);
    else if (name === "matrix") whole = times(whole, [p, q, r, s, t, u]);
    else if (name === "rotate") {
      whole = times(whole, [1, 0, 0, 1, q ?? 0, r]);
      whole = times(whole, [Math.cos(turn), Math.sin(turn), -Math.sin(turn), Math.cos(turn), 0, 0]);
      whole = times(whole, [1, 0, 0, 1, -(q ?? 0), -r]);
    }
  }
  return whole;
}

const NOWHERE = [Infinity, Infinity, -Infinity, -Infinity];
const union = (a, b) => [Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.max(a[2], b[2]), Math.max(a[3], b[3])];

function moved([left, top, right, bottom], [a, b, c, d, e, f]) {
  if (left > right) return NOWHERE;
  return [[left, top], [right, top], [left, bottom], [right, bottom]]
    .map(([x, y]) => [a * x + c * y + e, b * x + d * y + f])
    .reduce((box, [x, y]) => union(box, [x, y, x, y]), NOWHERE);
}

/** The box of a text, line by line: plotly makes lines of the class `line`. */
function textBox(element) {
  const lines = [...element.children].filter((each) => each.classList?.contains("line"));
  const at = (each, name) => number(each.getAttribute(name) ?? element.getAttribute(name));
  let box = NOWHERE;
  for (const each of lines.length ? lines : [element]) {
    if (!each.textContent) continue;
    const size = sizeOf(each);
    const wide = widthOf(each.textContent, size);
    const anchor = styleOf(each, "text-anchor");
    const left = at(each, "x") + number(each.getAttribute("dx")) - (anchor === "middle" ? wide / 2 : anchor === "end" ? wide : 0);
    const base = at(each, "y") + length(each.getAttribute("dy"), size);
    box = union(box, [left, base - 0.93 * size, left + wide, base + 0.23 * size]);
  }
  return box;
}

/** The corners of a path, with what its curves are led by. */
function* cornersOf(told) {
  let [x, y] = [0, 0];
  const parts = told.matchAll(/([a-zA-Z])([^a-zA-Z]*)/g);
  for (const [, command, rest] of parts) {
    const numbers = (rest.match(/-?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?/gi) ?? []).map(Number);
    const kind = command.toUpperCase();
    const near = command !== kind;
    const step = { M: 2, L: 2, T: 2, H: 1, V: 1, C: 6, S: 4, Q: 4, A: 7 }[kind] ?? 0;
    for (let first = 0; step && first + step <= numbers.length; first += step) {
      const each = numbers.slice(first, first + step);
      const [fromX, fromY] = [near ? x : 0, near ? y : 0];
      if (kind === "H") x = fromX + each[0];
      else if (kind === "V") y = fromY + each[0];
      else {
        for (let at = kind === "A" ? 5 : 0; at + 1 < each.length; at += 2) {
          [x, y] = [fromX + each[at], fromY + each[at + 1]];
          if (at + 3 < each.length) yield [x, y];
        }
      }
      yield [x, y];
    }
  }
}

const pathBox = (told) => cornersOf(told).reduce((box, [x, y]) => union(box, [x, y, x, y]), NOWHERE);

/** The place on a path that is so far from its beginning, and how long it is until there: as if it had no curves. */
function along(told, far = Infinity) {
  let before = null;
  let gone = 0;
  for (const corner of cornersOf(told)) {
    const step = before === null ? 0 : Math.hypot(corner[0] - before[0], corner[1] - before[1]);
    if (before !== null && gone + step >= far) {
      const part = step ? (far - gone) / step : 0;
      return { x: before[0] + part * (corner[0] - before[0]), y: before[1] + part * (corner[1] - before[1]), gone: far };
    }
    gone += step;
    before = corner;
  }
  return { x: before?.[0] ?? 0, y: before?.[1] ?? 0, gone };
}

/** The box of an element where its own `transform` has not moved it yet. */
function ownBox(element) {
  const at = (name) => number(element.getAttribute?.(name));
  switch (element.localName) {
    case "text":
      return textBox(element);
    case "rect":
    case "image":
      return [at("x"), at("y"), at("x") + at("width"), at("y") + at("height")];
    case "circle":
      return [at("cx") - at("r"), at("cy") - at("r"), at("cx") + at("r"), at("cy") + at("r")];
    case "line":
      return union([at("x1"), at("y1"), at("x1"), at("y1")], [at("x2"), at("y2"), at("x2"), at("y2")]);
    case "path":
      return pathBox(element.getAttribute("d") ?? "");
    case "defs":
    case "clipPath":
    case "tspan":
      return element.localName === "tspan" && element.parentNode ? textBox(element) : NOWHERE;
    default:
      return [...(element.children ?? [])].reduce((box, each) => union(box, moved(ownBox(each), transformOf(each))), NOWHERE);
  }
}

function boxOnPage(element) {
  let box = ownBox(element);
  for (let each = element; each?.getAttribute; each = each.parentNode) box = moved(box, transformOf(each));
  return box;
}

function asRect([left, top, right, bottom]) {
  if (left > right) [left, top, right, bottom] = [0, 0, 0, 0];
  return { left, top, right, bottom, x: left, y: top, width: right - left, height: bottom - top };
}

/** A checksum of PNG's. */
function crc(bytes) {
  let sum = ~0;
  for (const byte of bytes) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit += 1) sum = (sum >>> 1) ^ (sum & 1 ? 0xedb88320 : 0);
  }
  return ~sum >>> 0;
}

const big = (value) => [(value >>> 24) & 255, (value >>> 16) & 255, (value >>> 8) & 255, value & 255];

/** Pixels as PNG, not compressed: there is nothing here that compresses at once. */
function pngOf({ data, width, height }) {
  const raw = new Uint8Array(height * (4 * width + 1));
  for (let row = 0; row < height; row += 1)
    raw.set(data.subarray(4 * width * row, 4 * width * (row + 1)), row * (4 * width + 1) + 1);
  const packed = [0x78, 0x01];
  for (let first = 0; first < raw.length || first === 0; first += 65535) {
    const part = raw.subarray(first, first + 65535);
    packed.push(first + 65535 >= raw.length ? 1 : 0, part.length & 255, part.length >> 8, ~part.length & 255, (~part.length >> 8) & 255);
    for (const byte of part) packed.push(byte);
  }
  let [a, b] = [1, 0];
  for (const byte of raw) {
    a = (a + byte) % 65521;
    b = (b + a) % 65521;
  }
  packed.push(...big(b * 65536 + a));
  const made = [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a];
  for (const [name, told] of [["IHDR", [...big(width), ...big(height), 8, 6, 0, 0, 0]], ["IDAT", packed], ["IEND", []]]) {
    const named = [...new TextEncoder().encode(name)].concat(told);
    made.push(...big(told.length));
    for (const byte of named) made.push(byte);
    made.push(...big(crc(named)));
  }
  return Uint8Array.from(made).toBase64();
}

/** A canvas for heat maps: squares that are filled are kept as SVG, which pictures may be too, and pixels as PNG. */
function canvas() {
  const squares = [];
  let pixels = null;
  const pen = {
    fillStyle: "",
    fillRect: (x, y, width, height) => squares.push([pen.fillStyle, x, y, width, height]),
    drawImage: () => {},
    createImageData: (width, height) => ({ width, height, data: new Uint8ClampedArray(4 * width * height) }),
    putImageData: (put) => (pixels = put),
  };
  const shown = ([fill, ...box]) => {
    const [x, y, width, height] = box.map((each) => Math.round(each * 100) / 100);
    return `<rect x="${x}" y="${y}" width="${width}" height="${height}" fill="${fill}"/>`;
  };
  const made = document.createElement("div");
  made.getContext = (kind) => (kind === "2d" ? pen : null);
  made.toDataURL = () => {
    if (pixels !== null) return `data:image/png;base64,${pngOf(pixels)}`;
    const opened = `<svg xmlns="http://www.w3.org/2000/svg" width="${made.width}" height="${made.height}" shape-rendering="crispEdges">`;
    return `data:image/svg+xml;base64,${btoa(`${opened}${squares.map(shown).join("")}</svg>`)}`;
  };
  return made;
}

let page;

function openPage() {
  const made = loaded("./drawing/stills_dom.js", "stills_dom").parseHTML("<!doctype html><html><head></head><body></body></html>");
  const { document } = made;
  const create = document.createElement.bind(document);
  const put = (name, value) => Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
  // Else plotly.js looks for variables of Node.
  put("process", undefined);
  put("window", globalThis);
  put("self", globalThis);
  put("document", document);
  for (const name of ["Element", "HTMLElement", "SVGElement", "Node", "DOMParser"]) put(name, made[name]);
  put("getComputedStyle", (element) =>
    new Proxy({}, {
      get: (_, name) =>
        name === "getPropertyValue"
          ? (told) => styleOf(element, told)
          : styleOf(element, String(name).replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)),
    }),
  );
  put("XMLSerializer", class {
    serializeToString(node) {
      return node.toString();
    }
  });
  put("Image", function () {
    const image = create("img");
    const told = { value: null, writable: true };
    const put = (name, address) => queueMicrotask(() => (/^data:image\//.test(address) ? image.onload?.() : image.onerror?.()));
    return Object.defineProperties(image, { onload: told, onerror: told, setAttribute: { value: put } });
  });
  put("addEventListener", () => {});
  put("removeEventListener", () => {});
  put("matchMedia", () => ({ matches: false, addListener() {}, addEventListener() {} }));
  put("requestAnimationFrame", (draw) => setTimeout(draw, 0));
  put("cancelAnimationFrame", clearTimeout);
  put("CSS", { supports: () => true });
  put("innerWidth", WIDTH);
  put("innerHeight", HEIGHT);
  // It says what it finds odd in a figure, in the console of a page that nobody reads.
  for (const name of ["log", "warn", "error", "info", "trace"]) console[name] = () => {};
  document.createElement = (name) => (String(name).toLowerCase() === "canvas" ? canvas() : create(name));
  const prototype = made.Element.prototype;
  // As in a page, where the names of HTML alone are in capitals.
  Object.defineProperty(made.SVGElement.prototype, "nodeName", {
    get() {
      return this.localName;
    },
  });
  prototype.getBoundingClientRect = function () {
    return asRect(boxOnPage(this));
  };
  prototype.getBBox = function () {
    return asRect(ownBox(this));
  };
  prototype.getComputedTextLength = function () {
    return widthOf(this.textContent, sizeOf(this));
  };
  prototype.getTotalLength = function () {
    return along(this.getAttribute("d") ?? "").gone;
  };
  prototype.getPointAtLength = function (far) {
    return along(this.getAttribute("d") ?? "", Math.max(0, far));
  };
  return loaded(PLOTLY, "Plotly");
}

/** The trace as one that is drawn as SVG, if there is such a one. */
function drawable(trace) {
  // Those of many points are drawn by WebGL, and look the same.
  const type = (trace.type ?? "scatter").replace(/^(scatter(?:polar)?)gl$/, "$1");
  // Else it would be read pixel by pixel.
  return type === "image" && trace.source ? { ...trace, type, zsmooth: "fast" } : { ...trace, type };
}

/** Hundredths of a pixel are enough: maps are half as large. */
const rounded = (svg) => svg.replace(/ d="[^"]*"/g, (path) => path.replace(/\d+\.\d{3,}/g, (told) => String(+(+told).toFixed(2))));

async function drawPlotly(figure) {
  const data = figure.data ?? [];
  const traces = data.map(drawable);
  const other = traces.find((trace) => !DRAWN.has(trace.type));
  if (other !== undefined) throw new Elsewhere(`a trace of the type ${String(other.type).slice(0, 40)}`);
  page ??= openPage();
  const layout = figure.layout ?? {};
  if (traces.some((trace) => OF_MAPS.test(trace.type)) || layout.geo) loaded("./drawing/stills_maps.js", "PlotlyGeoAssets");
  const size = { width: layout.width ?? WIDTH, height: layout.height ?? HEIGHT };
  const whole = { data: traces, layout: { ...layout, ...size } };
  return rounded(await page.toImage(whole, { ...size, format: "svg", imageDataOnly: true }));
}

// ---- the lines -------------------------------------------------------------------------------------------------------

/** The same numbers for each chart: names of elements are drawn with them, and a chart's still is always the same. */
function seeded() {
  let state = 1;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

async function still({ kind, value }) {
  let timer;
  Math.random = seeded();
  try {
    // Before the time is counted: to load what draws takes a slow machine long, and waits for nothing.
    if (kind === "plotly") page ??= openPage();
    else loaded("./drawing/stills_vega.js", "stills_vega");
    const late = new Promise((_, fail) => {
      timer = setTimeout(() => fail(new Error("it waits for something")), LONGEST);
    });
    return { svg: await Promise.race([kind === "plotly" ? drawPlotly(value) : drawVega(value, kind), late]) };
  } catch (error) {
    return { why: String(error?.message ?? error).slice(0, 200), elsewhere: error instanceof Elsewhere };
  } finally {
    clearTimeout(timer);
  }
}

// What a chart leaves behind that fails later is no failure of the next one.
for (const name of ["error", "unhandledrejection"]) addEventListener(name, (event) => event.preventDefault());
let rest = "";
for await (const part of Deno.stdin.readable.pipeThrough(new TextDecoderStream())) {
  const lines = (rest + part).split("\n");
  rest = lines.pop();
  for (const line of lines) answer(await still(JSON.parse(line)));
}
Deno.exit(0);
