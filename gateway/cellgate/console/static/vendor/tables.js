// Made by `make vendor`.
export * from "./tables-1.33.0-e3e2096e/tables.js";
