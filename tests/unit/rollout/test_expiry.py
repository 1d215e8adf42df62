"""Controllers of expiry of several admin services, on virtual time with an etcd, whatever wall clocks say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock

import pytest

from registry.etcd3.errors import EtcdUnavailable
from registry.etcd3.ops import KeyValue
from registry.model.errors import InvalidArgument, Reason, Unavailable
from registry.model.records import AdapterRecord, TenantRecord
from registry.rollout import expiry
from registry.rollout.ages import ClockReading, ExpiryClock
from registry.transactions.context import Caller
from tests.support.ending_services import NAME, SOMEBODY, Service, audits, begin
from tests.support.played_etcd import PlayedEtcd, now, played
from tests.support.records import KEYS, POOL, record
from tests.support.waiting import eventually

KEY = KEYS.adapter(POOL, NAME)
TTL = 600
# After its time is over it is gone within this, if an admin service runs.
SOON_SECONDS = 5.0


def stands(etcd: PlayedEtcd, key: bytes = KEY) -> bool:
    return key in etcd.store.kvs


async def ended(etcd: PlayedEtcd, key: bytes = KEY) -> float:
    """When it is gone."""
    while stands(etcd, key):  # noqa: ASYNC110 - what plays etcd tells nobody
        await asyncio.sleep(0.25)
    return now()


@pytest.mark.parametrize("ahead", [timedelta(), timedelta(days=400), timedelta(days=-400)])
@played
async def test_it_ends_once_by_its_own_time_with_two_services_and_any_wall_clock(etcd: PlayedEtcd, ahead: timedelta):
    """R25 ends-once: not a moment early, though all wall clocks jump."""
    first, second = begin(etcd, 2)
    await asyncio.sleep(3)
    await first.apply(ttl_seconds=TTL)
    await first.apply(name="acme/stays")
    begun = now()
    await asyncio.sleep(TTL / 2)
    first.wall_ahead = second.wall_ahead = ahead
    at = await ended(etcd)
    assert TTL <= at - begun <= TTL + SOON_SECONDS
    await asyncio.sleep(60)
    (told,) = audits(etcd)
    assert (told["principal"], told["role"], told["reason"]) == ("loraplane-admin", "conductor", "ttl")
    assert [one["name"] for one in told["changes"]] == [NAME]
    assert stands(etcd, KEYS.adapter(POOL, "acme/stays"))
    assert TenantRecord.parse(etcd.store.kvs[KEYS.tenant("acme")].value).adapters == 1
    assert 1 <= first.count["expired"] + second.count["expired"] <= 2


@played
async def test_a_clock_that_another_service_moved_on_meanwhile_stays(etcd: PlayedEtcd, monkeypatch):
    """R25: it is not replaced by what was reckoned from its reading before."""
    key, advanced, written = KEYS.expiry_clock(), expiry.advanced, list[bytes]()

    def overtaken(reading: ClockReading, longest_seconds: float, at: float) -> ExpiryClock:
        clock = advanced(reading, longest_seconds, at)
        if reading.kv is not None and not written:
            written.append(advanced(reading, longest_seconds, at - 1).to_bytes())
            etcd.store.put(key, written[0])
        return clock

    monkeypatch.setattr(expiry, "advanced", overtaken)
    (service,) = begin(etcd)
    await service.apply(ttl_seconds=TTL)
    await eventually(lambda: written)
    assert etcd.store.kvs[key].value == written[0]


@played
async def test_what_ends_by_uses_is_found_unused_at_two_readings_in_a_row(etcd: PlayedEtcd, monkeypatch):
    """R25: a replica that went just before a reading may not be known to have gone."""
    said, found = [True, False, True, True], list[bool]()

    def is_over(*_of: object) -> bool:
        found.append(said[min(len(found), len(said) - 1)])
        return found[-1]

    monkeypatch.setattr("registry.rollout.expiry.is_over", is_over)
    (service,) = begin(etcd)
    await asyncio.sleep(3)
    await service.apply(ttl_seconds=TTL, ttl_from="use")
    await ended(etcd)
    assert found == said
    await service.stop()


@played
async def test_what_was_found_unused_once_stays_while_its_pool_cannot_be_read(etcd: PlayedEtcd, monkeypatch):
    """R25: since it was found so it may have been used; and what could not be deleted then is tried again."""
    monkeypatch.setattr(expiry, "is_over", lambda *_of: True)
    (service,) = begin(etcd)
    await service.apply(ttl_seconds=TTL, ttl_from="use")
    refused: list[float] = []

    async def refusing(*_of: Any, **_more: Any) -> Any:
        refused.append(now())
        monkeypatch.setattr(expiry, "read_pool", AsyncMock(side_effect=EtcdUnavailable("away", maybe_applied=False)))
        raise Unavailable(Reason.ETCD_UNAVAILABLE, "away")

    with monkeypatch.context() as away:
        away.setattr(service.writer, "change", refusing)
        await eventually(lambda: refused, timeout_seconds=2 * TTL)
        await asyncio.sleep(60)
    await asyncio.sleep(TTL)
    assert stands(etcd)
    await service.stop()


@played
async def test_with_a_clock_of_a_backup_it_is_judged_as_often_as_before(etcd: PlayedEtcd, monkeypatch):
    """R25: what this service found by the clock that stood there before is not waited for."""
    monkeypatch.setattr(expiry, "is_over", lambda *_of: now() > 4 * TTL)
    (service,) = begin(etcd)
    await service.apply(ttl_seconds=TTL, ttl_from="use")
    await asyncio.sleep(4 * TTL)
    etcd.store.put(KEYS.expiry_clock(), ExpiryClock().to_bytes())
    assert await ended(etcd) < 5 * TTL
    await service.stop()


@played
async def test_who_went_while_a_pool_was_read_is_known_to_have_gone(etcd: PlayedEtcd, monkeypatch):
    """R25: who is remembered is read behind the replicas, so that it is newer than whoever went meanwhile."""
    read, went, judged = expiry.read_pool, list[int](), list[int]()

    async def reading(*of: Any) -> Any:
        found = await read(*of)
        went.append(etcd.store.put(KEYS.members(POOL), b"{}"))
        return found

    def is_over(_one: object, _pool: object, members: KeyValue | None, _reading: object) -> bool:
        judged.append(members.mod_revision if members else 0)
        return False

    monkeypatch.setattr(expiry, "read_pool", reading)
    monkeypatch.setattr(expiry, "is_over", is_over)
    (service,) = begin(etcd)
    await service.apply(ttl_seconds=TTL, ttl_from="use")
    await asyncio.sleep(2 * TTL)
    assert judged == went != []
    await service.stop()


@played
async def test_whatever_is_written_begins_its_time_anew(etcd: PlayedEtcd):
    """R25: another version, another ttl; and without one it stays."""
    (one,) = begin(etcd)
    await one.apply(ttl_seconds=TTL)
    await asyncio.sleep(TTL - 20)
    await one.apply("v2", ttl_seconds=TTL)
    await asyncio.sleep(TTL - 20)
    await one.apply("v2", ttl_seconds=TTL + 100)
    begun = now()
    assert TTL + 100 <= await ended(etcd) - begun <= TTL + 100 + SOON_SECONDS
    await one.apply("v3", ttl_seconds=60)
    await asyncio.sleep(40)
    await one.apply("v3")
    await asyncio.sleep(4 * TTL)
    assert AdapterRecord.parse(etcd.store.kvs[KEY].value).generation == 3
    assert len(audits(etcd)) == 1


@pytest.mark.parametrize("pause", [0.0, 200.0])
@played
async def test_services_that_are_restarted_all_the_time_end_it_late_by_a_share(etcd: PlayedEtcd, pause: float):
    """R25: what passes while none runs does not count, so it is later by that, and never earlier."""
    ttl, run, tick = 1600, 400.0, 100.0
    (one,) = begin(etcd)
    await one.apply(ttl_seconds=ttl)
    begun, restarts = now(), 0
    while stands(etcd):
        late = ttl / 16 + restarts * (pause + tick + SOON_SECONDS)
        assert now() - begun < ttl + late + run
        await asyncio.sleep(run)
        await one.stop()
        await asyncio.sleep(pause)
        restarts += 1
        one = Service(etcd, restarts, timedelta(days=99)).start()
    assert (now() - begun >= ttl, restarts > 3) == (True, True)
    assert len(audits(etcd)) == 1


@played
async def test_of_what_ends_by_its_age_little_is_asked_meanwhile(etcd: PlayedEtcd, monkeypatch):
    """R16 bounded: it is looked at as often as the clock moves on, and its pool is never read."""
    monkeypatch.setattr(expiry, "read_pool", None)
    looks, read_clock = list[float](), expiry.read_clock

    def noted(*args: Any) -> Any:
        looks.append(now())
        return read_clock(*args)

    monkeypatch.setattr(expiry, "read_clock", noted)
    (one,) = begin(etcd)
    await one.apply(ttl_seconds=TTL)
    await asyncio.sleep(TTL / 2)
    assert len(looks) < 40
    assert await ended(etcd) <= TTL + SOON_SECONDS


@played
async def test_what_comes_amid_a_look_ends_by_its_own_time(etcd: PlayedEtcd):
    """R25: with nothing else to wake who looks than a clock that moves on every few minutes."""
    (one,) = begin(etcd)
    look, begun = one.expiry._look, list[float]()

    async def overtaken(*of: Any) -> float | None:
        again_at = await look(*of)
        if now() > 100 and not begun:
            begun.append(now())
            await one.apply(ttl_seconds=60)
            await asyncio.sleep(1)
        return again_at

    one.expiry._look = overtaken  # type: ignore[method-assign]
    await one.apply(name="acme/long", ttl_seconds=100 * TTL)
    await asyncio.sleep(100)
    await one.apply(name="acme/other", ttl_seconds=100 * TTL)
    await eventually(lambda: stands(etcd))
    assert await ended(etcd) - begun[0] <= 60 + SOON_SECONDS


@played
async def test_after_a_fault_of_ours_it_ends_though_nothing_else_changes(etcd: PlayedEtcd, monkeypatch):
    """R25: a run that failed is begun anew, and has to look at what it knew."""
    (one,) = begin(etcd)
    await one.apply(ttl_seconds=TTL)
    begun = now()
    await asyncio.sleep(20)
    with monkeypatch.context() as faulty:
        faulty.setattr(expiry, "read_clock", None)
        with pytest.raises(TypeError):
            await one.tasks[-1]
    one.tasks[-1] = asyncio.create_task(one.expiry.run())
    async with asyncio.timeout(2 * TTL):
        assert TTL <= await ended(etcd) - begun <= TTL + SOON_SECONDS


@played
async def test_what_is_deleted_is_counted_once_though_its_end_is_heard_of_late(etcd: PlayedEtcd):
    (one,) = begin(etcd)
    await one.apply(ttl_seconds=60)
    await one.apply(name="acme/next", ttl_seconds=61)
    await asyncio.sleep(60)
    [watch] = [watch for watch in etcd.links["m0"].member.watches if watch.whose[1] == KEYS.all_adapters()]
    watch.mute()
    await ended(etcd, KEYS.adapter(POOL, "acme/next"))
    await asyncio.sleep(1)
    assert (stands(etcd), one.count["expired"], len(audits(etcd))) == (False, 2, 2)


@played
async def test_a_service_that_hears_of_it_late_reckons_from_when_it_heard(etcd: PlayedEtcd):
    """R25: it was written by hand, and no reading of the clock was there before it."""
    etcd.store.put(KEY, record(NAME, ttl_seconds=60).to_bytes())
    await asyncio.sleep(500)
    begin(etcd)
    begun = now()
    assert 60 <= await ended(etcd) - begun <= 60 + SOON_SECONDS


@played
async def test_many_end_together_and_what_is_refused_keeps_none_of_the_others(etcd: PlayedEtcd):
    """R8 isolation, R25: of one tenant the counter cannot be read."""
    one, _ = begin(etcd, 2)
    for number in range(20):
        await one.apply(name=f"t{number % 2}/n{number}", ttl_seconds=30)
    etcd.store.put(KEYS.tenant("t1"), b"?")
    begun = now()
    await asyncio.sleep(45)
    left = [key for key in etcd.store.kvs if key.startswith(KEYS.adapters(POOL))]
    assert sorted(left) == sorted(KEYS.adapter(POOL, f"t1/n{number}") for number in range(1, 20, 2))
    etcd.store.put(KEYS.tenant("t1"), TenantRecord(name="t1", adapters=10).to_bytes())
    await ended(etcd, KEYS.adapter(POOL, "t1/n19"))
    assert now() - begun < 45 + 60
    await asyncio.sleep(30)
    assert sorted(told["changes"][0]["name"] for told in audits(etcd)) == sorted(f"t{n % 2}/n{n}" for n in range(20))


@played
async def test_an_outcome_that_is_not_known_is_asked_for_again_by_the_same_id(etcd: PlayedEtcd):
    """W3 idempotent, R25: one that is used up by another."""
    (one,) = begin(etcd)
    asked: list[str] = []
    errors: list[Exception] = [
        Unavailable(Reason.ETCD_UNAVAILABLE, "away"),
        InvalidArgument(Reason.REQUEST_ID_REUSED, "it was refused", field="request_id"),
    ]
    change: Callable[..., Any] = one.writer.change

    async def noted(what: Any, caller: Caller, *rest: Any, **more: Any) -> Any:
        if caller.principal != SOMEBODY:
            asked.append(caller.request_id)
            if errors:
                raise errors.pop(0)
        return await change(what, caller, *rest, **more)

    one.writer.change = noted  # type: ignore[method-assign]
    await one.apply(ttl_seconds=10)
    etag = etcd.store.kvs[KEY].mod_revision
    await ended(etcd)
    assert [asked[0] == asked[1], asked[2] == f"{asked[1]}-1", asked[0].endswith(f"-{etag}")] == [True] * 3
    assert (len(asked), one.count["expired"]) == (3, 1)


@played
async def test_a_clock_that_cannot_be_written_keeps_nothing_from_ending(etcd: PlayedEtcd):
    """R14 nack: a later release wrote it; what is damaged is replaced; and nothing is written where nothing ends."""
    (one,) = begin(etcd)
    await one.apply(name="acme/stays")
    await asyncio.sleep(600)
    assert not stands(etcd, KEYS.expiry_clock())
    etcd.store.put(KEYS.expiry_clock(), b'{"schema":99}')
    await one.apply(ttl_seconds=100)
    begun = now()
    assert 100 <= await ended(etcd) - begun <= 100 + SOON_SECONDS
    assert etcd.store.kvs[KEYS.expiry_clock()].value == b'{"schema":99}'
    etcd.store.put(KEYS.expiry_clock(), b"?")
    await one.apply(ttl_seconds=100)
    await asyncio.sleep(50)
    assert b'"marks":' in etcd.store.kvs[KEYS.expiry_clock()].value
    await ended(etcd)
    revision = etcd.store.revision
    await asyncio.sleep(3600)
    assert etcd.store.revision == revision


@played
async def test_an_etcd_that_is_away_is_asked_with_pauses_and_it_ends_once_it_is_back(etcd: PlayedEtcd):
    """R3 converge, R25."""
    (one,) = begin(etcd)
    await one.apply(ttl_seconds=60)
    begun = now()
    await asyncio.sleep(30)
    (link,) = etcd.links.values()
    link.cut()
    await asyncio.sleep(1)
    assert 60 <= await ended(etcd) - begun <= 60 + 60
    assert len(audits(etcd)) == 1
