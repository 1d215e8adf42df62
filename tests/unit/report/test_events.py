"""The ring of a replica's newest events."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from unittest.mock import Mock

import httpx
import pytest

from registry.model.status import ReplicaStatus
from registry.runtime.clock import Clock
from sidecar.desired.mailbox import Mailbox
from sidecar.desired.pool_cache import PoolCache
from sidecar.engines.observed import Observed
from sidecar.plan.handoff import Handoff
from sidecar.plan.types import (
    FailedAdapter,
    Plan,
    RoundReport,
    Selection,
    ServedAdapter,
    Unload,
)
from sidecar.report.cache import StatusCache
from sidecar.report.events import EventRing
from sidecar.report.http import make_app
from sidecar.report.reporting import Reporting
from sidecar.report.status import ReplicaIdentity, says_the_same
from tests.support.records import KEYS, POOL, kv
from tests.support.worlds import desired, observed
from tests.unit.report.test_status import situation

PLAN = Plan(1, (), (), (), (), (), None)
CLOCK = Clock(wall=lambda: datetime(2026, 1, 2, tzinfo=UTC))


class Told:
    """A ring, and what it has told since it was last asked."""

    def __init__(self, *gone: str, size: int | None = None) -> None:
        bound = () if size is None else (size,)
        self.ring = EventRing(CLOCK, lambda key: key not in gone, *bound)
        self._seen = 1

    def round(self, look: Observed | None, plan: Plan | None = PLAN, *, ready: bool = False, **said: str) -> list[str]:
        texts = {"note": "", "held": "", "last_request_id": ""} | said
        self.ring.take(RoundReport(situation(plan, observed=look, ready=ready, **texts), 0))
        events = [one for one in self.ring.as_dict()["events"] if one["number"] > self._seen]  # type: ignore[attr-defined]
        self._seen += len(events)
        keys = ("event", "name", "generation", "reason", "message")
        return [" ".join(str(one[key]) for key in keys if one[key]) for one in events]


def test_loads_swaps_and_unloads_are_those_that_the_engine_lists():
    """R9: also those that somebody else made. What it had before is no event."""
    told, served = Told("gone"), replace(PLAN, served=(ServedAdapter("a", 2, "d"),))
    assert told.ring.as_dict()["events"][0]["event"] == "started"  # type: ignore[index]
    assert told.round(observed({"gone": "v1", "a": "v1"})) == []
    assert told.round(observed({"a": "v2", "b": "v1"}), served) == ["unloaded gone", "swapped a 2", "loaded b"]
    assert told.round(observed({"a": "v2", "b": "v1"}), served) == []
    assert told.round(None, None) == []
    assert told.round(observed({"b": "v1"}), None) == ["unloaded a"]


def test_a_restart_of_the_engine_is_told_once_with_what_comes_back():
    """What a process lost is not evicted of the next."""
    told = Told()
    told.round(observed({"a": "v1", "b": "v1"}), replace(PLAN, calls=(Unload("a", "/v1"),)))
    restarted = "engine_restarted another process of the engine than before, which had 2 adapters"
    assert told.round(observed({}, incarnation="e2")) == [restarted]
    assert told.round(observed({"a": "v1"}, incarnation="e2")) == ["loaded a"]
    assert told.round(observed({}, incarnation="e2")) == ["unloaded a"]


STATE = desired(kv("a", 1))
WANTED = {"chosen": Selection(adapters=(STATE.adapters["a"],))}
LEAVING = Handoff("a", "a", 3, 1, pinned=True, terms=STATE.adapters["a"].terms, owners=("r2",), among=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "parts", "now", "expected"),
    [
        ("a", {}, {}, "evicted a"),
        ("gone", {}, {}, "unloaded gone"),
        ("a", {"leaving": (LEAVING,)}, {}, "unloaded a"),
        ("a@1", WANTED, {"a@2": "v2"}, "unloaded a@1"),
    ],
)
def test_what_we_unload_although_it_is_desired_is_evicted(name, parts, now, expected):
    """Also if the call goes on after the round; not what another version or another replica replaces."""
    told, first = Told("gone"), observed({name: "v1"})
    told.round(first, replace(PLAN, calls=(Unload(name, "/v1"),), **parts))
    told.round(first, replace(PLAN, **parts))
    assert told.round(observed(now), PLAN)[0] == expected
    told.round(observed({name: "v1"}), PLAN)
    assert told.round(observed({}), PLAN)[0] == f"unloaded {name}", "somebody else did that"


@pytest.mark.parametrize(
    ("records", "kind"),
    [({}, "evicted"), ({"load": "lazy"}, "evicted"), ({"enabled": False}, "unloaded")],
)
def test_what_is_disabled_is_unloaded_as_what_is_deleted(records, kind, tmp_path):
    """Its record stands on, and nobody asks for it."""
    cache = PoolCache(KEYS, POOL, Mailbox(), Mock())
    cache.informer.replace(2, [kv("a", 2, **records)])
    ring = Reporting(Mock(state=tmp_path, clock=CLOCK), cache, Mock(), set()).events
    for look, plan in ((observed({"a": "v1"}), replace(PLAN, calls=(Unload("a", "/v1"),))), (observed({}), PLAN)):
        ring.take(RoundReport(situation(plan, observed=look), 0))
    assert [one.event for one in ring.newest() if one.name == "a"] == [kind]


def test_a_refusal_is_told_once_until_it_is_another():
    told = Told()

    def failing(generation: int, attempts: int) -> Plan:
        one = FailedAdapter("a", generation, "rank_too_high", "m" * 900, attempts, None, "q", is_settled=True)
        return replace(PLAN, failed=(one,))

    assert told.round(None, failing(1, 1)) == [f"refused a 1 rank_too_high {'m' * 500}"]
    assert told.round(None, failing(1, 2)) == []
    assert told.round(None, failing(2, 1)) == [f"refused a 2 rank_too_high {'m' * 500}"]
    assert told.round(None) == []
    assert len(told.round(None, failing(2, 2))) == 1


def test_readiness_and_held_lists_are_told_with_why():
    """R15, R18."""
    told = Told()
    assert told.round(None, ready=True, note="it warms up") == ["ready"], "a note is why it is not"
    assert told.round(None, ready=True, note="it warms up") == []
    assert told.round(None, note="the engine is away") == ["not_ready the engine is away"]
    assert told.round(None, held="12 of 13 would go") == ["held 12 of 13 would go"]
    assert told.round(None, held="12 of 13 would go") == []
    assert told.round(None, held="13 of 13 would go") == ["held 13 of 13 would go"]
    assert told.round(None) == []
    assert told.round(None, held="13 of 13 would go") == ["held 13 of 13 would go"]


async def test_the_ring_is_bounded_and_served():
    """X2: however much happens, memory is bounded; half a character that somebody wrote breaks no reply."""
    usual = Told()
    for number in range(1001):
        usual.ring.take(RoundReport(situation(held=f"{number}", ready=False), 0))
    assert (len(usual.ring.as_dict()["events"]), usual.ring.as_dict()["forgotten"]) == (1000, 2)  # type: ignore[arg-type]
    told = Told(size=3)
    for number in range(4):
        told.round(None, held=f"{number} \ud800")
    cache = StatusCache(ReplicaIdentity("r1", "p", "vllm", "http://e"), CLOCK, lambda _: None)
    transport = httpx.ASGITransport(make_app(cache, [], None, told.ring, None))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
        reply = await client.get("/events")
    body = json.loads(reply.text)
    assert (body["replica"], body["pool"], body["schema"], body["forgotten"]) == ("r1", "p", 1, 2)
    assert [one["number"] for one in body["events"]] == [3, 4, 5]
    assert body["events"][0]["at"] == "2026-01-02T00:00:00.000Z"


async def test_a_status_tells_of_the_newest_events_and_is_written_for_none_of_them():
    """R16: they go along with what else is told. However much happened, and with whatever text, it can be written."""
    told = Told()
    cache = StatusCache(ReplicaIdentity("r1", "p", "vllm", "http://e"), CLOCK, lambda _: None, events=told.ring.newest)
    before = cache.status
    assert [(one.event, one.at) for one in before.events] == [("started", "2026-01-02T00:00:00.000Z")]
    for number in range(12):
        told.round(None, held=f"{number} \ud800" + "x" * 900)
    cache.look_again()
    after = cache.status
    assert [one.message.split()[0] for one in after.events] == [str(number) for number in range(2, 12)]
    assert max(len(one.message) for one in after.events) == 200
    assert says_the_same(before, after)
    assert ReplicaStatus.parse(after.to_bytes()).events[0].message.startswith("2 ?xxx")
