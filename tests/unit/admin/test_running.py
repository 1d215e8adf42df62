"""The admin service as it is put together, on virtual time over a simulated etcd; and how it is put on the network."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import grpc
import httpx
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from registry.access.control import AccessControl
from registry.access.roles import AccessRole
from registry.admin import server
from registry.admin.app import DRAIN_SECONDS, AdminPorts, AdminService, assemble
from registry.admin.health import Readiness
from registry.admin.pages import endpoint
from registry.admin.rpc.calls import CallContext, permit
from registry.admin.rpc.service import SERVICE
from registry.admin.server import CannotListen, bind, options, running
from registry.admin.settings import AdminSettings
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdUnavailable
from registry.etcd3.options import TlsFiles
from registry.etcd3.tls import Pem
from registry.runtime import grpc_port
from registry.runtime.clock import Clock
from registry.runtime.http import listen
from registry.store.txn import Retention
from tests.support.played_admin import served
from tests.support.played_etcd import PlayedEtcd, now, played
from tests.support.records import KEYS
from tests.support.tls import Authority
from tests.unit.admin.conftest import HEAD, NOW, ROOT, binding


class Told(NamedTuple):
    """What happened, and when."""

    at: float
    what: str


class GrpcPort:
    """In place of a server of gRPC."""

    def __init__(self, notes: list[Told]) -> None:
        self.notes = notes
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


class Pages:
    """In place of the HTTP port."""

    def __init__(self, notes: list[Told]) -> None:
        self._notes, self._end = notes, asyncio.Event()

    async def run(self) -> None:
        self._notes.append(Told(now(), "http begins"))
        await self._end.wait()
        self._notes.append(Told(now(), "http ends"))

    def stop(self) -> None:
        self._end.set()


def made(etcd: PlayedEtcd, **more: Any) -> AdminService:
    return assemble(AdminPorts(etcd.client(), KEYS, Clock(random.Random(0)), **more))


def states(service: AdminService) -> set[int]:
    """What those who look at its health are told."""
    return {*service.ports.health._server_status.values()}


SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def looks(service: AdminService, said: list[tuple[float, set[int]]]) -> None:
    """Looks at its health again and again."""
    while True:
        said.append((now(), states(service)))
        await asyncio.sleep(0.25)


async def end_of_streams(service: AdminService, notes: list[Told]) -> None:
    await service.calls.stopping.wait()
    notes.append(Told(now(), "streams end"))


def request(client: tuple[str, int] | None = None) -> Request:
    return Request({"type": "http", "query_string": b"", "headers": [], "client": client})


@played
async def test_methods_are_told_to_strangers_only_if_the_service_says_so(etcd):
    """A1 named: health is, always."""
    api = GrpcPort([])
    async with made(etcd, reflection=False).serving(cast("grpc.aio.Server", api), Pages([])):
        assert api.methods == {SERVICE, health.SERVICE_NAME}


@played
async def test_a_service_begins_with_its_servers_and_ends_with_those_who_ask_first(etcd):
    """R18: who looks at health has gone elsewhere before calls are cut, calls on their way end, then all else."""
    service, notes, said = made(etcd, drain_seconds=3.0), list[Told](), list[tuple[float, set[int]]]()
    api = GrpcPort(notes)
    async with service.serving(cast("grpc.aio.Server", api), Pages(notes)):
        await asyncio.sleep(1.1)
        assert api.methods == {SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME}
        assert ({told.what for told in notes}, states(service)) == ({"grpc begins", "http begins"}, {SERVING})
        notes.clear()
        looking = asyncio.create_task(looks(service, said))
        streams = asyncio.create_task(end_of_streams(service, notes))
        assert not service.calls.stopping.is_set()
    looking.cancel()
    await streams
    begun = 1.1
    ends = [Told(begun + 3.0, "grpc ends within 5"), Told(begun + 3.0, "http ends")]
    assert notes == [Told(begun, "streams end"), *ends], "by themselves, so that none is cut"
    assert len(said) >= 12
    assert all(told == {NOT_SERVING} for _, told in said), "for all of the time before"
    left = [task for task in asyncio.all_tasks() if task.get_name() in {"http", "probe", "conductor", "members"}]
    assert left == []
    await service.ports.client.lease_grant(1)  # whoever made the client closes it


@played
async def test_a_service_that_fails_to_start_leaves_nothing_behind(etcd):
    """R16 bounded."""

    class Fault(Exception):
        """Of ours."""

    class Failing(GrpcPort):
        """Does not start."""

        async def start(self) -> None:
            raise Fault

    service, notes = made(etcd), list[Told]()
    async with service.hub.look("p"):
        assert len(asyncio.all_tasks()) > 1
    with pytest.raises(ExceptionGroup) as told:
        async with service.serving(cast("grpc.aio.Server", Failing(notes)), Pages(notes)):
            pytest.fail("it does not serve")
    assert told.value.split(Fault)[1] is None
    assert Told(DRAIN_SECONDS, "grpc ends within 5") in notes, "R18: time for who looks"
    assert [one for one in asyncio.all_tasks() if one is not asyncio.current_task()] == []


@played
async def test_a_service_follows_its_access_file_and_records_whom_it_refused(etcd, tmp_path):
    """A2, A5: both end with it."""
    file = tmp_path / "access.yaml"
    file.write_text(HEAD + ROOT)
    access = AccessControl(file, lambda: NOW)
    service, first = made(etcd, access=access), access.digest
    async with service.serving(cast("grpc.aio.Server", GrpcPort([])), Pages([])):
        await asyncio.sleep(1)
        file.write_text(HEAD + ROOT + binding(AccessRole.VIEWER, "ann"))
        await endpoint("/v1/models", cast("Any", None), permit, access, service.denials)(request())
        await asyncio.sleep(10)
        assert access.digest != first
        assert [key for key in etcd.store.kvs if key.startswith(KEYS.denied())]
    assert [task for task in asyncio.all_tasks() if task.get_name() in {"access", "denials"}] == []


@pytest.mark.parametrize(("reason", "status"), [("", 200), ("etcd does not answer", 503)])
@served
async def test_pages_for_machines(served, reason, status):
    """R18: alive is the process; ready is who can be asked; and what is not as it should be is told beside it."""
    served.probe.readiness = Readiness(ready=not reason, reason=reason)
    served.service.supervisor.survives("members", lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    alive, ready = await served.page("/livez"), await served.page("/readyz")
    assert (alive.status_code, alive.json()) == (200, {"alive": True})
    told = {"ready": not reason, "reason": reason, "insecure": ["--listen"], "failing": ["members"]}
    assert (ready.status_code, ready.json()) == (status, told)
    assert (await served.page("/none")).status_code == 404
    assert (await served.page("/v1/residency", "evil.example")).status_code == 421
    metrics = (await served.page("/metrics")).text
    assert "loraplane_admin_etcd_up 0.0" in metrics
    assert 'http_refused_total{reason="host"} 1.0' in metrics


@pytest.mark.parametrize(
    ("client", "told"),
    [
        (("127.0.0.1", 123), ["anonymous", "127.0.0.1", "ipv4:127.0.0.1:123"]),
        (("fe80::1", 7), ["anonymous", "fe80::1", "ipv6:[fe80::1]:7"]),
        (None, ["anonymous", "unix", "unix:"]),
    ],
)
async def test_a_page_has_a_caller_who_is_known_by_an_address(client, told):
    async def page(_: Request, call: CallContext) -> Response:
        return JSONResponse([call.principal.name, call.origin, call.connection])

    reply = await endpoint("/v1/residency", page, permit)(request(client))
    assert json.loads(bytes(reply.body)) == told


def settings(**more: Any) -> AdminSettings:
    free = "127.0.0.1:0"
    return AdminSettings(**{"etcd": "127.0.0.1:1", "http": free, "listen": free, "max_txn_ops": 64, **more})


async def test_a_service_is_put_on_the_network_as_the_settings_say(monkeypatch):
    """What it made is closed with it (R16 bounded), and each port answers."""
    closed, close = list[Client](), Client.aclose

    async def noted(client: Client) -> None:
        closed.append(client)
        await close(client)

    monkeypatch.setattr(Client, "aclose", noted)
    async with running(settings(http_names="lora.example.com"), drain_seconds=0) as ports:
        assert ports.token_port == 0, "there is none"
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc_port}") as channel:
            asked = health_pb2.HealthCheckRequest(service=SERVICE)
            assert (await health_pb2_grpc.HealthStub(channel).Check(asked)).status == NOT_SERVING
        reader, writer = await asyncio.open_connection("127.0.0.1", ports.http_port)
        writer.write(b"no HTTP\r\n\r\n")
        await reader.read()
        writer.close()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports.http_port}") as client:
            assert (await client.get("/v1/residency", headers={"host": "lora.example.com"})).status_code == 400
            assert (await client.get("/v1/residency", headers={"host": "evil.example"})).status_code == 421
            assert 'connections_closed_total{reason="bad_request"} 1.0' in (await client.get("/metrics")).text
    [ours] = closed
    with pytest.raises(EtcdUnavailable, match="the client is closed"):
        await ours.lease_grant(1)
    with listen("127.0.0.1", 0) as taken, pytest.raises(CannotListen, match=r"^--http .*: Address already in use$"):
        async with running(settings(http=f"127.0.0.1:{taken.getsockname()[1]}")):
            pytest.fail("it does not serve")
    assert len(closed) == 2


async def test_a_service_is_reached_by_the_socket_of_its_host_where_the_settings_name_one(tmp_path):
    file, socket = tmp_path / "access.yaml", tmp_path / "s"
    file.write_text(HEAD + ROOT)
    channel = grpc.aio.insecure_channel(f"unix:{socket}")
    async with running(settings(access=file, socket=socket), drain_seconds=0), channel:
        asked = health_pb2.HealthCheckRequest(service=SERVICE)
        assert (await health_pb2_grpc.HealthStub(channel).Check(asked, timeout=60)).status == NOT_SERVING
    assert not socket.exists()


async def test_what_the_settings_say_of_a_service(tmp_path):
    """X1: what is open to anybody is told. A2: who has an access file is guarded by it, or does not start."""
    told = settings(request_retention=4000, audit_retention=90_000, prefix="/x", listen="0.0.0.0:1", insecure=True)
    ports = server._ports(told, 7.0)
    assert (ports.limits.max_ops, ports.retention, ports.keys.prefix) == (64, Retention(4000, 90_000), "/x")
    assert (ports.insecure, ports.drain_seconds, ports.hook) == (told.unprotected(), 7.0, permit)
    assert (ports.access, ports.reflection) == (None, True)
    await ports.client.aclose()
    file = tmp_path / "access.yaml"
    file.write_text(HEAD + ROOT)
    for more in (False, True):
        guarded = server._ports(settings(access=file, reflection=more), 7.0)
        assert guarded.access is not None
        assert (guarded.access.digest, guarded.reflection) == (AccessControl(file, lambda: NOW).digest, more)
        await guarded.client.aclose()
    with pytest.raises(CannotListen, match=r"^--access: "):
        server._access(settings(access=tmp_path / "none"), Clock())


def test_what_grpc_is_told_bounds_what_a_client_can_take(monkeypatch):
    """R16 bounded, X1, X3: a taken port is an error, and a client's certificate is asked for again after a while."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 1024))
    told = dict(options())
    assert told["grpc.max_receive_message_length"] == 4 << 20
    assert told["grpc.max_send_message_length"] == 64 << 20, "what a client of ours takes"
    assert told["grpc.max_concurrent_streams"] == 100
    assert told["grpc.so_reuseport"] == 0
    assert told["grpc.max_connection_age_ms"] == 300_000, "a certificate that is no longer taken is seen by then"
    assert told["grpc.max_connection_age_grace_ms"] == 30_000
    assert told["grpc.server_handshake_timeout_ms"] == 10_000, "who says nothing has a place for so long"
    assert "grpc.max_connection_idle_ms" not in told, "clients would write a line on standard error"
    assert told["grpc.max_allowed_incoming_connections"] == 512, "of 1024 descriptors two thirds of what is left"


