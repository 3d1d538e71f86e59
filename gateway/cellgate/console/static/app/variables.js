/**
 * The variables of a session's kernel, asked for after each cell while the panel is open.
 */

import { api } from "./api.js";
import { may } from "./me.js";
import { Failed, IconButton, Spinner } from "./ui.js";
import { bytes, seen } from "./words.js";
import { html, useEffect, useState } from "../vendor/preact.js";

/** @param {{log: import("./session_log.js").SessionLog}} props */
export function Variables({ log }) {
  const [word, setWord] = useState("");
  const [told, setTold] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState(/** @type {any} */ (null));
  const [open, setOpen] = useState("");
  const [times, setTimes] = useState(0);
  const model = log.model.value;
  const idle = model?.state === "idle" || (model?.state === "asleep" && told === null);
  useEffect(() => {
    // A kernel that works on a cell is asked when it has ended.
    if (!idle || !may("run")) return undefined;
    const stop = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const found = await api.get(`${log.path}/variables`, { signal: stop.signal });
        setTold(found);
        setProblem(null);
      } catch (error) {
        if (!stop.signal.aborted && error.reason !== "busy") setProblem(error);
      }
    }, 100);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [log, idle, log.cellsEnded.value, model?.kernel_id, times]);
  if (!may("run")) return html`<p class="note">Your token does not ask kernels.</p>`;
  const found = (told?.variables ?? []).filter((/** @type {any} */ each) =>
    `${each.name} ${each.type}`.toLowerCase().includes(word.toLowerCase()),
  );
  return html`
    <div class="variables">
      <div class="panel-tools">
        <input type="search" aria-label="Search variables" placeholder="Search" value=${word} onInput=${(/** @type {any} */ event) => setWord(event.target.value)} />
        <${IconButton} icon="restart" label="Ask again" onClick=${() => setTimes(times + 1)} />
      </div>
      ${model && !idle && html`<p class="note" role="status">${model.state === "busy" ? "The kernel is working; its variables are asked for when it is done." : "Variables are those of a live kernel."}</p>`}
      ${problem && html`<${Failed} problem=${problem} again=${() => setTimes(times + 1)} />`}
      ${!told && !problem && idle && html`<${Spinner} />`}
      ${told && found.length === 0 && html`<p class="empty">${word ? "No variable fits." : "No variables yet."}</p>`}
      ${found.length > 0 && html`
        <ul class="entries variable-list" aria-label="Variables">
          ${found.map((/** @type {any} */ each) => html`
            <li key=${each.name} class="variable">
              <button type="button" class="name" aria-expanded=${open === each.name ? "true" : "false"} onClick=${() => setOpen(open === each.name ? "" : each.name)}>${seen(each.name)}</button>
              <span class="type">${each.type}</span>
              <span class="summary" title=${each.summary}>${each.summary}</span>
              <span class="faint size">${each.size === undefined ? "" : bytes(each.size)}</span>
              ${open === each.name && html`<${About} log=${log} name=${each.name} />`}
            </li>`)}
        </ul>`}
      ${told?.truncated && html`<p class="note">There are more than are listed here.</p>`}
    </div>
  `;
}

/** What the kernel knows of one. @param {{log: import("./session_log.js").SessionLog, name: string}} props */
function About({ log, name }) {
  const [text, setText] = useState(/** @type {string | null} */ (null));
  useEffect(() => {
    api.post(`${log.path}/inspect`, { code: name }).then(
      (found) => setText(found.found ? found.text : "The kernel says nothing about it."),
      (error) => setText(error.message),
    );
  }, [log, name, log.cellsEnded.value]);
  return text === null ? html`<${Spinner} />` : html`<pre class="about" tabindex="0" aria-label="About ${name}">${text}</pre>`;
}
