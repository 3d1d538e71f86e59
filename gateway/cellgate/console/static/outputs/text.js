/**
 * Text of any length: what streams and tracebacks hold, and the plain form of results.
 *
 * Only a window of it is in the page: at first its end, which follows what is added. The lines before are shown
 * a window at a time, so that no text, however long, makes a page that cannot be used.
 */

import { bytes } from "../app/words.js";
import { html, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { plain, rows } from "./ansi.js";
import { save } from "./taking.js";

/** Lines and characters of a window. */
export const MOST_LINES = 1000;
export const MOST_CHARACTERS = 128 * 1024;

/**
 * Where the window begins that ends at `end`.
 * @param {string} text
 * @param {number} end
 */
export function windowBefore(text, end) {
  const earliest = Math.max(0, end - MOST_CHARACTERS);
  const near = text.slice(earliest, end);
  let start = near.length;
  // The newline at the end of the last line begins none.
  let from = near.endsWith("\n") ? near.length - 1 : near.length;
  for (let lines = 0; lines < MOST_LINES; lines += 1) {
    const newline = from > 0 ? near.lastIndexOf("\n", from - 1) : -1;
    // A line that is longer than a window is cut.
    if (newline === -1) return earliest === 0 || start === near.length ? earliest : earliest + start;
    start = newline + 1;
    from = newline;
  }
  return earliest + start;
}

/**
 * Where the window ends that begins at `start`.
 * @param {string} text
 * @param {number} start
 */
export function windowAfter(text, start) {
  const latest = Math.min(text.length, start + MOST_CHARACTERS);
  let end = start;
  for (let lines = 0; lines < MOST_LINES; lines += 1) {
    const next = text.indexOf("\n", end);
    if (next === -1 || next >= latest) return latest === text.length || end === start ? latest : end;
    end = next + 1;
  }
  return end;
}

/**
 * Where the first lines of a text end, if enough come after them to be folded away; else null.
 * @param {string} text
 * @param {number} lines
 */
export function foldOf(text, lines) {
  let end = 0;
  for (let line = 0; line < lines; line += 1) {
    const next = text.indexOf("\n", end);
    if (next === -1) return null;
    end = next + 1;
  }
  // A button in place of one line would save nothing.
  const next = text.indexOf("\n", end);
  return next === -1 || next === text.length - 1 ? null : end - 1;
}

/**
 * A text of which the first lines are shown until somebody asks for all.
 * @param {{text: string, lines: number, label: string, kind?: string, name?: string, follow?: boolean}} props
 */
export function Folded({ text, lines, ...rest }) {
  const [whole, show] = useState(false);
  const end = whole ? null : foldOf(text, lines);
  if (end === null) return html`<${Text} text=${text} ...${rest} />`;
  return html`<${Text} text=${text.slice(0, end)} ...${rest}>
    <button type="button" class="out-fold" onClick=${() => show(true)}>Show all lines</button>
  <//>`;
}

/**
 * @param {{text: string, label: string, kind?: string, name?: string, follow?: boolean, children?: any}} props  `kind`:
 *   `stderr` or `traceback`; `follow`: the end is what is looked at, unless the reader has scrolled away from it
 */
export function Text({ text, label, kind, name = "output.txt", follow = false, children }) {
  // The start of the window that is shown; null: the end of the text, whatever is added.
  const [chosen, choose] = useState(/** @type {number | null} */ (null));
  const following = chosen === null || chosen >= text.length;
  const start = following ? windowBefore(text, text.length) : chosen;
  const end = following ? text.length : windowAfter(text, start);
  const shown = useMemo(() => drawn(rows(text.slice(start, end))), [start, end, text.slice(start, end)]);
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const atEnd = useRef(true);
  useLayoutEffect(() => {
    if (follow && following && atEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [shown]);
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = /** @type {HTMLElement} */ (box.current);
    atEnd.current = scrollTop + clientHeight >= scrollHeight - 4;
  };
  const partial = start > 0 || end < text.length;
  return html`<div class=${`out-text ${kind ? `out-${kind}` : ""}`} role="group" aria-label=${label}>
    ${partial &&
    html`<p class="out-window">
      <span>${bytes(start)} before, ${bytes(text.length - end)} after what is shown</span>
      <button type="button" disabled=${start === 0} onClick=${() => choose(0)}>First</button>
      <button type="button" disabled=${start === 0} onClick=${() => choose(windowBefore(text, start))}>Earlier</button>
      <button type="button" disabled=${following} onClick=${() => choose(end)}>Later</button>
      <button type="button" disabled=${following} onClick=${() => choose(null)}>Last</button>
      <button type="button" onClick=${() => save(name, "text/plain", plain(text))}>Download all</button>
    </p>`}
    <pre tabindex="0" ref=${box} onScroll=${onScroll}>${shown}</pre>
    ${children}
  </div>`;
}

/**
 * The rows as few nodes: what has no style and follows each other is one text.
 * @param {import("./ansi.js").Run[][]} lines
 */
export function drawn(lines) {
  const parts = /** @type {any[]} */ ([]);
  let text = "";
  const flush = () => {
    if (text) parts.push(text);
    text = "";
  };
  for (const [index, line] of lines.entries()) {
    if (index) text += "\n";
    for (const run of line) {
      if (run.style === null) text += run.text;
      else {
        flush();
        parts.push(html`<span ...${look(run.style)}>${run.text}</span>`);
      }
    }
  }
  flush();
  return parts;
}

/** @param {import("./ansi.js").Style} style */
function look(style) {
  const fg = style.inverse ? style.bg || "inverse" : style.fg;
  const bg = style.inverse ? style.fg || "inverse" : style.bg;
  const known = /** @type {const} */ (["bold", "dim", "italic", "underline", "strike"]);
  const words = known.filter((word) => style[word]).map((word) => `ansi-${word}`);
  const css = /** @type {Record<string, string>} */ ({});
  if (fg) fg[0] === "#" ? (css.color = fg) : words.push(`ansi-fg-${fg}`);
  if (bg) bg[0] === "#" ? (css.backgroundColor = bg) : words.push(`ansi-bg-${bg}`);
  return { class: words.join(" "), style: css };
}
