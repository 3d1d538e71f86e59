/**
 * Pictures: PNG, JPEG and their like, and SVG. As the content of an `<img>` an SVG runs no script and loads nothing.
 */

import { html, useEffect, useState } from "../vendor/preact.js";
import { pixels, textOf } from "./mime.js";
import { fromBase64 } from "./taking.js";

/** @param {string} mime @param {unknown} value */
export function pictureOf(mime, value) {
  const text = textOf(value);
  return new Blob([mime === "image/svg+xml" ? text : fromBase64(text)], { type: mime });
}

/**
 * @param {{mime: string, value: unknown, metadata: Record<string, any>, alt: string, onGrow?: () => void}} props
 */
export function Picture({ mime, value, metadata, alt, onGrow }) {
  const [url, setUrl] = useState("");
  const [broken, setBroken] = useState(false);
  useEffect(() => {
    let made = "";
    setBroken(false);
    try {
      made = URL.createObjectURL(pictureOf(mime, value));
    } catch {
      setBroken(true); // it is no base64
    }
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [mime, value]);
  const wanted = { ...metadata, ...metadata[mime] };
  const size = { width: pixels(wanted.width), height: pixels(wanted.height) };
  if (broken) return html`<p class="out-note">This picture (${mime}) can't be shown.</p>`;
  return html`<div class="out-picture">
    ${url &&
    html`<img
      src=${url}
      alt=${alt}
      width=${size.width}
      height=${size.height}
      class=${wanted.needs_background === "light" ? "out-on-light" : wanted.needs_background === "dark" ? "out-on-dark" : ""}
      onLoad=${() => onGrow?.()}
      onError=${() => setBroken(true)}
    />`}
  </div>`;
}
