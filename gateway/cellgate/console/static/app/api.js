/**
 * The gateway's HTTP interface, as the modules of the page use it: JSON, streams of events, uploads.
 *
 * It knows no resource. A request is sent with the page's cookie, which no script can read. Paths are relative
 * to the gateway's base URL: "v1/sessions". What fails is thrown as a `Problem`, also a request that got no answer.
 */

import { effect, signal } from "../vendor/preact.js";

/** The gateway's base URL; this file is at console/app/api.js below it. */
export const base = new URL("../../", import.meta.url);

/** Whether the browser is signed in, as far as answers told; null before the first of them. */
export const signedIn = signal(/** @type {boolean | null} */ (null));

/** The owner of the sessions that paths are about, if not the reader: see `address`. */
export const owner = signal(/** @type {string | null} */ (null));

/**
 * Whether the gateway answers, and when it will be asked again if it does not.
 * @type {import("../vendor/preact.js").Signal<{lost: boolean, again: number | null}>}
 */
export const connection = signal({ lost: false, again: null });

const JSON_TYPE = "application/json";
const NDJSON_TYPE = "application/x-ndjson";
/** A stream has a sign of life every 15 seconds. */
const SILENCE = 40_000;
/** How long events are decoded in one go, in milliseconds: a frame has 16. */
const AT_ONCE = 8;
const FIRST_WAIT = 500;
const LONGEST_WAIT = 15_000;

/** A refusal of the gateway, or a request that was not answered: `status` is 0 then. */
export class Problem extends Error {
  /** @param {{status?: number, reason?: string, detail?: string, [name: string]: unknown}} body */
  constructor(body) {
    super(String(body.detail || body.title || "The gateway refused the request."));
    this.name = "Problem";
    this.status = Number(body.status) || 0;
    this.reason = String(body.reason || "unknown");
    this.detail = this.message;
    this.body = body;
  }
}

const unreachable = () =>
  new Problem({ status: 0, reason: "unreachable", detail: "The gateway did not answer. Is it running?" });

/** How far this machine's clock is ahead of the gateway's, in milliseconds. */
let ahead = 0;

/** The gateway's time, as far as it is known. */
export const now = () => Date.now() - ahead;

/** @param {Response} answer */
function tellTime(answer) {
  const told = Date.parse(answer.headers.get("Date") || "");
  // The field has whole seconds: half of one is what it is behind on average. Small differences are its rounding.
  if (Number.isNaN(told)) return;
  const difference = Date.now() - told - 500;
  if (Math.abs(difference - ahead) > 1500) ahead = difference;
}

/**
 * The URL of a path. What is about one session names its owner, where that is not the reader.
 * @param {string} path
 */
export function address(path) {
  const url = new URL(path, base);
  if (owner.value && path.startsWith("v1/sessions/") && !url.searchParams.has("principal"))
    url.searchParams.set("principal", owner.value);
  return url;
}

/**
 * @param {string} path
 * @param {RequestInit} options
 */
