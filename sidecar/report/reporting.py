"""Reporting of one replica: the parts that tell others of it, wired."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from registry.runtime.supervisor import Supervisor
from sidecar.desired.mailbox import Mailbox
from sidecar.desired.watcher import Watcher
from sidecar.loop.rounds import ServedNews
from sidecar.plan.types import RoundReport
from sidecar.ports import Ports
from sidecar.report.activity import ReplicaActivity
from sidecar.report.cache import StatusCache
from sidecar.report.declines import DeclineTeller
from sidecar.report.events import EventRing
from sidecar.report.good_finder import GoodFinder
from sidecar.report.handoff_watch import HandoffWatch
from sidecar.report.replica_drain import ReplicaDrain
from sidecar.report.status import ReplicaIdentity
from sidecar.report.writer import ShareGuard, StatusWriter


@dataclass(frozen=True, slots=True)
class Reporting:
    """Parts that tell of one replica. `on_round` hears of each round once all of them have."""

    served: ServedNews
    finder: GoodFinder
    status: StatusCache
    writer: StatusWriter
    share: ShareGuard
    declines: DeclineTeller
    handoffs: HandoffWatch
    events: EventRing
    drain: ReplicaDrain
    activity: ReplicaActivity
    on_round: Callable[[RoundReport], None]

    def take(self, report: RoundReport) -> None:
        """Takes in what one round came to."""
        plan = report.situation.plan
        self.served.take(report)
        self.finder.take(report)
        self.share.take(report)
        self.declines.take(report)
        self.handoffs.follow(plan.leaving if plan else ())
        self.status.take(report)
        self.events.take(report)
        self.on_round(report)


def make_reporting(ports: Ports, mailbox: Mailbox, watcher: Watcher, supervisor: Supervisor) -> Reporting:
    """The parts over these ports, wired; none runs yet."""
    client, keys, engine, clock = ports.client, ports.keys, ports.engine, ports.clock
    presence, pool, replica = ports.presence, ports.presence.pool, ports.presence.replica
    answers = ports.answer is not None
    identity = ReplicaIdentity(replica, pool, engine.kind, engine.url, answers, ports.insecure, ports.http)
    writer = StatusWriter(client, keys, presence, clock, mailbox.wake)
    status = StatusCache(identity, clock, writer.offer, supervisor.troubles)
    supervisor.heed(status.look_again)
    handoffs = HandoffWatch(client, keys, pool, mailbox)
    events = EventRing(clock, lambda key: watcher.record(key) is not None)
    drain = ReplicaDrain(client, keys, presence, mailbox, writer, handoffs, status, events, clock)
    return Reporting(
        served=ServedNews(watcher),
        finder=GoodFinder(client, keys, pool, replica, mailbox, watcher, clock),
        status=status,
        writer=writer,
        share=ShareGuard(writer, clock, ports.give_up_seconds),
        declines=DeclineTeller(writer, ports.state),
        handoffs=handoffs,
        events=events,
        drain=drain,
        activity=ReplicaActivity(presence, engine, status, events, drain.need, clock),
        on_round=ports.on_round,
    )
