"""Calls of the admin service as gRPC makes them, on virtual time with an etcd: what is answered, told and counted."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Never

import pytest
import structlog.testing
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode
from grpc_health.v1 import health, health_pb2
from starlette.requests import Request
from starlette.responses import StreamingResponse

from registry.admin.health import AdminMetrics, Probe
from registry.admin.rpc.handlers import Reads, Writes
from registry.admin.rpc.interceptor import DETAILS_KEY
from registry.admin.rpc.service import DESCRIPTOR, SERVICE, make_handlers
from registry.admin.rpc.streams import Residency, Streams
from registry.etcd3.errors import EtcdUnauthenticated, TlsFailed
from registry.etcd3.informer import SharedInformerFactory
from registry.model.records import AuditRecord
from registry.model.status import RememberedReplica, RememberedReplicas
from registry.residency.hub import ResidencyHub
from registry.rollout.expected import forget
from registry.rollout.watching import AdapterStreams
from registry.store.reader import Reader
from registry.store.writer import WriteGate, Writer
from registry.transactions.context import TxnLimits
from registry.v1 import registry_pb2 as pb
from tests.simulation.links import Way
from tests.support.admin import change_set, drop, put
from tests.support.played_etcd import PlayedEtcd, now, play
from tests.support.records import KEYS
from tests.support.residency_world import Replicas


class Aborted(Exception):
    """How a call was refused."""

    def __init__(self, code: StatusCode, message: str, details: bytes) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message
        self.info, self.bad = ErrorInfo(), BadRequest()
        status = Status.FromString(details)
        assert (status.code, status.message) == (code.value[0], message)
        for detail in status.details:
            detail.Unpack(self.info)
            detail.Unpack(self.bad)

    @property
    def told(self) -> tuple[StatusCode, str, str]:
        """The code, the reason, and the field at fault."""
        fields = [one.field for one in self.bad.field_violations]
        assert self.info.domain == "loraplane"
        return self.code, self.info.reason, ",".join(fields)


@dataclass
class Context:
    """One call, as gRPC knows it."""

    remaining: float | None = 60.0
    names: Mapping[str, list[bytes]] = field(default_factory=dict)

    def time_remaining(self) -> float | None:
        return self.remaining

    def auth_context(self) -> Mapping[str, list[bytes]]:
        return self.names

    def peer(self) -> str:
        return "ipv4:10.0.0.1:1"

    async def abort(self, code: StatusCode, message: str, metadata: tuple[tuple[str, bytes], ...]) -> Never:
        [(key, details)] = metadata
        assert key == DETAILS_KEY
        raise Aborted(code, message, details)


async def one(request: Message) -> AsyncIterator[bytes]:
    yield request.SerializeToString()


class Served:
    """An admin service without its ports."""

    def __init__(self, etcd: PlayedEtcd) -> None:
        self.etcd = etcd
        client, rng = etcd.client(), random.Random(0)
        self.client, self.gate, self.metrics = client, WriteGate(), AdminMetrics()
        self.gate.open()
        self.health = health.aio.HealthServicer()
        self.probe = Probe(client, KEYS, self.gate, self.health, self.metrics, SERVICE)
        self.stopping = asyncio.Event()
        reader, informers = Reader(client, KEYS), SharedInformerFactory(client, rng=rng)
        self.hub = ResidencyHub(client, KEYS, informers)
        self.residency = Residency(self.hub, reader)
        streams = Streams(AdapterStreams(client, KEYS, reader, informers, rng=rng), self.residency)
        limits = TxnLimits()
        self.writes = Writes(Writer(client, KEYS, limits, self.gate, rng=rng), reader, partial(forget, client, KEYS))
        self._handlers = make_handlers(
            self.writes, Reads(reader, ["--listen"]), streams, self.metrics, self.stopping, limits
        )

    def handler(self, method: str) -> Any:
        found = self._handlers.service(SimpleNamespace(method=f"/{SERVICE}/{method}", invocation_metadata=()))  # type: ignore[arg-type]
        assert found is not None
        return found

    async def call(self, method: str, request: Message, context: Context | None = None) -> Any:
        """The answer, as it comes out of its bytes again."""
        handler = self.handler(method)
        answer = await handler.stream_unary(one(request), context or Context())
        return type(answer).FromString(handler.response_serializer(answer))

    def watch(self, method: str, request: Message) -> Any:
        return self.handler(method).stream_stream(one(request), Context())

    async def refusal(self, method: str, request: Message, context: Context | None = None) -> Aborted:
        is_stream = DESCRIPTOR.methods_by_name[method].server_streaming
        with pytest.raises(Aborted) as refused:
            await (anext(self.watch(method, request)) if is_stream else self.call(method, request, context))
        return refused.value

    def counted(self, method: str) -> dict[str, float]:
        """How many calls ended, by status."""
        [family] = list(self.metrics.requests.collect())
        return {
            sample.labels["code"]: sample.value
            for sample in family.samples
            if sample.labels["method"] == method and sample.name.endswith("_total")
        }

    async def make_pool(self, name: str = "p") -> pb.Pool:
        return await self.call("CreatePool", pb.CreatePoolRequest(pool=pb.Pool(name=name, base_models=["base"])))


Scene = Callable[[Served], Coroutine[Any, Any, None]]


def serve(scene: Scene) -> None:
    async def work(etcd: PlayedEtcd) -> None:
        await scene(Served(etcd))

    play(work)


def test_what_was_written_is_told_with_the_revision_that_it_has():
    """R1: an etag that is told can be written upon, also where nothing was changed and others wrote since."""

    async def scene(served: Served) -> None:
        etcd = served.etcd
        pool = await served.make_pool()
        assert pool.etag == str(etcd.store.revision)
        tenant = await served.call("SetTenant", pb.SetTenantRequest(tenant=pb.Tenant(name="acme", max_adapters=5)))
        assert (tenant.name, tenant.etag) == ("acme", str(etcd.store.revision))
        reply = await served.call("ApplyAdapters", change_set(put("acme/a"), request_id="req-1"))
        [made] = reply.results
        assert (made.outcome, made.adapter.etag, reply.request_id) == (
            pb.AdapterResult.CREATED,
            str(reply.revision),
            "req-1",
        )
        etcd.store.put(b"/of/others", b"")
        assert (await served.call("UpdatePool", pb.UpdatePoolRequest(pool=pool))).etag == pool.etag
        again = await served.call("SetTenant", pb.SetTenantRequest(tenant=pb.Tenant(name="acme", max_adapters=5)))
        assert again.etag == (await served.call("ListTenants", pb.ListTenantsRequest())).tenants[0].etag
        assert int(again.etag) <= reply.revision
        [same] = (await served.call("ApplyAdapters", change_set(put("acme/a")))).results
        assert (same.outcome, same.adapter.etag) == (pb.AdapterResult.UNCHANGED, made.adapter.etag)
        found = await served.call("GetAdapter", pb.GetAdapterRequest(pool="p", name="acme/a"))
        assert (found.etag, found.generation) == (made.adapter.etag, 1)
        [gone] = (await served.call("ApplyAdapters", change_set(drop("acme/a")))).results
        assert (gone.outcome, gone.adapter.name, gone.adapter.pool) == (pb.AdapterResult.DELETED, "acme/a", "p")
        assert (await served.call("DeletePool", pb.DeletePoolRequest(name="p"))).revision == etcd.store.revision

    serve(scene)


def test_what_is_only_validated_changes_nothing():
    async def scene(served: Served) -> None:
        await served.make_pool()
        before = served.etcd.store.revision
        checked = await served.call("ApplyAdapters", change_set(put("acme/a"), validate_only=True))
        assert [one.outcome for one in checked.results] == [pb.AdapterResult.CREATED]
        assert served.etcd.store.revision == before

    serve(scene)


def test_a_page_is_told_with_what_leads_to_the_next_and_the_last_with_what_is_told_once():
    async def scene(served: Served) -> None:
        for name in ("p", "q", "r"):
            await served.make_pool(name)
        replicas = Replicas(served.client, KEYS)
        await replicas.alive("r1", "r2", "r3")
        expected = RememberedReplicas(members={name: RememberedReplica() for name in ("r1", "r9")})
        served.etcd.store.put(KEYS.members("p"), expected.to_bytes())
        await Replicas(served.client, KEYS, "nowhere").alive("x1", "x2")
        first = await served.call("ListReplicas", pb.ListReplicasRequest(pool="p", page_size=2))
        last = await served.call(
            "ListReplicas", pb.ListReplicasRequest(pool="p", page_size=2, page_token=first.next_page_token)
        )
        assert [one.name for one in (*first.replicas, *last.replicas)] == ["r1", "r2", "r3"]
        assert (first.lacking, len(first.missing), last.next_page_token) == (0, 0, "")
        assert (last.lacking, [one.name for one in last.missing]) == (1, ["r9"])
        first = await served.call("ListPools", pb.ListPoolsRequest(page_size=2, show_unknown=True))
        assert ([one.name for one in first.pools], list(first.unknown)) == (["p", "q"], [])
        request = pb.ListPoolsRequest(page_size=2, page_token=first.next_page_token, show_unknown=True)
        last = await served.call("ListPools", request)
        assert [one.name for one in last.pools] == ["r"]
        assert [(one.name, one.replicas, list(one.names)) for one in last.unknown] == [("nowhere", 2, ["x1", "x2"])]
        assert list(last.admin_insecure) == ["--listen"]
        request.show_unknown = False
        assert not (await served.call("ListPools", request)).unknown

    serve(scene)


def test_who_is_dead_is_forgotten_unless_that_was_only_asked():
    async def scene(served: Served) -> None:
        await served.make_pool()
        stored = RememberedReplicas(members={"r9": RememberedReplica()}).to_bytes()
        served.etcd.store.put(KEYS.members("p"), stored)
        request = pb.ForgetReplicaRequest(pool="p", name="r9", validate_only=True)
        await served.call("ForgetReplica", request)
        assert served.etcd.store.kvs[KEYS.members("p")].value == stored
        request.validate_only = False
        await served.call("ForgetReplica", request)
        refused = await served.refusal("ForgetReplica", request)
        assert refused.told == (StatusCode.NOT_FOUND, "REPLICA_NOT_FOUND", "name")

    serve(scene)


@pytest.mark.parametrize(
    ("method", "wanted", "told"),
    [
        ("GetAdapter", pb.GetAdapterRequest(pool="p", name="a"), (StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", "name")),
        (
            "GetAdapter",
            pb.GetAdapterRequest(pool="p/q", name="a"),
            (StatusCode.INVALID_ARGUMENT, "INVALID_NAME", "pool"),
        ),
        (
            "GetAdapter",
            pb.GetAdapterRequest(pool="p", name="a b"),
            (StatusCode.INVALID_ARGUMENT, "INVALID_NAME", "name"),
        ),
        (
            "DeletePool",
            pb.DeletePoolRequest(name="p", request_id="a b"),
            (StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "request_id"),
        ),
        ("GetPool", pb.GetPoolRequest(name="q"), (StatusCode.NOT_FOUND, "POOL_NOT_FOUND", "name")),
        (
            "ListAdapters",
            pb.ListAdaptersRequest(pool="p", page_token="?"),  # noqa: S106 - no secret
            (StatusCode.INVALID_ARGUMENT, "INVALID_PAGE_TOKEN", "page_token"),
        ),
        (
            "WatchAdapters",
            pb.WatchAdaptersRequest(pool="p", start_revision=-1),
            (StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "start_revision"),
        ),
        (
            "WatchRollout",
            pb.WatchRolloutRequest(pool="p", name="a", generation=-1),
            (StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "generation"),
        ),
        (
            "WatchRollout",
            pb.WatchRolloutRequest(pool="p", name="a"),
            (StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", "name"),
        ),
        (
            "WatchResidency",
            pb.WatchResidencyRequest(pool="p", name="a"),
            (StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", "name"),
        ),
        ("WatchResidency", pb.WatchResidencyRequest(pool="q"), (StatusCode.NOT_FOUND, "POOL_NOT_FOUND", "pool")),
    ],
)
def test_a_refusal_says_why_and_which_field_is_wrong(method, wanted, told):
    """And is counted as what it is."""

    async def scene(served: Served) -> None:
        await served.make_pool()
        refused = await served.refusal(method, wanted)
        assert refused.told == told
        assert refused.message
        assert served.counted(method) == {told[0].name: 1.0}
        assert served.metrics.streams.labels(method)._value.get() == 0

    serve(scene)


# The others have it in a message of theirs.
NAMED = [
    (one.name, field)
    for one in DESCRIPTOR.methods
    for field in ("pool", "name")
    if field in one.input_type.fields_by_name and one.input_type.fields_by_name[field].message_type is None
]


@pytest.mark.parametrize(("method", "field"), NAMED)
def test_what_cannot_be_a_name_is_refused_whoever_asks(method, field):
    """X2: it would be part of a key; and who mistyped one hears which."""

    async def scene(served: Served) -> None:
        request = GetMessageClass(DESCRIPTOR.methods_by_name[method].input_type)()
        for name in ("pool", "name"):
            if (method, name) in NAMED:
                setattr(request, name, "a b/c" if name == field else "p")
        refused = await served.refusal(method, request)
        assert refused.code is StatusCode.INVALID_ARGUMENT
        assert [one.field.rpartition(".")[2] for one in refused.bad.field_violations] == [field]

    serve(scene)


def test_a_replica_is_shown_with_what_it_says_of_itself():
    async def scene(served: Served) -> None:
        await served.make_pool()
        replicas = Replicas(served.client, KEYS)
        said = {"version": "9.9", "leaving": True, "owner": "host:boot", "engine_url": "http://r1"}
        await replicas.alive("r1", labels={"zone": "a"}, **said)
        one = await served.call("GetReplica", pb.GetReplicaRequest(pool="p", name="r1"))
        assert (one.name, one.pool, dict(one.labels), one.incarnation) == ("r1", "p", {"zone": "a"}, "i")
        assert (one.version, one.leaving, one.engine_url, one.withheld_engine_url) == ("9.9", True, "http://r1", "")
        assert (one.started_at, one.host, one.status_json) == ("2026-01-01T00:00:00.000Z", "host", "")
        await replicas.says("r1", 3)
        shown = await served.call("GetReplica", pb.GetReplicaRequest(pool="p", name="r1"))
        assert json.loads(shown.status_json)["observed_revision"] == 3
        served.etcd.store.put(KEYS.replica("p", "r2"), b"?")
        broken = await served.call("GetReplica", pb.GetReplicaRequest(pool="p", name="r2"))
        assert broken == pb.Replica(name="r2", pool="p"), "it lives, and that is all that is known"
        refused = await served.refusal("GetReplica", pb.GetReplicaRequest(pool="p", name="r3"))
        assert refused.told == (StatusCode.NOT_FOUND, "REPLICA_NOT_FOUND", "name")

    serve(scene)


def test_who_did_what_is_told_and_what_cannot_be_read_is_named():
    async def scene(served: Served) -> None:
        await served.make_pool()
        await served.call("ApplyAdapters", change_set(put("a"), request_id="req-1"))
        served.etcd.store.put(KEYS.audit("p", "99991231T000000.000000Z-x"), b"?")
        told = await served.call("ListChanges", pb.ListChangesRequest(pool="p"))
        assert {(one.method, one.kind, one.name, one.action) for one in told.changes} >= {
            ("ApplyAdapters", "adapter", "a", "created")
        }
        assert [one.principal for one in told.changes if one.request_id == "req-1"] == ["anonymous"]
        assert list(told.unreadable) == ["99991231T000000.000000Z-x"]
        later = await served.call("ListChanges", pb.ListChangesRequest(pool="p", since="9999-01-01T00:00:00Z"))
        assert (list(later.changes), len(later.unreadable)) == ([], 1)

    serve(scene)


def test_an_adapter_that_was_lost_is_put_in_order_by_a_repair():
    """Of a pool that is gone, or whose index does not agree; what needs nothing is told as such."""

    async def scene(served: Served) -> None:
        await served.make_pool()
        await served.call("SetTenant", pb.SetTenantRequest(tenant=pb.Tenant(name="acme", max_adapters=5)))
        await served.call("ApplyAdapters", change_set(put("acme/a"), put("acme/b")))
        unchanged = await served.call("RepairTenant", pb.RepairTenantRequest(name="acme"))
        assert (unchanged.changed, unchanged.tenant.name, unchanged.tenant.adapters) == (False, "acme", 2)
        served.etcd.store.delete(KEYS.adapter("p", "acme/b"))
        repaired = await served.call("RepairTenant", pb.RepairTenantRequest(name="acme"))
        assert (repaired.changed, repaired.tenant.adapters) == (True, 1)
        assert (repaired.revision, repaired.tenant.etag) == (served.etcd.store.revision, str(repaired.revision))

    serve(scene)


def test_a_fault_of_ours_is_told_as_such_and_nothing_of_it(monkeypatch):
    """X2: what nobody foresaw ends the call alone, and is in the log."""

    async def scene(served: Served) -> None:
        async def broken(*_: object, **__: object) -> Never:
            raise KeyError("secret")

        monkeypatch.setattr(served.writes._writer, "change", broken)
        refused = await served.refusal("DeletePool", pb.DeletePoolRequest(name="p"))
        assert refused.told == (StatusCode.INTERNAL, "INTERNAL", "")
        assert "secret" not in refused.message
        assert served.counted("DeletePool") == {"INTERNAL": 1.0}
        assert served.metrics.no_space._value.get() == 0

    with structlog.testing.capture_logs() as logged:
        serve(scene)
    assert [line["method"] for line in logged if line["event"] == "internal_error"] == ["DeletePool"]


def test_a_full_etcd_is_counted():
    async def scene(served: Served) -> None:
        await served.make_pool()
        served.etcd.store.is_full = True
        refused = await served.refusal("ApplyAdapters", change_set(put("a")))
        assert (refused.code, refused.info.reason) == (StatusCode.RESOURCE_EXHAUSTED, "ETCD_NO_SPACE")
        assert served.metrics.no_space._value.get() == 1
        assert served.counted("ApplyAdapters") == {"RESOURCE_EXHAUSTED": 1.0}

    serve(scene)


@pytest.mark.parametrize(("remaining", "took"), [(None, 10.0), (60.0, 10.0), (5.0, 4.5)])
def test_a_call_is_answered_within_its_time_also_where_etcd_hangs(remaining, took):
    """R16 bounded: ten seconds at most; a tenth of the client's time is for the way of the answer."""

    async def scene(served: Served) -> None:
        await served.make_pool()
        served.etcd.links["m0"].set_way(Way.HUNG)
        begun = now()
        refused = await served.refusal("GetPool", pb.GetPoolRequest(name="p"), Context(remaining))
        assert refused.code is StatusCode.UNAVAILABLE
        assert took - 2.0 <= now() - begun <= took + 0.01

    serve(scene)


