// What the frame's renderers put at the page's window: libraries of others, whose types nobody needs here.

interface Window {
  /** The names of files below `vendor`, by the name of a renderer. */
  readonly RENDERERS: Record<string, string>;
  readonly JupyterWidgets: any;
  readonly MarkdownIt: any;
  readonly Plotly: any;
  readonly katex: any;
  readonly vega: any;
  readonly vegaEmbed: any;
}

interface IntersectionObserverInit {
  /** Of Chromium and Firefox, and not in the compiler's library yet. */
  scrollMargin?: string;
}
