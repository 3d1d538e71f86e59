/**
 * A long list of which only what is near the screen is in the document.
 *
 * Items have any height, and get others as they grow: each is measured, and what is read stays where it is. At the
 * end of the list the view stays there. It is a feed in the sense of ARIA, whose items say where they are in it.
 */

import { Heights } from "./heights.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";

const ESTIMATE = 110;
/** How much more than the screen is drawn, above and below, in heights of it. */
const MARGIN = 0.75;
/** So near to the end, in pixels, that the view follows it. */
const END = 32;

/**
 * @typedef {{scrollTo: (index: number) => void, toEnd: () => void, focusBy: (step: number) => void}} Handle
 * @param {{
 *   items: any[], count: number, keyOf: (item: any) => string, draw: (item: any, index: number) => any,
 *   onRange: (items: any[]) => void, onEnd?: (atEnd: boolean) => void, label: string,
 *   handle: {current: Handle | null}, start?: number | null,
 * }} props
 */
export function VirtualList({ items, count, keyOf, draw, onRange, onEnd, label, handle, start = null }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [heights] = useState(() => new Heights(ESTIMATE));
  const [, redraw] = useState(0);
  const held = useRef({ atEnd: start === null, told: true, from: 0, to: 0, drawn: 0, frame: 0, height: 600, shift: 0, top: 0 });
  const here = held.current;
  if (heights.count !== count) heights.grow(count);

  const range = () => {
    // Before there is a box, its place is known all the same.
    const first = start === null ? heights.total - here.height : heights.offset(start);
    const top = box.current?.scrollTop ?? Math.max(0, first);
    const margin = here.height * MARGIN;
    return [heights.at(Math.max(0, top - margin)), Math.min(count, heights.at(top + here.height + margin) + 1)];
  };
  const draws = () => redraw((here.drawn += 1));
  const isAtEnd = (/** @type {HTMLElement} */ scroll) => scroll.scrollTop + scroll.clientHeight >= scroll.scrollHeight - END;
  /** Tell whether the end is seen, when that has changed. */
  const tell = () => {
    const seen = !box.current || here.atEnd || isAtEnd(box.current);
    if (seen === here.told) return;
    here.told = seen;
    onEnd?.(seen);
  };
  const toEnd = () => {
    if (!box.current) return;
    here.atEnd = true;
    box.current.scrollTop = box.current.scrollHeight;
    draws();
  };
  const scrollTo = (/** @type {number} */ index) => {
    if (!box.current) return;
    here.atEnd = false;
    box.current.scrollTop = Math.max(0, heights.offset(index) - 12);
    draws();
  };
  const focusBy = (/** @type {number} */ step) => {
    const drawn = /** @type {HTMLElement[]} */ ([...(box.current?.querySelectorAll("[data-item]") ?? [])]);
    const inside = document.activeElement?.closest?.("[data-item]");
    const middle = (box.current?.scrollTop ?? 0) + 24;
    const now = inside ? Number(inside.getAttribute("data-item")) : step > 0 ? heights.at(middle) - 1 : heights.at(middle);
    const next = Math.max(0, Math.min(count - 1, now + step));
    const found = drawn.find((each) => Number(each.dataset.item) === next);
    /** @type {HTMLElement | null} */ (found?.firstElementChild ?? null)?.focus();
    found?.scrollIntoView({ block: "nearest" });
  };
  handle.current = { scrollTo, toEnd, focusBy };

  // One observer for all; its calls come before the frame is painted, so nothing is seen to jump.
  const [observer] = useState(
    () =>
      new ResizeObserver((entries) => {
        const scroll = box.current;
        if (!scroll) return;
        let above = 0;
        let changed = false;
        for (const { target } of entries) {
          if (target === scroll) {
            here.height = scroll.clientHeight;
            changed = true;
            continue;
          }
          const index = Number(/** @type {HTMLElement} */ (target).dataset.item);
          const height = /** @type {HTMLElement} */ (target).offsetHeight;
          if (!target.isConnected || height === 0) continue;
          const bottom = heights.offset(index + 1);
          const difference = heights.set(index, height);
          if (difference === 0) continue;
          changed = true;
          if (bottom <= scroll.scrollTop + above + 1) above += difference;
        }
        here.shift += above;
        if (changed) draws();
      }),
  );
  useEffect(() => {
    const scroll = /** @type {HTMLElement} */ (box.current);
    here.height = scroll.clientHeight;
    observer.observe(scroll);
    if (start !== null) scrollTo(start);
    else toEnd();
    return () => {
      observer.disconnect();
      cancelAnimationFrame(here.frame);
    };
  }, []);
  useLayoutEffect(() => {
    const scroll = box.current;
    if (scroll && here.atEnd) {
      scroll.scrollTop = scroll.scrollHeight;
      here.top = scroll.scrollTop;
    } else if (scroll && here.shift) scroll.scrollTop += here.shift;
    here.shift = 0;
    tell();
  });

  const [from, to] = range();
  useEffect(() => {
    const top = box.current?.scrollTop ?? 0;
    const first = heights.at(top);
    // What is on the screen is wanted more than what is around it.
    const drawn = items.slice(from, to);
    onRange([...drawn.slice(first - from), ...drawn.slice(0, first - from).reverse()]);
  }, [from, to, count]);

  const scrolled = () => {
    const scroll = /** @type {HTMLElement} */ (box.current);
    const atEnd = isAtEnd(scroll);
    // An item that grew beyond the end has not taken the reader away from it: that takes a step back.
    const hasGrown = !atEnd && here.atEnd && scroll.scrollTop >= here.top;
    here.top = scroll.scrollTop;
    if (!hasGrown) here.atEnd = atEnd;
    tell();
    cancelAnimationFrame(here.frame);
    here.frame = requestAnimationFrame(() => {
      const [first, last] = range();
      if (first !== here.from || last !== here.to) draws();
    });
  };
  here.from = from;
  here.to = to;
  const drawn = [];
  for (let index = from; index < to; index += 1)
    drawn.push(html`
      <${Item} key=${keyOf(items[index])} index=${index} top=${heights.offset(index)} observer=${observer}>
        ${draw(items[index], index)}
      <//>
    `);
  return html`
    <div class="feed-box" ref=${box} onScroll=${scrolled}>
      <div class="feed" role="feed" aria-label=${label} aria-busy="false" style=${{ height: `${heights.total}px` }}>
        ${drawn}
      </div>
    </div>
  `;
}

/** @param {{index: number, top: number, observer: ResizeObserver, children?: any}} props */
function Item({ index, top, observer, children }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  useLayoutEffect(() => {
    const own = /** @type {HTMLElement} */ (element.current);
    observer.observe(own);
    return () => observer.unobserve(own);
  }, []);
  return html`
    <div class="feed-item" role="presentation" ref=${element} data-item=${index} style=${{ transform: `translateY(${top}px)` }}>
      ${children}
    </div>
  `;
}
