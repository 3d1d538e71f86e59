/**
 * Light or dark: as the system has it, unless the reader chose. The style sheet asks for `data-theme` of the root.
 */

import { computed, effect, signal } from "../vendor/preact.js";

const STORED = "cellgate-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
const system = signal(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => (system.value = dark.matches ? "dark" : "light"));

/** @returns {"auto" | "light" | "dark"} */
function stored() {
  try {
    const kept = localStorage.getItem(STORED);
    return kept === "light" || kept === "dark" ? kept : "auto";
  } catch {
    return "auto"; // where storage is forbidden
  }
}

/** What the reader chose: "auto", "light" or "dark". */
export const choice = signal(stored());

/** What it comes to: "light" or "dark". */
export const theme = computed(() => (choice.value === "auto" ? system.value : choice.value));

/** @param {"auto" | "light" | "dark"} chosen */
export function choose(chosen) {
  choice.value = chosen;
  try {
    if (chosen === "auto") localStorage.removeItem(STORED);
    else localStorage.setItem(STORED, chosen);
  } catch {
    // It then holds for this page.
  }
}

effect(() => {
  if (choice.value === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice.value;
});
