/**
 * The page: who is signed in, the bar above everything, and the view that the address names.
 */

import { api, askNow, base, connection, owner, signedIn } from "./api.js";
import { keepFocus } from "./kept_focus.js";
import { leave, may, me, meet, seesUsers } from "./me.js";
import { about, go, route } from "./router.js";
import { isTyping, Sessions } from "./sessions.js";
import { SessionView } from "./session_view.js";
import { comeBack, leaveForHub, SignIn } from "./sign_in.js";
import { choice, choose } from "./theme.js";
import { attempt, clock, Failed, Icon, IconButton, Menu, Messages, Questions, Spinner, titled, useModule } from "./ui.js";
import { seen } from "./words.js";
import { html, effect, render, signal, useEffect } from "../vendor/preact.js";

const failure = signal(/** @type {any} */ (null));
const helping = signal(false);

async function begin() {
  try {
    await meet();
    failure.value = null;
    signedIn.value = true;
    comeBack();
  } catch (error) {
    if (error.status !== 401) failure.value = error;
  }
}

/** Paths of sessions name their owner; set before any view asks for one. */
effect(() => {
  owner.value = route.value.principal && route.value.principal !== me.value?.principal ? route.value.principal : null;
});

/** Whoever signs in next may be somebody else. */
effect(() => {
  if (signedIn.value === false) me.value = null;
});

titled(() => {
  const { view, session } = route.value;
  const { session: told, title } = about.value;
  const name = { sessions: "Sessions", session: (told === session && seen(title)) || session, gateway: "Gateway", users: "Users", unknown: "Not found" }[view];
  return signedIn.value === false ? "Sign in · Cellgate" : `${name} · Cellgate`;
});

async function signOut() {
  const done = await attempt(async () => {
    const { out } = await api.get("console/sign-in");
    await api.post("console/sign-out");
    return { out };
  });
  // Who is told that they have left, and has not, would leave the machine to others.
  if (!done) return;
  // Signed in at the Hub still, they would be let in again.
  if (done.out) {
    leaveForHub();
    location.assign(new URL(done.out, base));
  }
  signedIn.value = false;
  leave();
}

function Bar() {
  const { view } = route.value;
  const here = (/** @type {boolean} */ is) => (is ? "page" : undefined);
  const looks = /** @type {["auto" | "light" | "dark", string][]} */ ([
    ["auto", "As the system"],
    ["light", "Light"],
    ["dark", "Dark"],
  ]);
  return html`
    <header class="bar">
      <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
      <a class="brand" href="#/" aria-label="Cellgate, sessions"><${Logo} /><span>Cellgate</span></a>
      <nav aria-label="Views">
        <a href="#/" aria-current=${here(view === "sessions" || view === "session")}>Sessions</a>
        <a href="#/gateway" aria-current=${here(view === "gateway")}>Gateway</a>
        ${seesUsers.value && html`<a href="#/users" aria-current=${here(view === "users")}>Users</a>`}
      </nav>
      <div class="spring"></div>
      <${IconButton} icon="help" label="Keys" onClick=${() => (helping.value = true)} />
      <${Menu} label="Colours" icon=${choice.value} items=${looks.map(([value, text]) => ({ text, act: () => choose(value), checked: choice.value === value }))} />
      <span class="who" title="${me.value?.role ?? ""}">${me.value?.principal}</span>
      <${IconButton} icon="out" label="Sign out" onClick=${signOut} />
    </header>
  `;
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  const main = document.getElementById("main");
  main?.setAttribute("tabindex", "-1");
  main?.focus();
}

const Logo = () => html`
  <svg class="logo" viewBox="0 0 24 24" aria-hidden="true">
    <rect class="logo-frame" x="2.5" y="2.5" width="19" height="19" rx="4.5" />
    <path class="logo-prompt" d="m7.5 8 3.5 4-3.5 4M13 16h4" />
  </svg>
`;

function Lost() {
  const { lost, again } = connection.value;
  if (!lost) return null;
  void clock.value; // counts on
  const seconds = again === null ? 0 : Math.max(0, Math.ceil((again - Date.now()) / 1000));
  return html`
    <div class="lost">
      <span role="status">The connection to the gateway is lost.</span>
      <span aria-hidden="true">${again === null ? "Trying again…" : html`Trying again${seconds ? ` in ${seconds} s` : ""}.`}</span>
      <button type="button" class="small" onClick=${askNow}>Try now</button>
    </div>
  `;
}

function Gateway() {
  const module = useModule(() => import("../operator/operator.js"));
  return html`<main class="view" id="main" tabindex="0">${module ? html`<${module.Operator} />` : html`<${Spinner} />`}</main>`;
}

/** The list of keys. @param {{onClose: () => void}} props */
function Help({ onClose }) {
  const module = useModule(() => import("./help.js"));
  return module ? html`<${module.Help} onClose=${onClose} />` : null;
}

function Users() {
  const module = useModule(() => import("../operator/users.js"));
  if (!seesUsers.value) return html`<main class="view" id="main"><p>Your token may not list users. An administrator's may.</p></main>`;
  return html`<main class="view" id="main" tabindex="0">${module ? html`<${module.Users} />` : html`<${Spinner} />`}</main>`;
}

function View() {
  const { view, session = "", execution, principal, file } = route.value;
  if (view === "sessions") return html`<${Sessions} />`;
  if (view === "session")
    return html`<${SessionView} key="${principal ?? ""}/${session}" session=${session} execution=${execution} principal=${owner.value && principal} file=${file} />`;
  if (view === "gateway") return html`<${Gateway} />`;
  if (view === "users") return html`<${Users} />`;
  return html`<main class="view" id="main"><h1>Not found</h1><p>The page has no such view. <a href="#/">All sessions</a></p></main>`;
}

/** Two keys in a row go to a view. */
let prefix = "";

/** @param {KeyboardEvent} event */
function key(event) {
  if (isTyping(event)) return;
  const pressed = prefix + event.key;
  prefix = event.key === "g" && prefix === "" ? "g" : "";
  if (pressed === "?") helping.value = true;
  else if (pressed === "gs") go("#/");
  else if (pressed === "gg") go("#/gateway");
  else if (pressed === "gu" && seesUsers.value) go("#/users");
  else return;
  prefix = "";
  event.preventDefault();
}

function Page() {
  useEffect(() => {
    begin();
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
  useEffect(() => {
    if (signedIn.value && !me.value) begin();
  }, [signedIn.value, connection.value.lost]);
  if (signedIn.value === false) return html`<${SignIn} /><${Messages} />`;
  const ready = me.value !== null;
  return html`
    ${ready ? html`<${Bar} />` : html`<header class="bar"><span class="brand"><${Logo} /><span>Cellgate</span></span></header>`}
    <${Lost} />
    ${!ready && failure.value && html`<main class="view" id="main"><${Failed} problem=${failure.value} again=${begin} /></main>`}
    ${ready && (may("read") ? html`<${View} />` : html`<main class="view" id="main"><p>Your token does not read sessions.</p></main>`)}
    ${helping.value && html`<${Help} onClose=${() => (helping.value = false)} />`}
    <${Questions} />
    <${Messages} />
  `;
}

const place = /** @type {HTMLElement} */ (document.getElementById("page"));
place.replaceChildren(); // what the document has until this runs
render(html`<${Page} />`, place);
keepFocus(document);
