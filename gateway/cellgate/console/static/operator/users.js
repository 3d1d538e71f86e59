/**
 * The gateway's users, for administrators: who there is, new ones, their standing, a token or a secret for one.
 * `credentials.js` shows what they have of these.
 *
 * A token is shown once, right after it was made; it is kept nowhere, nor is a secret's value.
 */

import { Credentials } from "./credentials.js";
import { api } from "../app/api.js";
import { me } from "../app/me.js";
import { Ago, ask, attempt, copy, Dialog, Failed, Icon, IconButton, Menu, say, Spinner, useLoaded } from "../app/ui.js";
import { moment } from "../app/words.js";
import { useSheet } from "../outputs/sheet.js";
import { html, useState } from "../vendor/preact.js";

const PAGE = 100;
const MOST = 1000;
const ROLES = /** @type {[string, string][]} */ ([
  ["user", "user: their own sessions"],
  ["admin", "admin: everything"],
  ["auditor", "auditor: reads all records"],
]);

/** @typedef {{name: string, role: string, state: string, created_at: string}} User */

/** @param {string} name */
const pathOf = (name) => `v1/users/${encodeURIComponent(name)}`;

/** Fields that were filled in. @param {Record<string, string>} values */
const given = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value.trim()));

export function Users() {
  useSheet("../operator/operator.css");
  const [most, setMost] = useState(PAGE);
  const [token, setToken] = useState(/** @type {any} */ (null));
  const [looked, lookAt] = useState("");
  const [page, problem, again] = useLoaded((stop) => api.get(`v1/users?limit=${most}`, { signal: stop }), [most]);
  /** Do something, tell that it was done, and show what there is now. @param {() => Promise<any>} work @param {string} done */
  const change = async (work, done) => {
    const changed = await attempt(work);
    if (changed === undefined) return;
    say(done);
    again();
  };
  const add = async () => {
    const fields = [
      { name: "name", label: "Name", required: true, hint: "Letters, digits and . _ @ | : + -" },
      { name: "role", label: "Role", value: "user", options: ROLES },
    ];
    const values = await ask({ title: "Add a user", action: "Add", fields });
    if (values) await change(() => api.post("v1/users", values), `Added ${values.name}`);
  };
  const users = /** @type {User[] | undefined} */ (page?.users);
  return html`<div class="operator">
    <div class="view-head">
      <h1>Users</h1>
      <div class="spring"></div>
      <button type="button" class="primary" onClick=${add}><${Icon} name="add" />Add a user</button>
    </div>
    ${problem && html`<${Failed} problem=${problem} again=${again} />`}
    ${!users && !problem && html`<${Spinner} />`}
    ${users && users.length === 0 && html`<p class="empty">There are no users yet, only whoever has the gateway's own token.</p>`}
    ${users && users.length > 0 && html`
      <div class="table-box" tabindex="0" role="region" aria-label="Users">
        <table class="operator-users">
          <thead>
            <tr>
              <th scope="col">Name</th><th scope="col">Role</th><th scope="col">State</th><th scope="col">Added</th>
              <th scope="col"><span class="unseen">Actions</span></th>
            </tr>
          </thead>
          <tbody>${users.map((user) => html`<${Row} key=${user.name} user=${user} change=${change} onToken=${setToken} onLook=${lookAt} />`)}</tbody>
        </table>
      </div>`}
    ${page?.next && most < MOST && html`<button type="button" class="more" onClick=${() => setMost(MOST)}>Show more</button>`}
    ${page?.next && most >= MOST && html`<p>There are more: <code>GET /v1/users</code> has all.</p>`}
    ${looked && html`<${Credentials} user=${looked} path=${pathOf(looked)} onClose=${() => lookAt("")} />`}
    ${token && html`<${Made} token=${token} onClose=${() => setToken(null)} />`}
  </div>`;
}

/** @param {{user: User, change: (work: () => Promise<any>, done: string) => Promise<void>, onToken: (token: any) => void,
 *   onLook: (name: string) => void}} props */
function Row({ user, change, onToken, onLook }) {
  const { name, role, state } = user;
  const path = pathOf(name);
  const disabled = state === "disabled";
  const oneself = name === me.value?.principal;
  const makeToken = async () => {
    const fields = [
      { name: "expires", label: "Expires after", value: "30d", hint: "Such as 12h or 30d; empty: never" },
      { name: "scope", label: "Scopes", placeholder: "run,read", hint: "With commas between; empty: all that the role may" },
      { name: "sessions", label: "Sessions that begin with", hint: "Empty: all" },
    ];
    const values = await ask({ title: `Make a token for ${name}`, action: "Make the token", fields });
    const made = values && (await attempt(() => api.post(`${path}/tokens`, given(values))));
    if (made) onToken(made);
  };
  const setSecret = async () => {
    const fields = [
      { name: "name", label: "Name", required: true, placeholder: "API_KEY" },
      { name: "value", label: "Value", type: "password", required: true, hint: "Nothing shows it again." },
    ];
    const values = await ask({ title: `Set a secret of ${name}`, action: "Set", fields });
    if (!values) return;
    const secret = `${path}/secrets/${encodeURIComponent(values.name)}`;
    await change(() => api.put(secret, { value: values.value }), `Set ${values.name} of ${name}`);
  };
  const setRole = async () => {
    const fields = [{ name: "role", label: "Role", value: role, options: ROLES }];
    const text = "Their tokens have it at once.";
    const values = await ask({ title: `Change the role of ${name}`, text, action: "Change", fields });
    if (values) await change(() => api.patch(path, values), `${name} is ${values.role} now`);
  };
  const disable = async () => {
    const text = "Their sessions end, and their tokens open nothing. Records and files stay.";
    if (await ask({ title: `Disable ${name}?`, text, action: "Disable", danger: true }))
      await change(() => api.patch(path, { disabled: true }), `Disabled ${name}`);
  };
  const remove = async () => {
    const text = "Their sessions end; their tokens and secrets are removed. Records and files stay under the name.";
    if (await ask({ title: `Remove ${name}?`, text, action: "Remove", danger: true, typed: name }))
      await change(async () => (await api.delete(path)) ?? true, `Removed ${name}`);
  };
  return html`<tr class=${disabled ? "over" : ""}>
    <th scope="row">${name}</th>
    <td>${role}</td>
    <td>${state}</td>
    <td><${Ago} at=${user.created_at} /></td>
    <td class="actions">
      <${Menu}
        label="Actions for ${name}"
        items=${[
          { text: "Make a token…", icon: "link", act: makeToken, disabled },
          { text: "Set a secret…", icon: "edit", act: setSecret },
          { text: "Tokens and secrets…", icon: "search", act: () => onLook(name) },
          !oneself && { text: "Change the role…", icon: "panel", act: setRole },
          !oneself && !disabled && { text: "Disable…", icon: "stop", danger: true, act: disable },
          disabled && { text: "Enable", icon: "play", act: () => change(() => api.patch(path, { disabled: false }), `Enabled ${name}`) },
          !oneself && { text: "Remove…", icon: "trash", danger: true, act: remove },
        ]}
      />
    </td>
  </tr>`;
}

/** A token that was just made. @param {{token: any, onClose: () => void}} props */
function Made({ token, onClose }) {
  const select = (/** @type {any} */ event) => event.target.select();
  return html`<${Dialog} label="Token of ${token.user}" onClose=${onClose}>
    <div class="dialog-head"><h2>Token of ${token.user}</h2><div class="spring"></div><${IconButton} icon="close" label="Close" onClick=${onClose} /></div>
    <p>Copy it now: it is shown only this once.</p>
    <div class="operator-token">
      <input type="text" readonly aria-label="The token" value=${token.token} onFocus=${select} spellcheck="false" />
      <button type="button" class="primary" onClick=${() => copy(token.token)}><${Icon} name="copy" />Copy</button>
    </div>
    <p class="faint">${token.expires_at ? `It ends at ${moment(token.expires_at)}.` : "It does not end."} Its id is ${token.id}.</p>
  <//>`;
}
