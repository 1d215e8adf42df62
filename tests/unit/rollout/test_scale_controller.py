"""Controllers of scaling of several admin services, on virtual time with an etcd."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import Mock

from registry.model.errors import InvalidArgument, Reason, Unavailable
from registry.model.placement import spec_now
from registry.model.records import AdapterRecord, Placement
from registry.model.status import AdapterLoad, ByLoad, ReportedLoad
from registry.rollout.pool_reader import PoolReader
from registry.transactions.context import Caller
from tests.support.played_etcd import PlayedEtcd, now, played
from tests.support.records import KEYS, POOL
from tests.support.residency_world import presence, replica_status
from tests.support.scale_services import begin, stand

NAME = "acme/a"
BY_LOAD = Placement(replicas=2, by_load=ByLoad(max=4, per_replica=10))


def say(etcd: PlayedEtcd, in_flight: float | None, *replicas: str) -> None:
    """Replicas say that they live, and how many requests each has; None: that they do not know."""
    rows = [AdapterLoad(name=NAME, in_flight=in_flight)] if in_flight else []
    load = None if in_flight is None else ReportedLoad(adapters=rows)
    for replica in replicas:
        stand(etcd, KEYS.replica(POOL, replica), presence(replica, by_reports=True).to_bytes())
        stand(etcd, KEYS.status(POOL, replica), replica_status(replica, 1, load=load).to_bytes())


def record(etcd: PlayedEtcd, name: str = NAME) -> AdapterRecord:
    return AdapterRecord.parse(etcd.store.kvs[KEYS.adapter(POOL, name)].value)


def number(etcd: PlayedEtcd) -> object:
    return spec_now(record(etcd)).placement.replicas


def audits(etcd: PlayedEtcd) -> list[dict[str, Any]]:
    found = [json.loads(kv.value) for key, kv in etcd.store.kvs.items() if key.startswith(KEYS.audits())]
    return [one for one in found if one["method"] == "ScaleAdapter"]


@played
async def test_two_services_take_one_step_a_minute_and_each_is_audited_once(etcd: PlayedEtcd):
    """W6, W7: the generation stays, and the reason stands in record and audit."""
    services = begin(etcd, 2)
    say(etcd, 11.0, "r1", "r2", "r3", "r4", "r5")
    await services[0].apply(placement=BY_LOAD)
    await asyncio.sleep(59)
    assert number(etcd) == 2
    await asyncio.sleep(5)
    assert number(etcd) == 3
    await asyncio.sleep(50)
    assert number(etcd) == 3
    await asyncio.sleep(600)
    made = record(etcd)
    assert made.scaled is not None
    assert (made.generation, made.scaled.replicas) == (1, 4)
    assert made.scaled.reason == "55.0 requests at once on 3 replicas, 10 are to be on each"
    told = audits(etcd)
    assert [one["changes"][0]["after"]["scaled"]["replicas"] for one in told] == [3, 4]
    assert {(one["principal"], one["role"]) for one in told} == {("loraplane-admin", "conductor")}
    assert services[0].count["up"] + services[1].count["up"] >= 2


@played
async def test_it_goes_down_once_all_tell_and_a_publish_leaves_it_as_it_is(etcd: PlayedEtcd):
    (one,) = begin(etcd)
    say(etcd, 11.0, "r1", "r2", "r3")
    await one.apply(placement=BY_LOAD)
    await asyncio.sleep(120)
    assert number(etcd) == 3
    await one.apply("v2", placement=BY_LOAD)
    assert (record(etcd).generation, number(etcd)) == (2, 3)
    say(etcd, None, "r1")
    say(etcd, 0, "r2", "r3")
    await asyncio.sleep(900)
    assert number(etcd) == 3, "one of them may have requests"
    say(etcd, 0, "r1")
    await asyncio.sleep(170)
    assert number(etcd) == 3
    await asyncio.sleep(30)
    assert (number(etcd), one.count["down"]) == (2, 1)
    await one.apply("v2", placement=Placement(replicas=2))
    assert record(etcd).scaled is None


@played
async def test_it_follows_a_pool_only_while_it_has_such_an_adapter(etcd: PlayedEtcd):
    (one,) = begin(etcd)
    say(etcd, 25.0, "r1", "r2", "r3")
    await one.apply(placement=Placement(replicas=2))
    await asyncio.sleep(200)
    assert record(etcd).scaled is None
    for _ in range(2):
        await one.apply(placement=BY_LOAD)
        await asyncio.sleep(70)
        assert number(etcd) == 3
        await one.apply(placement=Placement(replicas=2))
        await asyncio.sleep(10)
        assert not one.scaling._wakes


@played
async def test_where_nothing_is_due_nobody_looks(etcd: PlayedEtcd):
    """A look is at the whole pool, and there may be many."""
    (one,) = begin(etcd)
    say(etcd, 8.0, "r1", "r2")
    look, looks = one.scaling._look, list[float]()

    async def noted(*of: Any) -> float | None:
        looks.append(now())
        return await look(*of)

    one.scaling._look = noted  # type: ignore[method-assign]
    await one.apply(placement=BY_LOAD)
    await asyncio.sleep(3600)
    assert number(etcd) == 2
    assert 0 < len(looks) < 10


@played
async def test_what_replicas_say_amid_a_look_is_seen_by_the_next(etcd: PlayedEtcd):
    """R3: they may say nothing else for long."""
    (one,) = begin(etcd)
    say(etcd, 8.0, "r1", "r2", "r3")
    look, looks = one.scaling._look, list[float]()

    async def overtaken(*of: Any) -> float | None:
        again_at = await look(*of)
        looks.append(again_at or now())
        if again_at is None:
            say(etcd, 11.0, "r1", "r2", "r3")
            await asyncio.sleep(1)
        return again_at

    one.scaling._look = overtaken  # type: ignore[method-assign]
    await one.apply(placement=BY_LOAD)
    await asyncio.sleep(120)
    assert number(etcd) == 3


@played
async def test_a_number_stays_while_the_view_of_its_pool_is_lost(etcd: PlayedEtcd, monkeypatch):
    """What was heard last may not be so any more."""
    monkeypatch.setattr(PoolReader, "losses", None)
    (one,) = begin(etcd)
    say(etcd, 11.0, "r1", "r2", "r3")
    await one.apply(placement=BY_LOAD)
    await asyncio.sleep(120)
    assert number(etcd) == 2
    monkeypatch.setattr(PoolReader, "losses", 1)
    say(etcd, 12.0, "r1")
    await asyncio.sleep(70)
    assert number(etcd) == 3


@played
async def test_what_etcd_or_somebody_refuses_is_tried_again(etcd: PlayedEtcd):
    (one,) = begin(etcd)
    say(etcd, 11.0, "r1", "r2", "r3")
    refusals: list[Exception] = [
        Unavailable(Reason.ETCD_UNAVAILABLE, "away"),
        InvalidArgument(Reason.REQUEST_ID_REUSED, "taken"),
    ]
    await one.apply(placement=BY_LOAD)
    change, ids = one.writer.change, list[str]()

    async def refusing(asked: Any, caller: Caller, *more: Any, **named: Any) -> Any:
        ids.append(caller.request_id)
        if refusals:
            raise refusals.pop(0)
        return await change(asked, caller, *more, **named)

    one.writer.change = refusing  # type: ignore[method-assign]
    for _ in range(180):  # another pool is looked at all the time
        await asyncio.sleep(0.5)
        await one.scaling._look("q", Mock(losses=0))
    assert number(etcd) == 3
    assert (ids[0] == ids[1], ids[2] == f"{ids[0]}-1") == (True, True), "another id where the first is used up"