def test_a_request_that_does_not_come_is_waited_for_no_longer_than_the_call():
    async def scene(served: Served) -> None:
        async def never() -> AsyncIterator[bytes]:
            await asyncio.Event().wait()
            yield b""

        async def nothing() -> AsyncIterator[bytes]:
            for raw in list[bytes]():
                yield raw

        call = served.handler("GetPool").stream_unary
        with pytest.raises(Aborted) as refused:
            await call(never(), Context())
        assert (refused.value.code, refused.value.info.reason) == (StatusCode.UNAVAILABLE, "DEADLINE_EXCEEDED")
        assert now() == pytest.approx(10.0)
        with pytest.raises(Aborted) as refused:
            await call(nothing(), Context())
        assert refused.value.code is StatusCode.INVALID_ARGUMENT

    serve(scene)


def test_who_asks_is_the_name_of_a_certificate_or_nobody_known():
    async def scene(served: Served) -> None:
        await served.make_pool()
        for context in (Context(), Context(names={"x509_common_name": [b"ann", b"bob"]})):
            await served.call("ApplyAdapters", change_set(put(f"a{len(context.names)}")), context)
        stored = [kv.value for key, kv in served.etcd.store.kvs.items() if key.startswith(KEYS.audits())]
        audits = sorted((AuditRecord.parse(value) for value in stored), key=lambda audit: audit.at)
        told = {(audit.principal, audit.role) for audit in audits}
        assert told == {("anonymous", "unauthenticated"), ("ann", "operator")}

    serve(scene)


