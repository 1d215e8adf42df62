"""Any message to any method, and any bytes to each port and socket of ours."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from registry.runtime.http import listen
from registry.v1 import registry_pb2 as pb
from sidecar.engines.simulated.app import served
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.report.http import make_app
from sidecar.vllm_plugin.guard import CONTROL_HEADER, Guard
from sidecar.vllm_plugin.protocol import write_question
from tests.fuzz.fuzzer import SECRET, Run, Target
from tests.fuzz.mutation import Case, choice, protobuf, raw
from tests.support.admin import Admin, admin_inside, change_set, make_pool, put, refused, wait_ready
from tests.support.etcd import make_cluster, running_etcd
from tests.support.rig import Rig, running_rig

_SERVICE = pb.DESCRIPTOR.services_by_name["AdapterRegistry"]
_METHODS = {method.name: method for method in _SERVICE.methods}
# What a caller is told where we, or what we stand on, broke; everything else is a refusal.
_BROKEN = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}
_USUAL = {"pool": "p", "name": "acme/a", "uri": "file:///a/v1", "base_models": "base", "pattern": "m.{0-9}", "etag": ""}
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
STREAM_SECONDS = 0.2
ANSWER_SECONDS = 0.3


def _filled(kind: Descriptor, depth: int = 0) -> Message:
    """A message in which every field says something."""
    message = GetMessageClass(kind)()
    for field in kind.fields:
        if field.message_type is None:
            values: Any = [_scalar(field)] if field.is_repeated else _scalar(field)
            _set(message, field, values)
        elif field.message_type.GetOptions().map_entry:
            getattr(message, field.name)["k"] = "v"
        elif depth < 5:
            inner = _filled(field.message_type, depth + 1)
            target = getattr(message, field.name)
            target.add().CopyFrom(inner) if field.is_repeated else target.CopyFrom(inner)
    return message


def _set(message: Message, field: FieldDescriptor, value: object) -> None:
    if field.is_repeated:
        getattr(message, field.name).extend(value)
    else:
        setattr(message, field.name, value)


def _scalar(field: FieldDescriptor) -> object:
    if field.type == FieldDescriptor.TYPE_STRING:
        return _USUAL.get(field.name, "x")
    return field.type == FieldDescriptor.TYPE_BOOL or (b"x" if field.type == FieldDescriptor.TYPE_BYTES else 1)


@lru_cache
def _calls() -> tuple[Case, ...]:
    """Each method with all of its fields, and some that succeed."""
    made = [(name.encode(), _filled(method.input_type).SerializeToString()) for name, method in _METHODS.items()]
    usual = [
        ("ApplyAdapters", change_set(put("acme/a"), put("acme/b", labels={"a": "b"}, priority=3))),
        ("ApplyAdapters", change_set(put("acme/a"), validate_only=True, request_id="r-1")),
        ("ApplyAdapters", change_set(pb.AdapterChange(delete="acme/b"))),
        ("ListAdapters", pb.ListAdaptersRequest(pool="p", page_size=2)),
        ("WatchAdapters", pb.WatchAdaptersRequest(pool="p")),
        ("WatchResidency", pb.WatchResidencyRequest(pool="p")),
        ("CreatePool", pb.CreatePoolRequest(pool=pb.Pool(name="z", base_models=["b"]))),
        ("GetPool", pb.GetPoolRequest(name="p")),
        ("ListPools", pb.ListPoolsRequest()),
        ("RepairTenant", pb.RepairTenantRequest(name="acme", validate_only=True)),
    ]
    return (*made, *((name.encode(), message.SerializeToString()) for name, message in usual))


@asynccontextmanager
async def admin_on_etcd(folder: Path) -> AsyncIterator[Admin]:
    """The admin service on an etcd of its own, with a pool."""
    own = running_etcd(make_cluster(folder / "etcd"))
    async with own as cluster, admin_inside(cluster.endpoints, "/fuzz") as admin:
        await wait_ready(admin)
        await make_pool(admin)
        yield admin


@asynccontextmanager
async def _calling(folder: Path) -> AsyncIterator[Run]:
    """The admin service, called with whatever bytes."""
    metadata = (("authorization", f"Bearer {SECRET}"),)
    async with admin_on_etcd(folder) as admin:

        async def play(case: Case) -> None:
            name, content = case[0].decode(), case[1]
            path = f"/{_SERVICE.full_name}/{name}"
            try:
                if _METHODS[name].server_streaming:
                    stream: Any = admin.channel.unary_stream(path)(content, metadata=metadata, timeout=30)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(stream.read(), STREAM_SECONDS)
                    stream.cancel()
                else:
                    call: Any = admin.channel.unary_unary(path)
                    assert SECRET.encode() not in await call(content, metadata=metadata, timeout=30)
            except grpc.aio.AioRpcError as error:
                told = refused(error)
                assert told.code not in _BROKEN, told
                assert told.reason, f"a refusal without a reason: {told}"
                assert SECRET not in told.message, "a secret in an answer"
            await admin.stub.ListPools(pb.ListPoolsRequest(), timeout=30)

        yield play


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """A request that is whole."""
    told = {"Host": "127.0.0.1", "Connection": "close", **headers, "Content-Length": str(len(body))}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in told.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


@lru_cache
def _sent() -> tuple[Case, ...]:
    """Requests to each port."""
    ours = {CONTROL_HEADER: SECRET, "Content-Type": "application/json"}
    unload = b'{"lora_name":"good"}'
    swap = b'{"lora_name":"other","lora_path":"/a/b","expected_path":"/a/c"}'
    pages = [(b"sidecar", request("GET", path)) for path in ("/livez", "/readyz", "/status", "/metrics", "/x")]
    pages += [(b"admin", request("GET", path)) for path in ("/livez", "/readyz", "/metrics")]
    pages += [(b"admin", request("GET", f"/v1/residency?pool={pool}")) for pool in ("p", "q&name=acme/a", "%ff")]
    pages += [(b"admin", request("GET", f"/v1/models?pool={pool}")) for pool in ("", "p", "%ff")]
    plugin = [request("GET", f"/v1/loraplane/{page}", **ours) for page in ("plugin", "state", "uses", "changes")]
    plugin += [request("POST", "/v1/loraplane/swap", swap, **ours), request("GET", "/v1/loraplane/state")]
    plugin += [request("POST", "/v1/loraplane/unload", unload.replace(b"good", b"x"), **ours)]
    questions = [write_question(name, "/models/tiny") for name in ("good", "other", "acme/a")]
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
    return (
        *pages,
        *((b"plugin", one) for one in plugin),
        *((b"resolver", one) for one in questions),
        (b"grpc", preface),
    )


async def _exchanged(
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], content: bytes, *, ends: bool
) -> bytes:
    """What comes back within a moment."""
    reader, writer = connection
    answer = b""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_SECONDS):
            writer.write(content)
            await writer.drain()
            if ends:
                writer.write_eof()
            while piece := await reader.read(1 << 16):
                answer += piece
    writer.transport.abort()
    return answer


@dataclass(frozen=True)
class Ports:
    """All ports of a pool: of HTTP and gRPC by their names, and the resolver's socket; and what is behind them."""

    numbers: Mapping[str, int]
    resolver: Path
    rig: Rig
    engine: SimulatedVllm

    async def opened(self, name: str) -> Connection:
        """A connection to one of them."""
        if name == "resolver":
            return await asyncio.open_unix_connection(self.resolver)
        return await asyncio.open_connection("127.0.0.1", self.numbers[name])


