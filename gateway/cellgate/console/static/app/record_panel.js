/**
 * The record of a session: whether its chain holds, a replay, exports, and how JupyterLab gets at its kernels.
 */

import { base } from "./api.js";
import { may } from "./me.js";
import { route } from "./router.js";
import { saved } from "./session_actions.js";
import { copy, Dialog, Icon, IconButton, Spinner, useModule } from "./ui.js";
import { counted, seen } from "./words.js";
import { html, useState } from "../vendor/preact.js";

/** In the place of a file's ending: the browser shows it. */
const SHOWN = "shown";
const EXPORTS = /** @type {[text: string, rest: string, ending: string, what: string][]} */ ([
  ["Notebook", "/notebook", ".ipynb", "for any Jupyter program"],
  ["Notebook without outputs", "/notebook?outputs=false", ".ipynb", "the code alone"],
  ["Notebook without undone cells", "/notebook?undone=false", ".ipynb", "what still holds"],
  ["Page", "/notebook?format=html", ".html", "to read in any browser"],
  ["Page to print", "/notebook?format=html&inline=true", SHOWN, "in a tab whose browser prints it, or saves it as a PDF"],
  ["Markdown", "/notebook?format=markdown", ".md", "code and outputs as text"],
  ["Script", "/notebook?format=script", "", "the code alone, as a program"],
  ["Bundle", "/bundle", ".zip", "notebook, files, requirements and record, as a zip file"],
  ["Rows of the record", "/audit", ".ndjson", "as they were hashed, one per line"],
]);

/**
 * Exports in the order of the notebook that is open, if one is.
 * @param {string | null | undefined} file
 * @returns {typeof EXPORTS}
 */
function arranged(file) {
  if (!file || !/\.ipynb$/i.test(file)) return [];
  const order = `order=page&file=${encodeURIComponent(file)}`;
  return [
    ["Notebook as arranged", `/notebook?${order}`, ".ipynb", `${seen(file)} in its order, with what the record has of it`],
    ["Page as arranged, to print", `/notebook?${order}&format=html&inline=true`, SHOWN, "the same in a tab, for paper or a PDF"],
  ];
}

/** @param {{log: import("./session_log.js").SessionLog}} props */
export function RecordPanel({ log }) {
  const [connecting, setConnecting] = useState(false);
  const verify = useModule(() => import("../record/verify.js"));
  const replay = useModule(() => import("../record/replay.js"));
  const model = log.model.value;
  return html`
    <div class="record">
      <h2 class="panel-heading">Chain</h2>
      <p class="note">${model ? html`${counted(model.seq, "event")}, each linked to the one before by its hash.` : ""}</p>
      ${verify ? html`<${verify.ChainState} session=${log.key} />` : html`<${Spinner} />`}
      ${may("run") && html`
        <h2 class="panel-heading">Replay</h2>
        <p class="note">Runs all cells again in a fresh kernel and compares what they give with the record.</p>
        ${replay ? html`<${replay.Replay} session=${log.key} />` : html`<${Spinner} />`}`}
      <h2 class="panel-heading">Exports</h2>
      <ul class="exports">
        ${[...arranged(may("files") ? route.value.file : null), ...EXPORTS].map(([text, rest, ending, what]) => html`<li key=${rest}><a href=${saved(log.path + rest)} ...${ending === SHOWN ? { target: "_blank", rel: "noopener" } : { download: log.key + ending }}><${Icon} name=${ending === SHOWN ? "out" : "download"} />${text}</a> <span class="faint">${what}</span></li>`)}
      </ul>
      <h2 class="panel-heading">JupyterLab</h2>
      <p><button type="button" onClick=${() => setConnecting(true)}>Open in JupyterLab…</button></p>
      ${connecting && html`<${Connect} session=${log.key} onClose=${() => setConnecting(false)} />`}
    </div>
  `;
}

/** @param {{session: string, onClose: () => void}} props */
function Connect({ session, onClose }) {
  const url = base.href.replace(/\/$/, "");
  const lab = `jupyter lab --gateway-url=${url} --GatewayClient.auth_token=TOKEN \\\n    --GatewayClient.allowed_envs=JPY_SESSION_NAME`;
  const channels = `${url.replace(/^http/, "ws")}/api/kernels/${session}/channels`;
  return html`
    <${Dialog} label="Open in JupyterLab" onClose=${onClose}>
      <div class="dialog-head"><h2>Open in JupyterLab</h2><div class="spring"></div><${IconButton} icon="close" label="Close" onClick=${onClose} /></div>
      <p>Start JupyterLab with this gateway as the place of its kernels, and put your token in. Its notebooks' files stay where it runs.</p>
      <${Command} text=${lab} />
      <p>Programs that speak Jupyter's protocol reach the kernel of this very session by its key:</p>
      <${Command} text=${channels} />
      <p class="note">To go on with a copy in any Jupyter, take the notebook or the bundle under Exports.</p>
    <//>
  `;
}

/** @param {{text: string}} props */
const Command = ({ text }) => html`
  <div class="command"><pre tabindex="0">${text}</pre><${IconButton} icon="copy" label="Copy" onClick=${() => copy(text)} /></div>
`;
