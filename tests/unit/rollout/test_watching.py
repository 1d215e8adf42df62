"""Streams of a pool's adapters and of a rollout, on virtual time with an etcd."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from registry.etcd3.informer import SharedInformerFactory
from registry.etcd3.stream import Connected, Disconnected, ListCause, Listed, Progressed, Reflection
from registry.model.errors import FailedPrecondition, NotFound, Reason
from registry.model.placement import Member, Placement
from registry.model.records import PoolLimits, PoolSpec
from registry.rollout import watching
from registry.rollout.status import Question, ReplicaFailure, Rollout
from registry.rollout.watching import AdapterStreams, WatchBatch
from registry.runtime.clock import Deadline
from registry.store.reader import Reader
from tests.simulation.links import Way
from tests.support.played_etcd import PlayedEtcd, limit_messages, played
from tests.support.records import KEYS, POOL, record
from tests.support.residency_world import Replicas, among

NAMES = ("r1", "r2")
# The first has room for few.
MEMBERS = (Member("r1", {}, 4), Member("r2", {}))


class Watched:
    """A pool of two replicas, and streams of it."""

    def __init__(self, etcd: PlayedEtcd) -> None:
        self.etcd, client = etcd, etcd.client()
        self.replicas = Replicas(etcd.client(1), KEYS)
        rng = random.Random(0)
        informers = SharedInformerFactory(client, rng=rng)
        self.streams = AdapterStreams(client, KEYS, Reader(client, KEYS), informers, rng=rng)
        spec = PoolSpec(name=POOL, base_models=["base"], limits=PoolLimits())
        etcd.store.put(KEYS.pool(POOL), spec.to_bytes())

    def put(self, name: str, generation: int = 1, **fields: Any) -> int:
        return self.etcd.store.put(KEYS.adapter(POOL, name), record(name, generation, **fields).to_bytes())

    async def says(self, name: str, revision: int, *taken: str) -> None:
        """That it serves all that stood at a revision, where so many adapters take room everywhere."""
        room = {frozenset[tuple[str, str]](): len(taken)} if taken else {}
        await self.replicas.says(name, revision, **among(MEMBERS, room))

    async def alive(self) -> None:
        """Both of them are."""
        await self.replicas.alive("r1", capacity=4)
        await self.replicas.alive("r2")

    def rollout(self, name: str, generation: int = 0) -> AsyncGenerator[Rollout, None]:
        return self.streams.rollout(Question(POOL, name, generation), Deadline.of(60.0))


def told(rollout: Rollout) -> tuple[bool, list[str]]:
    """Whether it is done, and what is said of each replica that does not serve it."""
    return rollout.done, [f"{one.replica} {one.reason}" for one in rollout.replicas if one.reason]


@played
async def test_what_somebody_wrote_further_down_is_no_change_of_another_adapter(etcd: PlayedEtcd):
    """R14: as a name with its slash; who follows would hear that the other one is gone."""
    watched, nested = Watched(etcd), KEYS.adapters(POOL) + b"acme/a"
    watched.put("a")
    etcd.store.put(nested, b"?")
    async with aclosing(watched.streams.adapters(POOL, 0, Deadline.of(60.0))) as batches:
        heard = [await anext(batches)]
        etcd.store.delete(nested)
        watched.put("b")
        heard += [await anext(batches), await anext(batches)]
    assert [[one.key for one in batch.events] for batch in heard] == [
        [KEYS.adapter(POOL, "a")],
        [],
        [KEYS.adapter(POOL, "b")],
    ]


@played
async def test_a_rollout_is_told_whenever_it_changes_until_it_is_done(etcd: PlayedEtcd):
    """R9: and no look tells the same again."""
    watched = Watched(etcd)
    await watched.alive()
    at = watched.put("a", 3)
    async with aclosing(watched.rollout("a")) as rollouts:
        assert told(await anext(rollouts)) == (False, ["r1 no_status", "r2 no_status"])
        await watched.says("r1", at)
        assert told(await anext(rollouts)) == (False, ["r2 no_status"])
        watched.put("b")
        following = asyncio.ensure_future(anext(rollouts))
        await asyncio.sleep(30)
        assert not following.done()
        await watched.says("r2", at)
        last = await following
        assert (told(last), last.generation, last.failure) == ((True, []), 3, None)
        assert await anext(rollouts, None) is None
    assert [told(one) async for one in watched.rollout("a")] == [(True, [])], "it is done already"


@played
async def test_a_rollout_is_done_as_it_stands_at_a_single_revision(etcd: PlayedEtcd, monkeypatch):
    """R9: what is followed may be of different ones."""
    watched, read = Watched(etcd), watching.read_pool

    async def later(*asked: Any) -> Any:
        monkeypatch.setattr(watching, "read_pool", read)
        await watched.replicas.alive("r3")
        return await read(*asked)

    await watched.alive()
    at = watched.put("a")
    await watched.says("r1", at)
    async with aclosing(watched.rollout("a")) as rollouts:
        assert told(await anext(rollouts)) == (False, ["r2 no_status"])
        monkeypatch.setattr(watching, "read_pool", later)
        await watched.says("r2", at)
        assert told(await anext(rollouts)) == (False, ["r3 no_status"])
        await watched.says("r3", at)
        assert [told(one) async for one in rollouts][-1] == (True, [])


@played
async def test_what_comes_while_a_rollout_is_looked_at_is_told_next(etcd: PlayedEtcd, monkeypatch):
    """R9: with nothing else that would make anybody look again."""
    watched, derive = Watched(etcd), AdapterStreams._derive
    await watched.alive()
    at = watched.put("a")

    async def slow(*asked: Any) -> Rollout | None:
        if (found := await derive(*asked)) is not None:
            monkeypatch.setattr(AdapterStreams, "_derive", derive)
            await watched.says("r1", at)
            await asyncio.sleep(0.5)
        return found

    monkeypatch.setattr(AdapterStreams, "_derive", slow)
    async with aclosing(watched.rollout("a")) as rollouts, asyncio.timeout(5):
        while told(await anext(rollouts)) != (False, ["r2 no_status"]):
            pass


@pytest.mark.parametrize("generation", [0, 1])
@played
async def test_the_generation_that_was_found_first_is_the_one_that_is_watched(etcd: PlayedEtcd, generation):
    """R9: what is served of a later one says nothing of it."""
    watched = Watched(etcd)
    await watched.alive()
    watched.put("a")
    async with aclosing(watched.rollout("a", generation)) as rollouts:
        assert (await anext(rollouts)).generation == 1
        watched.put("a", 2, source="v2")
        last = await anext(rollouts)
        assert (last.done, last.failure, last.generation) == (True, ReplicaFailure.SUPERSEDED, 1)
        assert await anext(rollouts, None) is None


@played
async def test_what_is_deleted_is_over_and_what_never_was_is_none(etcd: PlayedEtcd):
    watched = Watched(etcd)
    with pytest.raises(NotFound) as none:
        await anext(watched.rollout("a"))
    assert (none.value.reason, none.value.field) == (Reason.ADAPTER_NOT_FOUND, "name")
    (gone,) = [one async for one in watched.rollout("a", 2)]
    assert (gone.done, gone.failure, gone.generation) == (True, ReplicaFailure.DELETED, 2)
    etcd.store.delete(KEYS.pool(POOL))
    for generation in (0, 2):
        with pytest.raises(NotFound) as nowhere:
            await anext(watched.rollout("a", generation))
        assert nowhere.value.reason is Reason.POOL_NOT_FOUND


@played
async def test_what_is_placed_by_number_waits_for_the_room_that_others_take(etcd: PlayedEtcd):
    """R9: who is to serve it follows from that, so nothing is said before it is known."""
    watched = Watched(etcd)
    await watched.alive()
    for other in ("x", "y"):
        watched.put(other)
    at = watched.put("a", placement=Placement(replicas=2))
    for name in NAMES:
        await watched.says(name, at)  # with other room than there is
    async with aclosing(watched.rollout("a")) as rollouts:
        assert told(await anext(rollouts)) == (False, ["r1 room_not_seen", "r2 room_not_seen"])
        for name in NAMES:
            await watched.says(name, at, "x", "y")
        found = [told(one) async for one in rollouts]
    assert found[-1] == (True, [])
    (only,) = [one async for one in watched.rollout("a")]
    assert (told(only), len(only.replicas)) == ((True, []), 2)


def batch_of(batch: WatchBatch) -> tuple[bool, int, list[bytes], list[int | None]]:
    """Whether it is a whole, its revision, its keys, and the revision of the value of each; None: it is gone."""
    revisions = [event.kv and event.kv.mod_revision for event in batch.events]
    return batch.snapshot, batch.revision, [event.key for event in batch.events], revisions


@played
async def test_a_pools_adapters_are_told_as_they_stand_and_as_they_change(etcd: PlayedEtcd):
    watched = Watched(etcd)
    first = watched.put("a")
    async with aclosing(watched.streams.adapters(POOL, 0, Deadline.of(60.0))) as batches:
        assert batch_of(await anext(batches)) == (True, first, [KEYS.adapter(POOL, "a")], [first])
        second = watched.put("b")
        assert batch_of(await anext(batches)) == (False, second, [KEYS.adapter(POOL, "b")], [second])
        third = etcd.store.delete(KEYS.adapter(POOL, "a"))
        assert batch_of(await anext(batches)) == (False, third, [KEYS.adapter(POOL, "a")], [None])
    async with aclosing(watched.streams.adapters(POOL, second, Deadline.of(60.0))) as batches:
        assert [(await anext(batches)).revision for _ in range(2)] == [second, third]
    with pytest.raises(NotFound) as nowhere:
        await anext(watched.streams.adapters("q", 0, Deadline.of(60.0)))
    assert nowhere.value.reason is Reason.POOL_NOT_FOUND
    etcd.store.compact(third)
    with pytest.raises(FailedPrecondition) as lost:
        await anext(watched.streams.adapters(POOL, first, Deadline.of(60.0)))
    assert (lost.value.reason, lost.value.field) == (Reason.REVISION_COMPACTED, "start_revision")
    assert lost.value.metadata == {"revision": str(third)}


@played
async def test_whoever_has_heard_something_is_given_the_whole_when_etcd_forgets(etcd: PlayedEtcd):
    """R3: only before the first word is it told that it cannot be gone on from there."""
    watched = Watched(etcd)
    first = watched.put("a")
    async with aclosing(watched.streams.adapters(POOL, first, Deadline.of(60))) as batches:
        assert batch_of(await anext(batches)) == (False, first, [KEYS.adapter(POOL, "a")], [first])
        etcd.links["m0"].set_way(Way.REFUSED)
        etcd.store.delete(KEYS.adapter(POOL, "a"))
        last = watched.put("other")
        etcd.store.compact(last)
        following = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(10)
        etcd.links["m0"].set_way(Way.OPEN)
        assert batch_of(await following) == (True, last, [KEYS.adapter(POOL, "other")], [last])


@pytest.mark.parametrize(
    ("heard", "goes_on"),
    [([Connected("m0")], False), ([Disconnected("gone")], False), ([Progressed(9)], True)],
)
@played
async def test_a_connection_that_stood_is_not_a_word_about_adapters(etcd: PlayedEtcd, heard, goes_on, monkeypatch):
    """R3: whoever asks from a revision on and got a whole instead would not know what was deleted before."""

    class Played:
        def __init__(self, *_: object, **__: object) -> None:
            """Tells what was heard, and then that it had to list."""

        async def stream(self):
            reflections: list[Reflection] = [*heard, Listed(12, (), 1, ListCause.COMPACTED)]
            for one in reflections:
                yield one

    watched = Watched(etcd)
    monkeypatch.setattr(watching, "Reflector", Played)
    async with aclosing(watched.streams.adapters(POOL, 5, Deadline.of(60))) as batches:
        if goes_on:
            assert batch_of(await anext(batches)) == (True, 12, [], [])
            return
        with pytest.raises(FailedPrecondition):
            await anext(batches)


@played
async def test_statuses_that_are_too_many_for_one_message_do_not_end_a_rollout(etcd: PlayedEtcd, monkeypatch):
    """R16 bounded, W8: 300 replicas that start with thousands of adapters tell 75 MiB of names together."""
    watched = Watched(etcd)
    at = watched.put("a")
    for number in range(250):
        await watched.replicas.alive(f"s{number}")
        await watched.replicas.says(f"s{number}", at)
    limit_messages(monkeypatch, 150 * len(etcd.store.kvs[KEYS.status(POOL, "s0")].value))
    assert [told(one) async for one in watched.rollout("a")] == [(True, [])]
