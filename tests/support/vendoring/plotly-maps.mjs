// Outlines of maps for Plotly, which would otherwise fetch them from its makers. Run by node: the file that has all of
// them, then where those go that a map has unless it asks for more detail (1 : 110,000,000).
import { readFileSync, writeFileSync } from "node:fs";

const [from, to] = process.argv.slice(2);
const window = {};
new Function("window", "self", "module", readFileSync(from, "utf8"))(window, window, undefined);
const all = window.Plotly.topojson;
const kept = Object.fromEntries(Object.entries(all).filter(([name]) => name.endsWith("_110m")));
writeFileSync(to, `window.PlotlyGeoAssets = ${JSON.stringify({ topojson: kept })};\n`);
