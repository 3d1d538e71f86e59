/**
 * Brings in the style sheet of outputs, once, with the first of them.
 */

import { useLayoutEffect } from "../vendor/preact.js";

/** @param {string} [name] of the sheet, relative to this folder */
export function useSheet(name = "outputs.css") {
  useLayoutEffect(() => {
    const href = new URL(name, import.meta.url).href;
    if ([...document.querySelectorAll("link")].some((link) => link.rel === "stylesheet" && link.href === href)) return;
    const link = document.createElement("link");
    link.rel = "stylesheet";
    link.href = href;
    document.head.append(link);
  }, [name]);
}
