/**
 * The focus of a row that is taken out of its list, as when a session has ended: its neighbour has it then.
 *
 * Browsers give it to the document, and whoever uses a keyboard begins at the top of the page again.
 */

const ROWS = "tr, li";
const FIRST = "a[href], button, input, [tabindex='0']";

/** @typedef {{element: Element, row: Element, list: Element, index: number}} Place */

/** Begin; for the life of the page. @param {Document} page */
export function keepFocus(page) {
  let place = /** @type {Place | null} */ (null);
  page.addEventListener("focusin", (event) => (place = placeOf(/** @type {Element} */ (event.target), place)));
  const look = () => {
    if (!place || place.element.isConnected || page.activeElement !== page.body) return;
    const { row, list, index } = place;
    place = null;
    // What was replaced in a row that stays is for whoever replaced it.
    if (!row.isConnected) (neighbour(list, index) ?? beginning(page))?.focus();
  };
  const leave = () => {
    if (place?.element.isConnected && page.activeElement === page.body) place = null;
  };
  // Who clicks beside everything has left the row. A moment later it shows whether the row itself has gone.
  page.addEventListener("focusout", () => setTimeout(leave));
  new MutationObserver(look).observe(page.body, { childList: true, subtree: true });
}

/**
 * Where an element with the focus is. A question that is asked about a row leaves the row's place as it was.
 * @param {Element} element @param {Place | null} before @returns {Place | null}
 */
function placeOf(element, before) {
  if (element.closest("dialog, [role=menu]")) return before;
  const row = element.closest(ROWS);
  const list = row?.parentElement;
  return row && list ? { element, row, list, index: [...list.children].indexOf(row) } : null;
}

/** @param {Element} list @param {number} index @returns {HTMLElement | null} */
function neighbour(list, index) {
  if (!list.isConnected) return null;
  const row = list.children[Math.min(index, list.children.length - 1)];
  return row?.querySelector(FIRST) ?? null;
}

/** @param {Document} page @returns {HTMLElement | null} */
function beginning(page) {
  const main = page.getElementById("main");
  if (main && !main.hasAttribute("tabindex")) main.setAttribute("tabindex", "-1");
  return main;
}
