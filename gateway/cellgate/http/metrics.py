"""Metrics for operators, in Prometheus' text format.

Gauges are read at the moment of a scrape from the parts that own the state, so nothing is counted twice and
a cell costs nothing; only answers and closed connections are counted as they happen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cellgate.principals.usage import COUNTED

Gauges = Callable[[], Mapping[str, Mapping[str, float]]]


class _Snapshot(Collector):
    """Families of gauges: metric name -> label value -> number."""

    def __init__(self, read: Gauges) -> None:
        self._read = read

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, values in self._read().items():
            family = GaugeMetricFamily(f"cellgate_{name}", f"Number of {name} by state.", labels=["state"])
            for state, number in values.items():
                family.add_metric([state], number)
            yield family


class Metrics:
    """The gateway's metrics, in a registry of their own: two gateways in one process don't share numbers."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.responses = Counter(
            "cellgate_http_responses", "HTTP responses by status.", ["status"], registry=self._registry
        )
        self.closed_connections = Counter(
            "cellgate_connections_closed",
            "Connections that the gateway closed or refused, by reason.",
            ["reason"],
            registry=self._registry,
        )
        self._quota_refusals = Counter(
            "cellgate_quota_refusals",
            "Requests refused because a quota of their principal was used up, by quota.",
            ["quota"],
            registry=self._registry,
        )
        for quota in COUNTED:
            self._quota_refusals.labels(quota)
        tasks = Gauge("cellgate_tasks", "Tasks of the gateway's event loop.", registry=self._registry)
        tasks.set_function(lambda: len(asyncio.all_tasks()))
        ProcessCollector(registry=self._registry)

    def watch(self, read: Gauges) -> None:
        """Read gauges from `read` at each scrape."""
        self._registry.register(_Snapshot(read))

    def quota_refused(self, quota: str) -> None:
        """Count a refusal because of this quota."""
        self._quota_refusals.labels(quota).inc()

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)
