/**
 * For those who come without a link: a token, which is exchanged for a cookie and not kept, or the way to the identity
 * provider, where the gateway has one. A gateway of a JupyterHub has its users sign in there, without being asked.
 */

import { api, base, Problem, signedIn } from "./api.js";
import { html, useEffect, useRef, useState } from "../vendor/preact.js";

/** When this tab went to the Hub, and the view that it had. */
const LEFT = `cellgate-left ${base.pathname}`;
const VIEW = `cellgate-view ${base.pathname}`;
/** So long after a tab went to the Hub it does not go there by itself: the Hub may have let nobody in. */
const PAUSE = 30_000;

/** Note that this tab goes to the Hub now. @returns {boolean} whether it had not gone there a moment ago */
export function leaveForHub() {
  const before = Number(sessionStorage.getItem(LEFT));
  sessionStorage.setItem(LEFT, String(Date.now()));
  return Date.now() - before > PAUSE;
}

/** Show the view again that the tab had before it went to the Hub. */
export function comeBack() {
  const view = sessionStorage.getItem(VIEW);
  sessionStorage.removeItem(VIEW);
  if (view && location.hash.length < 2) location.hash = view;
}

function toHub() {
  sessionStorage.setItem(VIEW, location.hash);
  location.assign(new URL("console/hub", base));
}

export function SignIn() {
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [problem, setProblem] = useState("");
  const [sending, setSending] = useState(false);
  const [ways, setWays] = useState({ provider: false, hub: false });
  useEffect(() => {
    field.current?.focus();
    api.get("console/sign-in").then(
      (found) => {
        setWays(found);
        if (found.hub && leaveForHub()) toHub();
      },
      () => undefined, // the token is a way in any case
    );
  }, []);
  /** @param {Event} event */
  const send = async (event) => {
    event.preventDefault();
    const token = field.current?.value.trim() ?? "";
    if (!token) return;
    setSending(true);
    setProblem("");
    try {
      // Not by `api`: that takes a 401 for the end of a sign-in.
      const answer = await fetch(new URL("console/sign-in", base), {
        method: "POST",
        credentials: "same-origin",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ token }),
      });
      if (!answer.ok) throw new Problem({ status: answer.status, ...(await answer.json().catch(() => ({}))) });
      signedIn.value = true;
    } catch (error) {
      setProblem(error instanceof Problem ? error.message : "The gateway did not answer. Is it running?");
      field.current?.select();
    } finally {
      setSending(false);
    }
  };
  return html`
    <main class="sign-in" id="main">
      <form onSubmit=${send}>
        <h1>Cellgate</h1>
        <p>Sign in with your token, or open the link that <code>cellgate open</code> prints.</p>
        <div class="field">
          <label for="token">Token</label>
          <input ref=${field} id="token" name="token" type="password" autocomplete="current-password" spellcheck="false" required aria-invalid=${problem ? "true" : undefined} aria-describedby="sign-in-problem" />
        </div>
        <p class="bad" id="sign-in-problem" role="alert">${problem}</p>
        <button type="submit" class="primary" disabled=${sending}>Sign in</button>
        ${ways.hub && html`<p class="or">or <a href=${new URL("console/hub", base).href}>sign in at JupyterHub</a></p>`}
        ${ways.provider && html`<p class="or">or <a href=${new URL("console/oidc", base).href}>sign in at your identity provider</a></p>`}
      </form>
    </main>
  `;
}
