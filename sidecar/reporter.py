"""Turns each round's report into the status, for etcd, for HTTP and for the metrics."""

from __future__ import annotations

from collections.abc import Callable

from registry.model.status import ReplicaStatus
from sidecar.chance import Chance
from sidecar.lazy.wanted import LazySituation
from sidecar.metrics import show_status
from sidecar.reconciler import Report
from sidecar.status import Replica, Situation, derive_status

_BEFORE = Situation(
    revision=0,
    observed=None,
    plan=None,
    ready=False,
    stale=True,
    lazy=LazySituation(),
    note="starting",
    held="",
    last_request_id="",
)


class Reporter:
    """Holds the newest status. Made inside a running event loop."""

    def __init__(self, replica: Replica, chance: Chance, offer: Callable[[Callable[[], ReplicaStatus]], None]) -> None:
        self._replica = replica
        self._chance = chance
        self._offer = offer
        self._report = Report(_BEFORE, 0)
        self._status: ReplicaStatus | None = None

    @property
    def status(self) -> ReplicaStatus:
        """The status of the newest round, derived when it is first asked for: most rounds are overtaken before."""
        if self._status is None:
            self._status = derive_status(self._replica, self._report.situation, self._chance.moment())
        return self._status

    def take(self, report: Report) -> None:
        """Takes in what a round came to, and says so."""
        self._report, self._status = report, None
        self._offer(lambda: self.status)

    def refresh_metrics(self) -> None:
        """Sets the gauges to the newest status; called when they are asked for."""
        plan = self._report.situation.plan
        served = [one.name for one in plan.served] if plan else []
        show_status(self.status, self._report.desired_count, served, len(plan.residents) if plan else 0)