def test_a_stream_ends_as_the_service_stops_and_is_counted_while_it_is_open():
    async def scene(served: Served) -> None:
        await served.make_pool()
        open_streams = served.metrics.streams.labels("WatchAdapters")._value
        answers = served.watch("WatchAdapters", pb.WatchAdaptersRequest(pool="p"))
        assert (await anext(answers)).snapshot
        assert open_streams.get() == 1
        following = asyncio.ensure_future(anext(answers))
        await asyncio.sleep(1)
        served.stopping.set()
        with pytest.raises(Aborted) as ended:
            await following
        assert ended.value.told == (StatusCode.UNAVAILABLE, "ADMIN_UNAVAILABLE", "")
        assert (open_streams.get(), served.counted("WatchAdapters")) == (0, {"UNAVAILABLE": 1.0})

    serve(scene)


def test_who_leaves_a_stream_is_counted_as_one_who_left():
    async def scene(served: Served) -> None:
        await served.make_pool()
        async with aclosing(served.watch("WatchAdapters", pb.WatchAdaptersRequest(pool="p"))) as answers:
            assert (await anext(answers)).snapshot
        assert served.counted("WatchAdapters") == {"CANCELLED": 1.0}

    serve(scene)


def test_who_watches_adapters_hears_what_became_of_each():
    async def scene(served: Served) -> None:
        await served.make_pool()
        revision = (await served.call("ApplyAdapters", change_set(put("acme/A")))).revision
        answers = served.watch("WatchAdapters", pb.WatchAdaptersRequest(pool="p"))
        first = await anext(answers)
        assert (first.revision, first.snapshot, first.more) == (revision, True, False)
        [event] = first.events
        assert (event.put.name, event.put.etag) == ("acme/A", str(revision))
        served.etcd.store.put(KEYS.adapter("p", "acme/A"), b"?")
        [event] = (await anext(answers)).events
        assert (event.unreadable, event.deleted) == ("acme/a", "")
        served.etcd.store.delete(KEYS.adapter("p", "acme/A"))
        told = await anext(answers)
        assert (told.events[0].deleted, told.snapshot) == ("acme/a", False)
        await answers.aclose()

    serve(scene)


