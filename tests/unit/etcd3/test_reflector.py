"""A list and a watch that never end, on virtual time; what a real etcd does is in tests/contract."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.client import Listing
from registry.etcd3.errors import (
    Compacted,
    EtcdError,
    EtcdPermissionDenied,
    EtcdUnauthenticated,
    EtcdUnavailable,
    ResponseTooLarge,
    Timeout,
)
from registry.etcd3.ops import prefix_end
from registry.etcd3.options import ClientOptions
from registry.etcd3.reflector import Reflector
from registry.etcd3.stream import (
    Changed,
    Connected,
    Disconnected,
    ListCause,
    Listed,
    Mark,
    Reflection,
    Resume,
)
from tests.simulation.links import Way
from tests.simulation.members import CLUSTER_ID
from tests.support.flaky_etcd import Longest, NoChance
from tests.support.played_etcd import PlayedEtcd, now, play, played, played_by

PREFIX = b"/p/"


class Heard:
    """What one reflector told, with the time of each."""

    def __init__(self, etcd: PlayedEtcd, **options: Any) -> None:
        self.all: list[tuple[float, Reflection]] = []
        client, rng = etcd.client(), random.Random(0)
        self._reflector = Reflector(client, PREFIX, prefix_end(PREFIX), rng=rng, **options)
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async with aclosing(self._reflector.stream()) as reflections:
            async for reflection in reflections:
                self.all.append((now(), reflection))

    def of(self, *kinds: type[Reflection]) -> list[Reflection]:
        """What was told of these kinds, in order."""
        return [one for _, one in self.all if isinstance(one, kinds)]

    def at(self, kind: type[Reflection]) -> list[float]:
        """When something of a kind was told."""
        return [at for at, one in self.all if isinstance(one, kind)]

    @property
    def causes(self) -> list[ListCause]:
        return [one.cause for _, one in self.all if isinstance(one, Listed)]


def values(reflections: Sequence[Reflection]) -> list[tuple[int, list[bytes]]]:
    """Revisions with the keys that stand, or changed, there."""
    told: list[tuple[int, list[bytes]]] = []
    for one in reflections:
        if isinstance(one, Listed):
            told.append((one.revision, [kv.key for kv in one.kvs]))
        elif isinstance(one, Changed):
            told.append((one.revision, [event.key for event in one.events]))
    return told


@played_by(3)
async def test_one_member_of_another_cluster_is_a_wrong_address_and_all_of_them_are_another_store(etcd):
    """R3: else a mistake in one address would make everybody forget what they know."""
    etcd.store.put(b"/p/a", b"")
    heard = Heard(etcd, resume=Resume(2, 5))
    etcd.cluster.cluster_id = 5
    await asyncio.sleep(1)
    strangers = PlayedEtcd(3)
    strangers.store.put(b"/p/z", b"")
    watched = etcd.opened[-1]
    etcd.links[watched].member = strangers.links[watched].member
    etcd.links[watched].cut()
    await asyncio.sleep(60)
    assert (heard.causes, etcd.opened[-1] != watched) == ([], True)
    for name, link in etcd.links.items():
        link.member = strangers.links[name].member
        link.cut()
    await asyncio.sleep(60)
    assert heard.causes == [ListCause.WENT_BACK]
    assert [one.cluster_id for _, one in heard.all if isinstance(one, Listed)] == [CLUSTER_ID]


@played
async def test_a_store_that_was_set_back_is_listed_before_it_counts_as_the_one_that_was_followed(etcd):
    """R15, R9: a status would call what it says of it up to date."""
    etcd.store.put(b"/p/a", b"")
    heard = Heard(etcd, resume=Resume(99, CLUSTER_ID))
    await asyncio.sleep(60)
    assert [type(one) for one in heard.of(Listed, Connected)] == [Listed, Connected]
    assert heard.causes == [ListCause.WENT_BACK]


@played
async def test_now_and_then_all_is_compared_although_nothing_demands_it(etcd):
    """R3: as often as was said, give or take a quarter; and never where nobody asked for it."""
    etcd.store.put(b"/p/a", b"")
    comparing, other = Heard(etcd, compare_every_seconds=60.0), Heard(etcd)
    await asyncio.sleep(600)
    assert comparing.causes[1:] == [ListCause.COMPARISON] * (len(comparing.causes) - 1)
    pauses = [after - before for before, after in pairwise(comparing.at(Listed))]
    assert len(pauses) >= 7
    assert min(pauses) >= 44
    assert max(pauses) <= 80
    assert other.causes == [ListCause.FIRST]


@played_by(3)
async def test_a_member_that_hangs_is_left_and_nothing_is_lost(etcd):
    """R3, R13: within seconds; the next one is another."""
    heard = Heard(etcd)
    await asyncio.sleep(1)
    watched = etcd.opened[-1]
    etcd.links[watched].set_way(Way.HUNG)
    etcd.store.put(b"/p/a", b"")
    await asyncio.sleep(12)
    assert values(heard.of(Changed)) == [(2, [b"/p/a"])]
    [left] = heard.of(Disconnected)
    assert left == Disconnected(f"{watched}: no sign of life on the watch for 5 s")
    assert etcd.opened[-1] != watched
    assert len(heard.of(Connected)) == 2


@dataclass
class PlayedStream:
    """One watch that stands for a moment and then breaks, or says what it is told to."""

    token: str | None
    fails: EtcdError | None
    server_version: str = "3.5.30"
    told: int = 0

    async def send(self, _request: rpc.WatchRequest) -> None:
        """It is taken."""

    async def receive(self, _patience: float = 1.0) -> rpc.WatchResponse:
        self.told += 1
        header = rpc.ResponseHeader(cluster_id=1, revision=1, raft_term=1)
        if self.told == 1:
            return rpc.WatchResponse(header=header, created=True)
        if self.fails is not None:
            raise self.fails
        await asyncio.sleep(600)
        return rpc.WatchResponse(header=header)

    async def mark(self, _key: bytes) -> Mark:
        return Mark(1, 1, 1)


@dataclass
class Guarded:
    """A client whose watches end with these errors, one after another; then one stands."""

    failures: list[EtcdError]
    options: ClientOptions = field(default_factory=lambda: ClientOptions(("a:1",)))
    asked: list[tuple[float, str | None]] = field(default_factory=list)

    @asynccontextmanager
    async def watch(self, _endpoint: str, *, refused_token: str | None = None) -> AsyncIterator[PlayedStream]:
        self.asked.append((now(), refused_token))
        yield PlayedStream(f"token {len(self.asked)}", self.failures.pop(0) if self.failures else None)


def heard_of(
    client: Guarded, rng: random.Random | None = None, count: int = 1000, **options: Any
) -> list[tuple[float, Reflection]]:
    """The first so many reflections, or those of an hour, of a reflector that has a state."""
    heard: list[tuple[float, Reflection]] = []

    async def scene(_: PlayedEtcd) -> None:
        rest = {"resume": Resume(1, 1), "rng": rng or random.Random(0), **options}
        reflector = Reflector(client, PREFIX, prefix_end(PREFIX), **rest)  # type: ignore[arg-type]
        with suppress(TimeoutError):
            async with aclosing(reflector.stream()) as reflections, asyncio.timeout(3600):
                async for one in reflections:
                    heard.append((now(), one))
                    if len(heard) == count:
                        return

    play(scene)
    return heard


DENIED, UNKNOWN, BROKE = EtcdPermissionDenied("not you"), EtcdUnauthenticated("not you"), EtcdError("broke")
TOLD = Disconnected("not you", denied=True)


@pytest.mark.parametrize(
    ("failures", "told", "tokens"),
    [
        ([DENIED], [], [None, 1]),
        ([UNKNOWN], [], [None, 1]),
        ([DENIED] * 4, [TOLD] * 3, [None, 1, 2, 3, 4]),
        ([UNKNOWN] * 4, [TOLD] * 3, [None, 1, 2, 3, 4]),
        ([DENIED, BROKE, DENIED], [Disconnected("broke")], [None, 1, None, 3]),
    ],
)
def test_a_token_that_is_merely_old_is_replaced_at_once_and_who_is_refused_again_asks_rarely(failures, told, tokens):
    """R13, R8: an old server calls it "permission denied"; half of what was said is the least that is waited.

    A refusal after a watch that stood is a first one again.
    """
    client = Guarded([*failures])
    heard = heard_of(client, denied_retry_seconds=600.0)
    assert [one for _, one in heard if isinstance(one, Disconnected)] == told
    at = [when for when, _ in client.asked]
    assert at[1] - at[0] < 1.0
    assert all(300 <= after - before <= 600.1 for before, after in pairwise(at[1:])) or BROKE in failures
    assert [token for _, token in client.asked] == [number and f"token {number}" for number in tokens]


def test_what_was_too_large_for_a_message_is_asked_for_in_fragments_from_then_on(monkeypatch):
    """R3, R16: etcd would send all of it again and again. Nothing else that breaks is a reason to ask so."""
    asked: list[bool] = []

    async def noted(_: PlayedStream, request: rpc.WatchRequest) -> None:
        asked.append(request.create_request.fragment)

    monkeypatch.setattr(PlayedStream, "send", noted)
    heard_of(Guarded([BROKE, ResponseTooLarge("larger than max", maybe_applied=False), BROKE]))
    assert asked == [False, False, True, True]


class Silent(PlayedStream):
    """Notes how long silence is borne, which it then breaks by giving up."""

    borne: ClassVar[list[float]] = []

    async def receive(self, patience: float = 1.0) -> rpc.WatchResponse:
        if self.told == 0:
            return await super().receive(patience)
        self.borne.append(patience)
        raise Timeout("silent", maybe_applied=False)


class Away(Guarded):
    """No watch can be had; or, after so many tries, one that is silent."""

    silent_after: int | None = None

    @asynccontextmanager
    async def watch(self, _endpoint: str, *, refused_token: str | None = None) -> AsyncIterator[PlayedStream]:
        self.asked.append((now(), refused_token))
        if self.silent_after is None or len(self.asked) <= self.silent_after:
            raise EtcdUnavailable("no way", maybe_applied=False)
        yield Silent("t", None)

    @property
    def pauses(self) -> list[float]:
        return [round(after - before, 6) for (before, _), (after, _) in pairwise(self.asked)]


def test_a_store_that_is_away_is_asked_ever_more_slowly_up_to_every_three_seconds():
    """R13, R6: what was deleted meanwhile is seen within seconds of its return."""
    client = Away([])
    told = [one for _, one in heard_of(client, Longest(), 9)]
    assert told == [Disconnected("no way")] * 9
    assert client.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0, 3.0]


class Compacting(Guarded):
    """What is asked for is compacted meanwhile, each time."""

    async def list_range(self, _key: bytes, _range_end: bytes) -> Listing:
        self.asked.append((now(), None))
        if len(self.asked) > 7:
            return Listing(5, (), 1, 1)
        raise Compacted("compacted", compact_revision=9)

    @asynccontextmanager
    async def watch(self, _endpoint: str, *, refused_token: str | None = None) -> AsyncIterator[PlayedStream]:
        self.asked.append((now(), refused_token))
        yield Overtaken("t", None)


class Overtaken(PlayedStream):
    """What is to be watched from is gone."""

    async def receive(self, _patience: float = 1.0) -> rpc.WatchResponse:
        raise Compacted("compacted", compact_revision=9)


def test_what_is_compacted_again_and_again_is_asked_for_ever_more_slowly():
    """R16 bounded: a large list that is begun anew without a pause would keep etcd from all else."""
    client = Compacting([])
    [(_, listed)] = heard_of(client, Longest(), 1)
    assert isinstance(listed, Listed)
    assert (listed.revision, listed.cause) == (5, ListCause.COMPACTED)
    at = [when for when, _ in client.asked]
    assert [round(after - before, 6) for before, after in pairwise(at)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0]


def test_silence_is_borne_twice_as_long_each_time_it_comes_up_to_eight_times(monkeypatch):
    """A member that reads much history for a watch is slow, but not dead."""
    client = Away([])
    client.silent_after = 0
    monkeypatch.setattr(Silent, "borne", [])
    heard_of(client, NoChance(), 12)
    assert Silent.borne == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


@pytest.mark.parametrize(("rng", "pause"), [(Longest(), 30.0), (NoChance(), 15.0)], ids=["late", "soon"])
def test_who_is_refused_asks_every_half_minute(rng, pause):
    """R8: if nobody says otherwise."""
    client = Guarded([EtcdPermissionDenied("not you") for _ in range(4)])
    heard_of(client, rng, 8)
    at = [when for when, _ in client.asked]
    assert [round(after - before, 6) for before, after in pairwise(at)][1:] == [pause] * 3


@played
async def test_a_store_that_is_said_to_have_gone_back_and_did_not_is_compared(etcd):
    """R15 brake: all addresses were wrong for a while; a list that shows the same store removes nothing in doubt."""
    etcd.store.put(b"/p/a", b"")
    heard = Heard(etcd)
    await asyncio.sleep(1)
    strangers = PlayedEtcd(1)
    ours, link = etcd.links["m0"].member, etcd.links["m0"]
    strangers.cluster.cluster_id = CLUSTER_ID + 1
    link.member = strangers.links["m0"].member
    link.cut()
    for _ in range(100):
        await asyncio.sleep(0.01)
        if any("another cluster" in one.message for one in heard.of(Disconnected) if isinstance(one, Disconnected)):
            break
    link.member = ours
    link.cut()
    await asyncio.sleep(10)
    assert heard.causes == [ListCause.FIRST, ListCause.COMPARISON]


def test_a_fault_of_ours_is_no_trouble_of_etcd():
    """R12 crash-only: whoever supervises the watch hears of it."""
    with pytest.raises(KeyError):
        heard_of(Guarded([KeyError("of ours")]))  # type: ignore[list-item]
