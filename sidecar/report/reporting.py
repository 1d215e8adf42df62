"""Reporting of one replica: the parts that tell others of it, wired.

Each of them takes a round's report, and keeps what it needs of it. Presence and handoffs come before the status: the
status is offered last, so that whoever reads it finds the room and the handoffs of the same round. Whoever looks on
hears of a round when all of this was said.
"""

from __future__ import annotations

import asyncio

from registry.etcd3.tls import certificate_spans
from registry.runtime.process import Supervisor
from sidecar.desired.pool_cache import PoolCache
from sidecar.loop.rounds import ServedNews
from sidecar.plan.types import RoundReport
from sidecar.ports import Ports
from sidecar.report.activity import ReplicaActivity
from sidecar.report.announcement import DeclineTeller
from sidecar.report.cache import StatusCache
from sidecar.report.events import EventRing
from sidecar.report.good_finder import GoodFinder
from sidecar.report.handoff_watch import HandoffWatch
from sidecar.report.load import LoadSampler
from sidecar.report.replica_drain import ReplicaDrain
from sidecar.report.status import ReplicaIdentity
from sidecar.report.uses import UseTeller
from sidecar.report.writer import ShareGuard, StatusWriter

# Certificates are replaced days before they end; what is told of them may be as late as that.
CERTIFICATES_SECONDS = 60.0


class Reporting:
    """Parts that tell of one replica: in etcd, at its HTTP port, and in the log.

    `served` and `finder` tell the pool cache, so that it is known after a restart and where a generation is lacking.
    """

    def __init__(self, ports: Ports, cache: PoolCache, supervisor: Supervisor, asked: set[str]) -> None:
        """Wires them over these ports; none runs yet. `asked` as `UseTeller` takes it."""
        client, keys, engine, clock = ports.client, ports.keys, ports.engine, ports.clock
        presence, pool, replica, mailbox = ports.presence, cache.pool, ports.presence.replica, cache.mailbox
        answers = ports.answer is not None
        identity = ReplicaIdentity(replica, pool, engine.kind, engine.url, answers, ports.insecure, ports.http)
        self.writer = writer = StatusWriter(client, keys, presence, clock, mailbox.wake)
        self.events = events = EventRing(clock, lambda key: cache.informer.state.of(key) is not None)
        offer = writer.announcement.offer
        self.status = status = StatusCache(identity, clock, offer, supervisor.troubles, events.newest)
        supervisor.heed(status.look_again)
        self.handoffs = handoffs = HandoffWatch(client, keys, pool, mailbox)
        self.drain = ReplicaDrain(client, keys, presence, mailbox, writer, handoffs, status, events, clock)
        self.served = ServedNews(cache)
        self.finder = GoodFinder(client, keys, replica, cache, clock)
        self.share = ShareGuard(writer.announcement, writer.claim, clock, ports.give_up_seconds)
        self.declines = DeclineTeller(writer.announcement, ports.state)
        self.load = LoadSampler(mailbox, engine, clock, status.take_load)
        self.uses = UseTeller(mailbox, engine, (client, keys.status(pool, replica)), clock, status.take_uses, asked)
        self.activity = ReplicaActivity(presence, engine, status, events, self.drain.need, clock)
        self.certificates = ports.certificates
        self.on_round = ports.on_round

    async def watch_certificates(self) -> None:
        """Has the status tell when our certificates end, also once they are replaced. Runs until cancelled."""
        while True:
            self.status.note_certificates(await asyncio.to_thread(certificate_spans, self.certificates))
            await asyncio.sleep(CERTIFICATES_SECONDS)

    def take(self, report: RoundReport) -> None:
        """Has all of them hear what one round came to, and then whoever looks on."""
        plan = report.situation.plan
        self.served.take(report)
        self.finder.take(report)
        self.share.take(report)
        self.declines.take(report)
        self.handoffs.follow(plan.leaving if plan else ())
        self.events.take(report)
        self.status.take(report)
        if self.on_round is not None:
            self.on_round(report)
