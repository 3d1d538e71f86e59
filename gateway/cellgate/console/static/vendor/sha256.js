// Made by `make vendor`.
export * from "./sha256-2.4.0-1c86d57d/sha256.js";
