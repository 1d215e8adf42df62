"""The admin service as it is put together, on virtual time: its ports are played, and etcd is a simulated one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import AsyncMock

import grpc
import httpx
import pytest
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from registry.admin import server
from registry.admin.health import AdminMetrics, Readiness
from registry.admin.pages import make_app
from registry.admin.rpc.calls import CallContext
from registry.admin.rpc.hook import check
from registry.admin.rpc.service import SERVICE
from registry.admin.server import GRACE_SECONDS, CannotListen, RunningServer, running
from registry.admin.settings import AdminSettings
from registry.etcd3.errors import EtcdUnavailable
from registry.etcd3.options import TlsFiles
from registry.etcd3.tls import Pem, TlsUnusable
from registry.runtime.settings import Address
from tests.simulation.links import Way
from tests.simulation.loop import virtual
from tests.support.played_etcd import PlayedEtcd, Scene, as_test, now, play


class Told(NamedTuple):
    """What happened, and when."""

    at: float
    what: str


class GrpcPort:
    """In place of a server of gRPC."""

    def __init__(self, notes: list[Told], options: tuple[tuple[str, int], ...]) -> None:
        self.notes, self.options = notes, dict(options)
        self.methods: set[str] = set()
        self.bound: list[tuple[str, object]] = []

    def add_generic_rpc_handlers(self, handlers: tuple[grpc.GenericRpcHandler, ...]) -> None:
        self.methods |= {one.service_name() for one in handlers if isinstance(one, grpc.ServiceRpcHandler)}

    def add_registered_method_handlers(self, service: str, _handlers: object) -> None:
        self.methods.add(service)

    def add_insecure_port(self, address: str) -> int:
        self.bound.append((address, None))
        return 7001

    def add_secure_port(self, address: str, credentials: object) -> int:
        self.bound.append((address, credentials))
        return 7002

    async def start(self) -> None:
        self.notes.append(Told(now(), "grpc begins"))

    async def stop(self, grace: float | None) -> None:
        self.notes.append(Told(now(), f"grpc ends within {grace:g}"))


class HttpPort:
    """In place of the HTTP port."""

    def __init__(self, notes: list[Told], app: Starlette) -> None:
        self._notes, self.app = notes, app
        self._end = asyncio.Event()

    async def run(self) -> None:
        self._notes.append(Told(now(), "http begins"))
        await self._end.wait()
        self._notes.append(Told(now(), "http ends"))

    def stop(self) -> None:
        self._end.set()


class Listener:
    """In place of a bound socket."""

    def __init__(self) -> None:
        self.closed = 0

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", 7003)

    def close(self) -> None:
        self.closed += 1


class Stage:
    """All that is played.

    Attributes:
        notes: what happened to the ports.
        clients: those of etcd that were made.
        patch: what the stage replaces is replaced with this once more, so that all of it is put back in order.
    """

    def __init__(self, etcd: PlayedEtcd, patch: pytest.MonkeyPatch) -> None:
        self.etcd, self.patch, self.notes = etcd, patch, list[Told]()
        self.clients: list[server.Client] = []
        self.listened: list[tuple[str, Listener]] = []
        patch.setattr(server.grpc.aio, "server", self._grpc)
        patch.setattr(server, "HttpServer", self._http)
        patch.setattr(server, "listen_as_told", self._listen)
        patch.setattr(server, "Client", self._client)

    def _grpc(self, *, options: tuple[tuple[str, int], ...]) -> GrpcPort:
        self.grpc = GrpcPort(self.notes, options)
        return self.grpc

    def _http(self, app: Starlette, listener: object, count: Callable[[str], None]) -> HttpPort:
        count("replaced")
        assert listener is self.listened[-1][1]
        self.http = HttpPort(self.notes, app)
        return self.http

    def _listen(self, flag: str, _address: Address) -> Listener:
        self.listened.append((flag, Listener()))
        return self.listened[-1][1]

    def _client(self, options: object, **more: Any) -> server.Client:
        self.clients.append(_real_client(options, **more))  # type: ignore[arg-type]
        return self.clients[-1]

    async def page(self, path: str, host: str = "admin") -> httpx.Response:
        """What the HTTP port answers."""
        transport = httpx.ASGITransport(self.http.app)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            return await client.get(path)


_real_client = server.Client


def settings(**more: Any) -> AdminSettings:
    values = {"etcd": "127.0.0.1:1", "http": "127.0.0.1:3", "listen": "127.0.0.1:2", "max_txn_ops": 64, **more}
    return AdminSettings(**values).model_copy(update={"etcd": ("m0",)})


def staged(scene: Scene) -> Callable[..., None]:
    def on_stage(given: Scene) -> None:
        async def work(etcd: PlayedEtcd) -> None:
            with pytest.MonkeyPatch.context() as patch:
                await given(Stage(etcd, patch))

        play(work)

    return as_test(on_stage, scene, 1)


@staged
async def test_a_service_begins_with_its_ports_and_ends_with_those_who_ask_first(stage):
    """R18: who looks at health goes elsewhere, calls on their way end, then all else."""
    async with running(settings(http_names="lora.example.com"), drain_seconds=3.0) as ports:
        assert ports == RunningServer(grpc_port=7001, http_port=7003)
        assert (stage.grpc.bound, [flag for flag, _ in stage.listened]) == ([("127.0.0.1:2", None)], ["--http"])
        await asyncio.sleep(1)
        assert {told.what for told in stage.notes} == {"grpc begins", "http begins"}
        ready = (await stage.page("/readyz")).json()
        assert ready == {"ready": True, "reason": "", "insecure": [], "failing": []}
        for way, status in ((Way.REFUSED, 503), (Way.OPEN, 200)):
            stage.etcd.links["m0"].set_way(way)
            await asyncio.sleep(10)
            assert (await stage.page("/readyz")).status_code == status
        metrics = (await stage.page("/metrics")).text
        assert "loraplane_admin_etcd_up 1.0" in metrics
        assert 'loraplane_admin_connections_closed_total{reason="replaced"} 1.0' in metrics
        assert (await stage.page("/v1/residency", "lora.example.com")).status_code == 400
        assert (await stage.page("/v1/residency", "evil.example")).status_code == 421
        assert 'http_refused_total{reason="host"} 1.0' in (await stage.page("/metrics")).text
        [client] = stage.clients
        stage.notes.clear()
    assert stage.notes == [Told(24.0, "grpc ends within 5"), Told(24.0, "http ends")]
    with pytest.raises(EtcdUnavailable, match="the client is closed"):
        await client.lease_grant(1)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert [task.get_name() for task in left if task.get_name() in {"http", "probe", "conductor", "members"}] == []


@staged
async def test_a_service_that_fails_to_start_leaves_nothing_behind(stage, monkeypatch):
    """R16 bounded."""

    class Fault(Exception):
        """Of ours."""

    async def fails(_: GrpcPort) -> None:
        raise Fault

    monkeypatch.setattr(GrpcPort, "start", fails)
    with pytest.raises(ExceptionGroup) as told:
        async with running(settings(), drain_seconds=0):
            pytest.fail("it does not serve")
    assert told.value.split(Fault)[1] is None
    assert stage.notes[-1].what == "grpc ends within 5"
    with pytest.raises(EtcdUnavailable, match="the client is closed"):
        await stage.clients[0].lease_grant(1)


@staged
async def test_what_grpc_is_told_bounds_what_a_client_can_take(stage, monkeypatch):
    """R16 bounded, X1, X3: a taken port is an error, and a client's certificate is asked for again after a while."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 1024))
    async with running(settings()):
        told = stage.grpc.options
        assert stage.grpc.methods == {SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME}
    assert [note.at for note in stage.notes if note.what.startswith("grpc ends")] == [0.5], "R18: time for who looks"
    assert told["grpc.max_receive_message_length"] == 4 << 20
    assert told["grpc.max_send_message_length"] == 64 << 20, "what a client of ours takes"
    assert told["grpc.max_concurrent_streams"] == 100
    assert told["grpc.so_reuseport"] == 0
    assert told["grpc.max_connection_age_ms"] == 300_000, "a certificate that is no longer taken is seen by then"
    assert told["grpc.max_connection_age_grace_ms"] == 30_000
    assert told["grpc.server_handshake_timeout_ms"] == 10_000, "who says nothing has a place for so long"
    assert "grpc.max_connection_idle_ms" not in told, "clients would write a line on standard error"
    assert told["grpc.max_allowed_incoming_connections"] == 512, "of 1024 descriptors two thirds of what is left"


