"""An engine that fails in every way: what is unknown is settled by looking, and nothing is said that is not so."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
import structlog.testing

from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Cut, Hang, Options, OrderedAnswer
from sidecar.loop.executor import REST_FACTOR
from tests.support.rig import QUICK, running_rig
from tests.support.waiting import eventually


async def test_adapters_are_loaded_swapped_and_unloaded(tmp_path):
    """R3 converge."""
    async with running_rig(tmp_path) as rig:
        rig.desire(1, a="v1", b="v2")
        await rig.served(1, "a", "b")
        rig.desire(2, a="v3")
        await rig.served(2, "a")
        assert rig.status.ready


async def test_a_load_that_times_out_and_completes_later_is_not_made_twice(tmp_path):
    """Faults 19 and 20: the engine hangs in a load; unknown, no second load of that name, not ready; then settled."""
    async with running_rig(tmp_path, deadlines=QUICK) as rig:
        rig.desire(1, a="v1")
        await rig.served(1, "a")
        release = asyncio.Event()
        rig.engine.faults.order("load", Hang(release))
        rig.desire(2, a="v1", b="v2")

        def hangs() -> bool:
            return rig.reasons() == {"b": "outcome_unknown"} and not rig.status.ready

        await eventually(hangs)
        assert "generates nothing" in rig.status.note
        assert rig.calls("load").count("b") == 1
        release.set()
        await rig.served(2, "a", "b")
        assert rig.calls("load").count("b") == 1
        await eventually(lambda: rig.status.ready)  # the listing shows it, and a slow machine's next token may be late


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_load_whose_reply_is_lost_is_settled_by_looking(tmp_path, is_done):
    """Fault 20: the connection breaks after, or before, the load was carried out."""
    async with running_rig(tmp_path) as rig:
        rig.engine.faults.order("load", Cut(is_done=is_done))
        with structlog.testing.capture_logs() as logged:
            rig.desire(1, a="v1")
            await rig.served(1, "a")
            await eventually(lambda: outcomes(logged, "load"))  # a look may have seen it before the call came back
        assert rig.calls("load") == ["a"]  # the engine notes what it carries out
        assert outcomes(logged, "load")[0] == "Unknown"


@pytest.mark.parametrize("is_done", [True, False])
async def test_an_unload_whose_reply_is_lost_is_settled_by_looking(tmp_path, is_done):
    """Fault 20, R6."""
    async with running_rig(tmp_path) as rig:
        rig.desire(1, a="v1")
        await rig.served(1, "a")
        rig.engine.faults.order("unload", Cut(is_done=is_done))
        with structlog.testing.capture_logs() as logged:
            rig.desire(2)
            await rig.served(2)
            await eventually(lambda: outcomes(logged, "unload"))  # a look may have seen it before the call came back
        assert outcomes(logged, "unload")[0] == "Unknown"
        assert rig.calls("unload") == ["a"]


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_a_passing_refusal_is_retried_and_the_others_are_served(tmp_path, status):
    """Fault 21, R8: classified by a table; one failure delays no other."""
    async with running_rig(tmp_path) as rig:
        rig.engine.faults.order("load", OrderedAnswer(status, "no"))
        with structlog.testing.capture_logs() as logged:
            rig.desire(1, a="v1", b="v2")
            await rig.served(1, "a", "b")
            await eventually(lambda: len(outcomes(logged, "load")) == 3)
        kind = {429: "Transient", 500: "Refused"}.get(status, "Unknown")
        assert sorted(outcomes(logged, "load")) == sorted([kind, "Done", "Done"])


def outcomes(logged: Sequence[MutableMapping[str, Any]], call: str) -> list[str]:
    """The kinds of what became of the engine's calls, in order."""
    calls = [line for line in logged if line["event"] == "engine_call" and line["call"] == call]
    return [line["outcome"].partition("(")[0] for line in calls]


async def test_an_adapter_that_the_engine_refuses_is_served_once_it_does_not(tmp_path):
    """R17 heals: a refusal is never final, and its own sentence is told meanwhile."""
    async with running_rig(tmp_path) as rig:
        rig.engine.faults.order("load", *[OrderedAnswer(500, '{"error":{"message":"bad rank"}}')] * 4)
        rig.desire(1, a="v1")

        def is_refused() -> bool:
            assert rig.statuses
            assert rig.status.failed
            return rig.status.failed[0].attempts >= 3

        await eventually(is_refused)
        (failed,) = rig.status.failed
        assert (failed.reason, failed.message, failed.settled) == ("engine_refused", "bad rank", False)
        assert failed.retry_at is not None
        await rig.served(1, "a")


async def test_a_listing_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path):
    """Unknown is not empty: no plan, so no load of what is loaded and no unload."""
    async with running_rig(tmp_path) as rig:
        rig.desire(1, a="v1")
        await rig.served(1, "a")
        rig.engine.faults.order("models", *[OrderedAnswer(200, '{"object":"list","data":[{"id":1}]}')] * 5)
        rig.reconciler.distrust()

        def is_unreadable() -> bool:
            return "cannot be read in full" in rig.status.note and not rig.status.ready

        await eventually(is_unreadable)
        assert rig.calls("load") == ["a"]
        for _ in range(3):
            rig.reconciler.distrust()
            await asyncio.sleep(0)
        await eventually(lambda: rig.status.ready)
        assert (rig.calls("load"), rig.calls("unload")) == (["a"], [])


async def test_what_somebody_else_loads_under_our_name_in_between_is_not_taken_away(tmp_path):
    """R11 foreign-safe: right before an unload the engine is looked at again."""
    async with running_rig(tmp_path) as rig:
        rig.desire(1, a="v1", b="v2")
        await rig.served(1, "a", "b")
        elsewhere = rig.sources / "v1"
        await rig.engine.unload("a")
        await rig.engine.load("a", str(elsewhere))
        rig.desire(2, b="v2")
        await eventually(lambda: rig.status.observed_revision == 2 and rig.status.served.count == 1)
        assert rig.engine.cards["a"].path == str(elsewhere)
        assert "a" not in rig.calls("unload")


async def test_while_requests_run_loads_are_paced(tmp_path):
    """After a load the engine rests four times as long, while requests run."""
    engine = SimulatedVllm(Options(load_seconds=0.1))
    async with running_rig(tmp_path, engine) as rig:
        rig.desire(1, a="v1")
        await rig.served(1, "a")
        engine.running.append("tiny")
        rig.desire(2, a="v1", b="v2", c="v3", d="v4")
        await rig.served(2, "a", "b", "c", "d")
        engine.running.clear()
    loads = [call.received_at for call in engine.calls if call.kind == "load"][1:]
    assert all(later - earlier >= 0.1 * (1 + REST_FACTOR) for earlier, later in pairwise(loads)), loads
