/**
 * What the gateway's metrics were in the last quarter of an hour, as far as this page has asked for them.
 *
 * It asks every five seconds while somebody looks, at first every second, so that lines are there soon. Counters start
 * anew with the gateway: a step down is no fall. Of the gateways of a cluster behind one address it keeps each apart, and
 * shows the first that answers, as long as that does. Of each answer it keeps what is shown, and of that a limited number.
 */

import { api } from "../app/api.js";
import { signal } from "../vendor/preact.js";
import { by, parse, sum } from "./prometheus.js";

export const EVERY = 5000;
const AT_FIRST = 1000;
/** Moments that are enough for a line. */
const FEW = 8;
export const KEPT = 15 * 60_000;
/** More than come in that time, unless the page is hidden and shown again and again. */
const MOST_MOMENTS = 256;
/** Gateways that are kept; of more, those that answered last. */
const MOST_NODES = 32;
/** Values of a metric's labels that are kept apart. */
const MOST_VALUES = 100;
/** How long a gateway that does not answer is waited for, if others do: a proxy may choose them a dozen times. */
const PATIENCE = 60_000;

/** The metrics that are kept, each with the labels by which its values are. @type {[string, string[]][]} */
const SHOWN = [
  ["cellgate_connections", []],
  ["cellgate_execution_commit_seconds_bucket", ["le"]],
  ["cellgate_execution_queue_seconds_bucket", ["le"]],
  ["cellgate_executions_total", ["status", "cause"]],
  ["cellgate_http_refusals_total", ["reason"]],
  ["cellgate_http_responses_total", ["status"]],
  ["cellgate_kernel_deaths_total", ["cause"]],
  ["cellgate_kernel_start_failures_total", []],
  ["cellgate_kernels", ["state"]],
  ["cellgate_kernels_memory_bytes", []],
  ["cellgate_largest_kernel_memory_bytes", []],
  ["cellgate_loop_lag_seconds_bucket", ["le"]],
  ["cellgate_pool_claims_total", ["end"]],
  ["cellgate_pool_longest_wait_seconds", []],
  ["cellgate_pool_places", []],
  ["cellgate_pool_waiting_claims", []],
  ["cellgate_problems", ["problem"]],
  ["cellgate_queued_executions", []],
  ["cellgate_quota_refusals_total", ["quota"]],
  ["cellgate_record_bytes", []],
  ["cellgate_record_pending_bytes", []],
  ["cellgate_sessions", ["state"]],
  ["cellgate_storage_bytes", []],
  ["cellgate_storage_free_bytes", []],
  ["cellgate_unrecorded_sessions", []],
  ["process_cpu_seconds_total", []],
  ["process_max_fds", []],
  ["process_open_fds", []],
];

/**
 * @typedef {{at: number, metrics: Map<string, import("./prometheus.js").Sample[]>}} Moment
 * @type {import("../vendor/preact.js").Signal<{moments: Moment[], problem: any, node: string}>}
 */
export const history = signal({ moments: [], problem: null, node: "" });

/** The moments of each gateway, by its id. @type {Map<string, Moment[]>} */
const known = new Map();

let users = 0;
let timer = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined);

/** Ask as long as what is returned has not been called. */
export function follow() {
  users += 1;
  if (users === 1) ask();
  return () => {
    users -= 1;
    if (users === 0) clearTimeout(timer);
  };
}

document.addEventListener("visibilitychange", () => {
  if (users && !document.hidden) ask();
});

async function ask() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    const { text, node } = await api.told("metrics");
    add(Date.now(), parse(text), node);
  } catch (error) {
    history.value = { ...history.value, problem: error };
  }
  clearTimeout(timer);
  const isNew = !history.value.problem && history.value.moments.length < FEW;
  if (users) timer = setTimeout(ask, isNew ? AT_FIRST : EVERY);
}

/**
 * The metrics that are shown, with sums over all other labels. Values beyond the most are one without labels.
 * @param {Moment["metrics"]} metrics
 */
