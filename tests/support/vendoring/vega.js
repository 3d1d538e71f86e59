// Vega and Vega-Lite for the outputs' frame, as one classic script: a frame of no origin may load no modules.
import embed, { vega } from "vega-embed";

window.vegaEmbed = embed;
window.vega = vega;
