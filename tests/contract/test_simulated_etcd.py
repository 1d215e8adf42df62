"""The simulation's etcd answers as a real one: the same calls by the same client to both, also its watches."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from registry.etcd3 import codec
from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.channel import _open
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.etcd3.ops import Compare, Delete, Event, Put, Range, Relation, Target, Txn, prefix_end
from registry.etcd3.options import ClientOptions
from registry.etcd3.stream import Mark, WatchProtocol
from tests.simulation.channels import SimChannel
from tests.simulation.links import Link
from tests.simulation.members import CLUSTER_ID, Cluster, Habits, Member
from tests.simulation.store import EtcdStore
from tests.support.etcd import PATIENCE_SECONDS, compact, one_member

MODEL = "model"
NAMES = ("a", "b", "c/1", "c/2")
END = "~end"
# So many times as long as usual may a stream be silent.
PATIENCE = 10.0


@dataclass(frozen=True)
class Write:
    """Puts and deletes in one transaction, if a key is (not) there. `lease` counts those granted so far."""

    puts: tuple[tuple[str, str], ...]
    deletes: tuple[str, ...]
    lease: int | None = None
    only_if_absent: str | None = None


@dataclass(frozen=True)
class Read:
    """A read of all, pinned `back` revisions before the newest; negative: after it."""

    back: int = 0
    limit: int = 0


@dataclass(frozen=True)
class Compact:
    back: int


@dataclass(frozen=True)
class Grant:
    """A lease that ends with the test."""


@dataclass(frozen=True)
class Revoke:
    lease: int


@dataclass(frozen=True)
class Renew:
    lease: int


@dataclass(frozen=True)
class Watch:
    """All events from `back` revisions before the newest on."""

    back: int


names, backs, leases = st.sampled_from(NAMES), st.integers(-1, 6), st.integers(0, 3)
writes = st.builds(
    Write,
    st.lists(st.tuples(names, st.sampled_from("xy")), max_size=2, unique_by=lambda put: put[0]).map(tuple),
    st.sets(names, max_size=1).map(tuple),
    st.none() | leases,
    st.none() | names,
).filter(lambda write: not {name for name, _ in write.puts} & {*write.deletes})
others = st.one_of(
    st.builds(Read, backs, st.integers(0, 2)),
    st.builds(Compact, backs),
    st.builds(Grant),
    st.builds(Revoke, leases),
    st.builds(Renew, leases),
    st.builds(Watch, st.integers(0, 6)),
)


@dataclass
class Side:
    """One of the two: a client, and the leases that it was granted."""

    client: Client
    prefix: str
    leases: list[int] = field(default_factory=list)

    def key(self, name: str) -> bytes:
        return f"{self.prefix}/{name}".encode()

    async def do(self, step: Any) -> object:
        """What the step comes to, in terms that both sides share."""
        try:
            return await self._do(step)
        except EtcdError as error:
            return type(error), getattr(error, "compact_revision", None)

    async def _do(self, step: Any) -> object:
        match step:
            case Write():
                return await self._write(step)
            case Read(back, limit):
                start = f"{self.prefix}/".encode()
                at = (await self._newest()) - back if back else 0
                found = await self.client.range(Range(start, prefix_end(start), limit=limit, revision=at))
                return found.revision, found.more, found.count, [self._shown(kv) for kv in found.kvs]
            case Compact(back):
                return await compact(self.client, (await self._newest()) - back)
            case Grant():
                self.leases.append(await self.client.lease_grant(600))
                return None
            case Revoke(lease):
                return await self.client.lease_revoke(self._lease(lease))
            case Renew(lease):
                return await self.client.lease_keepalive(self._lease(lease))
            case Watch(back):
                return await self._watch((await self._newest()) - back)

    def _lease(self, number: int) -> int:
        return self.leases[number] if number < len(self.leases) else 999_999_999

    def _shown(self, kv: Any) -> tuple[object, ...]:
        lease = self.leases.index(kv.lease) if kv.lease else None
        return kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.version, lease

    async def _newest(self) -> int:
        return (await self.client.range(Range(b"-", count_only=True))).revision

    async def _write(self, write: Write) -> object:
        lease = 0 if write.lease is None else self._lease(write.lease)
        ops = [*(Put(self.key(name), value.encode(), lease) for name, value in write.puts)]
        ops += [*(Delete(self.key(name)) for name in write.deletes)]
        name = write.only_if_absent
        compare = () if name is None else (Compare(self.key(name), Target.CREATE, Relation.EQUAL, 0),)
        done = await self.client.txn(Txn(compare, tuple(ops), (Range(self.key("a")),)))
        return done.succeeded, done.revision, len(done.responses)

    async def _watch(self, start: int) -> list[tuple[bytes, int, bytes | None]]:
        """Reads until a mark that is put first shows up."""
        await self.client.txn(Txn((), (Put(self.key(END), b""),)))
        prefix = f"{self.prefix}/".encode()
        endpoint = self.client.options.endpoints[0]
        create = rpc.WatchCreateRequest(key=prefix, range_end=prefix_end(prefix), start_revision=max(1, start))
        protocol = WatchProtocol(Mark(0, 0, 0), endpoint=endpoint, server_version="3.5.30")
        found: list[Event] = []
        async with asyncio.timeout(PATIENCE_SECONDS), self.client.watch(endpoint) as stream:
            await stream.send(rpc.WatchRequest(create_request=create))
            while not any(event.key == self.key(END) for event in found[-1:]):
                response = await stream.receive(PATIENCE)
                protocol.receive(response)  # raises what a cancelled watch stands for
                found += map(codec.event, response.events)
        await self.client.txn(Txn((), (Delete(self.key(END)),)))
        seen = [(event.key, event.mod_revision, event.kv.value if event.kv else None) for event in found]
        return [entry for entry in seen if entry[0] != self.key(END)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A member of this module's own: every revision counts, and compactions are for all."""
    with one_member(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


async def _both(endpoint: str, compacted: int, body: Callable[[Side, Side], Awaitable[int]]) -> int:
    """Runs the body with a real and a modelled store that stand at the same revision."""
    real = Client(ClientOptions((endpoint,), call_timeout_seconds=PATIENCE_SECONDS))
    revision = (await real.range(Range(b"-"))).revision
    prefix = f"/{revision}"
    cluster = Cluster(EtcdStore(revision=revision, compacted=compacted), random.Random(0), Habits())
    link = Link(MODEL, Member("m", CLUSTER_ID, cluster), random.Random(0))

    def open_one(endpoint: str, tls: Any) -> Any:
        return SimChannel(link, 1) if endpoint == MODEL else _open(endpoint, tls)

    with mock.patch("registry.etcd3.channel._open", open_one):
        modelled = Client(ClientOptions((MODEL,), call_timeout_seconds=PATIENCE_SECONDS))
        try:
            return await body(Side(real, prefix), Side(modelled, prefix))
        finally:
            await real.aclose()
            await modelled.aclose()


COMPACTED = {"real": 0}


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(writes | others, min_size=1, max_size=14))
@example([Write((("a", "x"),), ()), Write((), ("a",)), Compact(0), Watch(0), Watch(1), Watch(2), Read(1)])
@example([Grant(), Write((("a", "x"), ("b", "x")), (), 0), Revoke(0), Watch(3), Write((("a", "x"),), (), 0), Renew(0)])
@example([Write((("a", "x"),), ()), Write((("a", "y"),), ()), Compact(1), Watch(2), Watch(1), Compact(2), Read(2)])
def test_same_answers_and_watches(alone, steps):
    """Every step of a sequence comes to the same with both: replies, revisions, refusals and events."""

    async def play(real: Side, modelled: Side) -> int:
        for step in steps:
            expected = await real.do(step)
            if isinstance(step, Compact) and expected is None:
                COMPACTED["real"] = (await real._newest()) - step.back
            assert await modelled.do(step) == expected, step
        return 0

    asyncio.run(_both(alone.endpoints[0], COMPACTED["real"], play))
