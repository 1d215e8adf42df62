"""The reflector against a real etcd, through connections that break."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from registry.etcd3 import watch
from registry.etcd3.ops import prefix_end
from registry.etcd3.stream import (
    Changed,
    Connected,
    Disconnected,
    ListCause,
    Listed,
    Progressed,
    Resume,
    progress_is_safe,
)
from registry.etcd3.watch import WatchStream
from tests.contract.etcd3.mirror import delete, mirroring, put, reflect, values
from tests.support.etcd import PATIENCE_SECONDS, compact
from tests.support.waiting import eventually


async def test_a_list_first_and_then_every_change(etcd, etcd_client, rng, long_silence):
    await etcd_client.txn(put((etcd.key("a"), b"1"), (etcd.key("b"), b"2")))
    async with mirroring(reflect(etcd_client, etcd, rng)) as mirror:
        await mirror.first(Connected)
        await etcd_client.txn(put((etcd.key("c"), b"3")))
        last = await etcd_client.txn(delete(etcd.key("a")))
        await eventually(lambda: mirror.revision >= last.revision)
    (listed,) = mirror.of(Listed)
    assert listed.cause is ListCause.FIRST
    assert [kv.key for kv in listed.kvs] == [etcd.key("a"), etcd.key("b")]
    assert mirror.values() == {etcd.key("b"): b"2", etcd.key("c"): b"3"}
    assert mirror.of(Disconnected) == []


async def test_resuming_brings_what_was_missed_and_no_list(etcd, etcd_client, rng):
    """R2 replay-equal: from the caller's own revision on, each change once, although no watch was there meanwhile."""
    seen = await etcd_client.list_prefix(etcd.key(""))
    missed = [(await etcd_client.txn(put((etcd.key(f"{i}"), b"x")))).revision for i in range(20)]
    reflector = reflect(etcd_client, etcd, rng, resume=Resume(seen.revision, seen.cluster_id, seen.raft_term))
    async with mirroring(reflector) as mirror:
        await eventually(lambda: mirror.revision >= missed[-1])
    assert [changed.revision for changed in mirror.of(Changed)] == missed
    assert mirror.of(Listed) == []


async def test_all_changes_of_one_revision_come_as_one(etcd, etcd_client, rng):
    """W2 atomic-set: a thousand puts by one transaction, a thousand deletions by one range."""
    async with mirroring(reflect(etcd_client, etcd, rng)) as mirror:
        await mirror.first(Connected)
        await etcd_client.txn(put(*((etcd.key(f"{i:04}"), b"x" * 100) for i in range(1000))))
        last = await etcd_client.txn(delete(etcd.key(""), prefix_end(etcd.key(""))))
        await eventually(lambda: mirror.revision >= last.revision)
    assert [len(changed.events) for changed in mirror.of(Changed)] == [1000, 1000]
    assert all(event.kv is None for event in mirror.of(Changed)[-1].events)


async def test_no_change_is_lost_or_doubled_while_connections_are_cut(etcd, etcd_client, proxy, proxied_client, rng):
    """R2 replay-equal: many cuts in 1,500 writes, and in more on a machine that writes too fast for that."""
    written: list[int] = []
    async with mirroring(reflect(proxied_client, etcd, rng)) as mirror:
        await mirror.first(Connected)
        for i in itertools.count():
            if i >= 1500 and len(mirror.of(Disconnected)) > 5:
                break
            written.append((await etcd_client.txn(put((etcd.key(f"{i % 97}"), b"%d" % i)))).revision)
            if i % 50 == 49:
                proxy.cut()
        await eventually(lambda: mirror.revision >= written[-1])
    assert [changed.revision for changed in mirror.of(Changed)] == written
    assert mirror.values() == await values(etcd_client, etcd)
    assert len(mirror.of(Listed)) == 1


