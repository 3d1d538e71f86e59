// SHA-256 that needs no secure context and hashes a small row without a turn of the event loop.
export { sha256 } from "@noble/hashes/sha2.js";