async function request(path, options) {
  let answer;
  try {
    answer = await fetch(address(path), { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    lose();
    throw unreachable();
  }
  tellTime(answer);
  regain();
  if (answer.ok) return answer;
  let body = {};
  try {
    body = await answer.json();
  } catch {
    // A proxy in between may answer with a page of its own.
  }
  if (answer.status === 401) signedIn.value = false;
  throw new Problem({ status: answer.status, ...body });
}

/** @param {Response} answer */
async function content(answer) {
  if (answer.status === 204) return null;
  try {
    const text = await answer.text();
    return text ? JSON.parse(text) : null;
  } catch (error) {
    // It broke off, or is not the gateway's.
    throw error?.name === "AbortError" ? error : unreachable();
  }
}

/** @param {string} method @param {unknown} body @returns {RequestInit} */
const writing = (method, body) => ({
  method,
  headers: { Accept: JSON_TYPE, "Content-Type": JSON_TYPE },
  body: JSON.stringify(body),
});

export const api = {
  /** @param {string} path @param {{signal?: AbortSignal}} [options] */
  async get(path, options = {}) {
    return content(await request(path, { headers: { Accept: JSON_TYPE }, signal: options.signal }));
  },

  /** @param {string} path @param {{signal?: AbortSignal, accept?: string}} [options] */
  async text(path, options = {}) {
    const headers = options.accept ? { Accept: options.accept } : undefined;
    return (await request(path, { headers, signal: options.signal })).text();
  },

  /** A text, and the id of the gateway that has it. @param {string} path */
  async told(path) {
    const answer = await request(path, {});
    return { text: await answer.text(), node: answer.headers.get("Cellgate-Owner") || "" };
  },

  /** What changes with a file: its ETag. @param {string} path */
  async tag(path) {
    return (await request(path, { method: "HEAD" })).headers.get("ETag");
  },

  /** A file as it was at one moment, with its ETag. One of more than `most` bytes is not read. @param {string} path @param {number} most */
  async file(path, most) {
    const answer = await request(path, {});
    if (Number(answer.headers.get("Content-Length")) > most) {
      answer.body?.cancel().catch(() => undefined);
      throw new Problem({ detail: "The file is too large to be opened here." });
    }
    return { blob: await answer.blob(), tag: answer.headers.get("ETag") };
  },

  /**
   * Write a file and return its new ETag. With `over`, only if the file that is there has this ETag, or for null if
   * none is there: otherwise a `Problem` of status 412.
   * @param {string} path @param {Blob} file @param {{over?: string | null}} [options]
   */
  async write(path, file, { over } = {}) {
    const headers = /** @type {Record<string, string>} */ ({ Accept: JSON_TYPE });
    if (over) headers["If-Match"] = over;
    if (over === null) headers["If-None-Match"] = "*";
    return (await request(path, { method: "PUT", headers, body: file })).headers.get("ETag");
  },

  /** @param {string} path @param {{signal?: AbortSignal}} [options] */
  async blob(path, options = {}) {
    return (await request(path, { signal: options.signal })).blob();
  },

  /**
   * @param {string} path
   * @param {unknown} [body]
   * @param {{signal?: AbortSignal, once?: string}} [options] `once`: what is sent again with the same word is done once
   */
  async post(path, body, options = {}) {
    const headers = /** @type {Record<string, string>} */ ({ Accept: JSON_TYPE, "Content-Type": JSON_TYPE });
    if (options.once) headers["Idempotency-Key"] = options.once;
    const sent = body === undefined ? "{}" : JSON.stringify(body);
    return content(await request(path, { method: "POST", headers, body: sent, signal: options.signal }));
  },

  /** @param {string} path @param {unknown} body */
  async put(path, body) {
    return content(await request(path, writing("PUT", body)));
  },

  /** @param {string} path @param {unknown} body */
  async patch(path, body) {
    return content(await request(path, writing("PATCH", body)));
  },

  /** @param {string} path */
  async delete(path) {
    return content(await request(path, { method: "DELETE", headers: { Accept: JSON_TYPE } }));
  },

  /**
   * Follow events until the stream ends or is given up. Throws if it broke off: begin again after the last `seq`.
   * @param {string} path
   * @param {{onEvent: (event: any) => void, signal?: AbortSignal, lastEventId?: number | null,
   *   method?: string, body?: unknown}} options
   */
  async stream(path, { onEvent, signal: given, lastEventId, method = "GET", body }) {
    const silence = new AbortController();
    const stop = () => silence.abort();
    given?.addEventListener("abort", stop);
    let timer = setTimeout(stop, SILENCE);
    try {
      if (given?.aborted) stop();
      const headers = /** @type {Record<string, string>} */ ({ Accept: NDJSON_TYPE });
      if (body !== undefined) headers["Content-Type"] = JSON_TYPE;
      if (lastEventId != null) headers["Last-Event-ID"] = String(lastEventId);
      const sent = body === undefined ? undefined : JSON.stringify(body);
      const answer = await request(path, { method, headers, body: sent, signal: silence.signal });
      for await (const event of lines(answer.body)) {
        clearTimeout(timer);
        timer = setTimeout(stop, SILENCE);
        if (event.type === "problem") throw new Problem(event);
        if (event.type !== "keepalive" || event.waiting_for) onEvent(event);
      }
    } catch (error) {
      if (error instanceof Problem || given?.aborted) throw error;
      // Whether more than this stream is lost, the next request shows.
      throw unreachable();
    } finally {
      clearTimeout(timer);
      given?.removeEventListener("abort", stop);
      silence.abort();
    }
  },

  /**
   * Put a file. `fetch` tells no progress of what it sends.
   * @param {string} path
   * @param {Blob} file
   * @param {{onProgress?: (sent: number, size: number) => void, signal?: AbortSignal}} [options]
   * @returns {Promise<any>}
   */
  upload(path, file, { onProgress, signal: given } = {}) {
    return new Promise((resolve, reject) => {
      const sending = new XMLHttpRequest();
      sending.open("PUT", address(path));
      sending.setRequestHeader("Accept", JSON_TYPE);
      sending.upload.onprogress = (event) => onProgress?.(event.loaded, event.total);
      sending.onload = () => {
        let body = {};
        try {
          body = JSON.parse(sending.responseText);
        } catch {
          // As above.
        }
        if (sending.status < 300) return resolve(body);
        if (sending.status === 401) signedIn.value = false;
        reject(new Problem({ status: sending.status, ...body }));
      };
      sending.onerror = () => reject(unreachable());
      sending.onabort = () => reject(new DOMException("The upload was stopped.", "AbortError"));
      given?.addEventListener("abort", () => sending.abort());
      sending.send(file);
    });
  },
};

/**
 * The lines of a body, each decoded. A long one comes in many pieces, which are joined once.
 * @param {ReadableStream<Uint8Array> | null} body
 */
async function* lines(body) {
  if (body === null) return;
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let begun = /** @type {string[]} */ ([]);
  let since = performance.now();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = decoder.decode(value, { stream: true }).split("\n");
      for (const [index, part] of parts.entries()) {
        begun.push(part);
        if (index === parts.length - 1) break;
        const line = begun.join("");
        begun = [];
        if (line) yield JSON.parse(line);
        if (performance.now() - since > AT_ONCE) {
          await turn();
          since = performance.now();
        }
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

/** Let the browser draw and take input. */
export function turn() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port2.onmessage = () => {
      port1.close();
      resolve(undefined);
    };
    port1.postMessage(null);
  });
}

// ---- a lost connection --------------------------------------------------------------------------------------

let waited = FIRST_WAIT;
let asking = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined);

