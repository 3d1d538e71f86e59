/**
 * The alerts of deploy/alerts.yaml that a page can judge by what it has seen itself. Pure.
 *
 * Prometheus watches all the time and for longer; this tells an operator who looks what the runbook has a section for.
 */

import { last, quantile, rises, total, values } from "./history.js";
import { sum } from "./prometheus.js";

/** @typedef {import("./history.js").Moment} Moment */

/** @type {(moments: Moment[], name: string, wanted?: any) => number} */
const now = (moments, name, wanted) => last(values(moments, name, wanted)) ?? 0;
/** @type {(moments: Moment[], name: string, wanted?: any) => number} */
const rise = (moments, name, wanted) => total(rises(values(moments, name, wanted)));
/** @type {(moments: Moment[], name: string, wanted: any, most: number) => boolean} */
const always = (moments, name, wanted, least) =>
  moments.length > 1 && moments.every(({ metrics }) => (sum(metrics, name, wanted) ?? 0) >= least);

/** Each with its name in the runbook, what it means, and when it is so. @type {[string, string, (moments: Moment[]) => boolean][]} */
const ALERTS = [
  [
    "CellgateNotReady",
    "The gateway takes no new work",
    (moments) => always(moments, "cellgate_problems", { problem: ["no_kernel_yet", "container_engine"] }, 1),
  ],
  [
    "CellgateRecordNotWritable",
    "Nothing can be recorded, so no new work is accepted",
    (moments) => now(moments, "cellgate_problems", { problem: "storage" }) > 0,
  ],
  [
    "CellgateSessionsNotRecorded",
    "Some sessions are not recorded any more",
    (moments) => now(moments, "cellgate_unrecorded_sessions") > 0,
  ],
  [
    "CellgateDiskNearlyFull",
    "Less than a tenth of the data folder's disk is free",
    (moments) => {
      const size = now(moments, "cellgate_storage_bytes");
      return size > 0 && now(moments, "cellgate_storage_free_bytes") / size < 0.1;
    },
  ],
  [
    "CellgateInternalErrors",
    "Requests or cells failed because of a bug in the gateway",
    (moments) =>
      rise(moments, "cellgate_executions_total", { cause: "internal_error" }) +
        rise(moments, "cellgate_http_responses_total", { status: "500" }) >
      0,
  ],
  [
    "CellgatePoolExhausted",
    "Sessions were refused because all kernels are in use",
    (moments) => rise(moments, "cellgate_pool_claims_total", { end: "exhausted" }) > 0,
  ],
  [
    "CellgatePoolNearlyFull",
    "More than nine tenths of the places for kernels are taken",
    (moments) => {
      const places = now(moments, "cellgate_pool_places");
      return places > 0 && always(moments, "cellgate_kernels", { state: ["in_use", "ending"] }, 0.9 * places);
    },
  ],
  [
    "CellgateKernelsDoNotStart",
    "Kernels do not become ready",
    (moments) => rise(moments, "cellgate_kernel_start_failures_total") > 5,
  ],
  [
    "CellgateKernelsDie",
    "Many kernels end on their own",
    (moments) =>
      rise(moments, "cellgate_kernel_deaths_total", { cause: ["kernel_exit", "engine_lost", "internal_error", "other"] }) > 10,
  ],
  [
    "CellgateLimitsEndCells",
    "Limits end many kernels",
    (moments) => rise(moments, "cellgate_kernel_deaths_total", { cause: ["out_of_memory", "disk_full", "cell_timeout"] }) > 20,
  ],
  [
    "CellgateLoopLags",
    "The gateway's event loop wakes late",
    (moments) => (quantile(moments, "cellgate_loop_lag_seconds", 0.99) ?? 0) > 0.25,
  ],
  [
    "CellgateCommitsAreSlow",
    "A cell's end takes long to become durable",
    (moments) => (quantile(moments, "cellgate_execution_commit_seconds", 0.99) ?? 0) > 0.25,
  ],
  [
    "CellgateCellsWaitLong",
    "Cells wait long before they run",
    (moments) => (quantile(moments, "cellgate_execution_queue_seconds", 0.95) ?? 0) > 10,
  ],
  [
    "CellgateFewOpenFilesLeft",
    "The gateway has few open files left",
    (moments) => {
      const most = now(moments, "process_max_fds");
      return most > 0 && now(moments, "process_open_fds") / most > 0.8;
    },
  ],
];

/**
 * Those that are on.
 * @param {Moment[]} moments
 * @returns {{name: string, text: string}[]}
 */
export function alerts(moments) {
  return ALERTS.filter(([, , isOn]) => isOn(moments)).map(([name, text]) => ({ name, text }));
}