def test_who_watches_one_adapter_hears_of_no_other():
    async def scene(served: Served) -> None:
        await served.make_pool()
        await served.call("ApplyAdapters", change_set(put("a"), put("b")))
        replicas = Replicas(served.client, KEYS)
        await replicas.alive("r1")
        answers = served.watch("WatchResidency", pb.WatchResidencyRequest(pool="p", name="a"))
        first = await anext(answers)
        assert ([one.name for one in first.adapters], first.snapshot) == (["a"], True)
        following = asyncio.ensure_future(anext(answers))
        await served.call("ApplyAdapters", change_set(put("b", "file:///a/v2")))
        await asyncio.sleep(5)
        assert not following.done()
        await replicas.says("r1", served.etcd.store.revision)
        told = await following
        assert [part.state for part in told.adapters[0].replicas] == [pb.RolloutReplica.SERVING]
        await answers.aclose()

    serve(scene)


def test_a_rollout_is_told_until_it_is_done():
    async def scene(served: Served) -> None:
        await served.make_pool()
        await served.call("ApplyAdapters", change_set(put("a")))
        replicas = Replicas(served.client, KEYS)
        await replicas.alive("r1")
        answers = served.watch("WatchRollout", pb.WatchRolloutRequest(pool="p", name="a"))
        first = await anext(answers)
        assert (first.name, first.generation, first.done, first.failure) == ("a", 1, False, "")
        [part] = first.replicas
        assert (part.replica, part.state, part.generation, part.canary) == ("r1", pb.RolloutReplica.PENDING, 1, False)
        assert (part.reason, bool(first.waiting), first.HasField("canary")) == ("no_status", True, False)
        await replicas.says("r1", served.etcd.store.revision)
        told = [one async for one in answers]
        assert told[-1].done
        assert [part.state for part in told[-1].replicas] == [pb.RolloutReplica.SERVING]

    serve(scene)