def bound(settings: AdminSettings) -> tuple[int, str, object]:
    """The port, the address and the credentials with which it is opened."""
    api = GrpcPort([])
    port = bind(cast("grpc.aio.Server", api), settings)
    [(address, credentials)] = api.bound
    return port, address, credentials


class Refusing(GrpcPort):
    """Takes no address."""

    def add_insecure_port(self, address: str) -> int:
        raise RuntimeError("in use")

    def add_secure_port(self, address: str, credentials: object) -> int:
        raise KeyError("of ours")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """What makes the port of the API a secret one."""
    made = Authority(tmp_path_factory.mktemp("authority"), "ours").issue("server")
    assert made.ca is not None
    assert made.certificate is not None
    assert made.key is not None
    return {"tls_ca": made.ca, "tls_cert": made.certificate, "tls_key": made.key}


def test_an_address_that_cannot_be_had_is_named_with_its_flag(files):
    """What gRPC does not say is found by trying; if that finds nothing, its own words are told."""
    refusing = cast("grpc.aio.Server", Refusing([]))
    with pytest.raises(CannotListen, match=r"^--listen 127\.0\.0\.1:0: in use$"):
        bind(refusing, settings())
    with listen("127.0.0.1", 0) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CannotListen, match=f"^--listen {address}: Address already in use$"):
            bind(refusing, settings(listen=address))
    with pytest.raises(KeyError):
        bind(refusing, settings(**files))


