/**
 * The hash chain of a session's record, computed again in the browser.
 *
 * `hash = SHA-256(previous hash || the row's bytes)`, beginning with 32 zero bytes: docs/explanation/record.md. The rows
 * come as NDJSON, `{"hash":"...","row":...}`, and `row` is byte for byte what was hashed; so lines are cut as bytes and
 * nothing is encoded again. What is found is said in the words of `cellgate verify`. It knows no session and no page.
 */

import { turn } from "../app/api.js";
import { sha256 } from "../vendor/sha256.js";

/** Of a row that is hashed by the browser itself, beside the page. A small one is hashed sooner than handed over. */
const LARGE = 64 * 1024;
/** No gateway writes a longer one. */
const LONGEST_ROW = 512 * 1024 * 1024;
/** How long rows are checked in one go, in milliseconds: a frame has 16. */
const AT_ONCE = 8;

const OPENING = '{"hash":"';
const MIDDLE = '","row":';
const HEX = 64;
const BODY = OPENING.length + HEX + MIDDLE.length;

/** @typedef {{valid: boolean, rows: number, head: string, broken_at?: number, why?: string}} Found */

/** What was found is wrong; `at` is the row. */
class Broken extends Error {
  /** @param {number} at @param {string} why */
  constructor(at, why) {
    super(why);
    this.at = at;
  }
}

/**
 * Check all rows. What the record should be is known from elsewhere: `rows` and `head` of the session's model.
 * @param {() => Promise<Response>} fetchRows  asks for `v1/sessions/{s}/audit`
 * @param {{session?: string, rows?: number, head?: string, onProgress?: (rows: number, bytes: number) => void}} [known]
 * @returns {Promise<Found>}
 */
export async function verifySession(fetchRows, known = {}) {
  const answer = await fetchRows();
  const chain = new Chain(known);
  try {
    let since = performance.now();
    let size = 0;
    for await (const line of lines(answer.body)) {
      await chain.add(line);
      size += line.length;
      if (performance.now() - since < AT_ONCE) continue;
      known.onProgress?.(chain.rows, size);
      await turn();
      since = performance.now();
    }
    known.onProgress?.(chain.rows, size);
    chain.end(/^"?([0-9a-f]{64})/.exec(answer.headers.get("ETag") || "")?.[1]);
  } catch (error) {
    if (error?.name === "AbortError") throw error;
    // A gateway that finds a row missing breaks its answer off.
    const why = error instanceof Broken ? error.message : `row ${chain.rows + 1} did not come: the gateway broke off`;
    return { valid: false, rows: chain.rows, head: hex(chain.head), broken_at: error.at ?? chain.rows + 1, why };
  }
  return { valid: true, rows: chain.rows, head: hex(chain.head) };
}

class Chain {
  /** @param {{session?: string, rows?: number, head?: string}} known */
  constructor(known) {
    this.known = known;
    this.rows = 0;
    this.head = /** @type {Uint8Array} */ (new Uint8Array(32));
  }

  /** @param {Uint8Array} line */
  async add(line) {
    const number = this.rows + 1;
    const text = ascii(line.subarray(0, BODY));
    const stored = text.slice(OPENING.length, OPENING.length + HEX);
    const framed = text.startsWith(OPENING) && text.endsWith(MIDDLE) && line.at(-1) === 0x7d;
    if (!framed || !/^[0-9a-f]{64}$/.test(stored)) throw new Broken(number, `row ${number} can't be read: it is no row`);
    const body = line.subarray(BODY, -1);
    const head = await link(this.head, body);
    const told = facts(body);
    if (told === null) throw new Broken(number, `row ${number} was changed: its body is no event`);
    if (hex(head) !== stored) {
      const moved = told.seq === number ? "" : `, or moved: it says it is row ${told.seq}`;
      throw new Broken(number, `row ${number} was changed${moved}: its hash is not that of its bytes`);
    }
    if (told.seq !== number || (this.known.session ?? told.session) !== told.session)
      throw new Broken(number, `row ${number} was moved there: it says it is row ${told.seq} of ${told.session}`);
    this.rows = number;
    this.head = head;
    if (number === this.known.rows) this.compare(this.known.head);
  }

  /** @param {string | undefined} head  that the answer names */
  end(head) {
    const { rows = 0 } = this.known;
    if (this.rows < rows) throw new Broken(this.rows + 1, `row ${this.rows + 1} was removed: there were ${rows}`);
    this.compare(head);
  }

  /** @param {string | undefined} head */
  compare(head) {
    if (head !== undefined && head !== hex(this.head))
      throw new Broken(this.rows, `row ${this.rows} was changed: the session's head is another`);
  }
}

/**
 * The hash of a row that follows the row with hash `previous`.
 * @param {Uint8Array} previous
 * @param {Uint8Array} body
 * @returns {Promise<Uint8Array>}
 */
async function link(previous, body) {
  // Without a secure context, such as plain HTTP on a network, the browser offers no hashes.
  if (body.length >= LARGE && globalThis.crypto?.subtle) {
    const joined = new Uint8Array(previous.length + body.length);
    joined.set(previous);
    joined.set(body, previous.length);
    return new Uint8Array(await crypto.subtle.digest("SHA-256", joined));
  }
  const made = sha256.create().update(previous);
  for (let start = 0; start < body.length; start += 16 * LARGE) {
    if (start) await turn();
    made.update(body.subarray(start, start + 16 * LARGE));
  }
  return made.digest();
}

const PREFIX = /^\{"seq":(\d{1,15}),"session":("(?:[^"\\]|\\.)*"),/;

/**
 * What an event says of itself. The beginning of a large one is enough: gateways write these two first.
 * @param {Uint8Array} body
 * @returns {{seq: number, session: string} | null}
 */
function facts(body) {
  try {
    if (body.length > LARGE) {
      const found = PREFIX.exec(new TextDecoder().decode(body.subarray(0, 1024)));
      if (found) return { seq: Number(found[1]), session: JSON.parse(found[2]) };
    }
    const { seq, session } = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body));
    return typeof seq === "number" && typeof session === "string" ? { seq, session } : null;
  } catch {
    return null;
  }
}