function shownOf(metrics) {
  const found = /** @type {Moment["metrics"]} */ (new Map());
  for (const [name, wanted] of SHOWN) {
    const sums = /** @type {Map<string, import("./prometheus.js").Sample>} */ (new Map());
    for (const { labels, value } of metrics.get(name) || []) {
      const own = JSON.stringify(wanted.map((label) => labels[label] ?? ""));
      const isKept = sums.has(own) || sums.size < MOST_VALUES;
      const key = isKept ? own : "";
      const kept = isKept ? Object.fromEntries(wanted.map((label) => [label, labels[label]])) : {};
      sums.set(key, { name, labels: kept, value: (sums.get(key)?.value ?? 0) + value });
    }
    if (sums.size) found.set(name, [...sums.values()]);
  }
  return found;
}

/** @param {number} at @param {Moment["metrics"]} metrics @param {string} [node] the id of the gateway that has them */
export function add(at, metrics, node = "") {
  for (const [each, moments] of known) {
    const kept = moments.filter((moment) => at - moment.at <= KEPT);
    if (kept.length) known.set(each, kept);
    else known.delete(each);
  }
  const moments = [...(known.get(node) ?? []), { at, metrics: shownOf(metrics) }];
  known.delete(node);
  known.set(node, moments.slice(-MOST_MOMENTS));
  for (const [each] of [...known].slice(0, -MOST_NODES)) known.delete(each);
  const former = history.value.node;
  const latest = known.get(former)?.at(-1);
  const shown = latest && at - latest.at < PATIENCE ? former : node;
  history.value = { moments: known.get(shown) ?? [], problem: null, node: shown };
}

/**
 * Values over time, as pairs.
 * @param {Moment[]} moments
 * @param {string} name
 * @param {Record<string, string | string[]>} [wanted]
 * @returns {[number, number][]}
 */
export function values(moments, name, wanted) {
  return moments.flatMap(({ at, metrics }) => {
    const value = sum(metrics, name, wanted);
    return value === undefined || !Number.isFinite(value) ? [] : [/** @type {[number, number]} */ ([at, value])];
  });
}

/**
 * How much a counter rose from each moment to the next.
 * @param {[number, number][]} counted
 * @returns {[number, number][]}
 */
export function rises(counted) {
  return counted.slice(1).map(([at, value], index) => {
    const before = counted[index][1];
    return [at, value >= before ? value - before : value];
  });
}

/**
 * How much a counter rose each second.
 * @param {[number, number][]} counted
 * @returns {[number, number][]}
 */
export function rates(counted) {
  return rises(counted).map(([at, rise], index) => [at, (1000 * rise) / Math.max(1, at - counted[index][0])]);
}

/**
 * A counter's values by one of its labels, the largest first: how far each has come, how much it rose from moment to
 * moment, and how much in all of them.
 * @param {Moment[]} moments
 * @param {string} name
 * @param {string} label
 * @returns {{value: string, count: number, pairs: [number, number][], seen: number}[]}
 */
export function counts(moments, name, label) {
  const end = moments.at(-1)?.metrics || new Map();
  return Object.entries(by(end, name, label))
    .filter(([, count]) => count > 0)
    .map(([value, count]) => {
      const pairs = rises(values(moments, name, { [label]: value }));
      return { value, count, pairs, seen: total(pairs) };
    })
    .sort((one, other) => other.count - one.count);
}

/** @param {[number, number][]} pairs */
export const total = (pairs) => pairs.reduce((whole, [, value]) => whole + value, 0);

/** @param {[number, number][]} pairs */
export const last = (pairs) => pairs.at(-1)?.[1];

/**
 * A histogram's quantile over all moments: the upper end of the bucket that it falls into; undefined without any.
 * @param {Moment[]} moments
 * @param {string} name
 * @param {number} quantile
 */
export function quantile(moments, name, quantile) {
  const [first, end] = [moments[0], moments.at(-1)];
  if (!first || !end) return undefined;
  const buckets = (end.metrics.get(`${name}_bucket`) || []).map(({ labels, value }) => {
    const before = sum(first.metrics, `${name}_bucket`, { le: labels.le }) ?? 0;
    return { le: labels.le === "+Inf" ? Infinity : Number(labels.le), count: value >= before ? value - before : value };
  });
  buckets.sort((a, b) => a.le - b.le);
  const all = buckets.at(-1)?.count || 0;
  return all ? buckets.find(({ count }) => count >= quantile * all)?.le : undefined;
}
