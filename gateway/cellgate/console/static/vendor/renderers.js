// Made by `make vendor`.
window.RENDERERS = {
  "markdown-it": "markdown-it-15.0.3-a23bdf01/markdown-it.js",
  "katex": "katex-0.19.1-e494c5e2/katex.js",
  "vega": "vega-6.4.0-aecd4147/vega.js",
  "plotly": "plotly-3.7.0-4d0480bf/plotly.js",
  "widgets": "widgets-5.0.13-58e3e374/widgets.js",
  "plotly-maps": "plotly-maps-3.7.0-72ba8547/plotly-maps.js"
};
