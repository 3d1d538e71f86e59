// The view library of the page: Preact with its hooks, htm in place of JSX, and signals.
import { h } from "preact";
import htm from "htm";

export { Component, Fragment, createContext, createRef, h, render } from "preact";
export {
  useCallback,
  useContext,
  useEffect,
  useErrorBoundary,
  useId,
  useLayoutEffect,
  useMemo,
  useReducer,
  useRef,
  useState,
} from "preact/hooks";
export {
  batch,
  computed,
  effect,
  signal,
  Signal,
  untracked,
  useComputed,
  useSignal,
  useSignalEffect,
} from "@preact/signals";

export const html = htm.bind(h);
