/**
 * An output that runs or lays out what user code made: HTML, Markdown, LaTeX, figures. Each has a frame of its own.
 *
 * What is in a frame is hostile. The frame has an opaque origin (`sandbox` without `allow-same-origin`), so neither the
 * page nor the gateway's cookie is in its reach, and the policies that frame.html is served with let it send nothing.
 * ./guard.js hears what it tells the page; ../frame/ is what runs inside.
 *
 * Frames are made when they come near the screen and dropped when they are far from it; their place keeps its height.
 */

import { html, signal, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { watch } from "./guard.js";
import { useNear } from "./near.js";
import { copyText } from "./taking.js";

/** @typedef {{begin: (send: (message: object) => void) => object, hear: (sent: any) => void, end: () => void}} Channel */

const FRAME = new URL("../frame.html", import.meta.url);
const FIRST_HEIGHT = 60;
const LONGEST_LINK = 2000;
/** How long a link is shown before it can be opened, in milliseconds: an output may change it under the pointer. */
const READ = 1000;
/** How long no frame is made after all were dropped, in milliseconds: browsers keep their process for a moment. */
const REST = 5000;

/**
 * Whether this browser keeps outputs from the network altogether; null until the first frame, before it has an output,
 * has found out. Policies leave WebRTC open, and only some browsers know the field that closes it.
 */
const sealed = signal(/** @type {boolean | null} */ (null));

/** Whether the reader wants outputs drawn where they are not kept from it. It holds for this page. */
const unsealed = signal(false);

const WITHHELD =
  "This output could send what it knows to other machines: your browser can't keep outputs that run scripts from WebRTC.";

const TAKES = "This output took the focus from where you type.";

/** Outputs that may have the focus, as the reader has said. @type {WeakSet<object>} */
const trusted = new WeakSet();

/** The last heights, so that an output that is drawn again does not move what is below. @type {WeakMap<object, number>} */
const heights = new WeakMap();

/**
 * @param {{mime: string, value: unknown, metadata: Record<string, any>, about: object, name: string, theme: string,
 *   onGrow?: () => void, channel?: Channel}} props  `about`: the output itself; `channel`: to what it is a view of
 */
export function Rich({ mime, value, metadata, about, name, theme, onGrow, channel }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const near = useNear(place);
  const [height, setHeight] = useState(heights.get(about) || FIRST_HEIGHT);
  const [stopped, setStopped] = useState("");
  const [aside, setAside] = useState(false);
  const [resting, setResting] = useState(false);
  const [link, setLink] = useState("");
  const withheld = sealed.value === false && !unsealed.value;

  useEffect(() => {
    if (!resting) return undefined;
    const timer = setTimeout(() => setResting(false), REST);
    return () => clearTimeout(timer);
  }, [resting]);
  useLayoutEffect(() => onGrow?.(), [height, stopped, aside, link]);

  const onHeight = (/** @type {number} */ told) => {
    heights.set(about, told);
    setHeight(told);
  };
  const onStop = (/** @type {string} */ why) => (why ? setStopped(why) : setResting(true));
  const letIt = () => {
    trusted.add(about);
    setAside(false);
  };
  const heard = {
    onHeight,
    onStop,
    onLink: (/** @type {string} */ url) => setLink(openable(url)),
    free: () => trusted.has(about),
    onTake: () => setAside(true),
  };
  return html`<div class="out-rich" ref=${place}>
    ${stopped
      ? html`<${Note} text=${`This output was stopped. ${stopped}`} action="Draw it again" onAction=${() => setStopped("")} />`
      : aside
        ? html`<${Note} text=${TAKES} action="Let it have the focus" onAction=${letIt} />`
      : withheld
        ? html`<${Note} text=${WITHHELD} action="Draw such outputs" onAction=${() => (unsealed.value = true)} />`
        : html`<div class="out-place" style=${{ height: `${height}px` }}>
            ${near && !resting && html`<${Frame} wanted=${{ mime, value, metadata, theme }} name=${name} heard=${heard} channel=${channel} />`}
          </div>`}
    ${link && html`<${Link} key=${link} url=${link} onDone=${() => setLink("")} />`}
  </div>`;
}

/**
 * @param {{wanted: {mime: string, value: unknown, metadata: any, theme: string}, name: string,
 *   heard: {onHeight: (height: number) => void, onStop: (why: string) => void, onLink: (url: string) => void,
 *   free: () => boolean, onTake: () => void}, channel?: Channel}} props
 */
function Frame({ wanted, name, heard, channel }) {
  const element = useRef(/** @type {HTMLIFrameElement | null} */ (null));
  const now = useRef({ wanted, heard });
  now.current = { wanted, heard };
  const begun = useRef(false);
  // To nobody but this frame; its origin has no name.
  const send = (/** @type {object} */ message) => element.current?.contentWindow?.postMessage(message, "*");
  const draw = () => send({ draw: { ...now.current.wanted, widgets: channel?.begin(send) } });

  useLayoutEffect(() => {
    const begin = () => {
      // Once: what a frame that has an output leads itself to gets none.
      if (begun.current) return;
      if (sealed.value === null) send({ probe: true });
      else if (sealed.value || unsealed.value) {
        begun.current = true;
        draw();
      }
    };
    const stop = watch({
      element: () => element.current,
      onReady: begin,
      onSealed: (told) => {
        if (!begun.current) sealed.value ??= told;
        begin();
      },
      onHeight: (height) => now.current.heard.onHeight(height),
      onStop: (why) => now.current.heard.onStop(why),
      free: () => now.current.heard.free(),
      onTake: () => now.current.heard.onTake(),
      onLink: (url) => now.current.heard.onLink(url),
      onWidget: (sent) => channel?.hear(sent),
    });
    return () => {
      stop();
      channel?.end();
    };
  }, []);
  const { mime, value, theme } = wanted;
  useEffect(() => {
    if (begun.current) draw();
  }, [mime, value]);
  useEffect(() => {
    if (begun.current) send({ theme });
  }, [theme]);

  return html`<iframe
    ref=${element}
    class="out-frame"
    title=${`Output: ${name}`}
    sandbox="allow-scripts"
    referrerpolicy="no-referrer"
    src=${FRAME.href}
  />`;
}

/** @param {{text: string, action: string, onAction: () => void}} props */
function Note({ text, action, onAction }) {
  return html`<p class="out-note" role="status">
    <span>${text}</span> <button type="button" onClick=${onAction}>${action}</button>
  </p>`;
}

/**
 * The address as the browser would open it; empty if it is none that a page may open, or nobody has clicked.
 * @param {string} url
 */
function openable(url) {
  if (url.length > LONGEST_LINK || navigator.userActivation?.isActive === false) return "";
  try {
    const found = new URL(url);
    return /^(?:https?|mailto):$/.test(found.protocol) ? found.href : "";
  } catch {
    return "";
  }
}

/**
 * An output's links lead nowhere by themselves: an address can carry whatever the output knows. So the whole of it is
 * shown, and it is opened only from here.
 * @param {{url: string, onDone: () => void}} props
 */
function Link({ url, onDone }) {
  const [read, setRead] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setRead(true), READ);
    return () => clearTimeout(timer);
  }, []);
  const open = () => {
    window.open(url, "_blank", "noopener,noreferrer");
    onDone();
  };
  return html`<div class="out-note out-link" role="group" aria-label="A link of the output">
    <span>The output links to <code>${url}</code></span>
    <button type="button" disabled=${!read} onClick=${open}>Open in a new tab</button>
    <button type="button" onClick=${() => copyText(url).then(onDone)}>Copy</button>
    <button type="button" onClick=${onDone}>Dismiss</button>
  </div>`;
}
