/**
 * Keeps the focus of somebody who types out of the outputs' frames.
 *
 * A frame can focus itself, and would then hear what is typed for the page; no policy of browsers forbids it yet. So as long
 * as the reader types in a field, frames get no clicks, and one that has the focus all the same has taken it. When browsers
 * no longer count the last key as the reader's doing, frames get clicks again: what comes without one is taken, too. Whoever
 * took it is dropped as soon as the page notices; to take the focus back alone is not enough, as browsers go on sending the
 * keys to the frame. ./guard.js knows the frames.
 *
 * @typedef {{element: () => HTMLIFrameElement | null, onStop: (why: string) => void}} Held
 */

/** How long a key counts for browsers as the reader's doing, at most, in milliseconds. */
const ACTIVE = 5500;

/**
 * Keep it until `end` of what is returned is called; `look` is called when there is a new frame, and now and then.
 * @param {ReadonlySet<Held>} frames
 */
export function keepFocus(frames) {
  /** Where the reader types. */
  let typing = field(document.activeElement);
  let closed = false;
  let timer = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined);

  /** @param {boolean} wanted */
  const close = (wanted) => {
    closed = wanted;
    for (const frame of frames) frame.element()?.toggleAttribute("data-closed", wanted);
  };
  const wait = () => {
    clearTimeout(timer);
    close(typing !== null);
    if (closed) timer = setTimeout(() => (navigator.userActivation?.isActive ? wait() : close(false)), ACTIVE);
  };
  const look = () => {
    if (closed) close(true);
    const active = document.activeElement;
    if (typing === null || active === typing.host) return;
    const frame = [...frames].find((each) => each.element() === active);
    if (frame !== undefined && (closed || navigator.userActivation?.isActive === false)) return takeBack(frame);
    if (frame !== undefined || active === document.body) typing = null;
    wait();
  };
  /** @param {Held} frame */
  const takeBack = (frame) => {
    const back = typing?.element;
    frame.onStop("It took the focus from where you type.");
    // When it has gone.
    setTimeout(() => back?.focus({ preventScroll: true }));
  };

  const listeners = /** @type {[EventTarget, string, (event: any) => void][]} */ ([
    [
      document,
      "focusin",
      (event) => {
        typing = field(event.target);
        wait();
      },
    ],
    // For a moment nothing has the focus that goes to a frame.
    [document, "focusout", () => setTimeout(look)],
    [window, "blur", (event) => event.target === window && look()],
    [
      document,
      "keydown",
      (event) => {
        // This key may lead from a field into a frame.
        if (event.key === "Tab") close(false);
        else if (typing !== null) wait();
      },
    ],
    [
      document,
      "pointerdown",
      (event) => {
        // Of a frame that gets no clicks: the reader leaves the field for it, and the next click is the frame's.
        if (closed && event.target.classList?.contains("out-place")) typing?.element.blur();
      },
    ],
  ]);
  for (const [target, name, listener] of listeners) target.addEventListener(name, listener, true);
  wait();
  const end = () => {
    clearTimeout(timer);
    for (const [target, name, listener] of listeners) target.removeEventListener(name, listener, true);
  };
  return { look, end };
}

/**
 * A field that is, or has in its shadow, what has the focus; null if it is no field.
 * @param {any} host
 * @returns {{host: Element, element: HTMLElement} | null}
 */
function field(host) {
  let element = host;
  while (element?.shadowRoot?.activeElement) element = element.shadowRoot.activeElement;
  const isField = element?.isContentEditable || /^(?:INPUT|TEXTAREA|SELECT)$/.test(element?.tagName);
  return isField ? { host, element } : null;
}