/**
 * The lines of a body, as bytes without their ends.
 * @param {ReadableStream<Uint8Array> | null} body
 */
async function* lines(body) {
  if (body === null) return;
  const reader = body.getReader();
  let begun = /** @type {Uint8Array[]} */ ([]);
  let size = 0;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      let start = 0;
      for (let end = value.indexOf(10); end !== -1; end = value.indexOf(10, start)) {
        yield begun.length ? joined([...begun, value.subarray(start, end)]) : value.subarray(start, end);
        begun = [];
        size = 0;
        start = end + 1;
      }
      begun.push(value.subarray(start));
      size += value.length - start;
      if (size > LONGEST_ROW) throw new Error("A row is longer than any that a gateway writes.");
    }
    if (size) throw new Error("The last row is not whole.");
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

/** @param {Uint8Array[]} pieces */
function joined(pieces) {
  const whole = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

/** @param {Uint8Array} bytes */
const ascii = (bytes) => String.fromCharCode(...bytes);

/** @param {Uint8Array} bytes */
export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

/**
 * Whether the holder of a key signed this head (record/seal.py); null if this browser can't tell.
 * @param {{principal: string, session: string, rows: number, head: string, key: string, signature: string}} signed
 * @returns {Promise<boolean | null>}
 */
export async function signatureHolds({ principal, session, rows, head, key, signature }) {
  const statement = `cellgate head 1\n${JSON.stringify([principal, session, rows, head])}`;
  try {
    const known = await crypto.subtle.importKey("raw", unhex(key), "Ed25519", false, ["verify"]);
    return await crypto.subtle.verify("Ed25519", known, unhex(signature), new TextEncoder().encode(statement));
  } catch {
    return null;
  }
}

/** @param {string} text */
const unhex = (text) => new Uint8Array((text.match(/../g) || []).map((pair) => Number.parseInt(pair, 16)));