def statuses(served: Served) -> set[int]:
    """What those who ask for the service's health are told, with and without its name."""
    return {served.health._server_status[name] for name in ("", SERVICE)}


SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def test_the_service_is_healthy_while_etcd_answers():
    """R18: whoever balances calls sends none where none can be answered; and what is written is refused meanwhile."""

    async def scene(served: Served) -> None:
        probing = asyncio.create_task(served.probe.run())
        await asyncio.sleep(0)
        assert (statuses(served), served.probe.readiness.ready) == ({NOT_SERVING}, False)
        await asyncio.sleep(1)
        assert (statuses(served), served.metrics.etcd_up._value.get()) == ({SERVING}, 1)
        assert served.probe.readiness.reason == ""
        assert KEYS.meta() in served.etcd.store.kvs
        for way in (Way.HUNG, Way.REFUSED):
            served.etcd.links["m0"].set_way(way)
            await asyncio.sleep(10)
            assert (statuses(served), served.metrics.etcd_up._value.get()) == ({NOT_SERVING}, 0)
            assert "etcd does not answer" in served.probe.readiness.reason
            served.etcd.links["m0"].set_way(Way.OPEN)
            await asyncio.sleep(10)
            assert statuses(served) == {SERVING}
        served.etcd.store.put(KEYS.meta(), b"?")
        await asyncio.sleep(5)
        assert (statuses(served), served.probe.readiness.ready) == ({NOT_SERVING}, False)
        assert "forbids writing" in served.probe.readiness.reason
        refused = await served.refusal("DeletePool", pb.DeletePoolRequest(name="p"))
        assert refused.code is StatusCode.FAILED_PRECONDITION
        served.etcd.store.delete(KEYS.meta())
        await asyncio.sleep(5)
        assert statuses(served) == {SERVING}
        await served.make_pool()
        assert not probing.done()

    serve(scene)


