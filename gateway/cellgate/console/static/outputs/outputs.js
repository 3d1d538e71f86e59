/**
 * The outputs of one cell. Text and pictures are drawn in the page, as text nodes and `<img>`; all else in frames.
 *
 * It is given a list of plain objects (`app/cell_outputs.js` makes it of events) and knows neither sessions nor the
 * gateway; of `app/` it has words alone. Nothing that user code made becomes markup of the page.
 *
 * @typedef {import("../app/cell_outputs.js").Output} Output
 */

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { Failure, tracebackOf } from "./failure.js";
import { ending, forms, remark, textOf } from "./mime.js";
import { Picture, pictureOf } from "./picture.js";
import { Rich } from "./rich.js";
import { useSheet } from "./sheet.js";
import { copyPicture, copyText, save } from "./taking.js";
import { counted, seen } from "../app/words.js";
import { plain } from "./ansi.js";
import { Folded, Text } from "./text.js";
import { Tree } from "./tree.js";

/** Outputs of a cell that are in the page at first, the last ones; as many more at the first wish, then twice as many. */
export const MOST_OUTPUTS = 100;

/** Which outputs somebody wished for: from `first` on, when there were `of`; and how many more at the next wish. */
const NO_WISH = { first: Infinity, of: 0, step: MOST_OUTPUTS };

/** Lines of standard error that are shown at first: warnings and logs are seldom what a cell is run for. */
const STDERR_LINES = 3;

const STREAMS = { stdout: "Standard output", stderr: "Standard error" };

/**
 * @param {{outputs: readonly Output[], theme: string, widgets?: any, onGrow?: () => void}} props  `onGrow` is called when
 *   something got another height after it was drawn; `widgets`: who knows those of the session, for ./widget.js
 */
export function Outputs({ outputs, theme, widgets, onGrow }) {
  useSheet();
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const [told, wish] = useState(NO_WISH);
  // Fewer than there were: the cell has begun anew.
  const wished = outputs.length < told.of ? NO_WISH : told;
  useLayoutEffect(() => {
    if (wished.first > 0) return;
    // The button is gone, and the focus with it.
    const top = /** @type {HTMLElement | null | undefined} */ (place.current?.firstElementChild);
    top?.setAttribute("tabindex", "-1");
    top?.focus();
  }, [wished.first]);
  if (outputs.length === 0) return null;
  // What somebody reads stays where it is when more comes.
  const first = Math.min(wished.first, Math.max(0, outputs.length - MOST_OUTPUTS));
  const last = outputs.slice(first);
  const more = Math.min(first, wished.step);
  const show = () => wish({ first: first - more, of: outputs.length, step: 2 * wished.step });
  return html`<div class="outputs" data-look=${theme} ref=${place}>
    ${first > 0 &&
    html`<p class="out-window">
      <span>${counted(first, "output")} before these</span>
      <button type="button" onClick=${show}>Show ${more.toLocaleString("en")} more</button>
    </p>`}
    ${last.map((output, index) => html`<${One} key=${first + index} output=${output} theme=${theme} widgets=${widgets} onGrow=${onGrow} />`)}
  </div>`;
}

/** @param {{output: Output, theme: string, widgets?: any, onGrow?: () => void}} props */
function One({ output, theme, widgets, onGrow }) {
  const [chosen, choose] = useState("");
  if (output.kind === "stream")
    return html`<${Framed} takes=${{ text: () => plain(output.text), name: `${output.name}.txt` }}>
      <${output.name === "stderr" ? Folded : Text}
        text=${output.text}
        lines=${STDERR_LINES}
        label=${STREAMS[output.name]}
        kind=${output.name === "stderr" ? "stderr" : undefined}
        name=${`${output.name}.txt`}
        follow=${true}
      />
    <//>`;
  if (output.kind === "error")
    return html`<${Framed} takes=${{ text: () => plain(tracebackOf(output)), name: "traceback.txt" }}>
      <${Failure} output=${output} />
    <//>`;
  const said = remark(output.data);
  if (said) return html`<p class="out-note">${said}</p>`;
  const known = forms(output.data, widgets !== undefined);
  const form = known.find(({ mime }) => mime === chosen) || known[0];
  if (form === undefined) return html`<${Unknown} data=${output.data} />`;
  const { mime, way } = form;
  const taken = way === "widget" ? "text/plain" : mime;
  const takes = {
    mime: taken,
    text: () => textOf(output.data[taken] ?? ""),
    picture: way === "picture" ? () => pictureOf(mime, output.data[mime]) : undefined,
    name: `output.${ending(taken)}`,
  };
  return html`<${Framed} takes=${takes} known=${known} chosen=${mime} onChoose=${choose}>
    <${Drawn} key=${mime} form=${form} output=${output} theme=${theme} widgets=${widgets} onGrow=${onGrow} />
  <//>`;
}

