/**
 * The keys that the page knows.
 */

import { Dialog, IconButton } from "./ui.js";
import { html } from "../vendor/preact.js";

const KEYS = /** @type {[group: string, keys: [keys: string[], what: string][]][]} */ ([
  ["Everywhere", [[["?"], "this list"], [["g", "s"], "sessions"], [["g", "g"], "gateway"], [["g", "u"], "users, for administrators"]]],
  ["List of sessions", [[["/"], "search"], [["n"], "new session"]]],
  [
    "Session",
    [
      [["i"], "to the editor"],
      [["Escape"], "out of the editor, to the cells"],
      [["j"], "next cell"],
      [["k"], "previous cell"],
      [["G"], "last cell"],
      [["/"], "find cells by their code and outputs"],
      [["e"], "put the cell's code into the editor"],
      [["r"], "run the cell's code again"],
      [["x"], "interrupt the running cell"],
      [["u"], "undo the last cell"],
      [["p"], "show or hide the panel"],
    ],
  ],
  [
    "Notebook",
    [
      [["Enter"], "edit the cell"],
      [["Shift", "Enter"], "run it, and go on"],
      [["a"], "add a cell above"],
      [["b"], "add a cell below"],
      [["m"], "make it text"],
      [["y"], "make it code"],
      [["d"], "delete it"],
      [["z"], "bring it back"],
      [["Alt", "↑"], "move it up"],
      [["Alt", "↓"], "move it down"],
    ],
  ],
  [
    "Editor",
    [
      [["Shift", "Enter"], "run"],
      [["Tab"], "complete, or indent at the beginning of a line"],
      [["Shift", "Tab"], "documentation of the name at the cursor"],
      [["↑"], "in an empty editor: the code of earlier cells"],
      [["Escape", "Tab"], "out of the editor, to what follows"],
    ],
  ],
]);

/** @param {{onClose: () => void}} props */
export const Help = ({ onClose }) => html`
  <${Dialog} label="Keys" onClose=${onClose}>
    <div class="dialog-head"><h2>Keys</h2><div class="spring"></div><${IconButton} icon="close" label="Close" onClick=${onClose} /></div>
    <div class="keys">
      ${KEYS.map(
        ([group, keys]) => html`
          <section key=${group}>
            <h3>${group}</h3>
            <dl>
              ${keys.map(([names, what]) => html`<div><dt>${names.map((name) => html`<kbd>${name}</kbd> `)}</dt><dd>${what}</dd></div>`)}
            </dl>
          </section>
        `,
      )}
    </div>
  <//>
`;
