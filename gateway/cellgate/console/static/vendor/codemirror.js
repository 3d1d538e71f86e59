// Made by `make vendor`.
export * from "./codemirror-6.43.15-a720e2ee/codemirror.js";
