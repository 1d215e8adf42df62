"""The hub of residency, on virtual time: at which revision it begins, what it follows, and for how long."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

from registry.etcd3.informer import SharedInformerFactory
from registry.etcd3.ops import Range, RangeResult, prefix_end
from registry.model.errors import Unavailable
from registry.model.names import name_key
from registry.model.records import Placement
from registry.model.status import Failed, Lazy
from registry.residency import follower
from registry.residency.derive import residency
from registry.residency.hub import LINGER_SECONDS, ResidencyHub, ResidencyUpdate, Subscription
from registry.residency.view import PoolView
from registry.rollout.pool import PoolValues
from tests.simulation.links import Way
from tests.support.played_etcd import PlayedEtcd, limit_messages, now, played
from tests.support.records import KEYS, POOL, record
from tests.support.residency_world import FAILED, PENDING, SERVING, Replicas, among, members

ADAPTERS = KEYS.adapters(POOL)


class Board:
    """A hub, and what stands in its etcd."""

    def __init__(self, etcd: PlayedEtcd) -> None:
        self.etcd = etcd
        self._client = etcd.client(1)
        self.replicas = Replicas(self._client, KEYS)
        client, rng = etcd.client(), random.Random(0)
        self.informers = SharedInformerFactory(client, rng=rng)
        self.reads: list[Range] = []
        self.hub = ResidencyHub(client, KEYS, self.informers)
        self._range, client.range = client.range, self._noted  # type: ignore[method-assign] # which is what is tried

    async def _noted(self, op: Range, **options: Any) -> RangeResult:
        self.reads.append(op)
        return await self._range(op, **options)

    def put(self, name: str, generation: int = 1, **spec: Any) -> int:
        return self.etcd.store.put(KEYS.adapter(POOL, name), record(name, generation, **spec).to_bytes())

    def publish(self, generation: int, **spec: Any) -> int:
        """Writes a generation of a with a source of its own."""
        return self.put("a", generation, source=f"v{generation}", **spec)

    def change(self, change: str) -> None:
        """Has b deleted or written anew, or another adapter made."""
        if change == "deletion":
            self.etcd.store.delete(KEYS.adapter(POOL, "b"))
        else:
            self.put("c" if change == "creation" else "b", 2)

    def mute(self, prefix: bytes = ADAPTERS) -> Callable[[], None]:
        """Holds back what a watch would bring; gives what lets it through."""
        [found] = [watch for watch in self.etcd.links["m0"].member.watches if watch.whose[1] == prefix]
        return found.mute()

    def others(self) -> int:
        """A revision in which nothing of the pool changes."""
        return self.etcd.store.put(b"/of/others", b"")

    async def served(self, *names: str) -> None:
        """These adapters, and a replica that serves all of them."""
        for name in names:
            self.put(name)
        await self.replicas.alive("r1")
        await self.replicas.says("r1", self.etcd.store.revision)


def state(one: Subscription, name: str) -> list[Any]:
    """How each replica stands to an adapter; empty: there is none."""
    found = residency(one.view, name_key(name))
    return [part.state for part in found.replicas] if found else []


def told(update: ResidencyUpdate) -> tuple[tuple[str, ...], bool]:
    return update.keys, update.snapshot


@played
async def test_all_there_is_first_and_then_what_changes(etcd: PlayedEtcd):
    """R9 status-truth, R16 bounded: what comes within a moment is told together and soon; whoever stays hears on though
    others come and go.
    """
    board = Board(etcd)
    await board.served("a", "b")
    async with board.hub.look(POOL) as one:
        updates = one.follow()
        assert told(await anext(updates)) == (("a", "b"), True)
        assert (state(one, "a"), state(one, "c")) == ([SERVING], [])
        revision = board.put("c")
        assert told(await anext(updates)) == (("c",), False)
        await board.replicas.says("r1", revision)
        assert told(await anext(updates)) == (("c",), False)
        assert state(one, "c") == [SERVING]
        etcd.store.delete(KEYS.adapter(POOL, "a"))
        assert told(await anext(updates)) == (("a",), False)
        await board.replicas.gone("r1")
        assert told(await anext(updates)) == (("b", "c"), False)
        async with board.hub.look(POOL) as other:
            assert other is one
        await asyncio.sleep(2 * LINGER_SECONDS)
        began, telling = now(), asyncio.create_task(anext(updates))
        for name in ("d", "e"):
            board.put(name)
            await asyncio.sleep(0.05)
        assert told(await telling) == (("d", "e"), False)
        assert now() - began < 0.19


@played
async def test_what_comes_while_something_else_is_told_is_told_next(etcd: PlayedEtcd, monkeypatch):
    """R9: with nothing else that would make anybody look again."""
    board, tell = Board(etcd), follower.PoolFollower._tell
    await board.served("a")

    async def telling(self: follower.PoolFollower) -> None:
        if KEYS.adapter(POOL, "b") not in etcd.store.kvs:
            board.put("b")
            await asyncio.sleep(0.05)
        await tell(self)

    monkeypatch.setattr(follower.PoolFollower, "_tell", telling)
    async with board.hub.look(POOL) as one, asyncio.timeout(1):
        updates = one.follow()
        assert [told(await anext(updates)) for _ in range(2)] == [(("a",), True), (("b",), False)]


@played
async def test_a_pool_that_nobody_looks_at_is_followed_a_little_longer(etcd: PlayedEtcd):
    """R16 bounded; and a router that polls each half minute finds it ready."""
    assert LINGER_SECONDS > 30
    board = Board(etcd)
    await board.served("a")
    boards = list[Subscription]()
    async with board.informers.look(ADAPTERS, prefix_end(ADAPTERS), asyncio.Event()) as others:
        for pause in (LINGER_SECONDS - 1, LINGER_SECONDS - 1, LINGER_SECONDS + 1):
            with suppress(ConnectionError):
                async with board.hub.look(POOL) as one:
                    assert told(await one.look()) == (("a",), True)
                    boards.append(one)
                    raise ConnectionError("the router hung up")
            await asyncio.sleep(pause)
        assert others.taps == set(), "X3 given-back: nothing is kept for who left"
    assert [one is boards[0] for one in boards] == [True] * 3
    with pytest.raises(Unavailable):
        await boards[0].look()
    board.put("b")
    async with board.hub.look(POOL) as last:
        assert last.epoch != boards[0].epoch
        assert told(await last.look()) == (("a", "b"), True), "not what was known when it was followed last"
        await board.hub.aclose()
        with pytest.raises(Unavailable):
            await last.look()


@played
async def test_the_last_reader_of_a_subscription_that_ended_takes_nothing_from_those_of_the_next(etcd: PlayedEtcd):
    board = Board(etcd)
    await board.served("a")
    async with AsyncExitStack() as stack:
        async with board.hub.look(POOL):
            ended = board.hub._followed[POOL].task
            ended.cancel()
            await asyncio.wait([ended])
            one = await stack.enter_async_context(board.hub.look(POOL))
        await asyncio.sleep(LINGER_SECONDS + 1)
        async with board.hub.look(POOL) as other:
            assert (other is one, told(await one.look())) == (True, (("a",), True))
    await board.hub.aclose()


@played
async def test_etcd_that_is_away_at_first_is_waited_for(etcd: PlayedEtcd):
    """R13: whoever looks meanwhile waits, and is answered without asking again."""
    board = Board(etcd)
    await board.served("a")
    etcd.links["m0"].set_way(Way.REFUSED)
    async with board.hub.look(POOL) as one:
        looking = asyncio.create_task(one.look())
        await asyncio.sleep(30)
        assert not looking.done()
        etcd.links["m0"].set_way(Way.OPEN)
        async with asyncio.timeout(30):
            assert told(await looking) == (("a",), True)


@pytest.mark.parametrize("change", ["deletion", "creation", "change"])
@played
async def test_a_status_that_speaks_of_what_is_not_known_yet_waits_for_it(etcd: PlayedEtcd, change):
    """R9: nor is anything proven that has not arrived."""
    board = Board(etcd)
    await board.served("b", "a")
    async with board.hub.look(POOL) as one:
        updates = one.follow()
        await anext(updates)
        unmute = board.mute()
        board.change(change)
        revision = etcd.store.revision
        await board.replicas.says("r1", revision)
        await asyncio.sleep(2)
        assert one.view.revision < revision
        assert (state(one, "b"), state(one, "c")) == ([SERVING], [])
        unmute()
        await asyncio.sleep(1)
        assert one.view.revision >= revision
        assert (len(state(one, "b")), len(state(one, "c"))) == (change != "deletion", change == "creation")


@played
async def test_a_status_of_a_revision_that_never_was_does_not_keep_etcd_busy(etcd: PlayedEtcd):
    """X2 unbreakable, R16: a replica may say anything; each look has etcd sort all records of the pool."""
    board = Board(etcd)
    await board.served("a")
    await board.replicas.alive("r2")
    await board.replicas.says("r2", 1_000_000)
    async with board.hub.look(POOL) as one:
        async with asyncio.timeout(10):
            await one.look()
        assert state(one, "a") == [SERVING, PENDING]
        await asyncio.sleep(10)
        board.reads.clear()
        await asyncio.sleep(60)
        assert len(board.reads) <= 120
        board.put("b")
        async with asyncio.timeout(1.5):
            assert told(await one.look(one.version)) == (("b",), False)


@played
async def test_nothing_is_proven_of_a_record_that_has_not_arrived_by_a_replica_that_has(etcd: PlayedEtcd):
    """R9: what b failed at is a record that is not known yet; another replica, which came later, is."""
    board = Board(etcd)
    await board.served("b", "a")
    async with board.hub.look(POOL) as one:
        await one.look()
        unmute = board.mute()
        revision = board.put("b", 2)
        failed = [Failed(name="b", generation=2, reason="BAD", message="m", attempts=1, retry_at=None)]
        await board.replicas.says("r1", revision, failed=failed)
        await asyncio.sleep(1)
        await board.replicas.alive("r2")
        await asyncio.sleep(1)
        assert (state(one, "b"), one.view.revision < revision) == ([SERVING, PENDING], True)
        unmute()
        await asyncio.sleep(1)
        assert state(one, "b") == [FAILED, PENDING]


@pytest.mark.parametrize("late", [KEYS.replicas(POOL), KEYS.statuses(POOL)])
@played
async def test_a_sidecar_that_restarts_keeps_its_places_though_one_of_its_keys_is_heard_of_late(etcd: PlayedEtcd, late):
    """R24 always-placed: its presence and its status are of one transaction, and never told of by halves."""
    board = Board(etcd)
    await board.served("a")
    async with board.hub.look(POOL) as one:
        seen = list[list[Any]]()
        post = one.post

        def noted(view: PoolView, keys: frozenset[str]) -> None:
            post(view, keys)
            seen.append(state(one, "a"))

        one.post = noted  # type: ignore[method-assign] # each answer, though nobody asks
        await one.look()
        unmute = board.mute(late)
        board.put("b")
        await board.replicas.restarts("r1", etcd.store.revision)
        await asyncio.sleep(1)
        assert state(one, "b") == [SERVING], "it is read before it is heard of"
        unmute()
        await asyncio.sleep(1)
    assert len(seen) > 1
    assert all(found == [SERVING] for found in seen), seen


@played
async def test_a_store_that_was_set_back_is_followed_as_it_is(etcd: PlayedEtcd):
    """R3: nothing that was proven of what it was before counts for it."""
    board = Board(etcd)
    await board.served("a")
    kept = etcd.store.revision
    board.put("b")
    await board.replicas.says("r1", etcd.store.revision)
    async with board.hub.look(POOL) as one:
        assert told(await one.look()) == (("a", "b"), True)
        etcd.store.restore(kept, 0.0)
        etcd.cluster.restart()
        etcd.links["m0"].cut()
        await asyncio.sleep(30)
        assert told(await one.look()) == (("a",), True)
        assert state(one, "a") == [SERVING]
        assert one.view.revision < kept + 2
        board.put("b", 7)
        await asyncio.sleep(1)
        assert state(one, "b") == [PENDING]


@pytest.mark.parametrize("change", ["deletion", "creation", "change"])
@played
async def test_nothing_is_told_before_the_records_are_known_as_far_as_they_are_read(etcd: PlayedEtcd, change):
    """R9: the first view is whole and of one revision; etcd is asked for it ten times a second at most."""
    board = Board(etcd)
    await board.served("b", "a")
    async with board.informers.look(ADAPTERS, prefix_end(ADAPTERS), asyncio.Event()):
        await asyncio.sleep(1)
        unmute = board.mute()
        board.change(change)
        async with board.hub.look(POOL) as one:
            looking = asyncio.create_task(one.look())
            await asyncio.sleep(2)
            assert not looking.done()
            assert 10 <= len(board.reads) <= 25
            unmute()
            async with asyncio.timeout(10):
                update = await looking
            keys = {"deletion": ("a",), "creation": ("a", "b", "c"), "change": ("a", "b")}[change]
            assert told(update) == (keys, True)


@played
async def test_what_is_understood_at_once_costs_no_read_and_no_further_look(etcd: PlayedEtcd, monkeypatch):
    """R16 bounded: only a status that speaks of what is not known yet is a reason to ask, and for no values.

    R9: it is understood at once also where no adapter changed. Etcd tells of no progress by itself for a while, so it
    is proven that there is nothing to wait for.
    """
    looks: list[PoolView] = []
    advanced = follower._advanced

    def noted(view: PoolView, steps: Sequence[PoolValues]) -> PoolView:
        looks.append(view)
        return advanced(view, steps)

    monkeypatch.setattr(follower, "_advanced", noted)
    board = Board(etcd)
    await board.served("a")
    async with board.hub.look(POOL) as one:
        await one.look()
        await asyncio.sleep(5)
        board.reads.clear()
        looks.clear()
        for number in range(5):
            board.put(f"b{number}")
            await asyncio.sleep(5)
        assert (board.reads, 5 <= len(looks) <= 10) == ([], True)
        revision = board.others()
        await board.replicas.says("r1", revision)
        async with asyncio.timeout(0.5):
            assert told(await one.look(one.version)) == (tuple(f"b{number}" for number in range(5)), False)
        assert (state(one, "b0"), one.view.revision >= revision) == ([SERVING], True)
        await asyncio.sleep(5)
        assert board.reads
        assert all(read.keys_only and read.limit == 1 for read in board.reads)


@asynccontextmanager
async def board_of(etcd: PlayedEtcd) -> AsyncIterator[ResidencyHub]:
    """A hub with nothing in its memory."""
    fresh = Board(etcd)
    yield fresh.hub
    await fresh.hub.aclose()


def served(one: Subscription, name: str) -> dict[str, int]:
    """The generation that each replica is said to serve."""
    found = residency(one.view, name_key(name))
    return {part.replica: part.generation for part in found.replicas if part.state is SERVING} if found else {}


@pytest.mark.parametrize("fields", [{}, {"placement": Placement(replicas=1)}, {"load": "lazy"}], ids=str)
@pytest.mark.parametrize("is_compacted", [False, True])
@played
async def test_whoever_comes_amid_publishes_is_told_of_what_replicas_serve_meanwhile(
    etcd: PlayedEtcd, fields, is_compacted
):
    """R24 always-placed: an admin service that has just started knows of no earlier record, and etcd does."""
    board, lazy = Board(etcd), Lazy(count=1, servable=True)
    first = board.publish(1, **fields)
    await board.replicas.alive("r1")
    await board.replicas.says("r1", first, lazy=lazy, **among(members("r1")))
    if is_compacted:  # a status at rest may be days old
        etcd.store.compact(board.others())
    board.publish(2, **fields)
    board.publish(3, **fields)
    async with board.hub.look(POOL) as one:
        await one.look()
        assert served(one, "a") == {"r1": 1}
        board.publish(4, **fields)
        second = board.publish(5, **fields)
        await asyncio.sleep(1)
        assert served(one, "a") == {"r1": 1}
        await board.replicas.says("r1", second - 1, lazy=lazy, **among(members("r1")))
        await asyncio.sleep(1)
        assert served(one, "a") == {"r1": 4}, "of two changes that came at once it knows the first"
        etcd.store.compact(etcd.store.revision)
        async with board_of(etcd) as other, other.look(POOL) as fresh:
            await fresh.look()
            assert served(fresh, "a") == {}, "nobody can tell any more"
        async with board_of(etcd) as other, other.look(POOL) as fresh:
            looking = asyncio.create_task(fresh.look())
            await asyncio.sleep(1)
            await board.replicas.says("r1", second, lazy=lazy, **among(members("r1")))
            await looking
            assert served(fresh, "a") == {"r1": 5}, "nothing was told before its next status"


@played
async def test_who_knows_what_stood_just_before_it_was_made_anew_keeps_its_place(etcd: PlayedEtcd):
    """R24: nothing was written since it was seen last, and its status and what came after it are heard of at once."""
    board = Board(etcd)
    await board.served("a")
    async with board.hub.look(POOL) as one:
        await one.look()
        await asyncio.sleep(1)
        await board.replicas.says("r1", board.others())
        etcd.store.delete(KEYS.adapter(POOL, "a"))
        board.publish(2)
        await asyncio.sleep(1)
        assert served(one, "a") == {"r1": 1}


@pytest.mark.parametrize("fields", [{}, {"placement": Placement(replicas=1)}], ids=str)
@played
async def test_a_router_keeps_its_places_where_etcd_forgot_what_happened(etcd: PlayedEtcd, fields):
    """R24: a list after a compaction says nothing of the steps to it; the next statuses can be understood."""
    board, seen, link = Board(etcd), list[dict[str, int]](), etcd.links["m0"]

    async def follow(one: Subscription) -> None:
        async for _ in one.follow():
            seen.append(served(one, "a"))

    await board.replicas.alive("r1")
    await board.replicas.says("r1", board.publish(1, **fields), **among(members("r1")))
    async with board.hub.look(POOL) as one:
        following = asyncio.create_task(follow(one))
        await asyncio.sleep(1)
        link.set_way(Way.REFUSED)
        _, known, newest = (board.publish(generation, **fields) for generation in (2, 3, 4))
        etcd.store.compact(etcd.store.revision)
        link.set_way(Way.OPEN)
        for revision in (known, newest):
            await asyncio.sleep(1)
            await board.replicas.says("r1", revision, **among(members("r1")))
        await asyncio.sleep(10)
        following.cancel()
    assert seen == [{"r1": 1}, {"r1": 4}]


@pytest.mark.parametrize("by_reports", [True, False])
@played
async def test_replicas_that_came_and_went_at_once_are_each_understood(etcd: PlayedEtcd, by_reports):
    """R24: whoever found its share among those that lived in between serves what it says; r3 is a presence alone."""
    board = Board(etcd)
    revision = board.put("a", placement=Placement(replicas=9))
    await board.replicas.alive("r1", by_reports=by_reports)
    await board.replicas.says("r1", revision, **among(members("r1")))
    async with board.hub.look(POOL) as one:
        await one.look()
        await asyncio.sleep(1)
        await board.replicas.alive("r2", by_reports=by_reports)
        await board.replicas.says("r2", revision)
        await board.replicas.says("r1", revision, **among(members("r1", "r2")))
        await board.replicas.alive("r3", by_reports=by_reports)
        await asyncio.sleep(1)
        assert served(one, "a") == {"r1": 1}
        await board.replicas.gone("r2")
        async with board_of(etcd) as other, other.look(POOL) as fresh:
            await fresh.look()
            assert served(fresh, "a") == {"r1": 1}


@played
async def test_what_is_not_understood_is_not_told_with_what_proves_that_it_is_new(etcd: PlayedEtcd):
    """R24: its status speaks of a revision that no record told of, and of replicas that nobody else knows."""
    board = Board(etcd)
    revision = board.put("a", placement=Placement(replicas=9))
    await board.replicas.alive("r1")
    await board.replicas.says("r1", revision, **among(members("r1")))
    async with board.hub.look(POOL) as one:
        await one.look()
        await asyncio.sleep(1)
        await board.replicas.says("r1", board.others(), **among(members("r1", "r2")))
        await asyncio.sleep(1)
        assert served(one, "a") == {"r1": 1}


@played
async def test_who_comes_back_keeps_its_place_though_the_records_are_heard_of_late(etcd: PlayedEtcd):
    """R24: its new status speaks of a record that is not known yet, and there is none before it that counts."""
    board, seen = Board(etcd), list[list[Any]]()
    await board.served("a")
    async with board.hub.look(POOL) as one:
        updates = one.follow()
        await anext(updates)
        unmute = board.mute()
        board.put("b")
        await board.replicas.gone("r1")
        await board.replicas.restarts("r1", etcd.store.revision)
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                await anext(updates)
        seen.append(state(one, "a"))
        unmute()
        await asyncio.sleep(1)
    assert [*seen, state(one, "a"), state(one, "b")] == [[SERVING]] * 3


@played
async def test_no_answer_is_given_between_one_that_leaves_and_one_that_is_not_understood_yet(etcd: PlayedEtcd):
    """R24, R20: a new replica's status speaks of a revision that no record told of."""
    board, seen = Board(etcd), list[dict[str, int]]()
    await board.served("a")
    async with board.hub.look(POOL) as one:
        updates = one.follow()
        await anext(updates)
        await board.replicas.alive("r2")
        await board.replicas.says("r2", board.others())
        await board.replicas.alive("r1", leaving=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                async for _ in updates:
                    seen.append(served(one, "a"))
        assert seen == [{"r2": 1}]


@played
async def test_statuses_that_are_too_many_for_one_message_are_read_in_pieces(etcd: PlayedEtcd, monkeypatch):
    """R16 bounded, R24: 300 replicas that start with thousands of adapters tell 75 MiB of names together."""
    board = Board(etcd)
    await board.served("a")
    for number in range(250):
        await board.replicas.alive(f"s{number}")
        await board.replicas.says(f"s{number}", etcd.store.revision)
    limit_messages(monkeypatch, 150 * len(etcd.store.kvs[KEYS.status(POOL, "s0")].value))
    async with board.hub.look(POOL) as one, asyncio.timeout(30):
        await one.look()
        assert state(one, "a") == [SERVING] * 251


@played
async def test_whoever_stays_connected_hears_what_happened_while_the_follower_failed(etcd: PlayedEtcd, monkeypatch):
    """R24: also of an adapter that was deleted meanwhile, of which a follower that begins anew knows nothing."""
    board = Board(etcd)
    board.hub._keep = kept_twice
    await board.served("a", "b")
    async with board.hub.look(POOL) as one:
        updates = one.follow()
        assert told(await anext(updates)) == (("a", "b"), True)
        monkeypatch.setattr(follower, "is_held_back", fails_once(follower.is_held_back))
        etcd.store.delete(KEYS.adapter(POOL, "a"))
        async with asyncio.timeout(30):
            keys, is_snapshot = told(await anext(updates))
        assert ("a" in keys, is_snapshot, state(one, "a"), state(one, "b")) == (True, False, [], [SERVING])


async def kept_twice(_part: str, work: Callable[[], Awaitable[None]]) -> None:
    """As a supervisor does where a part fails for once."""
    with suppress(LookupError):
        await work()
    await work()


def fails_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """A fault of ours, and afterwards what it is to be."""
    faults = [LookupError()]

    def call(*given: Any) -> Any:
        if faults:
            raise faults.pop()
        return function(*given)

    return call
