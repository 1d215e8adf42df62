"""A whole picker on real ports, with a registry in this process: pages, health, the stream, and its end."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from registry.client.transport import AdminCalls
from registry.model.errors import InvalidArgument
from registry.picker import ext_proc_pb2 as ext
from registry.picker import main
from registry.picker.app import SERVICE, PickerKnowledge, PickerPorts, assemble
from registry.picker.following import PoolWatch
from registry.picker.loads import QueueWatch
from registry.picker.settings import PickerSettings
from registry.picker.stream import PickRules
from registry.runtime.http import CannotListen
from registry.runtime.page_guard import NAMELESS
from registry.v1 import registry_pb2 as pb
from tests.simulation.loop import virtual
from tests.support.fake_admin import FakeAdmin, Hold, connected
from tests.support.http_client import http_client
from tests.support.proxy import Proxy
from tests.support.tls import Authority
from tests.support.waiting import eventually
from tests.unit.picker.test_following import replica, state
from tests.unit.picker.test_stream import body, head


def settings(**values: Any) -> PickerSettings:
    zero = "127.0.0.1:0"
    return PickerSettings.model_validate({"pool": "p", "listen": zero, "http": zero, "drain": 0, **values})


@pytest.fixture
def admin():
    admin = FakeAdmin()
    admin.answers["WatchResidency"] = [[state(5, 1), Hold()]]
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[replica()])]
    return admin


@asynccontextmanager
async def running(admin: FakeAdmin, **values: Any) -> AsyncIterator[tuple[main.RunningPicker, httpx.AsyncClient]]:
    """A picker with these flags beside its registry; its ports, and a client of its pages."""
    with connected(admin) as address:
        async with (
            main.running(settings(admin=address, **values)) as ports,
            http_client(base_url=f"http://127.0.0.1:{ports.http_port}") as pages,
        ):
            yield ports, pages


async def test_a_picker_answers_gateways_probes_and_scrapers(admin):
    async with (
        running(admin, queue_metric="waiting") as (ports, pages),
        grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc_port}") as channel,
    ):
        await eventually(lambda: is_ready(pages))
        health = health_pb2_grpc.HealthStub(channel)
        await eventually(lambda: has_status(health, health_pb2.HealthCheckResponse.SERVING))
        process = channel.stream_stream(
            f"/{SERVICE}/Process",
            request_serializer=ext.ProcessingRequest.SerializeToString,
            response_deserializer=ext.ProcessingResponse.FromString,
        )
        call = process()
        for message in (head(), body({"model": "sql"})):
            await call.write(message)
            answer = await call.read()
        page = (await pages.get("/metrics")).text
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert answer.HasField("request_body")
        assert 'loraplane_picker_requests_total{outcome="chosen",pool="p"} 1.0' in page
        assert "loraplane_picker_in_flight 1.0" in page
        assert "loraplane_picker_seconds_count 1.0" in page
        assert 'loraplane_picker_revision{pool="p"} 5.0' in page
        assert (await pages.get("/livez")).json() == {"alive": True}
        assert (await pages.get("/readyz")).status_code == 200
        assert (await pages.get("/nothing")).status_code == 404


@asynccontextmanager
async def asked_by_a_gateway(place: str, **options: int) -> AsyncIterator[Any]:
    """The stream of a request, once an engine is chosen for it."""
    named = [(f"grpc.{name}", value) for name, value in options.items()]
    async with grpc.aio.insecure_channel(place, options=named) as channel:
        call = channel.stream_stream(
            f"/{SERVICE}/Process",
            request_serializer=ext.ProcessingRequest.SerializeToString,
            response_deserializer=ext.ProcessingResponse.FromString,
        )()
        for message in (head(), body({"model": "sql"})):
            await call.write(message)
            assert await call.read() is not grpc.aio.EOF
        yield call


async def test_a_gateway_that_is_gone_without_a_word_has_no_requests_on_their_way(admin):
    """X3 given-back: else an engine would count as busy for two hours."""
    async with running(admin) as (ports, pages), Proxy(ports.grpc_port) as proxy:
        await eventually(lambda: is_ready(pages))
        async with asked_by_a_gateway(proxy.endpoint):
            await asyncio.sleep(1.0)  # gRPC's own ping of the exchange, which would be missed too, is over by then
            proxy.strand()

            async def is_given_back() -> bool:
                return "loraplane_picker_in_flight 0.0" in (await pages.get("/metrics")).text

            assert not await is_given_back()
            await eventually(is_given_back, timeout_seconds=60)


async def test_a_gateway_may_ask_whether_its_connection_lives_while_an_engine_is_slow(admin):
    """A GOAWAY for too many pings would end all requests that are on their way."""
    async with running(admin) as (ports, pages):
        await eventually(lambda: is_ready(pages))
        pings = {"keepalive_time_ms": 300, "http2.max_pings_without_data": 0}
        async with asked_by_a_gateway(f"127.0.0.1:{ports.grpc_port}", **pings) as call:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(call.read(), 4)


async def is_ready(pages: httpx.AsyncClient) -> bool:
    found = (await pages.get("/readyz")).json()
    return found["ready"] and found["pools"]["p"] == {"revision": 5, "adapters": 1, "registry_away_seconds": 0.0}


async def has_status(stub: Any, status: int) -> bool:
    return (await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE))).status == status


async def test_a_picker_that_was_never_told_anything_is_not_ready_and_says_why():
    admin = FakeAdmin()
    admin.answers["WatchResidency"] = [[Hold()]]
    async with running(admin, pool="p,q") as (_, pages):
        answer = await pages.get("/readyz")
        told = answer.json()
        assert (answer.status_code, told["pools"]["q"]["revision"]) == (503, None)
        assert "pool p: the registry has not answered yet; pool q: " in told["reason"]
        assert "loraplane_picker_registry_away_seconds" in (await pages.get("/metrics")).text


async def test_a_registry_that_is_away_for_too_long_makes_it_unready(admin, monkeypatch):
    async with running(admin, refuse_after=5) as (_, pages):
        await eventually(lambda: is_ready(pages))
        monkeypatch.setattr("registry.picker.following.PoolWatch.away_seconds", 6.0)
        answer = await pages.get("/readyz")
        assert (answer.status_code, answer.json()["reason"]) == (503, "the registry has been away for 6 s")


async def test_a_pool_that_is_gone_does_not_make_it_unready(admin, monkeypatch):
    """R13 static-stable: requests for all others go on."""
    async with running(admin, pool="p,q", refuse_after=5) as (_, pages):
        await eventually(lambda: is_ready(pages))
        monkeypatch.setattr(PoolWatch, "away_seconds", property(lambda one: 6.0 if one.name == "q" else 0.0))
        assert (await pages.get("/readyz")).status_code == 200


def test_a_picker_is_unready_once_no_pool_is_heard_of():
    """R13 static-stable: and one that is not known yet is named."""
    watches = tuple(Mock(pool=Mock(), away_seconds=float(seconds)) for seconds in (6, 5))
    for refuse_after, told in ((0, ""), (4, "the registry has been away for 5 s"), (5, "")):
        assert PickerKnowledge(watches, float(refuse_after)).trouble() == told
    unknown = SimpleNamespace(name="p", pool=None, trouble="not yet", away_seconds=0.0)
    assert PickerKnowledge((*watches, unknown), 4.0).trouble() == "pool p: not yet"


async def test_metrics_over_tls_ask_for_a_certificate_and_probes_for_none(admin, tmp_path):
    authority = Authority(tmp_path, "ours")
    files, scraper = authority.issue("picker"), authority.issue("prometheus")
    tls = {"http_tls_ca": files.ca, "http_tls_cert": files.certificate, "http_tls_key": files.key}
    known = ssl.create_default_context(cafile=files.ca)
    known.load_cert_chain(scraper.certificate, scraper.key)
    async with (
        running(admin, **tls) as (ports, _),
        http_client(verify=ssl.create_default_context(cafile=files.ca)) as anybody,
        http_client(verify=known) as prometheus,
    ):
        anybody.base_url = prometheus.base_url = f"https://127.0.0.1:{ports.http_port}"
        await eventually(lambda: is_ready(anybody))
        refused = await anybody.get("/metrics")
        assert (refused.status_code, refused.json()["error"]["reason"]) == (401, "credential")
        assert "show one" in refused.json()["error"]["message"]
        assert "loraplane_picker_in_flight" in (await prometheus.get("/metrics")).text


@pytest.mark.parametrize(
    ("values", "error", "said"),
    [
        ({"admin": "nowhere"}, InvalidArgument, "not HOST:PORT"),
        ({"tls_cert": "/none", "tls_key": "/none"}, CannotListen, "--tls-cert"),
        ({"http_tls_cert": "/none", "http_tls_key": "/none"}, CannotListen, "--http-tls-cert: cannot read"),
    ],
)
async def test_what_cannot_be_used_is_said_at_once(values, error, said):
    with pytest.raises(error, match=said):
        async with main.running(settings(**values)):
            pass


@virtual
async def test_at_its_end_gateways_are_told_first_and_streams_whose_engine_is_chosen_end_by_themselves(admin):
    """X3 given-back: all within the 30 s that the chart gives it."""
    ended: list[tuple[str, float]] = []

    def noted(what: str) -> Callable[..., None]:
        return lambda *_: ended.append((what, asyncio.get_running_loop().time()))

    with connected(admin) as address:
        ports = PickerPorts(lambda: AdminCalls(address, None, 5.0), ("p",), PickRules(), "", 1.0, 2.0, NAMELESS, False)  # noqa: FBT003 - in their order
        api, pages, picker, health = Mock(), Mock(run=AsyncMock()), Mock(), AsyncMock()
        api.start, api.stop = AsyncMock(), AsyncMock(side_effect=noted("calls"))
        picker.stop, health.enter_graceful_shutdown.side_effect = noted("streams"), noted("told")
        async with replace(assemble(ports), picker=picker, health=health).serving(api, pages):
            begun = asyncio.get_running_loop().time()
    assert [(what, when - begun) for what, when in ended] == [("told", 0.0), ("streams", 2.0), ("calls", 2.0)]
    [grace_seconds] = api.stop.await_args.args
    assert 2.0 + grace_seconds < 30.0
    pages.stop.assert_called_once()


@pytest.mark.parametrize("metric", ["", "waiting"])
async def test_queues_are_looked_at_where_a_metric_is_named(admin, monkeypatch, metric):
    asked: list[str] = []

    async def look(_watch: QueueWatch, _client: object, address: str) -> float:
        asked.append(address)
        return 0.0

    monkeypatch.setattr(QueueWatch, "_look", look)
    async with running(admin, queue_metric=metric, queue_seconds=0.1) as (_, pages):
        await eventually(lambda: is_ready(pages))
        await eventually(lambda: len(asked) > 1 or not metric)
    assert set(asked) == ({"10.0.0.2:8000"} if metric else set())


async def test_it_serves_until_a_signal(admin, monkeypatch):
    stops: list[Any] = []
    monkeypatch.setattr(main, "on_stop_signal", stops.append)
    with connected(admin) as address:
        task = asyncio.create_task(main._serve(settings(admin=address)))
        await eventually(lambda: stops)
        stops[0]()
        await task


def test_the_program_reads_its_flags(monkeypatch):
    seen: list[Any] = []
    monkeypatch.setattr("sys.argv", ["loraplane-picker", "--pool", "p"])
    monkeypatch.setattr(main, "supervise", lambda program, work, exits: seen.append((program, exits, work.close())))
    for name in ("spare_collector", "raise_descriptor_limit", "configure_logging"):
        monkeypatch.setattr(main, name, lambda: None)
    main.main()
    assert seen[0][0] == "loraplane-picker"
