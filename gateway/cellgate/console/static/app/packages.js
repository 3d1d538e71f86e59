/**
 * The packages that a session has in addition to its kernel's environment.
 */

import { api } from "./api.js";
import { info, may } from "./me.js";
import { ask, attempt, Failed, IconButton, say, Spinner, useLoaded } from "./ui.js";
import { html, useState } from "../vendor/preact.js";

/** @param {{log: import("./session_log.js").SessionLog}} props */
export function Packages({ log }) {
  const [wanted, setWanted] = useState("");
  const [working, setWorking] = useState(false);
  const model = log.model.value;
  const allowed = info.value?.packages_allowed ?? [];
  const [listing, problem, again] = useLoaded(
    (given) => api.get(`${log.path}/packages`, { signal: given }),
    [log, log.cellsEnded.value, model?.kernel_id],
  );
  const change = async (/** @type {any} */ body, /** @type {string} */ done) => {
    setWorking(true);
    const changed = await attempt(() => api.post(`${log.path}/packages`, body));
    setWorking(false);
    if (changed) {
      say(done);
      again();
    }
    return changed !== undefined;
  };
  /** @param {Event} event */
  const install = async (event) => {
    event.preventDefault();
    const names = wanted.split(/[\s,]+/).filter(Boolean);
    if (names.length && (await change({ install: names }, `Installed ${names.join(", ")}`))) setWanted("");
  };
  const remove = async (/** @type {string} */ name) => {
    const question = { title: `Remove ${name}?`, text: "Cells that imported it keep it until the kernel restarts.", action: "Remove", danger: true };
    if ((await ask(question)) !== null) await change({ uninstall: [name] }, `Removed ${name}`);
  };
  const environment = info.value?.environment?.[model?.kernel ?? ""];
  const own = Object.entries(environment?.packages ?? {});
  const found = listing?.packages ?? [];
  return html`
    <div class="packages">
      ${
        may("packages") && allowed.length > 0
          ? html`
              <form class="panel-tools" onSubmit=${install}>
                <input type="text" aria-label="Packages to install" placeholder="Install, such as polars>=1" value=${wanted} onInput=${(/** @type {any} */ event) => setWanted(event.target.value)} list="allowed-packages" autocomplete="off" spellcheck="false" />
                <datalist id="allowed-packages">${allowed.slice(0, 500).map((/** @type {string} */ name) => html`<option value=${name} />`)}</datalist>
                <button type="submit" disabled=${working || !wanted.trim()}>${working ? html`<${Spinner} label="Installing" />` : "Install"}</button>
              </form>
            `
          : html`<p class="note">${allowed.length ? "Your token does not install packages." : "This gateway installs no packages for sessions."}</p>`
      }
      ${problem && html`<${Failed} problem=${problem} again=${again} />`}
      ${!listing && !problem && html`<${Spinner} />`}
      ${listing && found.length === 0 && html`<p class="empty">Nothing was installed in this session.</p>`}
      ${found.length > 0 && html`
        <ul class="entries" aria-label="Installed packages">
          ${found.map((/** @type {any} */ each) => html`
            <li key=${each.name}>
              <span class="name">${each.name}</span><span class="faint">${each.version}</span>
              <span class="faint spring">${each.requested ? "" : "came with another"}</span>
              ${may("packages") && html`<${IconButton} icon="trash" label="Remove ${each.name}" disabled=${working} onClick=${() => remove(each.name)} />`}
            </li>`)}
        </ul>`}
      ${own.length > 0 && html`
        <details class="more-details">
          <summary>The kernel's own ${own.length} packages</summary>
          <ul class="plain-list">${own.map(([name, version]) => html`<li><span>${name}</span> <span class="faint">${version}</span></li>`)}</ul>
        </details>`}
    </div>
  `;
}