/**
 * @param {{form: {mime: string, way: string, name: string}, output: any, theme: string, widgets?: any,
 *   onGrow?: () => void}} props
 */
function Drawn({ form: { mime, way, name }, output, theme, widgets, onGrow }) {
  const value = output.data[mime];
  const metadata = output.metadata || {};
  const text = output.data["text/plain"];
  switch (way) {
    case "picture":
      return html`<${Picture} mime=${mime} value=${value} metadata=${metadata} alt=${described(text)} onGrow=${onGrow} />`;
    case "tree":
      return html`<${Tree} value=${value} />`;
    case "widget":
      return html`<${Later} mime=${mime} value=${value} about=${output} name=${name} theme=${theme} widgets=${widgets} onGrow=${onGrow} />`;
    case "frame":
      return html`<${Rich} mime=${mime} value=${value} metadata=${metadata} about=${output} name=${name} theme=${theme} onGrow=${onGrow} />`;
    default:
      return html`<${Text} text=${textOf(value)} label="Result" />`;
  }
}

/**
 * A widget, once there is what draws it. Until then, and where that is not to be, it is in its next best form.
 * @param {any} props
 */
function Later({ widgets, ...drawn }) {
  const [Widget, load] = useState(/** @type {any} */ (null));
  useEffect(() => void import("./widget.js").then((module) => load(() => module.Widget), () => undefined), []);
  const { data } = drawn.about;
  const [form] = forms(data);
  const instead = form && html`<${Drawn} form=${form} output=${drawn.about} theme=${drawn.theme} onGrow=${drawn.onGrow} />`;
  return Widget ? html`<${Widget} ...${drawn} widgets=${widgets} instead=${instead} />` : instead;
}

/** Characters of what is told of a picture. */
const MOST_TOLD = 200;

/** What a picture is, for those who do not see it. @param {unknown} text */
function described(text) {
  const whole = text === undefined ? "" : textOf(text);
  const told = whole.length > MOST_TOLD * 10 ? "" : plain(whole).trim();
  return told && told.length <= MOST_TOLD ? `Picture: ${told}` : "Picture";
}

/** @param {{data: Record<string, unknown>}} props */
function Unknown({ data }) {
  const names = Object.keys(data).slice(0, 5).map((name) => seen(name, 100)).join(", ") || "nothing";
  return html`<p class="out-note">This output can't be shown here: it has ${names}.</p>`;
}

/**
 * An output with what can be done with it.
 * @param {{takes: {mime?: string, text: () => string, picture?: () => Blob, name: string},
 *   known?: {mime: string, name: string}[], chosen?: string, onChoose?: (mime: string) => void, children?: any}} props
 */
function Framed({ takes, known = [], chosen, onChoose, children }) {
  const [told, tell] = useState("");
  const [open, setOpen] = useState(false);
  const { mime = "text/plain", text, picture, name } = takes;
  const copy = async () => {
    const done = picture && mime === "image/png" ? await copyPicture(picture()) : await copyText(text());
    tell(done ? "Copied" : "The browser did not allow it");
    setTimeout(() => tell(""), 2000);
  };
  return html`<div class="out">
    ${children}
    <div class=${open ? "out-menu out-open" : "out-menu"} role="toolbar" aria-label="This output">
      <span role="status">${told}</span>
      <button type="button" class="out-more" aria-label="What can be done with this output" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>⋯</button>
      ${known.length > 1 &&
      html`<select aria-label="Show as" value=${chosen} onChange=${(/** @type {any} */ event) => onChoose?.(event.currentTarget.value)}>
        ${known.map((form) => html`<option key=${form.mime} value=${form.mime}>${form.name}</option>`)}
      </select>`}
      <button type="button" onClick=${copy}>Copy</button>
      <button type="button" onClick=${() => save(name, mime, picture ? picture() : text())}>Download</button>
    </div>
  </div>`;
}
