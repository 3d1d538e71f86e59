/**
 * Whether an element is near what is seen of the page. One observer each for coming and going, however many there are.
 */

import { useEffect, useState } from "../vendor/preact.js";

/** How near the screen something begins, and how far from it it ends, in pixels. */
const NEAR = 600;
const FAR = 3000;

/** @type {WeakMap<Element, (near: boolean) => void>} */
const told = new WeakMap();
const coming = observer(NEAR, true);
const going = observer(FAR, false);

/** @param {number} margin @param {boolean} near */
function observer(margin, near) {
  return new IntersectionObserver(
    (entries) => {
      for (const entry of entries) if (entry.isIntersecting === near) told.get(entry.target)?.(near);
    },
    // The second is for elements that scroll within the page.
    { rootMargin: `${margin}px`, scrollMargin: `${margin}px` },
  );
}

/** @param {{current: HTMLElement | null}} place */
export function useNear(place) {
  const [near, setNear] = useState(false);
  useEffect(() => {
    const element = /** @type {HTMLElement} */ (place.current);
    told.set(element, setNear);
    coming.observe(element);
    going.observe(element);
    return () => {
      coming.unobserve(element);
      going.unobserve(element);
    };
  }, []);
  return near;
}