@pytest.mark.parametrize("name", ["tls_ca", "tls_cert", "tls_key"])
def test_a_certificate_that_cannot_be_used_is_named_with_its_flag(files, name):
    flag = "--" + name.replace("_", "-")
    with pytest.raises(CannotListen, match=f"^{flag}: cannot read /nowhere: No such file or directory$"):
        bound(settings(**{**files, name: Path("/nowhere")}))


def test_with_a_certificate_the_port_is_a_secret_one(files):
    """X1."""
    port, address, credentials = bound(settings(**files))
    assert (port, address, isinstance(credentials, grpc.ServerCredentials)) == (7002, "127.0.0.1:0", True)
    assert bound(settings()) == (7001, "127.0.0.1:0", None)


@pytest.mark.parametrize("is_asked", [True, False])
def test_clients_must_show_a_certificate_where_an_authority_is_given(monkeypatch, tmp_path, is_asked):
    """X1: and each handshake reads the files anew. What has not changed is not replaced: others use it."""
    read: list[tuple[object, ...]] = []
    first, second = Pem(b"ca", b"key 1", b"cert 1"), Pem(b"ca", b"key 2", b"cert 2")
    contents = iter([first, first, second, second])
    monkeypatch.setattr(grpc_port.TlsReader, "newest", lambda _: next(contents))
    monkeypatch.setattr(
        grpc_port.grpc,
        "ssl_server_certificate_configuration",
        lambda pairs, root_certificates: (pairs, root_certificates),
    )

    def dynamic(first: object, fetch: Callable[[], object], *, require_client_authentication: bool) -> str:
        read.append((first, [fetch() for _ in range(3)], require_client_authentication))
        return "credentials"

    monkeypatch.setattr(grpc_port.grpc, "dynamic_ssl_server_credentials", dynamic)
    files = TlsFiles(tmp_path / "ca" if is_asked else None, tmp_path / "cert", tmp_path / "key")
    assert grpc_port.server_credentials(files) == "credentials"
    assert read == [(([(b"key 1", b"cert 1")], b"ca"), [None, ([(b"key 2", b"cert 2")], b"ca"), None], is_asked)]


@played
async def test_metrics_tell_when_certificates_of_its_flags_end(etcd: PlayedEtcd, tmp_path):
    own = Authority(tmp_path, "ca").issue("own", days=2)
    told = made(etcd, certificates={"--tls-cert": Path(own.certificate)}).metrics.registry.get_sample_value
    names = [f"loraplane_certificate_{verb}_timestamp_seconds" for verb in ("begins", "expires")]
    begins, expires = (told(name, {"flag": "--tls-cert"}) or 0.0 for name in names)
    assert 0 < begins < expires <= begins + 3 * 86_400
