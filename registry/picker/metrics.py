"""Metrics of a picker, in a registry of their own."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from registry.picker.decide import Chosen, Decision, Denied
from registry.picker.following import PoolWatch

_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class PickerMetrics:
    """Counters and gauges of one picker."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        told = "Requests that were decided, by the pool that they went to, or why they were refused."
        self.requests = Counter("loraplane_picker_requests", told, ["pool", "outcome"], registry=registry)
        self._requests: dict[tuple[str, str], Counter] = {}  # to look one up by its labels takes longer than to count
        told = "Seconds from a request's headers to its decision."
        self._seconds = Histogram("loraplane_picker_seconds", told, buckets=_BUCKETS, registry=registry)
        told = "Requests on their way to engines by this picker."
        self.in_flight = Gauge("loraplane_picker_in_flight", told, registry=registry)
        told = "Adapters that the registry told of."
        self.adapters = Gauge("loraplane_picker_adapters", told, ["pool"], registry=registry)
        told = "Revision up to which the records are known."
        self.revision = Gauge("loraplane_picker_revision", told, ["pool"], registry=registry)
        told = "Seconds since when the registry is out of reach; 0: it is not."
        self.away = Gauge("loraplane_picker_registry_away_seconds", told, ["pool"], registry=registry)
        told = "Failures of a part of this picker that nobody foresaw; it is run again."
        self.internal_errors = Counter("loraplane_picker_internal_errors", told, ["part"], registry=registry)
        told = "Connections to the HTTP port that the picker ended by itself, by why."
        self.closed = Counter("loraplane_picker_connections_closed", told, ["reason"], registry=registry)
        told = "Requests to its pages that were refused, by cause."
        self.http_refused = Counter("loraplane_picker_http_refused", told, ["reason"], registry=registry)

    def count(self, decision: Decision, seconds: float) -> None:
        """Counts a decision."""
        labels = ("", decision.code) if isinstance(decision, Denied) else (decision.pool, "chosen")
        if labels not in self._requests:
            self._requests[labels] = self.requests.labels(*labels)
        self._requests[labels].inc()
        if isinstance(decision, Chosen):
            self._seconds.observe(seconds)

    def show(self, watches: Iterable[PoolWatch]) -> None:
        """Sets what is known of each pool."""
        for one in watches:
            self.away.labels(one.name).set(one.away_seconds)
            if one.pool is not None:
                self.adapters.labels(one.name).set(len(one.pool.residency.adapters))
                self.revision.labels(one.name).set(one.pool.revision)
