"""All metrics of a gateway, declared here and nowhere else, in Prometheus' text format.

Names are ``cellgate_<what>_<unit>[_total]``: base units (seconds, bytes), ``_total`` for what only rises.
Where things are counted, the things are the unit (``cellgate_kernels``, ``cellgate_executions_total``).
Labels have few values, all of them known here and made at the start, so that a rate exists before the first
event: never a session, a principal or a kernel. An unknown value counts as ``other``.

States are read at each scrape from their owners (`watch`). Events are counted as they happen: the rooms below
report them through Protocols of their own, which ``server.observing`` connects to the methods here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from cellgate.errors import reasons, statuses
from cellgate.http.listener.client_pace import Late, StreamPhase
from cellgate.quotas.usage import COUNTED
from cellgate.sessions.state import SessionState
from cellgate_kernels.pool.pool import ClaimEnd
from cellgate_kernels.protocol.execution import Status

Readings = Callable[[], Mapping[str, Mapping[str, float]]]
"""Returns values by metric and label value, "" for a metric without a label."""

T = TypeVar("T", Counter, Gauge, Histogram)

OTHER = "other"
NO_CAUSE = "none"


class KernelState(StrEnum):
    """The states of kernels in the pool."""

    WARM = "warm"
    STARTING = "starting"
    IN_USE = "in_use"
    ENDING = "ending"


KERNEL_DEATHS = (
    *("kernel_exit", "out_of_memory", "disk_full", "cell_timeout", "engine_lost", "internal_error"),
    OTHER,
)
"""Causes of kernels' ends that nobody had requested."""
SESSION_ENDS = (
    *("deleted", "idle_timeout", "room_needed", "lifetime", "gateway_shutdown", "one_shot"),
    *("user_disabled", "user_removed"),
    *("shutdown_request", "internal_error", "fenced", "record_set_back"),
)
"""Causes of sessions' ends."""
CLOSED = (
    *("evicted", "refused", "no_open_files", "unfinished", "unanswered", "unread", "login_ended"),
    *("tls_handshake", OTHER),
)
"""Why the gateway closed or refused a connection, besides the timeouts in `Late`."""


class Problem(StrEnum):
    """The missing parts that `/readyz` names."""

    SHUTTING_DOWN = "shutting_down"
    DRAINING = "draining"
    STORAGE = "storage"
    CONTAINER_ENGINE = "container_engine"
    NO_KERNEL_YET = "no_kernel_yet"


PASSING = frozenset({Problem.SHUTTING_DOWN, Problem.DRAINING, Problem.NO_KERNEL_YET})
"""Parts that are missing while a gateway starts or ends. The pool reports kernels that can't start."""

EXECUTION_CAUSES: Mapping[Status, tuple[str, ...]] = {
    Status.OK: (NO_CAUSE,),
    Status.ERROR: (NO_CAUSE, "disk_full", "pids_limit", "cell_refused", "cell_hook_failed", OTHER),
    Status.TIMEOUT: ("cell_timeout", "no_kernel", "running_quota", OTHER),
    Status.INTERRUPTED: (
        *("interrupt_requested", "client_disconnected", "kernel_restarted"),
        *SESSION_ENDS,
        OTHER,
    ),
    Status.DIED: (
        *("kernel_exit", "out_of_memory", "disk_full", "engine_lost", "pool_exhausted"),
        *("kernel_start_failed", "storage_full", "storage_error", "internal_error"),
        OTHER,
    ),
    Status.CANCELLED: (
        *("cancelled", "aborted", "client_disconnected", "kernel_replaced", "kernel_restarted"),
        "kernel_died",
        *SESSION_ENDS,
        OTHER,
    ),
}
"""The causes of each status that are counted by name; any other counts as the last."""

ANSWERED = (101, 200, 201, 202, 204, 206, 304)
"""The statuses of answers that are no refusals."""

CELL_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
"""From a trivial cell to a cell of half an hour."""
WAIT_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
COMMIT_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


@dataclass(frozen=True, slots=True)
class Read:
    """A metric read at each scrape. `rises`: whether it is a counter. Without a `label` it is one value."""

    name: str
    help: str
    label: str = ""
    values: tuple[str, ...] = ("",)
    rises: bool = False


