// Vega and Vega-Lite for stills, which Deno draws beside a kernel: a module, and nothing that needs a page.
export * as vega from "vega";
export { compile } from "vega-lite";
