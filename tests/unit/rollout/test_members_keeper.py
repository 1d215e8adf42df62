"""Who is remembered of a pool, and who forgets, on virtual time."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import structlog

from registry.etcd3.informer import SharedInformerFactory
from registry.etcd3.ops import Put
from registry.model.errors import Conflict, FailedPrecondition, NotFound, Reason, RegistryError, Unavailable
from registry.model.records import PoolLimits, PoolSpec
from registry.model.status import LastKnown, LeftReplica, RememberedReplica, RememberedReplicas
from registry.rollout import expiry, members
from registry.rollout.members import MembersKeeper, forget
from registry.runtime.clock import Deadline, rfc3339
from registry.runtime.program import release_version
from tests.simulation.links import Way
from tests.simulation.store import Refusal
from tests.support.played_etcd import PlayedEtcd, now, played
from tests.support.records import KEYS, POOL
from tests.support.residency_world import Replicas, replica_status

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
SOON, WHILE = 3.0, 30.0
# Within which it is looked again although nothing happens.
LOOK = 305.0
# So long after a write that failed it is made again: less than expiry waits for it.
AGAIN = 6.0


class Ready(Replicas):
    """Replicas that are ready as soon as they live, as they tell in one transaction."""

    async def alive(self, *names: str, **fields: Any) -> None:
        lease = await self._lease()
        told = {KEYS.status(POOL, name): replica_status(name, 1).to_bytes() for name in names}
        statuses = (Put(key, value, lease) for key, value in told.items())
        await self._commit(*(self._alive(name, fields, lease) for name in names), *statuses)


class Kept:
    """An etcd whose pools a keeper looks after.

    Attributes:
        told: what it said last.
        looks: how often it said something.
        past: what the wall's clock is ahead of the loop's.
    """

    def __init__(self, etcd: PlayedEtcd, *pools: str) -> None:
        self.etcd = etcd
        self.client = etcd.client(1)
        self.replicas = Ready(self.client, KEYS)
        self.told: Mapping[str, int] | None = None
        self.looks = 0
        self.past = timedelta()
        for pool in pools:
            self.make_pool(pool)
        client, rng = etcd.client(), random.Random(0)
        keeper = MembersKeeper(
            client, KEYS, SharedInformerFactory(client, rng=rng), self._tell, rng=rng, wall=self.wall
        )
        self.task = asyncio.create_task(keeper.run())

    def _tell(self, missing: Mapping[str, int]) -> None:
        self.told, self.looks = missing, self.looks + 1

    def wall(self) -> datetime:
        return EPOCH + self.past + timedelta(seconds=now())

    def make_pool(self, name: str, expected: int | None = None) -> None:
        spec = PoolSpec(name=name, base_models=["base"], limits=PoolLimits(expected_replicas=expected))
        self.etcd.store.put(KEYS.pool(name), spec.to_bytes())

    def members(self, pool: str = POOL) -> dict[str, str]:
        """Who is remembered, and when each was seen last."""
        kv = self.etcd.store.kvs.get(KEYS.members(pool))
        return {name: one.last_seen for name, one in RememberedReplicas.parse(kv.value).members.items()} if kv else {}

    def last_known(self, name: str) -> LastKnown | None:
        """What is written of a replica that is gone."""
        return RememberedReplicas.parse(self.etcd.store.kvs[KEYS.members(POOL)].value).members[name].last_known


async def keeping(etcd: PlayedEtcd, *alive: str) -> Kept:
    """A keeper that knows of a pool, and of those who live in it."""
    kept = Kept(etcd, POOL)
    await kept.replicas.alive(*alive)
    await asyncio.sleep(SOON)
    return kept


def left(replica: str) -> bytes:
    return LeftReplica(pool=POOL, replica=replica, incarnation="i", at=rfc3339(EPOCH)).to_bytes()


@played
async def test_who_comes_is_remembered_and_who_goes_is_missed_for_a_day(etcd: PlayedEtcd, monkeypatch):
    """One write for each change, none for anything else."""
    monkeypatch.setattr(members, "_LOOK_SECONDS", WHILE / 2)
    kept = Kept(etcd, POOL, "q")
    await kept.replicas.alive("r1", "r2")
    await asyncio.sleep(SOON)
    assert (kept.members(), kept.members("q"), kept.told) == ({"r1": "", "r2": ""}, {}, {POOL: 0, "q": 0})
    before = etcd.store.revision
    await kept.replicas.alive("r1", "r2")
    await asyncio.sleep(WHILE)
    assert etcd.store.revision == before + 1, "of the replicas themselves"
    written = etcd.store.kvs[KEYS.members(POOL)].version
    await kept.replicas.gone("r2")
    await kept.replicas.alive("r2")
    await asyncio.sleep(WHILE)
    assert etcd.store.kvs[KEYS.members(POOL)].version == written, "it is back before anybody missed it"
    await kept.replicas.gone("r2")
    gone_at = now()
    await asyncio.sleep(SOON)
    assert kept.told == {POOL: 1, "q": 0}
    seen = datetime.fromisoformat(kept.members()["r2"]) - EPOCH
    assert 0 <= seen.total_seconds() - gone_at < SOON
    kept.past = timedelta(hours=23)
    await asyncio.sleep(WHILE)
    assert kept.told == {POOL: 1, "q": 0}
    kept.past = timedelta(hours=24)
    await asyncio.sleep(WHILE)
    assert (kept.members(), kept.told) == ({"r1": ""}, {POOL: 0, "q": 0})


@played
async def test_who_ended_in_order_is_missed_by_nobody_whatever_stands_beside_its_mark(etcd: PlayedEtcd):
    kept = await keeping(etcd, "r1", "r2")
    etcd.store.put(KEYS.left(POOL, "r0"), b"?")
    etcd.store.put(KEYS.left(POOL, "r1"), left("r1"))
    etcd.store.put(KEYS.left("q", "r2"), left("r2"))
    await kept.replicas.gone("r1", "r2")
    await asyncio.sleep(SOON)
    assert ({*kept.members()}, kept.told) == ({"r2"}, {POOL: 1})


@played
async def test_statuses_are_followed_only_while_somebody_lives_who_is_not_remembered(etcd: PlayedEtcd):
    """R16 bounded: they change all the time."""
    kept = Kept(etcd, POOL)
    await kept.replicas.alive("r1")
    await asyncio.sleep(WHILE)
    looks = kept.looks
    for revision in range(20):
        await kept.replicas.says("r1", revision)
        await asyncio.sleep(SOON)
    assert (kept.members(), kept.looks) == ({"r1": ""}, looks)


@played
async def test_of_who_is_gone_it_is_written_what_it_told_last(etcd: PlayedEtcd):
    """R9 status-truth: as of the moment before it went, not as of when it came."""
    kept = Kept(etcd, POOL)
    await kept.replicas.alive("r1", "r2")
    await asyncio.sleep(LOOK)  # by then nobody's status is followed any more
    await kept.replicas.says("r2", 48)
    await kept.replicas.gone("r2")
    await asyncio.sleep(SOON)
    told = kept.last_known("r2")
    assert told is not None
    assert (told.observed_revision, told.engine_url, told.version) == (48, "http://r2", release_version())
    await kept.replicas.alive("r2")
    await asyncio.sleep(SOON)
    assert (kept.members()["r2"], kept.last_known("r2")) == ("", None)


@played
async def test_who_comes_amid_a_look_is_remembered_by_the_next(etcd: PlayedEtcd, monkeypatch):
    look, looks = MembersKeeper._look, list[float]()

    async def overtaken(self: MembersKeeper, *of: Any) -> None:
        await look(self, *of)
        looks.append(now())
        if len(looks) == 1:
            await kept.replicas.alive("r1")
            await asyncio.sleep(SOON)

    monkeypatch.setattr(MembersKeeper, "_look", overtaken)
    kept = Kept(etcd, POOL)
    await asyncio.sleep(WHILE)
    assert {*kept.members()} == {"r1"}


@played
async def test_who_went_while_nobody_looked_is_told_as_it_was_known_to_live(etcd: PlayedEtcd):
    first = await keeping(etcd, "r1", "r2")
    first.task.cancel()
    await first.replicas.says("r1", 48)
    await first.replicas.gone("r1", "r2")
    second = Kept(etcd)
    await asyncio.sleep(SOON)
    told = second.last_known("r1")
    assert told is not None
    assert (told.observed_revision, told.engine_url) == (1, "http://r1")


@played
async def test_of_many_who_go_at_once_it_is_read_of_some_what_they_told_last(etcd: PlayedEtcd, monkeypatch):
    """R16 bounded: all of them are missed."""
    monkeypatch.setattr(members, "_MAX_READ", 1)
    kept = await keeping(etcd, "r1", "r2")
    await kept.replicas.gone("r1", "r2")
    await asyncio.sleep(SOON)
    assert all(kept.members().values())
    assert [kept.last_known(name) is None for name in ("r1", "r2")] == [False, True]


@played
async def test_what_etcd_has_compacted_is_missed_by_nobody(etcd: PlayedEtcd):
    """R12: who is gone is written all the same."""
    first = await keeping(etcd, "r1")
    first.task.cancel()
    await first.replicas.gone("r1")
    etcd.store.compact(etcd.store.revision)
    second = Kept(etcd)
    await asyncio.sleep(SOON)
    assert (bool(second.members()["r1"]), second.last_known("r1")) == (True, None)


@played
async def test_of_a_pool_that_is_gone_nobody_is_remembered(etcd: PlayedEtcd):
    kept = await keeping(etcd, "r1")
    etcd.store.delete(KEYS.pool(POOL))
    await asyncio.sleep(SOON)
    assert (KEYS.members(POOL) in etcd.store.kvs, kept.told) == (False, {})


@played
async def test_of_a_pool_that_is_made_anew_all_are_remembered_still(etcd: PlayedEtcd):
    """R1, R9: whoever is dead is missed as before."""
    kept = await keeping(etcd, "r1")
    await kept.replicas.gone("r1")
    await asyncio.sleep(SOON)
    forgets = list[float]()

    def made_anew(request: Any) -> None:
        if any(one.request_delete_range.key for one in getattr(request, "success", ())):
            forgets.append(now())
            kept.make_pool(POOL)

    meddle(etcd, before=made_anew)
    etcd.store.delete(KEYS.pool(POOL))
    await asyncio.sleep(WHILE)
    assert (len(forgets), {*kept.members()}, kept.told) == (1, {"r1"}, {POOL: 1})


@played
async def test_what_cannot_be_forgotten_with_its_pool_is_tried_again_soon(etcd: PlayedEtcd):
    """R12."""
    kept = await keeping(etcd, "r1")
    tries = list[float]()

    def refuse(request: Any) -> None:
        if any(one.request_delete_range.key for one in getattr(request, "success", ())):
            tries.append(now())
            if len(tries) == 1:
                raise Refusal("UNKNOWN", "no")

    meddle(etcd, before=refuse)
    etcd.store.delete(KEYS.pool(POOL))
    await asyncio.sleep(SOON + AGAIN)
    assert (KEYS.members(POOL) in etcd.store.kvs, len(tries), kept.task.done()) == (False, 2, False)


@played
async def test_many_changes_within_a_moment_are_one_write_and_one_word(etcd: PlayedEtcd):
    """R16 bounded: a fleet that starts comes replica by replica."""
    kept = Kept(etcd, POOL)
    await asyncio.sleep(SOON)
    looks = kept.looks
    for number in range(20):
        await kept.replicas.alive(f"r{number}")
        await asyncio.sleep(0.02)
    await asyncio.sleep(SOON)
    assert len(kept.members()) == 20
    assert kept.looks - looks <= 4, "with those for what it wrote itself"
    assert etcd.store.kvs[KEYS.members(POOL)].version <= 2
    written = etcd.store.kvs[KEYS.members(POOL)].version
    await asyncio.sleep(LOOK)  # by then nobody's status is followed any more
    await kept.replicas.gone("r0")
    await kept.replicas.alive("r20")
    await asyncio.sleep(WHILE)
    assert kept.members().keys() == {f"r{number}" for number in range(21)}
    assert etcd.store.kvs[KEYS.members(POOL)].version == written + 1, "who goes is noted with who comes"


@pytest.mark.parametrize("is_full", [False, True])
@played
async def test_who_goes_and_was_never_ready_makes_the_key_newer_once(etcd: PlayedEtcd, is_full):
    """R25: nobody remembers it, and what it was asked last is told by nobody else. So it is where that waits."""
    kept = Kept(etcd, POOL, "q")
    etcd.store.put(KEYS.members("q"), RememberedReplicas(members={"r9": RememberedReplica()}).to_bytes())
    await kept.replicas.alive("r1")
    await Replicas.alive(kept.replicas, "r2")
    await asyncio.sleep(SOON)
    written, others = (etcd.store.kvs[KEYS.members(pool)].version for pool in (POOL, "q"))
    await Replicas.alive(kept.replicas, "r2", labels={"zone": "a"})
    await asyncio.sleep(WHILE)
    assert etcd.store.kvs[KEYS.members(POOL)].version == written, "it lives still"
    await kept.replicas.gone("r2")
    gone_at = etcd.store.revision
    etcd.store.is_full = is_full
    await asyncio.sleep(WHILE)
    etcd.store.is_full = False
    await asyncio.sleep(AGAIN)
    newer = etcd.store.kvs[KEYS.members(POOL)]
    assert (kept.members(), newer.version) == ({"r1": ""}, written + 1)
    assert newer.mod_revision > gone_at
    assert etcd.store.kvs[KEYS.members("q")].version == others, "it was of another pool"


def meddle(etcd: PlayedEtcd, before: Callable[[Any], object] = id, after: Callable[[Any], object] = id) -> None:
    """Does something before, or after, each request is served from now on."""
    member = etcd.links["m0"].member
    serve = member.serve

    def served(path: str, request: Any, at: float) -> object:
        before(request)
        reply = serve(path, request, at)
        after(request)
        return reply

    member.serve = served  # type: ignore[method-assign]


@pytest.mark.parametrize("unknown", [KEYS.all_replicas(), KEYS.all_left(), KEYS.pools(), KEYS.statuses(POOL)])
@played
async def test_nothing_is_concluded_from_what_is_not_known(etcd: PlayedEtcd, unknown):
    """R9: whose presence was not read is not gone; and a number of the missing that is a guess is told to nobody."""
    first = await keeping(etcd, "r1")
    first.task.cancel()
    await first.replicas.alive("r2")

    def refuse(request: Any) -> None:
        if getattr(request, "key", b"") == unknown:
            raise Refusal("UNAVAILABLE", "away")

    meddle(etcd, before=refuse)
    second, before = Kept(etcd), etcd.store.revision
    await asyncio.sleep(WHILE)
    assert (second.looks, etcd.store.revision) == (0, before)


@played
async def test_while_etcd_is_away_nobody_is_missed(etcd: PlayedEtcd):
    kept = await keeping(etcd, "r1")
    etcd.links["m0"].set_way(Way.REFUSED)
    looks = kept.looks
    await asyncio.sleep(WHILE)
    assert kept.looks == looks
    etcd.links["m0"].set_way(Way.OPEN)
    await asyncio.sleep(30)
    assert (kept.members(), kept.told) == ({"r1": ""}, {POOL: 0})
    assert not kept.task.done()


@played
async def test_a_write_that_fails_is_made_again_at_once_and_told_once(etcd: PlayedEtcd):
    """R12: and ends nobody; R25: who goes unremembered has to be written before what it was asked may end."""
    kept = Kept(etcd, POOL)
    await asyncio.sleep(SOON)
    await kept.replicas.alive("r1")
    etcd.store.is_full = True
    with structlog.testing.capture_logs() as logs:
        await asyncio.sleep(60)
    assert (kept.members(), kept.task.done()) == ({}, False)
    assert [one["event"] for one in logs].count("members_not_written") == 1
    etcd.store.is_full = False
    await asyncio.sleep(AGAIN)
    assert kept.members() == {"r1": ""}
    revision = etcd.store.revision
    await asyncio.sleep(LOOK)
    assert etcd.store.revision == revision


async def refused_to_forget(kept: Kept, name: str) -> RegistryError:
    with pytest.raises(RegistryError) as refused:
        await forget(kept.client, KEYS, POOL, name, Deadline.of(60.0), dry_run=False)
    return refused.value


@played
async def test_what_a_later_release_remembers_is_left_as_it_is(etcd: PlayedEtcd):
    """R14: both may run at once for a while, and would write over each other; what cannot be read at all is mended."""
    kept = await keeping(etcd, "r1")
    later = json.dumps({"schema": 2, "members": ["r1", "r2"]}).encode()
    etcd.store.put(KEYS.members(POOL), later)
    await kept.replicas.alive("r2")
    await kept.replicas.gone("r1")
    await asyncio.sleep(LOOK)
    refused = await refused_to_forget(kept, "r1")
    assert (type(refused), refused.reason) == (FailedPrecondition, Reason.FUTURE_SCHEMA)
    assert etcd.store.kvs[KEYS.members(POOL)].value == later
    etcd.store.put(KEYS.members(POOL), b"?")
    await asyncio.sleep(LOOK)
    assert kept.members() == {"r2": ""}


@played
async def test_who_is_dead_is_forgotten_and_nobody_else(etcd: PlayedEtcd):
    kept = await keeping(etcd, "r1", "r2", "r3")
    await kept.replicas.gone("r2", "r3")
    await asyncio.sleep(SOON)
    lives, unknown = await refused_to_forget(kept, "r1"), await refused_to_forget(kept, "r9")
    assert (type(lives), lives.reason, lives.field) == (FailedPrecondition, Reason.REPLICA_LIVES, "name")
    assert (type(unknown), unknown.reason, unknown.field) == (NotFound, Reason.REPLICA_NOT_FOUND, "name")
    with pytest.raises(FailedPrecondition, match="lives"):  # W9
        await forget(kept.client, KEYS, POOL, "r1", Deadline.of(60.0), dry_run=True)
    await forget(kept.client, KEYS, POOL, "r2", Deadline.of(60.0), dry_run=True)
    assert {*kept.members()} == {"r1", "r2", "r3"}
    await forget(kept.client, KEYS, POOL, "r2", Deadline.of(60.0), dry_run=False)
    assert {*kept.members()} == {"r1", "r3"}
    await asyncio.sleep(SOON)
    assert kept.told == {POOL: 1}


@played
async def test_who_forgets_while_others_come_is_told_to_try_again_and_changes_nothing(etcd: PlayedEtcd):
    """R1: else a replica that came in between would be forgotten with it."""
    kept = await keeping(etcd, "r1")
    await kept.replicas.gone("r1")
    await asyncio.sleep(SOON)
    kept.task.cancel()
    key = KEYS.members(POOL)

    def written(request: Any) -> None:
        if getattr(request, "key", b"") == key:
            etcd.store.put(key, etcd.store.kvs[key].value)

    meddle(etcd, after=written)
    lost = await refused_to_forget(kept, "r1")
    assert (type(lost), lost.reason) == (Conflict, Reason.LOST_RACE)
    assert {*kept.members()} == {"r1"}
    etcd.links["m0"].set_way(Way.REFUSED)
    assert isinstance(await refused_to_forget(kept, "r1"), Unavailable)


@played
async def test_what_another_admin_service_noted_meanwhile_is_not_written_over(etcd: PlayedEtcd):
    """R1: whom only the other has seen would be missed by nobody."""
    kept = Kept(etcd, POOL)
    await asyncio.sleep(SOON)
    key, theirs = KEYS.members(POOL), RememberedReplicas(members={"r9": RememberedReplica()})

    def written(request: Any) -> None:
        is_write = any(one.request_put.key == key for one in getattr(request, "success", ()))
        if is_write and key not in etcd.store.kvs:
            etcd.store.put(key, theirs.to_bytes())

    meddle(etcd, before=written)
    await kept.replicas.alive("r1")
    await asyncio.sleep(WHILE)
    assert {*kept.members()} == {"r1", "r9"}
    assert kept.told == {POOL: 1}


@played
async def test_a_pool_in_which_nothing_happens_is_looked_at_every_five_minutes(etcd: PlayedEtcd):
    """R16 bounded: who was gone for a day is forgotten within minutes, and etcd has an hour's rest else."""
    kept = Kept(etcd, POOL)
    await kept.replicas.alive("r1")
    await asyncio.sleep(WHILE)
    before = kept.looks
    await asyncio.sleep(3600)
    assert 11 <= kept.looks - before <= 13
    kept.task.cancel()


def test_who_went_is_written_before_anything_ends_that_they_may_have_used():
    """By expiry, which goes by what is written: after a pause, and after reading what they told last."""
    assert expiry._WRITTEN_SECONDS > 1.5 * members._PAUSE_SECONDS + members._READ_SECONDS