READ = (
    Read("cellgate_kernels", "Kernels by state.", "state", tuple(KernelState)),
    Read("cellgate_sessions", "Live sessions by state.", "state", tuple(SessionState)),
    Read("cellgate_connections", "Connections of clients by phase.", "state", tuple(StreamPhase)),
    Read("cellgate_tasks", "Tasks of the gateway's event loop."),
    Read("cellgate_pool_places", "The most kernels that may exist at once."),
    Read("cellgate_pool_waiting_claims", "Claims that wait for a kernel."),
    Read("cellgate_pool_longest_wait_seconds", "How long the oldest waiting claim has waited."),
    Read("cellgate_queued_executions", "Executions that wait in their sessions."),
    Read("cellgate_problems", "1 for what /readyz names as missing.", "problem", tuple(Problem)),
    Read("cellgate_unrecorded_sessions", "Sessions that are no longer recorded."),
    Read("cellgate_record_pending_bytes", "Rows that are in memory and not yet in the record's tables."),
    Read("cellgate_record_appended_bytes_total", "Events taken into the record.", rises=True),
    Read("cellgate_record_write_failures_total", "Failed writes into the record's tables.", rises=True),
    Read(
        "cellgate_sessions_taken_over_total",
        "Sessions taken over from lost gateways of the cluster.",
        rises=True,
    ),
    Read("cellgate_unproven_clock_leaps", "Leaps of the system clock that no record is removed for yet."),
    Read(
        "cellgate_certificate_expiry_timestamp_seconds",
        "When the certificate ends, in seconds since the epoch; 0: there is none.",
    ),
    Read("cellgate_http_received_bytes_total", "Bytes received from clients.", rises=True),
    Read("cellgate_http_sent_bytes_total", "Bytes sent to clients.", rises=True),
)


class _Scrape(Collector):
    """The metrics of `READ`, from their registered readers; 0 until there is one."""

    def __init__(self) -> None:
        self.readers: list[Readings] = []
        self._known = frozenset(each.name for each in READ)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        found: dict[str, Mapping[str, float]] = {}
        for read in self.readers:
            found |= read()
        assert found.keys() <= self._known, "a metric is read that is not declared"
        for each in READ:
            kind = CounterMetricFamily if each.rises else GaugeMetricFamily
            family = kind(each.name, each.help, labels=[each.label] if each.label else [])
            values = found.get(each.name, {})
            for value in each.values:
                family.add_metric([value] if each.label else [], values.get(value, 0.0))
            yield family


class Choices(Generic[T]):
    """The children of a metric with one label, one for each of its values, and ``other`` for any other."""

    def __init__(self, metric: T, values: Iterable[str]) -> None:
        self._children: dict[str, T] = {value: metric.labels(value) for value in values}
        self._other: T = self._children.get(OTHER) or next(iter(self._children.values()))

    def __getitem__(self, value: str) -> T:
        return self._children.get(value, self._other)


