/**
 * For those who come without a link: a token, which is exchanged for a cookie and not kept, or the way to the identity
 * provider, where the gateway has one.
 */

import { api, base, Problem, signedIn } from "./api.js";
import { html, useEffect, useRef, useState } from "../vendor/preact.js";

export function SignIn() {
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [problem, setProblem] = useState("");
  const [sending, setSending] = useState(false);
  const [provider, setProvider] = useState(false);
  useEffect(() => {
    field.current?.focus();
    api.get("console/sign-in").then(
      (ways) => setProvider(ways.provider === true),
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
        ${provider && html`<p class="or">or <a href=${new URL("console/oidc", base).href}>sign in at your identity provider</a></p>`}
      </form>
    </main>
  `;
}
