/**
 * The outputs' frame: draws what the page sends it, and tells the page how high that is.
 *
 * It and the output share all there is here. So nothing of it protects anything: what the output may do is limited by the
 * frame's origin, which is none, and by the policies of frame.html and of the page around it.
 */

"use strict";

(() => {
  const place = /** @type {HTMLElement} */ (document.getElementById("output"));
  const page = window.parent;
  /** The gateway's origin; the document's own is opaque. */
  const ORIGIN = location.origin;
  const MOST_FAILURES = 3;
  const BETWEEN_HEIGHTS = 100;

  let drawn = /** @type {any} */ (null);
  let end = /** @type {(() => void) | void} */ (undefined);
  let turn = 0;
  let failures = 0;
  /** Whom the output was kept from asking. @type {Set<string>} */
  const refused = new Set();

  const tell = (/** @type {object} */ message) => page.postMessage(message, ORIGIN);
  const follow = (/** @type {string} */ link) => tell({ link });

  let told = 0;
  let later = /** @type {number | undefined} */ (undefined);
  function tellHeight() {
    later ??= setTimeout(() => {
      later = undefined;
      // Until it is drawn the place keeps the height that it had.
      if (place.querySelector(":scope > .loading")) return;
      const bars = place.offsetHeight - place.clientHeight;
      const height = Math.max(place.scrollHeight + bars, document.body.offsetHeight);
      if (height !== told) tell({ height: (told = height) });
    }, told ? BETWEEN_HEIGHTS : 0);
  }

  /** @param {unknown} error */
  function fail(error) {
    if ((failures += 1) > MOST_FAILURES) return;
    const line = document.createElement("pre");
    line.className = "failed";
    line.textContent = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
    place.append(line);
  }

  /**
   * Whether this browser lets nothing through WebRTC, which policies do not rule. Where it is forbidden, a peer has failed
   * before it looks for addresses. It may use relays only and has none: it sends nothing in any case.
   */
  async function isSealed() {
    if (typeof RTCPeerConnection === "undefined") return true;
    const peer = new RTCPeerConnection({ iceTransportPolicy: "relay" });
    try {
      const outcome = new Promise((resolve) => {
        peer.oniceconnectionstatechange = () => peer.iceConnectionState === "failed" && resolve(true);
        peer.onicegatheringstatechange = () => peer.iceGatheringState === "complete" && resolve(false);
      });
      peer.createDataChannel("");
      await peer.setLocalDescription();
      return await outcome;
    } finally {
      peer.close();
    }
  }

  /** @param {any} wanted */
  async function draw(wanted) {
    const mine = (turn += 1);
    setTheme(wanted.theme);
    try {
      end?.();
    } catch {
      // It was hostile, or is gone.
    }
    end = undefined;
    drawn = wanted;
    failures = 0;
    refused.clear();
    place.replaceChildren();
    try {
      const ended = await drawOutput(wanted.mime, { ...wanted, place, follow, tell });
      if (mine === turn) {
        end = ended;
        for (const host of hostsInside()) refuse(host);
      }
    } catch (error) {
      if (mine === turn) fail(error);
    }
    tellHeight();
  }

  /** @param {unknown} theme */
  function setTheme(theme) {
    document.documentElement.dataset.theme = theme === "dark" ? "dark" : "light";
  }

  addEventListener("message", (event) => {
    if (event.source !== page || event.origin !== ORIGIN) return;
    const { draw: wanted, theme, ask, probe, widgets } = event.data;
    if (ask) tell({ alive: true });
    else if (probe) isSealed().then((sealed) => tell({ sealed }), () => tell({ sealed: false }));
    else if (wanted) draw(wanted);
    else if (widgets) hearWidgets(widgets);
    else if (theme) {
      setTheme(theme);
      if (drawn && drawn.theme !== theme && isThemed(drawn.mime)) draw({ ...drawn, theme });
    }
  });

  /** @param {MouseEvent} event */
  function onClick(event) {
    const link = /** @type {Element | undefined} */ (event.composedPath().find((/** @type {any} */ each) => each.nodeName?.toLowerCase() === "a"));
    const address = link?.getAttribute("href") ?? link?.getAttribute("xlink:href");
    if (!address || address.startsWith("#")) return;
    event.preventDefault();
    // One that is relative would be of the gateway, and leads nowhere there.
    if (URL.canParse(address)) follow(address);
  }
  addEventListener("click", onClick, true);
  addEventListener("auxclick", onClick, true);

  addEventListener("error", (event) => {
    if (event.error !== undefined && event.error !== null) fail(event.error);
  });
  addEventListener("unhandledrejection", (event) => fail(event.reason));

  document.addEventListener("securitypolicyviolation", (event) => {
    if (/^https?:/.test(event.blockedURI)) refuse(new URL(event.blockedURI).host);
  });

  /** @param {string} host */
  function refuse(host) {
    if (refused.has(host) || refused.size > MOST_FAILURES) return;
    refused.add(host);
    fail(`Outputs reach no network: what this one asked ${host} for was not fetched.`);
  }

  /** Those that pages within the output load scripts and styles from: what is forbidden there is not told here. */
  function hostsInside() {
    const pages = [...place.querySelectorAll("iframe[srcdoc]")].map((each) => each.getAttribute("srcdoc") ?? "");
    const found = pages.flatMap((text) => [
      ...new DOMParser().parseFromString(text, "text/html").querySelectorAll("script[src], link[rel=stylesheet][href]"),
    ]);
    const addresses = found.map((each) => each.getAttribute("src") ?? each.getAttribute("href") ?? "");
    return addresses
      .filter((each) => /^(?:https?:)?\/\//.test(each) && URL.canParse(each, "https://h"))
      .map((each) => new URL(each, "https://h").host);
  }

  new ResizeObserver(tellHeight).observe(place);
  new ResizeObserver(tellHeight).observe(document.body);
  tell({ ready: true });
})();
