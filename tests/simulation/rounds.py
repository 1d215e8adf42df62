"""What must hold of rounds: they go on beside a slow call (R19), take nothing away (R14), and say stale (R9)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from registry.model.names import PROOF_PREFIX, name_key
from registry.model.status import ReplicaStatus
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.plan.types import RoundReport, Unload
from tests.simulation.artifacts import source_of
from tests.simulation.history import has
from tests.simulation.loop import Process, State, current_process
from tests.simulation.world import EPOCH, ReplicaHost, World

# A call that takes longer than a fourth of that goes on by itself.
HELD_UP_SECONDS = 8.0
# Who has known no watch of what is desired for so long has said so in whatever it writes.
CUT_OFF_SECONDS = 5.0


@dataclass
class Rounds:
    """Follows the rounds of each replica, and looks on between them."""

    world: World
    _told: dict[Process, tuple[Mailbox, int]] = field(default_factory=dict)
    _waits_since: dict[Process, float] = field(default_factory=dict)
    _cut_off_since: dict[Process, float] = field(default_factory=dict)

    def on_round(self, replica: str, mailbox: Mailbox, report: RoundReport) -> None:
        """Each round, before the calls of its plan."""
        self._told[current_process()] = mailbox, report.situation.revision
        self.r14_kept(replica, report)

    def on_news(self, snapshot: Snapshot) -> None:
        """Each piece of news that the watchers of a sidecar post."""
        if snapshot.connected:
            self._cut_off_since.pop(current_process(), None)
        else:
            self._cut_off_since.setdefault(current_process(), _now())

    def look(self) -> None:
        """Looks at all sidecars, again and again."""
        for host in self.world.replicas:
            sidecar = host.process
            if (host.engine.questions[sidecar] or sidecar.state is not State.RUNS) and sidecar in self._cut_off_since:
                self._cut_off_since[sidecar] = _now()
            self.r19_not_held_up(host)

    def r14_kept(self, replica: str, report: RoundReport) -> None:
        """Of a record that cannot be read the last good generation stays."""
        plan = report.situation.plan
        moments = () if plan is None else self.world.checks.oracle.at(plan.revision)
        for call in () if plan is None else plan.calls:
            if not isinstance(call, Unload) or call.name.startswith(PROOF_PREFIX):
                continue
            known = [moment.unreadable.get(name_key(call.name), ()) for moment in moments]
            if all(any(has(one, source_of(call.path)) for one in before) for before in known):
                self.world.checks.violated(f"R14 {replica} unloads {call.name}, whose record nobody can read")

    def r19_not_held_up(self, host: ReplicaHost) -> None:
        """Beside a call that takes long what is new is taken up, unless the engine has yet to say what it has."""
        sidecar = host.process
        mailbox, revision = self._told.get(sidecar, (None, 0))
        desired = None if mailbox is None else mailbox.snapshot.actionable
        is_behind = desired is not None and desired.revision > revision and sidecar.state is State.RUNS
        is_unread = any(page != "/v1/completions" for page in host.engine.broken)
        is_silent = host.engine.questions[sidecar] or is_unread
        if not is_behind or not host.engine.calls[sidecar] or is_silent:
            self._waits_since.pop(sidecar, None)
            return
        self.world.told["R19"] += 1
        waits_seconds = _now() - self._waits_since.setdefault(sidecar, _now())
        if waits_seconds > HELD_UP_SECONDS:
            told = f"R19 {host.name} waits for a call since {waits_seconds:.1f} s, and takes up nothing new"
            self.world.checks.violated(told)

    def r9_stale(self, host: ReplicaHost, status: ReplicaStatus) -> str:
        """Whoever cannot read what is desired says stale; what is wrong, if anything is."""
        if not status.stale and not status.observed_revision:
            return f"R9 {status.replica} is not stale, and knows nothing of what is desired"
        since = self._cut_off_since.get(host.process)
        if since is None or host not in self.world.replicas:
            return ""
        self.world.told["R9 cut off"] += 1
        is_told = status.stale or _made_at(status) - since <= CUT_OFF_SECONDS
        return "" if is_told else f"R9 {status.replica} is not stale, and was cut off from etcd when it said so"


def _made_at(status: ReplicaStatus) -> float:
    """When a status was made; the clock by which it tells that may have been set by an hour since."""
    told = datetime.fromisoformat(status.updated_at) - EPOCH
    hours = round((told - timedelta(seconds=_now())) / timedelta(hours=1))
    return (told - timedelta(hours=hours)).total_seconds()


def _now() -> float:
    return asyncio.get_running_loop().time()
