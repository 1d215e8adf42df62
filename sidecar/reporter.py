"""Turns each round's report into the status, for etcd, for HTTP and for the metrics."""

from __future__ import annotations

from collections.abc import Callable

from registry.model.status import ReplicaStatus
from sidecar.chance import Chance
from sidecar.metrics import show_status
from sidecar.reconciler import Report
from sidecar.status import Replica, Situation, derive_status

_BEFORE = Situation(
    revision=0,
    observed=None,
    plan=None,
    ready=False,
    stale=True,
    lazy_count=0,
    note="starting",
    held="",
    last_request_id="",
)


class Reporter:
    """Holds the newest status. Made inside a running event loop."""

    def __init__(self, replica: Replica, chance: Chance, offer: Callable[[ReplicaStatus], None]) -> None:
        self._replica = replica
        self._chance = chance
        self._offer = offer
        self._report = Report(_BEFORE, 0)
        self.status = derive_status(replica, _BEFORE, chance.moment())

    def take(self, report: Report) -> None:
        """Derives the status of a round and passes it on."""
        self._report = report
        self.status = derive_status(self._replica, report.situation, self._chance.moment())
        self._offer(self.status)

    def refresh_metrics(self) -> None:
        """Sets the gauges to the newest status; called when they are asked for."""
        plan = self._report.situation.plan
        show_status(self.status, self._report.desired_count, [a.name for a in plan.served] if plan else [])
