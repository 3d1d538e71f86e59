/**
 * Watches over the frames of outputs: hears their messages, limits them, and finds out which no longer answer.
 *
 * A message counts if a frame of ours sent it. What it may say is little: `{ready: true}` once, `{sealed: boolean}` before
 * anything was drawn, `{height: number}`, `{link: string}`, `{alive: true}`, and `{widget: ...}`, which `app/widgets.js` looks
 * at. ./rich.js makes the frames.
 *
 * Browsers put all frames without an origin into one process beside the page's. One that runs for ever stops the others,
 * not the page; that process ends when no frame is left in it.
 */

import { keepFocus } from "./focus.js";

const LEAST_HEIGHT = 16;
/** What is higher scrolls inside its frame. */
const MOST_HEIGHT = 2400;
/** Changes of height that count in a second; one more comes at its end. */
const MOST_HEIGHTS = 10;
/** Messages that a frame may send in a second. */
const MOST_MESSAGES = 200;
/** How often frames are asked whether they are there, and how long they may be silent, in milliseconds. */
const ASKED = 3000;
const LONGEST_SILENCE = 30_000;

/**
 * @typedef {{element: () => HTMLIFrameElement | null, onReady: () => void, onSealed: (sealed: boolean) => void,
 *   onHeight: (height: number) => void, onLink: (link: string) => void, onWidget: (sent: unknown) => void,
 *   onStop: (why: string) => void,
 *   free: () => boolean, onTake: () => void}} Heard
 *   `onStop`: it is to be dropped; "" if it has done nothing and may come back. ./focus.js asks `free` and tells `onTake`
 */

class Frame {
  /** @param {Heard} heard */
  constructor(heard) {
    this.heard = heard;
    this.since = this.answered = this.second = performance.now();
    this.messages = 0;
    this.heights = 0;
    this.height = 0;
    this.later = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined);
  }

  element() {
    return this.heard.element();
  }

  get window() {
    return this.element()?.contentWindow;
  }

  free() {
    return this.heard.free();
  }

  onTake() {
    this.heard.onTake();
  }

  /** @param {string} why */
  onStop(why) {
    this.heard.onStop(why);
  }

  /** @param {MessageEvent} event */
  take(event) {
    this.answered = performance.now();
    if (this.answered - this.second > 1000) {
      this.second = this.answered;
      this.messages = this.heights = 0;
    }
    this.messages += 1;
    if (this.messages > MOST_MESSAGES) return this.onStop("It sent more messages than an output has reason to.");
    const data = event.data;
    if (typeof data !== "object" || data === null) return undefined;
    if (data.ready === true) return this.heard.onReady();
    if (typeof data.sealed === "boolean") return this.heard.onSealed(data.sealed);
    if (typeof data.link === "string") return this.heard.onLink(data.link);
    if (data.widget !== undefined) return this.heard.onWidget(data.widget);
    if (typeof data.height === "number" && Number.isFinite(data.height)) return this.grow(data.height);
    return undefined;
  }

  /** @param {number} height */
  grow(height) {
    this.height = Math.ceil(Math.min(Math.max(height, LEAST_HEIGHT), MOST_HEIGHT));
    this.heights += 1;
    if (this.later !== undefined) return;
    if (this.heights <= MOST_HEIGHTS) this.heard.onHeight(this.height);
    else
      this.later = setTimeout(() => {
        this.later = undefined;
        this.heard.onHeight(this.height);
      }, 1000);
  }
}

/** @type {Set<Frame>} */
const frames = new Set();
let timer = /** @type {ReturnType<typeof setInterval> | undefined} */ (undefined);
/** From the beginning: what was typed before there was a frame counts. */
const lookForFocus = keepFocus(frames);

/**
 * Hear a frame until what is returned is called.
 * @param {Heard} heard
 */
export function watch(heard) {
  if (frames.size === 0) {
    addEventListener("message", hear);
    timer = setInterval(ask, ASKED);
  }
  const frame = new Frame(heard);
  frames.add(frame);
  lookForFocus();
  return () => {
    clearTimeout(frame.later);
    frames.delete(frame);
    if (frames.size > 0) return;
    removeEventListener("message", hear);
    clearInterval(timer);
  };
}

/** @param {MessageEvent} event */
function hear(event) {
  // Its sender is looked at before its content: what comes from nobody is not even decoded.
  if (event.source === null) return;
  for (const frame of frames) if (event.source === frame.window) return frame.take(event);
}

function ask() {
  lookForFocus();
  const now = performance.now();
  if (document.hidden) {
    // Browsers run the timers of pages that nobody sees rarely.
    for (const frame of frames) frame.answered = now;
    return;
  }
  const silent = [...frames].filter((frame) => now - frame.answered > LONGEST_SILENCE);
  if (silent.length === 0) {
    for (const frame of frames) frame.window?.postMessage({ ask: true }, "*");
    return;
  }
  // The youngest of those that are silent has most likely stopped the others; all go, so that their process ends.
  const youngest = silent.reduce((a, b) => (b.since > a.since ? b : a));
  for (const frame of [...frames])
    frame.onStop(frame === youngest ? "It kept its process busy and did not answer." : "");
}