class Refusing(GrpcPort):
    """Takes no address."""

    def add_insecure_port(self, address: str) -> int:
        raise RuntimeError("in use")

    def add_secure_port(self, address: str, credentials: object) -> int:
        raise KeyError("of ours")


@staged
async def test_an_address_that_cannot_be_had_is_named_with_its_flag(stage):
    """What gRPC does not say is found by trying; if that finds nothing, its own words are told."""
    stage.patch.setattr(server.grpc.aio, "server", lambda *, options: Refusing(stage.notes, options))
    with pytest.raises(CannotListen, match=r"^--listen 127\.0\.0\.1:2: in use$"):
        async with running(settings()):
            pytest.fail("it does not serve")
    [(flag, tried)] = stage.listened
    assert (flag, tried.closed) == ("--listen", 1)

    def taken(flag: str, _: Address) -> Listener:
        raise CannotListen(f"{flag}: Address already in use")

    stage.patch.setattr(server, "listen_as_told", taken)
    with pytest.raises(CannotListen, match=r"^--listen: Address already in use$"):
        async with running(settings()):
            pytest.fail("it does not serve")
    stage.patch.setattr(server, "server_credentials", lambda _files: "credentials")
    with pytest.raises(KeyError):
        async with running(settings(tls_cert="c", tls_key="k")):
            pytest.fail("it does not serve")


