/**
 * A Jupyter widget as an output: its controls in a frame, and a sentence where they can't be what they are.
 *
 * `app/widgets.js` knows the widgets, and gives it a channel to them.
 */

import { html, useEffect, useState } from "../vendor/preact.js";
import { seen } from "../app/words.js";
import { modelOf } from "./mime.js";
import { Rich } from "./rich.js";
import { Text } from "./text.js";

/** @typedef {import("../app/widgets.js").Channel} Channel */

/**
 * @param {{mime: string, value: unknown, about: object, name: string, theme: string, onGrow?: () => void,
 *   widgets: {channel: (model: string) => Promise<Channel | null>}, instead: unknown}} props
 *   `instead`: what is drawn where there is no more than text
 */
export function Widget({ widgets, instead, ...drawn }) {
  const [channel, found] = useState(/** @type {Channel | null | undefined} */ (undefined));
  const [failure, fail] = useState("");
  const model = modelOf(drawn.value);
  useEffect(() => {
    let left = false;
    widgets.channel(model).then(
      (given) => left || found(() => given),
      (error) => left || fail(String(error.message)),
    );
    return () => void (left = true);
  }, [model]);
  if (failure) return html`${instead}<p class="out-note">This widget's state could not be read: ${failure}</p>`;
  if (channel === undefined) return instead;
  if (channel === null) return html`${instead}<p class="out-note">The record has no state of this widget.</p>`;
  const { elsewhere } = channel;
  if (elsewhere)
    return html`${instead}
      <p class="out-note">The package ${seen(elsewhere, 100)} draws this widget, and its scripts are not in this page. JupyterLab shows it where that package is installed.</p>`;
  if (channel.closed.value) return null;
  const barred = channel.barred.value;
  return html`<${Rich} key=${barred} metadata=${{}} ...${drawn} channel=${channel} />
    ${channel.slow.value &&
    html`<p class="out-note" role="status">
      <span>${channel.slow.value}</span> ${channel.works && html`<button type="button" onClick=${() => channel.interrupt()}>Interrupt</button>`}
    </p>`}
    ${channel.told.value && html`<${Text} text=${channel.told.value} label="Printed when it was moved" kind="stderr" />`}
    ${barred && html`<p class="out-note">${barred}</p>`}`;
}
