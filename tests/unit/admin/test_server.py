"""What the admin service serves beside its calls, and how it ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from unittest.mock import AsyncMock

import httpx
import pytest
from grpc_health.v1 import health, health_pb2
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from registry.admin import server
from registry.admin.health import AdminMetrics, Readiness
from registry.admin.rpc.service import SERVICE
from registry.admin.server import GRACE_SECONDS, make_app
from registry.runtime.page_guard import hosts_of
from tests.support.played_etcd import virtual


async def residency(_: Request) -> Response:
    return JSONResponse({"pool": "p"})


@pytest.mark.parametrize(
    ("now", "status"),
    [(Readiness(ready=True, reason=""), 200), (Readiness(ready=False, reason="etcd does not answer"), 503)],
)
async def test_pages_for_machines(now, status):
    """R18: alive is the process; ready is who can be asked; and what is not as it should be is told beside it."""
    metrics = AdminMetrics()
    app = make_app(lambda: now, metrics.registry, residency, ("--listen",), lambda: ["members"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://admin") as client:
        alive, ready = await client.get("/livez"), await client.get("/readyz")
        assert (alive.status_code, alive.json()) == (200, {"alive": True})
        told = {"ready": now.ready, "reason": now.reason, "insecure": ["--listen"], "failing": ["members"]}
        assert (ready.status_code, ready.json()) == (status, told)
        assert "loraplane_admin_etcd_up 0.0" in (await client.get("/metrics")).text
        assert (await client.get("/v1/residency")).json() == {"pool": "p"}
        assert (await client.get("/")).status_code == 404


async def test_pages_of_the_service_answer_hosts_that_are_known():
    """X2: what a web page reads by DNS rebinding is a refusal, which is counted."""
    metrics, now = AdminMetrics(), Readiness(ready=True, reason="")
    hosts = hosts_of("admin-1", "", "lora.example.com")
    count = metrics.count_refused_page
    app = make_app(lambda: now, metrics.registry, residency, (), list, hosts=hosts, count_refused=count)

    async def ask(host: str, path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{host}") as client:
            return await client.get(path)

    for path in ("/metrics", "/v1/residency"):
        assert (await ask("evil.example", path)).status_code == 421
        for host in ("10.0.0.1:7601", "lora.example.com", "loraplane-admin.loraplane.svc:7601"):
            assert (await ask(host, path)).status_code == 200
    assert list((await ask("evil.example", "/readyz")).json()) == ["note"]
    assert 'loraplane_admin_http_refused_total{reason="host"} 2.0' in (await ask("localhost", "/metrics")).text


@virtual
async def test_who_looks_at_health_has_gone_elsewhere_before_calls_are_cut():
    """R18: a call on its way when the server ends would be cancelled. It says so for all of the time before."""
    servicer, clock = health.aio.HealthServicer(), asyncio.get_running_loop().time
    await servicer.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
    stopped: list[tuple[float, float | None]] = []
    played = SimpleNamespace(stop=AsyncMock(side_effect=lambda grace: stopped.append((clock(), grace))))
    draining = asyncio.create_task(server._drain(played, servicer, 3.0))  # type: ignore[arg-type]
    said = []
    while not draining.done():
        await asyncio.sleep(0.25)
        said.append(servicer._server_status[SERVICE])
    assert stopped == [(3.0, GRACE_SECONDS)]
    assert len(said) >= 12
    assert {*said} == {health_pb2.HealthCheckResponse.NOT_SERVING}
