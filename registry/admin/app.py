"""Assembles an admin service: calls, streams, pages, controllers, one TaskGroup.

`assemble` is the only place that knows how the parts are wired. The daemon, the simulation and the tests differ in the
`AdminPorts` that they hand over, and in the servers on which the parts serve.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from starlette.applications import Starlette

from registry.access.control import AccessControl
from registry.admin.etcd_members import look_at_members
from registry.admin.health import AdminMetrics, Probe
from registry.admin.page.details import DetailPages
from registry.admin.page.front import FrontPage
from registry.admin.page.stream import FleetParts, FleetStream
from registry.admin.pages import PageParts, make_app
from registry.admin.rpc.audited import AuditHandlers
from registry.admin.rpc.calls import Hook, permit, then_checked
from registry.admin.rpc.denials import DenialRecorder
from registry.admin.rpc.handlers import Reads, Writes
from registry.admin.rpc.interceptor import CallLimits
from registry.admin.rpc.models import FleetModels
from registry.admin.rpc.service import SERVICE, call_limits, make_handlers
from registry.admin.rpc.streams import Residency, Streams
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdUnauthenticated, TlsFailed
from registry.etcd3.informer import SharedInformerFactory
from registry.model.keys import Keys
from registry.residency.hub import ResidencyHub
from registry.rollout.controller import RolloutController, Shared
from registry.rollout.expiry import ExpiryController
from registry.rollout.members import MembersKeeper, forget
from registry.rollout.scale_controller import ScaleController
from registry.rollout.watching import AdapterStreams
from registry.runtime.clock import Clock
from registry.runtime.page_guard import NAMELESS, Hosts
from registry.runtime.process import Supervisor
from registry.store.audits import AuditReader
from registry.store.reader import Reader
from registry.store.txn import USUAL_RETENTION, Retention, denial_lease
from registry.store.writer import WriteGate, Writer
from registry.transactions.context import TxnLimits

GRACE_SECONDS = 5.0
DRAIN_SECONDS = 0.5


class PageServer(Protocol):
    """Server of the pages: see `registry.runtime.http.HttpServer`."""

    async def run(self) -> None: ...
    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class AdminPorts:
    """The outside of one admin service: what it reaches, and who may ask it for what.

    Attributes:
        client: reaches etcd; whoever made it closes it.
        keys: of the registry in etcd.
        clock: time and chance.
        hook: is called before each RPC and each page.
        health: what those who look at health are told.
        limits: of a transaction.
        retention: for how long records of requests and changes are kept.
        insecure: what this service bears unprotected on the network.
        hosts: names under which its pages are asked for.
        drain_seconds: for which health says that it ends, before calls do.
        access: who calls, and what they may do; None: anybody, everything.
        reflection: whether anybody may ask for the API's methods: no access control is asked about that.
        certificates: files of certificates, by the flags that name them.
    """

    client: Client
    keys: Keys
    clock: Clock
    hook: Hook = permit
    health: health.aio.HealthServicer = field(default_factory=health.aio.HealthServicer)
    limits: TxnLimits = field(default_factory=TxnLimits)
    retention: Retention = USUAL_RETENTION
    insecure: tuple[str, ...] = ()
    hosts: Hosts = NAMELESS
    drain_seconds: float = DRAIN_SECONDS
    access: AccessControl | None = None
    reflection: bool = True
    certificates: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdminService:
    """The parts of one admin service, of which none runs before `serving`."""

    ports: AdminPorts
    metrics: AdminMetrics
    gate: WriteGate
    writer: Writer
    supervisor: Supervisor
    informers: SharedInformerFactory
    hub: ResidencyHub
    probe: Probe
    controller: RolloutController
    expiry: ExpiryController
    scaling: ScaleController
    members: MembersKeeper
    calls: CallLimits
    denials: DenialRecorder
    handlers: grpc.GenericRpcHandler
    app: Starlette

    @asynccontextmanager
    async def serving(self, api: grpc.aio.Server, pages: PageServer) -> AsyncIterator[None]:
        """Serves while the context is open; at its end calls that run are given a little time."""
        api.add_generic_rpc_handlers((self.handlers,))
        health_pb2_grpc.add_HealthServicer_to_server(self.ports.health, api)
        if self.ports.reflection:
            reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), api)
        keep = self.supervisor.keep
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(pages.run(), name="http")
                ours = [
                    tasks.create_task(keep("probe", self.probe.run), name="probe"),
                    tasks.create_task(keep("rollouts", self.controller.run), name="conductor"),
                    tasks.create_task(keep("expiry", self.expiry.run), name="expiry"),
                    tasks.create_task(keep("scaling", self.scaling.run), name="scaling"),
                    tasks.create_task(keep("members", self.members.run), name="members"),
                ]
                if self.ports.access is not None:
                    ours.append(tasks.create_task(keep("access", self.ports.access.run), name="access"))
                    ours.append(tasks.create_task(keep("denials", self.denials.run), name="denials"))
                try:
                    await api.start()
                    yield
                finally:
                    self.calls.stopping.set()
                    for task in ours:
                        task.cancel()
                    await self._drain(api)
                    pages.stop()
        finally:
            await self.hub.aclose()
            await self.informers.aclose()

    async def _drain(self, api: grpc.aio.Server) -> None:
        """Ends the server when those who look at health have gone elsewhere: calls on their way would be cancelled."""
        await self.ports.health.enter_graceful_shutdown()
        await asyncio.sleep(self.ports.drain_seconds)
        await api.stop(GRACE_SECONDS)


def assemble(ports: AdminPorts) -> AdminService:
    """The parts over these ports, wired. Made inside a running event loop."""
    client, keys, clock, rng = ports.client, ports.keys, ports.clock, ports.clock.rng
    gate, metrics, hook = WriteGate(), AdminMetrics(), then_checked(ports.hook)
    denials = DenialRecorder(client, keys, gate, denial_lease(client), clock, metrics.denials_lost.inc)
    calls = call_limits(ports.access, denials)
    if ports.access is not None:
        metrics.show_access(ports.access)
    metrics.show_certificates(ports.certificates)
    reader = Reader(client, keys)
    writer = Writer(client, keys, ports.limits, gate, rng=rng, now=clock.wall, retention=ports.retention)
    supervisor = Supervisor(metrics.count_internal_error, rng, fatal=(TlsFailed, EtcdUnauthenticated))
    informers = SharedInformerFactory(client, rng=rng, keep=supervisor.keep)
    hub = ResidencyHub(client, keys, informers, keep=supervisor.keep)
    probe = Probe(client, keys, gate, ports.health, metrics, SERVICE)
    shared = Shared(client, keys, writer, informers, metrics.count_conducted, rng, supervisor.keep)
    expiry, scaling = ExpiryController(shared, metrics.expired.inc), ScaleController(shared, metrics.count_scaled)
    look = partial(look_at_members, client)
    reads, writes = Reads(reader, look, ports.insecure), Writes(writer, reader, partial(forget, client, keys))
    streams = Streams(AdapterStreams(client, keys, reader, informers, rng=rng), Residency(hub, reader))
    audit = AuditHandlers(AuditReader(client, keys, reader, rng=rng), keys)
    fleet = FleetParts(hub, reader, probe, ports.access, calls.stopping)
    details = DetailPages({**reads.by_method(), **audit.by_method()}, hook, clock.wall)
    pages = _pages(ports, fleet, details, streams.residency, hook, denials)
    return AdminService(
        ports=ports,
        metrics=metrics,
        gate=gate,
        writer=writer,
        supervisor=supervisor,
        informers=informers,
        hub=hub,
        probe=probe,
        controller=RolloutController(shared, expiry, scaling),
        expiry=expiry,
        scaling=scaling,
        members=MembersKeeper(client, keys, informers, metrics.show_missing, rng=rng, wall=clock.wall),
        calls=calls,
        denials=denials,
        handlers=make_handlers(writes, reads, streams, audit, metrics, calls, ports.limits, hook),
        app=make_app(probe, supervisor, metrics, pages),
    )


def _pages(
    ports: AdminPorts,
    fleet: FleetParts,
    details: DetailPages,
    residency: Residency,
    hook: Hook,
    denials: DenialRecorder,
) -> PageParts:
    return PageParts(
        pages={
            "/v1/models": FleetModels(fleet.hub, fleet.reader).page,
            "/v1/residency": residency.page,
            "/page/stream": FleetStream(fleet).page,
            "/page/adapter": details.adapter,
            "/page/replica": details.replica,
        },
        front=FrontPage(fleet, ports.clock),
        insecure=ports.insecure,
        hook=hook,
        hosts=ports.hosts,
        access=ports.access,
        denials=denials,
    )
