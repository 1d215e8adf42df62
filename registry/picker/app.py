"""Assembles a picker: watches, service for gateways, pages, one TaskGroup.

`assemble` is the only place that knows how the parts are wired.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from registry.picker import ext_proc_pb2 as ext
from registry.picker.following import Connect, PoolWatch
from registry.picker.loads import Loads, QueueWatch
from registry.picker.metrics import PickerMetrics
from registry.picker.served import PickPool
from registry.picker.stream import Picker, PickRules
from registry.runtime.http import CERTIFICATE, HttpServer
from registry.runtime.page_guard import Hosts, PageGuard, Refusals, RefusedFor
from registry.runtime.process import Supervisor

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
GRACE_SECONDS = 5.0
_HEALTH_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class PickerPorts:
    """The outside of one picker.

    Attributes:
        connect: opens a connection to the admin service.
        pools: names of those that are followed, in the order in which names are looked up.
        rules: of decisions.
        queue_metric: gauge of engines that counts as load; empty: none.
        queue_seconds: between two looks at it.
        drain_seconds: for which health says that it ends, before requests are refused.
        hosts: names under which its pages are asked for.
        is_asking_scrapers: who reads its metrics has to show a certificate.
    """

    connect: Connect
    pools: tuple[str, ...]
    rules: PickRules
    queue_metric: str
    queue_seconds: float
    drain_seconds: float
    hosts: Hosts
    is_asking_scrapers: bool


@dataclass(frozen=True, slots=True)
class PickerKnowledge:
    """All that a picker knows of its pools."""

    watches: tuple[PoolWatch, ...]
    refuse_after_seconds: float

    def pools(self) -> list[PickPool]:
        """The pools that the registry has told of."""
        return [one.pool for one in self.watches if one.pool is not None]

    def away_seconds(self, pool: str | None) -> float:
        """Seconds for which the registry has told nothing of a pool; of None: of the one of which longest."""
        return max(one.away_seconds for one in self.watches if pool in {None, one.name})

    def trouble(self) -> str:
        """Why requests are refused; empty: they are not."""
        unknown = [f"pool {one.name}: {one.trouble}" for one in self.watches if one.pool is None]
        if unknown:
            return "; ".join(unknown)
        away = min(one.away_seconds for one in self.watches)  # one pool that is gone takes no other one out
        return f"the registry has been away for {away:.0f} s" if 0 < self.refuse_after_seconds < away else ""

    def addresses(self) -> frozenset[str]:
        """Addresses of engines that requests may go to."""
        return frozenset(one.address for pool in self.pools() for one in pool.base_endpoints)


@dataclass(frozen=True, slots=True)
class PickerService:
    """The parts of one picker, of which none runs before `serving`."""

    ports: PickerPorts
    knowledge: PickerKnowledge
    metrics: PickerMetrics
    supervisor: Supervisor
    picker: Picker
    health: health.aio.HealthServicer
    queues: QueueWatch | None
    app: Starlette

    @asynccontextmanager
    async def serving(self, api: grpc.aio.Server, pages: HttpServer) -> AsyncIterator[None]:
        """Serves while the context is open; at its end gateways have a time to go elsewhere."""
        process = grpc.stream_stream_rpc_method_handler(
            self.picker.process,
            request_deserializer=ext.ProcessingRequest.FromString,
            response_serializer=ext.ProcessingResponse.SerializeToString,
        )
        api.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": process}),))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, api)
        keep = self.supervisor.keep
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pages.run(), name="http")
            ours = [tasks.create_task(keep(f"pool {one.name}", one.run)) for one in self.knowledge.watches]
            ours.append(tasks.create_task(keep("health", self._tell_health)))
            if self.queues is not None:
                ours.append(tasks.create_task(keep("queues", self.queues.run)))
            try:
                await api.start()
                yield
            finally:
                await self.health.enter_graceful_shutdown()
                await asyncio.sleep(self.ports.drain_seconds)
                self.picker.stop()
                await api.stop(GRACE_SECONDS)
                for task in ours:
                    task.cancel()
                pages.stop()

    async def _tell_health(self) -> None:
        while True:
            statuses = health_pb2.HealthCheckResponse
            status = statuses.NOT_SERVING if self.knowledge.trouble() else statuses.SERVING
            for service in ("", SERVICE):
                await self.health.set(service, status)
            await asyncio.sleep(_HEALTH_SECONDS)


def assemble(ports: PickerPorts) -> PickerService:
    """The parts over these ports, wired. Made inside a running event loop."""
    metrics, loads = PickerMetrics(), Loads()
    watches = tuple(PoolWatch(one, ports.connect) for one in ports.pools)
    knowledge = PickerKnowledge(watches, ports.rules.refuse_after_seconds)
    queues = None
    if ports.queue_metric:
        queues = QueueWatch(ports.queue_metric, ports.queue_seconds, knowledge.addresses, loads)
    return PickerService(
        ports=ports,
        knowledge=knowledge,
        metrics=metrics,
        supervisor=Supervisor(lambda part: metrics.internal_errors.labels(part).inc(), random.Random()),  # noqa: S311
        picker=Picker(ports.rules, knowledge.pools, knowledge.away_seconds, loads, metrics),
        health=health.aio.HealthServicer(),
        queues=queues,
        app=_make_app(ports, knowledge, metrics, loads),
    )


_NO_CERTIFICATE = "this page asks for a certificate of --http-tls-ca: show one; /livez and /readyz are for everybody"


def _make_app(ports: PickerPorts, knowledge: PickerKnowledge, metrics: PickerMetrics, loads: Loads) -> Starlette:
    """The application: ``/livez``, ``/readyz``, ``/metrics``."""

    async def livez(_: Request) -> Response:
        return JSONResponse({"alive": True})

    async def readyz(_: Request) -> Response:
        trouble = knowledge.trouble()
        pools = {
            one.name: {
                "revision": one.pool.revision if one.pool else None,
                "adapters": len(one.pool.residency.adapters) if one.pool else None,
                "registry_away_seconds": round(one.away_seconds, 1),
            }
            for one in knowledge.watches
        }
        told = {"ready": not trouble, "reason": trouble, "pools": pools}
        return JSONResponse(told, status_code=503 if trouble else 200)

    async def scrape(request: Request) -> Response:
        if ports.is_asking_scrapers and CERTIFICATE not in request.scope.get("extensions", {}):
            return refusals.refuse(request.scope, 401, RefusedFor.CREDENTIAL, _NO_CERTIFICATE)
        metrics.show(knowledge.watches)
        metrics.in_flight.set(loads.in_flight)
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    refusals = Refusals(lambda reason: metrics.http_refused.labels(reason).inc())
    return Starlette(
        routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", scrape)],
        middleware=[Middleware(PageGuard, ports.hosts, refusals)],
        exception_handlers={HTTPException: refusals.no_page},
    )
