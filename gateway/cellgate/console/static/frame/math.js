/**
 * LaTeX in the outputs' frame: as MathML, alone or within Markdown. Classic scripts: a frame without an origin may load
 * no modules.
 */

"use strict";

/** @param {string} tex @param {boolean} display */
function mathOf(tex, display) {
  const options = { displayMode: display, output: "mathml", throwOnError: false, strict: "ignore", maxSize: 100, maxExpand: 1000 };
  return window.katex.renderToString(tex, options);
}

const MATH = /\$\$([^]+?)\$\$|\\\[([^]+?)\\\]|(\\begin\{([a-zA-Z]+\*?)\}[^]*?\\end\{\4\})|\$((?:\\.|[^$\\])+?)\$|\\\(([^]+?)\\\)/g;

/**
 * A text with formulas in it, as nodes.
 * @param {string} text
 */
function latexOf(text) {
  const made = document.createDocumentFragment();
  const plain = (/** @type {string} */ piece) => piece && made.append(piece);
  let end = 0;
  const found = [...text.matchAll(MATH)];
  // IPython's Math and Latex need no delimiters.
  if (found.length === 0) found.push(/** @type {RegExpExecArray} */ (Object.assign([text, text], { index: 0 })));
  for (const match of found) {
    plain(text.slice(end, match.index));
    const display = match[1] ?? match[2] ?? match[3];
    const holder = document.createElement(display === undefined ? "span" : "div");
    holder.innerHTML = mathOf(display ?? match[5] ?? match[6], display !== undefined);
    made.append(holder);
    end = match.index + match[0].length;
  }
  plain(text.slice(end));
  return made;
}

/**
 * Rules of markdown-it for formulas: `$x$`, `$$x$$` and environments.
 * @param {any} markdown
 */
function addMath(markdown) {
  markdown.inline.ruler.before("escape", "math", inlineMath);
  markdown.block.ruler.before("fence", "math", blockMath, { alt: ["paragraph", "reference", "blockquote", "list"] });
  markdown.renderer.rules.math = (/** @type {any[]} */ tokens, /** @type {number} */ index) => mathOf(tokens[index].content, tokens[index].meta.display);
}

/** @param {any} state @param {boolean} silent */
function inlineMath(state, silent) {
  if (state.src[state.pos] !== "$") return false;
  const mark = state.src[state.pos + 1] === "$" ? "$$" : "$";
  const start = state.pos + mark.length;
  // A dollar before a space, or a second one before a digit, is money.
  if (mark === "$" && /\s/.test(state.src[start] || " ")) return false;
  let end = start;
  for (;;) {
    end = state.src.indexOf(mark, end);
    if (end === -1 || end >= state.posMax) return false;
    if (state.src[end - 1] !== "\\") break;
    end += 1;
  }
  if (end === start || (mark === "$" && (/\s/.test(state.src[end - 1]) || /\d/.test(state.src[end + 1] || "")))) return false;
  if (!silent) {
    const token = state.push("math", "math", 0);
    token.content = state.src.slice(start, end);
    token.meta = { display: mark === "$$" };
  }
  state.pos = end + mark.length;
  return true;
}

/** @param {any} state @param {number} first @param {number} last @param {boolean} silent */
function blockMath(state, first, last, silent) {
  const line = (/** @type {number} */ number) =>
    state.src.slice(state.bMarks[number] + state.tShift[number], state.eMarks[number]);
  const begun = /^(\$\$|\\begin\{([a-zA-Z]+\*?)\})/.exec(line(first));
  if (!begun) return false;
  const close = begun[2] ? `\\end{${begun[2]}}` : "$$";
  for (let next = first; next < last; next += 1) {
    const text = line(next).trimEnd();
    const beyond = next === first ? text.slice(begun[1].length) : text;
    if (!beyond.endsWith(close)) continue;
    if (silent) return true;
    const whole = Array.from({ length: next - first + 1 }, (_, index) => line(first + index)).join("\n").trimEnd();
    const token = state.push("math", "math", 0);
    token.block = true;
    token.content = begun[2] ? whole : whole.slice(2, -2);
    token.meta = { display: true };
    state.line = next + 1;
    return true;
  }
  return false;
}
