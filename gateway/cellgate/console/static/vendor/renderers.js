// Made by `make vendor`.
window.RENDERERS = {
  "markdown-it": "markdown-it-15.0.3-a23bdf01/markdown-it.js",
  "katex": "katex-0.19.1-e494c5e2/katex.js",
  "vega": "vega-6.4.0-aecd4147/vega.js",
  "plotly": "plotly-4.1.2-a1225ca5/plotly.js",
  "plotly-maps": "plotly-maps-4.1.1-72ba8547/plotly-maps.js"
};
