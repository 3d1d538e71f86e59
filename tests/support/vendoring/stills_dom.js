// A document without a browser, for plotly.js, which Deno draws stills with beside a kernel.
export { parseHTML } from "linkedom";