function lose() {
  if (connection.value.lost) return;
  waited = FIRST_WAIT;
  askLater();
}

function askLater() {
  // Viewers that lost the same gateway do not come back all at once.
  const wait = waited * (0.75 + Math.random() / 2);
  waited = Math.min(2 * waited, LONGEST_WAIT);
  connection.value = { lost: true, again: Date.now() + wait };
  clearTimeout(asking);
  asking = setTimeout(ask, wait);
}

async function ask() {
  connection.value = { lost: true, again: null };
  try {
    const answer = await fetch(new URL("healthz", base), { cache: "no-store" });
    if (!answer.ok) throw unreachable();
    regain();
  } catch {
    askLater();
  }
}

/** Ask the gateway now, if it was lost. */
export function askNow() {
  if (!connection.value.lost) return;
  clearTimeout(asking);
  waited = FIRST_WAIT;
  ask();
}

function regain() {
  if (!connection.value.lost) return;
  clearTimeout(asking);
  connection.value = { lost: false, again: null };
}

/**
 * Settled once the gateway answers.
 * @param {AbortSignal} [given]
 */
export function whenConnected(given) {
  return new Promise((resolve) => {
    let stop = () => {};
    let over = false;
    const end = () => {
      over = true;
      stop();
      resolve(undefined);
    };
    given?.addEventListener("abort", end, { once: true });
    stop = effect(() => {
      if (!connection.value.lost || given?.aborted) queueMicrotask(end);
    });
    if (over) stop();
  });
}

globalThis.addEventListener?.("online", askNow);
