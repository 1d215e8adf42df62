"""The reflector against a real etcd, through connections that break."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from registry.etcd3 import watch
from registry.etcd3.ops import prefix_end
from registry.etcd3.reflector import (
    Changed,
    Connected,
    Disconnected,
    ListCause,
    Listed,
    Progressed,
    Reflector,
    Resume,
)
from registry.etcd3.stream import progress_is_safe
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


async def test_a_single_key_is_watched_alone(etcd, etcd_client, rng):
    async with mirroring(Reflector(etcd_client, etcd.key("a"), b"", rng=rng)) as mirror:
        await mirror.first(Connected)
        await etcd_client.txn(put((etcd.key("ab"), b"other")))
        wanted = await etcd_client.txn(put((etcd.key("a"), b"1")))
        await eventually(lambda: mirror.revision >= wanted.revision)
    assert [event.key for changed in mirror.of(Changed) for event in changed.events] == [etcd.key("a")]


async def test_resuming_brings_what_was_missed_and_no_list(etcd, etcd_client, rng):
    """R2 replay-equal: from the caller's own revision on, each change once, although no watch was there meanwhile."""
    seen = await etcd_client.list_prefix(etcd.key(""))
    missed = [(await etcd_client.txn(put((etcd.key(f"{i}"), b"x")))).revision for i in range(20)]
    reflector = reflect(etcd_client, etcd, rng, resume=Resume(seen.revision, seen.cluster_id, seen.raft_term))
    async with mirroring(reflector) as mirror:
        await eventually(lambda: mirror.revision >= missed[-1])
    assert [changed.revision for changed in mirror.of(Changed)] == missed
    assert mirror.of(Listed) == []


async def test_resuming_brings_nothing_that_was_seen(etcd, etcd_client, rng):
    """The stream starts at the mark itself, and what the server repeats of that revision is dropped."""
    seen = await etcd_client.txn(put((etcd.key("a"), b"1")))
    async with mirroring(reflect(etcd_client, etcd, rng, resume=Resume(seen.revision, 0))) as mirror:
        await mirror.first(Connected)
        later = await etcd_client.txn(put((etcd.key("b"), b"2")))
        await eventually(lambda: mirror.revision >= later.revision)
    assert [changed.revision for changed in mirror.of(Changed)] == [later.revision]


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
    """R2 replay-equal: many cuts in 3,000 writes, and in more on a machine that writes too fast for that."""
    written: list[int] = []
    async with mirroring(reflect(proxied_client, etcd, rng)) as mirror:
        await mirror.first(Connected)
        for i in itertools.count():
            if i >= 3000 and len(mirror.of(Disconnected)) > 5:
                break
            written.append((await etcd_client.txn(put((etcd.key(f"{i % 97}"), b"%d" % i)))).revision)
            if i % 50 == 49:
                proxy.cut()
        await eventually(lambda: mirror.revision >= written[-1])
    assert [changed.revision for changed in mirror.of(Changed)] == written
    assert mirror.values() == await values(etcd_client, etcd)
    assert len(mirror.of(Listed)) == 1


async def test_no_change_is_lost_when_cut_in_the_middle_of_catching_up(etcd, etcd_client, proxy, proxied_client, rng):
    """R2 replay-equal: the connection breaks at arbitrary bytes while 5,000 missed changes stream in."""
    async with mirroring(reflect(proxied_client, etcd, rng)) as mirror:
        await mirror.first(Connected)
        proxy.refuse()
        written = [(await etcd_client.txn(put((etcd.key(f"{i % 97}"), b"%d" % i * 40)))).revision for i in range(5000)]
        clock, told = random.Random(7), len(mirror.told)
        # etcd sends a thousand revisions at once, of 235 kB: some of these let one through, none two.
        proxy.cut_after(clock.randrange(1_000, 400_000) for _ in itertools.count())
        proxy.pass_on()
        await eventually(lambda: mirror.revision >= written[-1], timeout_seconds=120)
        cuts = [one for one in mirror.told[told:] if isinstance(one, Disconnected)]
    assert [changed.revision for changed in mirror.of(Changed)] == written
    assert mirror.values() == await values(etcd_client, etcd)
    assert len(cuts) > 3
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