@asynccontextmanager
async def all_ports(folder: Path) -> AsyncIterator[Ports]:
    """A sidecar's page, its resolver, the plugin in its engine, both of the admin service."""
    sockets = Path(tempfile.mkdtemp(prefix="lp-"))  # a socket's path is short
    (folder / "token").write_text(SECRET)
    guard = Guard(str(folder / "store"), folder / "token")
    engine = SimulatedVllm(Options(plugin=True, resolver=str(sockets / "s"), guard=guard))
    listener = listen("127.0.0.1", 0)
    try:
        async with admin_on_etcd(folder) as admin, running_rig(folder, engine) as rig:
            rig.driver._http._token_file = folder / "token"
            rig.desire(1, good="good")
            await rig.served(1, "good")
            told = rig.sidecar.reporting
            page = told.status, (), told.drain, told.events, told.activity
            async with served(make_app(*page, token_file=folder / "token"), listener):
                numbers = {
                    "sidecar": listener.getsockname()[1],
                    "admin": int(admin.http.rpartition(":")[2]),
                    "grpc": int(admin.address.rpartition(":")[2]),
                    "plugin": int(rig.driver.url.rpartition(":")[2]),
                }
                yield Ports(numbers, sockets / "s", rig, engine)
    finally:
        shutil.rmtree(sockets)


