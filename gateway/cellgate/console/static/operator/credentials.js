/**
 * A user's tokens and secrets: what they may do and until when, and their end. Neither is shown itself.
 */

import { api } from "../app/api.js";
import { Ago, ask, attempt, Dialog, Failed, Icon, IconButton, say, Spinner, useLoaded } from "../app/ui.js";
import { moment, seen } from "../app/words.js";
import { html } from "../vendor/preact.js";

const MOST = 1000;

/**
 * @typedef {{id: string, scopes: string | null, sessions: string | null, created_at: string, expires_at: string | null,
 *   revoked_at: string | null}} Token
 */

/** What a token is good for now. Pure. @param {Token} token @param {number} now  In milliseconds. */
export function stateOf({ expires_at, revoked_at }, now) {
  if (revoked_at) return "revoked";
  if (expires_at && Date.parse(expires_at) <= now) return "expired";
  return expires_at ? `until ${moment(expires_at)}` : "does not end";
}

/** @param {{user: string, path: string, onClose: () => void}} props  `path`: of the user */
export function Credentials({ user, path, onClose }) {
  const [page, problem, again] = useLoaded((stop) => api.get(`${path}/tokens?limit=${MOST}`, { signal: stop }), [path]);
  const [kept, failed, anew] = useLoaded((stop) => api.get(`${path}/secrets`, { signal: stop }), [path]);
  const tokens = /** @type {Token[] | undefined} */ (page?.tokens);
  const secrets = /** @type {{name: string, set_at: string}[] | undefined} */ (kept?.secrets);
  const end = async (/** @type {string} */ title, /** @type {string} */ text, /** @type {string} */ what, /** @type {() => void} */ then) => {
    if ((await ask({ title, text, action: title.split(" ")[0], danger: true })) === null) return;
    const done = await attempt(async () => (await api.delete(`${path}/${what}`)) ?? true);
    if (done === undefined) return;
    say("Done");
    then();
  };
  const now = Date.now();
  return html`<${Dialog} label="Tokens and secrets of ${user}" class="broad" onClose=${onClose}>
    <div class="dialog-head">
      <h2>Tokens and secrets of ${user}</h2>
      <div class="spring"></div>
      <${IconButton} icon="close" label="Close" onClick=${onClose} />
    </div>
    ${problem && html`<${Failed} problem=${problem} again=${again} />`}
    ${!tokens && !problem && html`<${Spinner} />`}
    ${tokens && tokens.length === 0 && html`<p class="empty">No tokens.</p>`}
    ${tokens && tokens.length > 0 && html`
      <div class="table-box" tabindex="0" role="region" aria-label="Tokens">
        <table class="operator-users">
          <thead><tr><th scope="col">Token</th><th scope="col">Scopes</th><th scope="col">Sessions</th><th scope="col">Made</th><th scope="col">State</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
          <tbody>${tokens.map((token) => {
            const state = stateOf(token, now);
            const over = state === "revoked" || state === "expired";
            return html`<tr key=${token.id} class=${over ? "over" : ""}>
              <th scope="row">${token.id}</th>
              <td>${token.scopes ?? "all of the role"}</td>
              <td>${token.sessions === null ? "all" : seen(token.sessions)}</td>
              <td><${Ago} at=${token.created_at} /></td>
              <td>${state}</td>
              <td class="actions">${!over && html`<button type="button" class="small danger" onClick=${() => end(`Revoke ${token.id}?`, "Whoever has it is out at once, and so are tokens that were made with it.", `tokens/${token.id}`, again)}><${Icon} name="cross" />Revoke</button>`}</td>
            </tr>`;
          })}</tbody>
        </table>
      </div>`}
    ${page?.next && html`<p class="note">There are more: <code>GET /v1/users/${user}/tokens</code> has all.</p>`}
    ${failed && html`<${Failed} problem=${failed} again=${anew} />`}
    ${secrets && secrets.length > 0 && html`
      <div class="table-box" tabindex="0" role="region" aria-label="Secrets">
        <table class="operator-users">
          <thead><tr><th scope="col">Secret</th><th scope="col">Set</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
          <tbody>${secrets.map(({ name, set_at: at }) => html`<tr key=${name}>
            <th scope="row">${name}</th>
            <td><${Ago} at=${at} /></td>
            <td class="actions"><button type="button" class="small danger" onClick=${() => end(`Remove ${name}?`, "Cells that begin from now on do not have it.", `secrets/${encodeURIComponent(name)}`, anew)}><${Icon} name="cross" />Remove</button></td>
          </tr>`)}</tbody>
        </table>
      </div>`}
    ${secrets && secrets.length === 0 && html`<p class="empty">No secrets.</p>`}
  <//>`;
}