async def test_a_deletion_at_the_compacted_revision_itself_is_not_missed(own_client, rng):
    """A compaction swallows the tombstone at its own revision, so a watch from just behind the mark would miss it."""
    before = await own_client.txn(put((b"/a/goes", b"1")))
    gone = await own_client.txn(delete(b"/a/goes"))
    assert gone.revision == before.revision + 1
    await compact(own_client, gone.revision)
    reflector = Reflector(own_client, b"/a/", b"/a0", rng=rng, resume=Resume(before.revision, 0))
    async with mirroring(reflector) as mirror:
        listed = await mirror.first(Listed)
    assert (listed.cause, listed.kvs) == (ListCause.COMPACTED, ())


async def test_resuming_at_the_compacted_revision_needs_no_list(etcd, etcd_client, rng):
    seen = await etcd_client.txn(put((etcd.key("a"), b"1")))
    later = await etcd_client.txn(put((etcd.key("b"), b"1")))
    await compact(etcd_client, seen.revision)
    async with mirroring(reflect(etcd_client, etcd, rng, resume=Resume(seen.revision, 0))) as mirror:
        await eventually(lambda: mirror.revision >= later.revision)
    assert mirror.of(Listed) == []


async def test_a_connection_that_died_in_silence_is_replaced(etcd, etcd_client, proxy, proxied_client, rng):
    """Both ends believe in it for ever; only a new one brings the change."""
    async with mirroring(reflect(proxied_client, etcd, rng)) as mirror:
        await mirror.first(Connected)
        proxy.strand()
        missed = await etcd_client.txn(put((etcd.key("a"), b"1")))
        await eventually(lambda: mirror.revision >= missed.revision)


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


async def test_a_quiet_watch_stays_connected(etcd, etcd_client, rng, responses, long_silence):
    """Progress is asked for and answered, so silence of the store is not taken for silence of the server."""
    async with mirroring(reflect(etcd_client, etcd, rng)) as mirror:
        connected = await mirror.first(Connected)
        await eventually(lambda: len(responses) > 3)
    assert connected.endpoint in etcd.endpoints
    assert mirror.of(Disconnected) == []


async def test_progress_moves_the_mark_where_the_server_can_be_trusted(etcd, etcd_client, rng, responses, long_silence):
    """Below 3.5.8 it must not, since there progress can overtake events."""
    (status,) = await etcd_client.status()
    async with mirroring(reflect(etcd_client, etcd, rng)) as mirror:
        await mirror.first(Connected)
        await etcd_client.txn(put((b"/elsewhere/" + etcd.key("a"), b"1")))
        told = len(responses)
        await eventually(lambda: len(responses) > told + 1)  # the first may have been under way before
    assert bool(mirror.of(Progressed)) == progress_is_safe(status.version)


async def test_the_periodic_comparison_lists_and_watches_on(etcd, etcd_client, rng, long_silence):
    await etcd_client.txn(put((etcd.key("a"), b"1")))
    async with mirroring(reflect(etcd_client, etcd, rng, compare_every_seconds=0.01)) as mirror:
        first = await mirror.first(Connected)
        await etcd_client.txn(put((etcd.key("b"), b"1")))
        await eventually(lambda: len(mirror.of(Listed)) > 1)
        last = await etcd_client.txn(put((etcd.key("c"), b"1")))
        await eventually(lambda: mirror.revision >= last.revision)
    assert first
    assert mirror.of(Listed)[1].cause is ListCause.COMPARISON
    assert mirror.of(Disconnected) == []
    assert set(mirror.values()) == {etcd.key("a"), etcd.key("b"), etcd.key("c")}


async def test_a_stream_that_is_closed_leaves_no_task_and_no_connection(etcd, etcd_client, rng, proxy, proxied_client):
    before = asyncio.all_tasks()
    async with mirroring(reflect(proxied_client, etcd, rng)) as mirror:
        await mirror.first(Connected)
    left = {task for task in asyncio.all_tasks() - before if task not in proxy._tasks}
    assert not [task for task in left if "watch" in task.get_name()]


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