class Metrics:
    """The metrics that are counted, in a registry of their own: two gateways in one process share no numbers.

    `version`: this gateway's. `quotas`: the names of the quotas that refuse requests.
    """

    def __init__(self, version: str = "", quotas: Iterable[str] = COUNTED) -> None:
        # Their times of creation would be a third of all series, and nothing asks for them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._scrape = _Scrape()
        self.registry.register(self._scrape)
        self.responses = self._choices(
            "cellgate_http_responses_total",
            "HTTP responses by status.",
            "status",
            (*map(str, sorted({*ANSWERED, *statuses()})), OTHER),
        )
        self.refusals = self._choices(
            "cellgate_http_refusals_total", "Refused requests by reason.", "reason", (*reasons(), OTHER)
        )
        self.closed_connections = self._choices(
            "cellgate_connections_closed_total",
            "Connections that the gateway closed or refused, by reason.",
            "reason",
            (*Late, *CLOSED),
        )
        self.quota_refusals = self._choices(
            "cellgate_quota_refusals_total", "Requests refused by a quota.", "quota", (*quotas, OTHER)
        )
        build = Gauge(
            "cellgate_build_info", "1, with the gateway's version.", ["version"], registry=self.registry
        )
        build.labels(version).set(1)
        self._declare_cells()
        self._declare_kernels()
        self._declare_machine()
        ProcessCollector(registry=self.registry)

    def _declare_cells(self) -> None:
        executions = self._counter(
            "cellgate_executions_total", "Executions that ended, by status and cause.", "status", "cause"
        )
        self.executions = {
            (status, cause): executions.labels(status, cause)
            for status, causes in EXECUTION_CAUSES.items()
            for cause in causes
        }
        self.queue_seconds = self._histogram(
            "cellgate_execution_queue_seconds", "Time from a cell's request until it is sent.", WAIT_SECONDS
        )
        self.run_seconds = self._histogram(
            "cellgate_execution_run_seconds", "Time from sending a cell to its end.", CELL_SECONDS
        )
        self.commit_seconds = self._histogram(
            "cellgate_execution_commit_seconds", "Time to make a cell's end durable.", COMMIT_SECONDS
        )
        self.sessions_ended = self._choices(
            "cellgate_sessions_ended_total", "Sessions that ended, by cause.", "cause", (*SESSION_ENDS, OTHER)
        )
        self.branches = self._counter("cellgate_sessions_branched_total", "Sessions made as branches.")

    def _declare_kernels(self) -> None:
        self.claims = self._choices(
            "cellgate_pool_claims_total", "Claims of kernels by their end.", "end", ClaimEnd
        )
        self._claim_seconds = self._histogram(
            "cellgate_pool_claim_seconds", "Time from a claim to its kernel.", WAIT_SECONDS
        )
        self.start_seconds = self._histogram(
            "cellgate_kernel_start_seconds", "Time until a started kernel is ready.", WAIT_SECONDS
        )
        self.start_failures = self._counter(
            "cellgate_kernel_start_failures_total", "Kernel starts that failed."
        )
        self.deaths = self._choices(
            "cellgate_kernel_deaths_total", "Kernels that died, by cause.", "cause", KERNEL_DEATHS
        )
        self.kernels_memory = self._gauge("cellgate_kernels_memory_bytes", "Memory of all kernels.")
        self.largest_kernel = self._gauge(
            "cellgate_largest_kernel_memory_bytes", "Memory of the kernel that has most."
        )

        self.memory_kills = self._counter(
            "cellgate_memory_kills_total",
            "Processes of cells that were killed at the limit of memory while their kernels went on.",
        )

    def _declare_machine(self) -> None:
        self.machine_memory = self._gauge(
            "cellgate_machine_memory_bytes", "Memory that the gateway and its kernels may use."
        )
        self.available_memory = self._gauge(
            "cellgate_machine_memory_available_bytes", "Memory that programs may still use."
        )
        self.record_size = self._gauge("cellgate_record_bytes", "Size of the record's files.")
        self.free_space = self._gauge("cellgate_storage_free_bytes", "Free space on the data folder's disk.")
        self.storage_size = self._gauge("cellgate_storage_bytes", "Size of the data folder's file system.")
        self.loop_lag = self._histogram(
            "cellgate_loop_lag_seconds", "How late the event loop wakes a task that has slept.", LAG_SECONDS
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _choices(self, name: str, text: str, label: str, values: Iterable[str]) -> Choices[Counter]:
        return Choices(self._counter(name, text, label), values)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)

    def watch(self, read: Readings) -> None:
        """Read the metrics that `read` returns at each scrape; they must be in `READ`."""
        self._scrape.readers.append(read)

    def render(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self.registry)

    # What is counted as it happens

    def claim_ended(self, end: ClaimEnd, seconds: float) -> None:
        """Count a claim; only times of claims that got a kernel are kept."""
        self.claims[end].inc()
        if end in (ClaimEnd.WARM, ClaimEnd.WAITED):
            self._claim_seconds.observe(seconds)

    def quota_refused(self, quota: str) -> None:
        """Count a request that this quota refused."""
        self.quota_refusals[quota].inc()
