"""Assembles a sidecar: engine driver, store, parts, one TaskGroup.

`assemble` wires the parts; the daemon, the simulation and the tests' rig differ in the `Ports` that they hand over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from registry.runtime.process import Supervisor
from sidecar.desired.assignment import Assigner
from sidecar.desired.journal import Journal, SnapshotUnread
from sidecar.desired.mailbox import Mailbox
from sidecar.desired.pool_cache import PoolCache
from sidecar.desired.watcher import Watcher
from sidecar.loop.drain import DrainTracker
from sidecar.loop.lease_collector import LeaseCollector
from sidecar.loop.observer import EngineObserver, EngineProbes, watch_changes
from sidecar.loop.reconciler import DesiredParts, EngineParts, Reconciler, RoundLinks
from sidecar.metrics import INTERNAL_ERRORS
from sidecar.ownership import ReplicaTaken
from sidecar.ports import Ports
from sidecar.report.cache import StatusCache
from sidecar.report.reporting import Reporting
from sidecar.resolver.demand import ResidentSet
from sidecar.resolver.policy import Catalogue
from sidecar.resolver.resolver import Means, Resolver
from sidecar.resolver.server import SocketUnusable

_log = structlog.get_logger()
_FATAL = (ReplicaTaken, SocketUnusable, SnapshotUnread)


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The parts of one sidecar, of which none runs before `start`."""

    ports: Ports
    mailbox: Mailbox
    cache: PoolCache
    watcher: Watcher
    reporting: Reporting
    observer: EngineObserver
    probes: EngineProbes
    reconciler: Reconciler
    demand: ResidentSet
    resolver: Resolver
    collector: LeaseCollector
    supervisor: Supervisor

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Takes up what the process before left, and starts everything. Raises OSError, SnapshotUnread."""
        ports, presence, reporting = self.ports, self.ports.presence, self.reporting
        ports.store.take_over()
        # What tells a log apart from those of other replicas, of other stores, and of the process before.
        about = {"pool": presence.pool, "replica": presence.replica, "store": ports.place}
        _log.info("started", **about, grace_seconds=ports.grace_seconds)
        if not self.supervisor.survives("snapshot", self.cache.restore):
            self.cache.forget()
        reporting.declines.restore()
        reporting.status.look_again()  # that it starts is said with the presence, which nobody goes by alone
        tasks.create_task(self.watcher.run(), name="watcher")
        self._keep(tasks, "status writer", reporting.writer.run)
        self._keep(tasks, "handoff watch", reporting.handoffs.run)
        self._keep(tasks, "last good finder", reporting.finder.run)
        self._keep(tasks, "drain orders", reporting.drain.run)
        self._keep(tasks, "load sampler", reporting.load.run)
        self._keep(tasks, "use teller", reporting.uses.run)
        self._keep(tasks, "drain list", partial(reporting.drain.hide, ports.engine))
        if ports.certificates:
            self._keep(tasks, "certificates watch", reporting.watch_certificates)
        self.start_serving(tasks)

    def start_serving(self, tasks: asyncio.TaskGroup) -> None:
        """Starts what makes the engine serve what the mailbox says, and nothing that needs etcd."""
        ports = self.ports
        self._keep(tasks, "engine watch", partial(self.probes.watch, self.reconciler.heed_probes))
        self._keep(tasks, "engine pulse", partial(self.probes.feel_pulse, self.reconciler.heed_probes))
        self._keep(tasks, "changes watch", partial(watch_changes, ports.engine, self.observer.distrust))
        paced = partial(self.supervisor.paced, "reconciler")
        self._keep(tasks, "reconciler", partial(self.reconciler.run, paced))
        if ports.answer is not None:
            self._keep(tasks, "resolver", partial(ports.answer, self.resolver))
        self._keep(tasks, "lease collector", self.collector.run)
        self._keep(tasks, "scrub", self.collector.scrub)
        self._keep(tasks, "sources watch", self.collector.watch_sources)
        self._keep(tasks, "files watch", self.collector.watch_files)

    def _keep(self, tasks: asyncio.TaskGroup, part: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        tasks.create_task(self.supervisor.keep(part, work), name=part)


def assemble(ports: Ports) -> Sidecar:
    """The parts over these ports, wired. Made inside a running event loop."""
    engine, store, clock, mailbox = ports.engine, ports.store, ports.clock, Mailbox()
    pool, replica = ports.presence.pool, ports.presence.replica
    supervisor = Supervisor(lambda part: INTERNAL_ERRORS.labels(part).inc(), clock.rng, fatal=_FATAL)
    cache = PoolCache(ports.keys, pool, mailbox, Journal(ports.state))
    watcher = Watcher(ports.client, ports.keys, replica, cache, clock, supervisor.keep)
    demand = ResidentSet(Catalogue(cache.informer), idle_seconds=ports.idle_seconds)
    reporting = Reporting(ports, cache, supervisor, demand.asked)
    writer, declines = reporting.writer, reporting.declines
    observer = EngineObserver(engine, clock, mailbox.wake, store.owns, ports.base)
    collector = _collector(ports, reporting.status, on_news=observer.distrust)
    probes = EngineProbes(engine, clock)
    reconciler = Reconciler(
        EngineParts(engine, observer, probes),
        DesiredParts(mailbox, Assigner(pool, replica, ports.presence.labels), demand),
        store,
        ownership=writer.claim,
        clock=clock,
        links=RoundLinks(reporting.take, collector.notice, reporting.handoffs.verdicts, lambda: declines.told),
        rule=ports.ready_rule,
    )
    return Sidecar(
        ports=ports,
        mailbox=mailbox,
        cache=cache,
        watcher=watcher,
        reporting=reporting,
        observer=observer,
        probes=probes,
        reconciler=reconciler,
        demand=demand,
        resolver=Resolver(Means(mailbox, store, writer.claim, engine.incarnation), demand, clock, collector.expect),
        collector=collector,
        supervisor=supervisor,
    )


def _collector(ports: Ports, status: StatusCache, *, on_news: Callable[[], None]) -> LeaseCollector:
    return LeaseCollector(
        ports.engine,
        ports.store,
        DrainTracker(ports.grace_seconds, ports.store.owns),
        ports.maintenance,
        monotonic=ports.clock.monotonic,
        pause_seconds=ports.keep_seconds,
        on_news=on_news,
        on_room=status.note_room,
    )
