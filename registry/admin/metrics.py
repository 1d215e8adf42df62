"""What Prometheus is told of the admin service."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Metrics of one server; a registry of their own, so that several can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "loraplane_admin_requests",
            "Calls that ended, by method and status.",
            ["method", "code"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "loraplane_admin_request_seconds",
            "Duration of unary calls.",
            ["method"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.streams = Gauge("loraplane_admin_streams", "Streams that are open.", ["method"], registry=self.registry)
        self.no_space = Counter(
            "loraplane_admin_no_space", "Changes that etcd refused for want of space.", registry=self.registry
        )
        self.conducted = Counter(
            "loraplane_admin_rollouts",
            "Rollouts that were promoted or halted by this service, or found so.",
            ["verb"],
            registry=self.registry,
        )
        self.etcd_up = Gauge("loraplane_admin_etcd_up", "1 while etcd answers.", registry=self.registry)
