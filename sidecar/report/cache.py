"""Status cache: the newest status, for etcd, HTTP and metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from registry.etcd3.tls import CertificateSpan
from registry.model.status import (
    ReplicaStatus,
    ReportedCertificate,
    ReportedEvent,
    ReportedLoad,
    ReportedStore,
    ReportedUses,
    Warned,
)
from registry.runtime.clock import Clock, rfc3339
from registry.runtime.process import Trouble
from sidecar.metrics import DRAINING, FILES_NOT_TAKEN, show_status
from sidecar.plan.conditions import FILE_NOT_TAKEN
from sidecar.plan.types import LazySituation, RoundReport, StatusInputs
from sidecar.report.status import NOTHING_ASIDE, ReplicaIdentity, derive_status

_BEFORE = StatusInputs(
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


# A part that fails leaves what it said before standing for so long: rounds are made again at once.
STALE_AFTER_SECONDS = 10.0
# Longer than any round takes, whatever call is out: then they do not end any more.
SILENT_SECONDS = 120.0
# The parts that a status comes from: what is desired, and what is observed.
_SOURCES = frozenset({"adapters", "pool", "reconciler"})


def _warned(part: str) -> Warned:
    message = f"its part {part!r} fails and is tried again: the sidecar's log has the traceback; please report it"
    return Warned(name="", generation=0, reason="internal_error", message=message)


class StatusCache:
    """Holds the newest status. Made inside a running event loop."""

    def __init__(
        self,
        replica: ReplicaIdentity,
        clock: Clock,
        offer: Callable[[Callable[[], ReplicaStatus]], None],
        troubles: Mapping[str, Trouble] = MappingProxyType({}),
        events: Callable[[], Sequence[ReportedEvent]] = tuple,
    ) -> None:
        """Nothing is known yet. `troubles`: the parts of this process that fail; `events`: the newest; at any time."""
        self._replica = replica
        self._clock = clock
        self._offer = offer
        self._troubles = troubles
        self._events = events
        self._drain = ""
        self._report = RoundReport(_BEFORE, 0)
        self._heard_at = math.inf
        self._status: ReplicaStatus | None = None
        self._was_old = False
        self._aside = NOTHING_ASIDE

    @property
    def status(self) -> ReplicaStatus:
        """The status of the newest round, derived when it is first asked for: most rounds are overtaken before."""
        is_old = self._is_old()
        if self._status is None or is_old != self._was_old:
            situation, self._was_old = self._report.situation, is_old
            if is_old:
                situation = replace(situation, stale=True)
            if self._drain:
                situation = replace(situation, ready=False, note=self._drain)
            aside = replace(self._aside, events=self._events())
            status = derive_status(self._replica, situation, self._clock.moment(), aside)
            warnings = [*status.warnings, *map(_warned, self.failing)]
            self._status = status.model_copy(update={"warnings": warnings})
        return self._status

    @property
    def report(self) -> RoundReport:
        """The newest round."""
        return self._report

    @property
    def failing(self) -> list[str]:
        """The parts of this process that fail at present, sorted."""
        return sorted(self._troubles)

    def _is_old(self) -> bool:
        """True if what is said comes from a part that has failed for a while, or no round has ended for long."""
        now = self._clock.monotonic()
        if now - self._heard_at >= SILENT_SECONDS:
            return True
        found = (one for part, one in self._troubles.items() if part in _SOURCES)
        return any(now - one.since >= STALE_AFTER_SECONDS for one in found)

    def take(self, report: RoundReport) -> None:
        """Takes in what a round came to, and says so."""
        self._report, self._heard_at = report, self._clock.monotonic()
        self.look_again()

    def note_room(self, store: ReportedStore | None) -> None:
        """Takes in how much more the store takes; it is told when something else is, or when it is another much."""
        self._aside, self._status = replace(self._aside, store=store), None

    def note_certificates(self, spans: Sequence[CertificateSpan]) -> None:
        """Takes in when the certificates of this sidecar end; it is told when another has come."""
        told = [ReportedCertificate(flag=one.flag, begins=rfc3339(one.begins), ends=rfc3339(one.ends)) for one in spans]
        if told != list(self._aside.certificates):
            self._aside = replace(self._aside, certificates=told)
            self.look_again()

    def take_load(self, load: ReportedLoad | None) -> None:
        """Takes in how many requests adapters have whose number of replicas follows them, and says so."""
        self._aside = replace(self._aside, load=load)
        self.look_again()

    def take_uses(self, uses: ReportedUses | None) -> None:
        """Takes in when adapters were last used whose ttl begins with it, and says so."""
        self._aside = replace(self._aside, uses=uses)
        self.look_again()

    def take_drain(self, why: str) -> None:
        """Takes in why the replica drains, in one sentence, and says so; empty: it does not, or no more."""
        self._drain = why
        self.look_again()

    def look_again(self) -> None:
        """Takes in that something else than a round changed what there is to say, and says so."""
        self._status = None
        self._offer(lambda: self.status)

    def refresh_metrics(self) -> None:
        """Sets the gauges to the newest status; called when they are asked for."""
        plan = self._report.situation.plan
        served = [one.name for one in plan.served] if plan else []
        DRAINING.set(bool(self._drain))
        FILES_NOT_TAKEN.set(sum(one.reason == FILE_NOT_TAKEN for one in self.status.warnings))
        show_status(self.status, self._report.desired_count, served, len(plan.residents) if plan else 0)