@asynccontextmanager
async def _listening(folder: Path) -> AsyncIterator[Run]:
    async with all_ports(folder) as ports:

        async def play(case: Case) -> None:
            port = case[0].decode()
            answer = await _exchanged(await ports.opened(port), case[1], ends=port == "resolver")
            assert SECRET.encode() not in answer, "a secret in an answer"
            assert not answer.startswith(b"HTTP/1.1 500"), answer[:500]
            await _goes_on(ports)
            assert "good" in ports.engine.cards or b"good" in case[1], "what was served stopped"
            if "good" not in ports.engine.cards:
                await ports.rig.served(1, "good")

        yield play


async def _goes_on(ports: Ports) -> None:
    for one in ("sidecar", "admin"):
        assert b" 200 OK" in await whole_answer(await ports.opened(one), request("GET", "/livez"))


_PATHS = ("/drain?wait=0", "/events", "/activity", "/status", "/metrics", "/readyz", "/v1/residency?pool=p")
_PLUGIN_PATHS = ("/v1/loraplane/prove", "/v1/loraplane/coverage", "/v1/loraplane/state")
_HOST, _STRANGE_HOST = b"127.0.0.1:80", b"web.example.com"
_CONTROL = CONTROL_HEADER.encode()


@lru_cache
def _pages() -> tuple[Case, ...]:
    """Method, path, Host, one more header and body of a request to each page, at each port."""
    own = [(b"sidecar", b"GET", path.encode(), _HOST, b"Accept: */*", b"") for path in _PATHS[:-1]]
    strange = [(b"sidecar", b"GET", path.encode(), _STRANGE_HOST, b"Accept: */*", b"") for path in _PATHS[:3]]
    drains = [
        (b"sidecar", b"POST", b"/drain?wait=1", _HOST, _CONTROL + b": 1", b""),
        (*own[0][:4], _CONTROL + b":", b"x"),
    ]
    residency = [(b"admin", b"GET", _PATHS[-1].encode(), host, b"Accept: */*", b"") for host in (_HOST, _STRANGE_HOST)]
    body = b'{"lora_name":"good","lora_path":"/a/b","prompt":[1,2],"max_tokens":3}'
    json = b"Content-Type: application/json"
    plugin = [(b"plugin", b"POST", path.encode(), _HOST, json, body) for path in _PLUGIN_PATHS]
    large = (b"sidecar", b"POST", b"/events", _HOST, b"Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n")
    return (*own, *strange, *drains, *residency, *plugin, large)


@asynccontextmanager
async def _paging(folder: Path) -> AsyncIterator[Run]:
    """Requests that are such as a rule. No case says the control token, so none may drain the replica."""
    async with all_ports(folder) as ports:

        async def play(case: Case) -> None:
            port, method, path, host, header, body = case
            head = b"%s %s HTTP/1.1\r\nHost: %s\r\n%s\r\nConnection: close\r\n" % (method, path, host, header)
            length = b"" if b"Transfer" in header else b"Content-Length: %d\r\n" % len(body)
            answer = await _exchanged(await ports.opened(port.decode()), head + length + b"\r\n" + body, ends=False)
            assert SECRET.encode() not in answer, "a secret in an answer"
            assert not answer.startswith(b"HTTP/1.1 500"), answer[:500]
            assert not ports.rig.sidecar.reporting.drain.why, "drained without the control token"
            if host == _STRANGE_HOST and b"\n" not in header and port != b"plugin":
                is_told = answer.startswith(b"HTTP/1.1 200") and b'"note"' not in answer
                assert not is_told, f"told to a Host of anybody's: {answer[:200]!r}"
            await _goes_on(ports)

        yield play


async def whole_answer(connection: Connection, content: bytes) -> bytes:
    """The whole answer, however slow the machine is."""
    reader, writer = connection
    writer.write(content)
    answer = await reader.read()
    writer.close()
    return answer


TARGETS = (
    Target("admin-calls", (choice, protobuf), _calls, _calling, runs=150),
    Target("ports", (choice, raw), _sent, _listening, runs=60),
    Target("pages", (choice, choice, raw, choice, raw, raw), _pages, _paging, runs=5),
)
