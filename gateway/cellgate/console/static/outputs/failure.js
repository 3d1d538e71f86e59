/**
 * An error: its last line is shown, and the traceback when somebody opens it.
 */

import { html } from "../vendor/preact.js";
import { plain } from "./ansi.js";
import { Text } from "./text.js";

const LONGEST_LINE = 1000;

/** @param {{ename: string, evalue: string, traceback: string[]}} output */
export function tracebackOf({ ename, evalue, traceback }) {
  return traceback.length ? traceback.join("\n") : `${ename}: ${evalue}`;
}

/** @param {{output: {ename: string, evalue: string, traceback: string[]}}} props */
export function Failure({ output }) {
  const text = tracebackOf(output);
  const line = plain(output.evalue ? `${output.ename}: ${output.evalue}` : output.ename);
  const short = line.length > LONGEST_LINE ? `${line.slice(0, LONGEST_LINE)} …` : line;
  return html`<details class="out-error">
    <summary><span class="out-last-line">${short}</span></summary>
    <${Text} text=${text} label="Traceback" error=${true} name="traceback.txt" />
  </details>`;
}