@pytest.mark.parametrize(("ca", "flag"), [("a", "--tls-ca"), ("c", "--tls-cert"), ("k", "--tls-key")])
@staged
async def test_a_certificate_that_cannot_be_used_is_named_with_its_flag(stage, monkeypatch, tmp_path, ca, flag):
    paths = {name: tmp_path / name for name in "ack"}
    found: list[TlsFiles] = []

    def fails(files: TlsFiles) -> None:
        found.append(files)
        raise TlsUnusable(paths[ca], "cannot be read")

    monkeypatch.setattr(server, "server_credentials", fails)
    secured = settings(tls_ca=paths["a"], tls_cert=paths["c"], tls_key=paths["k"])
    with pytest.raises(CannotListen, match=f"^{flag}: cannot be read$"):
        async with running(secured):
            pytest.fail("it does not serve")
    assert found == [TlsFiles(paths["a"], paths["c"], paths["k"])]


@staged
async def test_with_a_certificate_the_port_is_a_secret_one(stage, monkeypatch):
    """X1."""
    monkeypatch.setattr(server, "server_credentials", lambda files: ("made of", files.certificate, files.key))
    async with running(settings(tls_cert="c", tls_key="k"), drain_seconds=0) as ports:
        assert ports.grpc_port == 7002
        [(address, credentials)] = stage.grpc.bound
        assert (address, [str(part) for part in credentials]) == ("127.0.0.1:2", ["made of", "c", "k"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_asked", [True, False])
def test_clients_must_show_a_certificate_where_an_authority_is_given(monkeypatch, tmp_path, is_asked):
    """X1: and each handshake reads the files anew."""
    read: list[tuple[object, ...]] = []
    contents = iter([Pem(b"ca", b"key 1", b"cert 1"), Pem(b"ca", b"key 2", b"cert 2")])
    monkeypatch.setattr(server.TlsReader, "newest", lambda _: next(contents))
    monkeypatch.setattr(
        server.grpc, "ssl_server_certificate_configuration", lambda pairs, root_certificates: (pairs, root_certificates)
    )

    def dynamic(first: object, fetch: Callable[[], object], *, require_client_authentication: bool) -> str:
        read.append((first, fetch(), require_client_authentication))
        return "credentials"

    monkeypatch.setattr(server.grpc, "dynamic_ssl_server_credentials", dynamic)
    files = TlsFiles(tmp_path / "ca" if is_asked else None, tmp_path / "cert", tmp_path / "key")
    assert server.server_credentials(files) == "credentials"
    assert read == [(([(b"key 1", b"cert 1")], b"ca"), ([(b"key 2", b"cert 2")], b"ca"), is_asked)]


async def residency(_: Request, call: CallContext) -> Response:
    return JSONResponse({"for": [call.principal.name, call.origin, call.connection]})


@pytest.mark.parametrize(
    ("now", "status"),
    [(Readiness(ready=True, reason=""), 200), (Readiness(ready=False, reason="etcd does not answer"), 503)],
)
async def test_pages_for_machines(now, status):
    """R18: alive is the process; ready is who can be asked; and what is not as it should be is told beside it."""
    metrics = AdminMetrics()
    app = make_app(lambda: now, metrics.registry, residency, ("--listen",), lambda: ["members"], check)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://admin") as client:
        alive, ready = await client.get("/livez"), await client.get("/readyz")
        assert (alive.status_code, alive.json()) == (200, {"alive": True})
        told = {"ready": now.ready, "reason": now.reason, "insecure": ["--listen"], "failing": ["members"]}
        assert (ready.status_code, ready.json()) == (status, told)
        assert "loraplane_admin_etcd_up 0.0" in (await client.get("/metrics")).text
        assert (await client.get("/v1/residency")).json() == {"for": ["anonymous", "127.0.0.1", "ipv4:127.0.0.1:123"]}
        assert (await client.get("/")).status_code == 404


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
