/**
 * An error: its last line is shown, and the traceback when somebody opens it.
 */

import { html } from "../vendor/preact.js";
import { plain } from "./ansi.js";
import { Text } from "./text.js";

const LONGEST_LINE = 1000;
/** Characters of it that are read: colours take more than what is shown. */
const MOST_READ = 20 * LONGEST_LINE;

const PLACE = /^ {0,4}Cell In\[(\d+)\], line (\d+)/gm;

/**
 * The line of the cell itself at which its error came up: a traceback begins with the cell. Pure.
 * @param {string} text
 */
export function lineOf(text) {
  const places = [...plain(text.slice(0, MOST_READ)).matchAll(PLACE)];
  return places.findLast(([, cell]) => cell === places[0][1])?.[2];
}

/** @param {{ename: string, evalue: string, traceback: string[]}} output */
export function tracebackOf({ ename, evalue, traceback }) {
  return traceback.length ? traceback.join("\n") : `${ename}: ${evalue}`;
}

/** @param {{output: {ename: string, evalue: string, traceback: string[]}}} props */
export function Failure({ output }) {
  const text = tracebackOf(output);
  const told = output.evalue ? `${output.ename}: ${output.evalue}` : output.ename;
  // What is cut anyway is not gone through: a cell chooses how long it is.
  const line = plain(told.slice(0, MOST_READ));
  const cut = line.length > LONGEST_LINE || told.length > MOST_READ;
  const short = cut ? `${line.slice(0, LONGEST_LINE)} …` : line;
  const at = lineOf(text);
  return html`<details class="out-error">
    <summary><span class="out-last-line">${short}</span>${at && html` <span class="out-place">line ${at} of this cell</span>`}</summary>
    <${Text} text=${text} label="Traceback" kind="traceback" name="traceback.txt" />
  </details>`;
}
