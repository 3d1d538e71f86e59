// Made by `make vendor`.
export * from "./preact-11.2.0-09d41b88/preact.js";
