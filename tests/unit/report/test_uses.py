"""Last uses of adapters whose ttl begins with them, as a sidecar asks for and tells them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from registry.etcd3.client import Client
from registry.etcd3.errors import LeaseExpired
from registry.model.status import MAX_USES, ReportedUses, tell_seconds
from registry.runtime.clock import Clock
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.engines.driver import Engine, EngineUnreachable
from sidecar.engines.observed import EngineActivity
from sidecar.report.uses import IDLE_SECONDS, KnownUses, UseLook, UseTeller, followed, lives_of, reported_uses
from tests.support.records import kv
from tests.support.worlds import desired

USE = {"ttl_seconds": 160, "ttl_from": "use"}
DESIRED = desired(kv("Acme/A", 1, **USE), kv("b", 2, ttl_seconds=60), kv("c", 3), kv("d", 4, load="lazy", **USE))
LIVES = {"acme%2Fa": ("Acme/A", 160), "d": ("d", 160)}


def activity(last_used: dict[str, float] | None = None, in_flight: dict[str, int] | None = None) -> EngineActivity:
    return EngineActivity(last_used=last_used or {}, adapter_in_flight=in_flight or {})


def test_only_adapters_whose_ttl_begins_with_a_use_are_followed():
    assert (lives_of(DESIRED), lives_of(None)) == (LIVES, {})
    assert [tell_seconds(ttl) for ttl in (10, 160, 3200, 10**6)] == [5, 10, 200, 300]


def test_a_use_is_told_by_the_revision_before_which_it_was_whatever_generation_it_had():
    """R25: also of a request that runs, and of what came while the engine was asked before."""
    first = followed(KnownUses(), UseLook("e", activity({"d": 0.0}), 10, 100.0, 100.0), 20, DESIRED)
    assert (first.since, first.used) == (11, {})
    news = activity({"acme/a@3": 10.9, "d": 11.1, "c": 0.0, "gone": 0.0}, {"acme/a@2": 1, "d": 0})
    second = followed(first, UseLook("e", news, 20, 108.0, 110.0), 20, DESIRED)
    assert second.used == {"acme%2Fa": 21, "c": 21}
    assert reported_uses(second, 20, LIVES).names == [("Acme/A", 21)], "of others nobody asks"
    left = desired(kv("Acme/A", 1, **USE), kv("d", 4, load="lazy", **USE))
    third = followed(second, UseLook("e", activity({"acme/a": 13.1}, {"d": 2}), 30, 120.0, 120.0), 20, left)
    assert third.used == {"acme%2Fa": 21, "d": 31}, "R16: of what is deleted nothing is remembered"
    assert reported_uses(third, 30, LIVES) == ReportedUses(since=11, until=30, names=[("Acme/A", 21), ("d", 31)])
    again = followed(second, UseLook("e", activity({"d": 12.9}), 30, 120.0, 120.0), 20, left)
    assert again.used == third.used, "it may have come after the engine was asked, and before it had answered"


def test_of_what_nobody_knows_any_adapter_may_have_been_used_until_then():
    """R25: of another process of the engine, and after a pause in which an adapter may have come and gone."""
    known = KnownUses("e", 5, 100.0, {"d": 9})
    for look in (UseLook("f", activity(), 20, 110.0, 110.0), UseLook("e", activity(), 20, 120.5, 121.0)):
        assert followed(known, look, 20, DESIRED) == KnownUses(look.incarnation, 21, look.at)
    assert followed(known, UseLook("e", activity(), 20, 120.0, 130.0), 20, DESIRED).since == 5


def test_of_too_many_names_the_oldest_give_way_and_nothing_is_taken_for_unused():
    """R16 bounded, R25."""
    lives = {f"n{at}": (f"n{at}", 60) for at in range(MAX_USES + 2)}
    told = reported_uses(KnownUses("e", 5, 0.0, {key: 10 + at for at, key in enumerate(lives)}), 9000, lives)
    assert (told.since, len(told.names)) == (11, MAX_USES)
    assert not {"n0", "n1"} & {name for name, _ in told.names}


class Scene:
    """A teller over an engine and a store that say what a test has them say, on a clock that it moves."""

    kind, incarnation_now, revision, time = "vllm", "e", 10, 100.0

    def __init__(self) -> None:
        self.told: list[ReportedUses | None] = []
        self.said: EngineActivity | None = activity()
        self.is_etcd_away = False
        self.mailbox = Mailbox()
        self.mailbox.post(Snapshot(desired=DESIRED))
        parts = cast("Engine", self), (cast("Client", self), b"key"), cast("Clock", self)
        self.asked: set[str] = set()
        self.teller = UseTeller(self.mailbox, *parts, self.told.append, self.asked)

    def monotonic(self) -> float:
        return self.time

    async def range(self, _what: object, **_more: Any) -> Any:
        if self.is_etcd_away:
            raise LeaseExpired("away")
        return SimpleNamespace(revision=self.revision)

    async def activity(self) -> EngineActivity:
        if self.said is None:
            raise EngineUnreachable("away")
        return self.said

    async def incarnation(self) -> str:
        return self.incarnation_now


async def test_a_fault_of_our_own_is_not_taken_for_one_of_the_engine_or_of_etcd():
    """Fail stop: the supervisor tells it."""
    scene = Scene()
    scene.activity = AsyncMock(side_effect=RuntimeError("ours"))  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        await scene.teller.look()


async def test_it_is_told_at_each_look_and_taken_back_once_nothing_is_known():
    scene = Scene()
    assert await scene.teller.look() == 10
    scene.time, scene.revision, scene.said = 110, 20, activity({"d": 1.0})
    await scene.teller.look()
    assert scene.told == [ReportedUses(since=11, until=10), ReportedUses(since=11, until=20, names=[("d", 21)])]
    scene.said = None
    for time in (115.0, 130.0, 131.0, 140.0):
        scene.time = time
        assert await scene.teller.look() == IDLE_SECONDS
    assert scene.told[2:] == [None]
    scene.said, scene.is_etcd_away = activity(), True
    await scene.teller.look()
    scene.is_etcd_away = False
    for scene.said in (EngineActivity(), EngineActivity(last_used={}), EngineActivity(adapter_in_flight={})):
        await scene.teller.look()
    assert scene.told[2:] == [None]
    scene.said = activity()
    await scene.teller.look()
    assert scene.told[3:] == [ReportedUses(since=21, until=20)]
    scene.mailbox.post(Snapshot(desired=desired(kv("c", 3))))
    assert await scene.teller.look() == IDLE_SECONDS
    assert scene.told[4:] == [None]


async def test_what_comes_while_the_engine_is_asked_is_told_by_the_next_look():
    """R25: a revision that the store reached meanwhile is not vouched for, and no question is forgotten."""
    scene = Scene()
    await scene.teller.look()
    answer = scene.activity

    async def answering() -> EngineActivity:
        scene.asked.add("d")
        scene.revision = 25
        return await answer()

    scene.activity = answering  # type: ignore[method-assign]
    scene.time, scene.revision = 110, 20
    await scene.teller.look()
    assert scene.told[1:] == [ReportedUses(since=11, until=20)]
    scene.activity = answer  # type: ignore[method-assign]
    scene.time = 120
    await scene.teller.look()
    assert scene.told[2:] == [ReportedUses(since=11, until=25, names=[("d", 26)])]


async def test_what_the_engine_asked_for_was_used_though_it_is_loaded_no_more():
    """R25: of lazy adapters, which come and go between two looks; also if the next look comes to nothing."""
    scene = Scene()
    await scene.teller.look()
    scene.asked |= {"d", "deleted"}
    scene.time, scene.revision, scene.said = 105, 15, None
    await scene.teller.look()
    scene.time, scene.revision, scene.said = 110, 20, activity()
    await scene.teller.look()
    assert scene.told[1:] == [ReportedUses(since=11, until=20, names=[("d", 21)])]
    scene.time, scene.revision = 120, 30
    await scene.teller.look()
    assert scene.told[2:] == [ReportedUses(since=11, until=30, names=[("d", 21)])]
    scene.mailbox.post(Snapshot(desired=desired(kv("c", 3))))
    scene.asked.add("c")
    await scene.teller.look()
    assert not scene.asked, "R16: nothing is kept where nobody asks for it"