async def test_no_change_is_lost_when_cut_in_the_middle_of_catching_up(etcd, etcd_client, proxy, proxied_client, rng):
    """R2 replay-equal: the connection breaks at arbitrary bytes while 3,000 missed changes stream in."""
    async with mirroring(reflect(proxied_client, etcd, rng)) as mirror:
        await mirror.first(Connected)
        proxy.refuse()
        written: list[int] = []
        for start in range(0, 3000, 20):
            writes = [etcd_client.txn(put((etcd.key(f"{i % 97}"), b"%d" % i * 40))) for i in range(start, start + 20)]
            written += sorted(one.revision for one in await asyncio.gather(*writes))
        clock, told = random.Random(7), len(mirror.told)
        # etcd sends a thousand revisions at once, of 235 kB: some of these let one through, none two.
        proxy.cut_after(clock.randrange(1_000, 400_000) for _ in itertools.count())
        proxy.pass_on()
        await eventually(lambda: mirror.revision >= written[-1])
        cuts = [one for one in mirror.told[told:] if isinstance(one, Disconnected)]
    assert [changed.revision for changed in mirror.of(Changed)] == written
    assert mirror.values() == await values(etcd_client, etcd)
    assert len(cuts) > 1
    assert len(mirror.of(Listed)) == 1


async def test_a_compaction_while_disconnected_is_made_good_by_a_list(etcd, etcd_client, proxy, proxied_client, rng):
    """R2 replay-equal: deletions of the time that is no longer kept are visible as absence."""
    await etcd_client.txn(put((etcd.key("stays"), b"1"), (etcd.key("goes"), b"1")))
    async with mirroring(reflect(proxied_client, etcd, rng)) as mirror:
        await mirror.first(Connected)
        proxy.refuse()
        await mirror.first(Disconnected)
        told = len(mirror.told)
        await etcd_client.txn(delete(etcd.key("goes")))
        last = await etcd_client.txn(put((etcd.key("comes"), b"1")))
        await compact(etcd_client, last.revision)
        proxy.pass_on()
        listed = await mirror.first(Listed, told)
        after = await etcd_client.txn(put((etcd.key("after"), b"1")))
        await eventually(lambda: mirror.revision >= after.revision)
    assert listed.cause is ListCause.COMPACTED
    assert listed.revision >= last.revision
    assert set(mirror.values()) == {etcd.key("stays"), etcd.key("comes"), etcd.key("after")}


async def test_a_half_open_connection_is_noticed_and_replaced(etcd, etcd_client, proxy, proxied_client, rng):
    """The connection stands, nothing flows: only a deadline on progress finds that."""
    async with mirroring(reflect(proxied_client, etcd, rng)) as mirror:
        await mirror.first(Connected)
        proxy.hold()
        missed = await etcd_client.txn(put((etcd.key("a"), b"1")))
        lost = await mirror.first(Disconnected)
        proxy.pass_on()
        await eventually(lambda: mirror.revision >= missed.revision)
    assert "no sign of life" in lost.message


async def test_progress_moves_the_mark_where_the_server_can_be_trusted(etcd, etcd_client, rng, responses, long_silence):
    """Below 3.5.8 it must not, since there progress can overtake events."""
    (status,) = await etcd_client.status()
    async with mirroring(reflect(etcd_client, etcd, rng)) as mirror:
        await mirror.first(Connected)
        await etcd_client.txn(put((b"/elsewhere/" + etcd.key("a"), b"1")))
        told = len(responses)
        await eventually(lambda: len(responses) > told + 1)  # the first may have been under way before
    assert bool(mirror.of(Progressed)) == progress_is_safe(status.version)
    assert mirror.of(Disconnected) == [], "silence of the store was taken for silence of the server"


@pytest.fixture
def long_silence(monkeypatch) -> None:
    """Progress is asked for as soon as ever, and the answer is waited for much longer."""
    monkeypatch.setattr(watch, "SILENCE_SECONDS", (2.0, PATIENCE_SECONDS))


@pytest.fixture
def responses(monkeypatch) -> list[object]:
    """Everything that streams receive, events or not."""
    seen: list[object] = []
    receive = WatchStream.receive

    async def noting(self, patience=1.0):
        response = await receive(self, patience)
        seen.append(response)
        return response

    monkeypatch.setattr(WatchStream, "receive", noting)
    return seen