@pytest.mark.parametrize(
    "refusal", [EtcdUnauthenticated("who are you"), TlsFailed("no certificate", maybe_applied=False)]
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_wrong_password_ends_the_service_only_at_its_start(refusal, is_first, monkeypatch):
    """R13: later it may be a rotation under way."""

    async def scene(served: Served) -> None:
        async def refused(*_: object, **__: object) -> Never:
            raise refusal

        probing = asyncio.create_task(served.probe.run())
        if not is_first:
            await asyncio.sleep(1)
        monkeypatch.setattr(served.client, "range", refused)
        await asyncio.sleep(3)
        assert (probing.done(), statuses(served)) == (is_first, {NOT_SERVING})
        if is_first:
            assert probing.exception() is refusal
        else:
            assert "refuses the admin service's certificate, user or password" in served.probe.readiness.reason

    serve(scene)


async def page(served: Served, query: str, **headers: str) -> Any:
    """What ``GET /v1/residency`` answers: its status, its ETag and what it says."""
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    request = Request({"type": "http", "query_string": query.encode(), "headers": raw})
    reply = await served.residency.page(request)
    if isinstance(reply, StreamingResponse):
        content = "".join([str(part) async for part in reply.body_iterator])
    else:
        content = bytes(reply.body).decode()
    return reply.status_code, reply.headers.get("ETag"), json.loads(content) if content else None


def test_the_page_for_gateways_says_where_adapters_are_and_only_what_is_new():
    """R9; a gateway polls it, and most polls find nothing new."""

    async def scene(served: Served) -> None:
        await served.make_pool()
        await served.call("ApplyAdapters", change_set(put("acme/A"), put("b"), put("c")))
        replicas = Replicas(served.client, KEYS)
        await replicas.alive("r1")
        await replicas.says("r1", served.etcd.store.revision)
        status, tag, told = await page(served, "pool=p")
        assert (status, told["pool"]) == (200, "p")
        assert [(one["name"], one["replicas"][0]["state"]) for one in told["adapters"]] == [
            ("acme/A", "serving"),
            ("b", "serving"),
            ("c", "serving"),
        ]
        assert told["revision"] >= 3
        for same in (tag, f"W/{tag}", f'"other", {tag}'):
            assert await page(served, "pool=p", if_none_match=same) == (304, tag, None)
        _, _, one = await page(served, "pool=p&name=acme/a")
        assert [found["name"] for found in one["adapters"]] == ["acme/A"]
        await served.call("ApplyAdapters", change_set(drop("b")))
        await asyncio.sleep(1)
        status, newer, told = await page(served, "pool=p", if_none_match=tag)
        assert (status, newer != tag, len(told["adapters"])) == (200, True, 2)
        for query, code, reason in (
            ("pool=p&name=b", 404, "ADAPTER_NOT_FOUND"),
            ("pool=p&name=b%20b", 400, "INVALID_NAME"),
            ("pool=q", 404, "POOL_NOT_FOUND"),
        ):
            status, _, told = await page(served, query)
            assert (status, told["error"]["reason"]) == (code, reason)
        served.etcd.links["m0"].set_way(Way.HUNG)
        begun = now()
        status, _, told = await page(served, "pool=p")
        assert (status, told["error"]["reason"]) == (503, "ETCD_UNAVAILABLE")
        assert now() - begun <= 5.01

    serve(scene)


def test_missing_replicas_are_shown_of_the_pools_that_there_are():
    metrics = AdminMetrics()
    for missing in ({"p": 2, "q": 0}, {"q": 1}):
        metrics.show_missing(missing)
        [family] = list(metrics.missing.collect())
        assert {sample.labels["pool"]: sample.value for sample in family.samples} == missing
    metrics.count_internal_error("rollouts of p")
    assert metrics.internal_errors.labels("rollouts")._value.get() == 1
