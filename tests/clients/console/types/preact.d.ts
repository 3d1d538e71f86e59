// The types of `vendor/preact.js`: as much of Preact, its hooks, htm and signals as the console uses.

export interface VNode {
  readonly type: unknown;
  readonly props: object;
}

export interface ReadonlySignal<T> {
  readonly value: T;
  peek(): T;
  subscribe(told: (value: T) => void): () => void;
}

export interface Signal<T> extends ReadonlySignal<T> {
  value: T;
}

type Ending = void | (() => void);
type Inputs = readonly unknown[];

export function signal<T>(value: T): Signal<T>;
export function computed<T>(value: () => T): ReadonlySignal<T>;
export function effect(run: () => Ending): () => void;

export function useState<T>(first: T | (() => T)): [T, (next: T | ((now: T) => T)) => void];
export function useRef<T>(first: T): { current: T };
export function useEffect(run: () => Ending, inputs?: Inputs): void;
export function useLayoutEffect(run: () => Ending, inputs?: Inputs): void;
export function useMemo<T>(make: () => T, inputs: Inputs): T;
export function useCallback<T extends (...given: any[]) => unknown>(call: T, inputs: Inputs): T;

export function html(strings: TemplateStringsArray, ...values: unknown[]): VNode;
export function render(shown: unknown, into: Element): void;
