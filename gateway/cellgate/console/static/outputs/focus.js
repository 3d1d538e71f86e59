/**
 * Keeps the focus of somebody who types out of the outputs' frames.
 *
 * A frame can focus itself, and would then hear what is typed for the page; no policy of browsers forbids it yet. So a frame
 * that gets the focus while somebody types in a field of the page is put aside, with a word and a button that lets it have
 * the focus; to take the focus back alone would not do, as the frame would take it again. ./guard.js knows the frames.
 *
 * Who goes to a frame of their own accord must not be taken for it. The page sees how they come: by Tab, by a pointer that
 * moves onto the frame, or by a click, which browsers count as the reader's doing for some seconds. A key counts likewise, so
 * for so long after one no frame gets clicks, until the pointer moves. On touch screens nothing moves before a touch, and the
 * screen's keyboard goes with the focus: there frames get all touches, and what takes the focus just behind a key is not found.
 *
 * @typedef {{element: () => HTMLIFrameElement | null, free: () => boolean, onTake: () => void}} Held
 *   `free`: whether it may have the focus in any case; `onTake`: it took the focus, and is to be put aside
 */

/** How long a key counts for browsers as the reader's doing, at most, in milliseconds. */
const ACTIVE = 5500;
/** How long browsers may take to tell the page of a click in a frame, in milliseconds. */
const TOLD = 100;
/** How long a key that leads from the page into a frame may take for it, in milliseconds. */
const LED = 1000;

const touches = matchMedia("(hover: none)");

/**
 * Begin; what is returned looks, and is called when there is a new frame, and now and then.
 * @param {ReadonlySet<Held>} frames
 */
export function keepFocus(frames) {
  /** Where the reader has typed, as long as it has the focus. */
  let typing = /** @type {ReturnType<typeof field>} */ (null);
  /** Whether frames get no clicks; and the one that does, as the pointer has moved onto it. */
  let closed = false;
  let entered = /** @type {Held | null} */ (null);
  let moved = /** @type {{x: number, y: number} | null} */ (null);
  /** Whether a key may just have led into a frame. */
  let led = false;
  let timer = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined);
  let judging = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined);

  const apply = () => {
    for (const frame of frames) frame.element()?.toggleAttribute("data-closed", closed && frame !== entered);
  };
  const open = () => {
    clearTimeout(timer);
    closed = false;
    entered = moved = null;
    apply();
  };
  /** The reader has done something that browsers count, in the field. */
  const close = () => {
    clearTimeout(timer);
    closed = !touches.matches;
    entered = moved = null;
    apply();
    // Where browsers do not tell what they count, a click is known by the pointer alone.
    if (navigator.userActivation) timer = setTimeout(open, ACTIVE);
  };
  const leave = () => {
    typing = null;
    open();
  };
  const type = () => {
    const found = field(document.activeElement);
    if (found === null) return;
    typing = found;
    close();
  };
  const focused = () => [...frames].find((each) => each.element() === document.activeElement);
  const look = () => {
    apply();
    if (typing === null || document.activeElement === typing.host) return;
    const frame = focused();
    if (frame === undefined || led || frame.free()) return leave();
    if (closed && frame !== entered) return putAside(frame);
    clearTimeout(judging);
    judging = setTimeout(() => {
      if (typing === null || document.activeElement !== frame.element()) return;
      if (navigator.userActivation?.isActive === false) putAside(frame);
      else leave();
    }, TOLD);
  };
  /** @param {Held} frame */
  const putAside = (frame) => {
    const back = typing?.element;
    frame.onTake();
    // When it has gone.
    setTimeout(() => back?.focus({ preventScroll: true }));
  };
  /** The frame whose place this is. @param {any} place */
  const frameAt = (place) =>
    place?.classList?.contains("out-place") ? [...frames].find((each) => place.contains(each.element())) : undefined;

  const listeners = /** @type {[EventTarget, string, (event: any) => void, boolean][]} */ ([
    [
      document,
      "focusin",
      () => {
        if (focused() !== undefined) look();
        else if (typing !== null && field(document.activeElement)?.element !== typing.element) leave();
      },
      true,
    ],
    // For a moment nothing has the focus that goes to a frame.
    [document, "focusout", () => setTimeout(look), true],
    [window, "blur", () => focused() !== undefined && look(), true],
    [document, "input", type, true],
    [
      document,
      "keydown",
      (event) => {
        led = false;
        if (!/^(?:Tab|Escape|F\d+|Alt|Control|Meta|Shift)$/.test(event.key)) type();
        else if (typing !== null) close();
      },
      true,
    ],
    // Behind all others: the editor keeps Tab for itself.
    [
      window,
      "keydown",
      (event) => {
        if (event.key !== "Tab" || event.defaultPrevented) return;
        led = true;
        setTimeout(() => (led = false), LED);
      },
      false,
    ],
    [
      document,
      "pointermove",
      (event) => {
        if (!closed) return;
        const frame = frameAt(event.target);
        const before = moved;
        moved = { x: event.screenX, y: event.screenY };
        // Browsers say that it moves also when the page does below it.
        const moves = before !== null && (before.x !== moved.x || before.y !== moved.y);
        if (frame === undefined ? entered === null : !moves) return;
        entered = frame ?? null;
        apply();
      },
      true,
    ],
    [
      document,
      "pointerdown",
      (event) => {
        if (typing === null) return;
        // A click on a frame that gets none leaves the field for it.
        if (closed && frameAt(event.target) !== undefined) typing.element.blur();
        else close();
      },
      true,
    ],
  ]);
  for (const [target, name, listener, capture] of listeners) target.addEventListener(name, listener, capture);
  return look;
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
