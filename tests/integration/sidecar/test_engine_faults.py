"""An engine that fails in every way: what is unknown is settled by looking, and nothing is said that is not so."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.faults import Answer, Cut, Hang
from sidecar.engines.simulated.options import Options
from sidecar.executor import REST_FACTOR
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
        assert rig.status.ready


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_load_whose_reply_is_lost_is_settled_by_looking(tmp_path, is_done):
    """Fault 20: the connection breaks after, or before, the load was carried out."""
    async with running_rig(tmp_path) as rig:
        rig.engine.faults.order("load", Cut(is_done=is_done))
        rig.desire(1, a="v1")
        await rig.served(1, "a")
        assert rig.calls("load") == ["a"]  # the engine notes what it carries out


@pytest.mark.parametrize("is_done", [True, False])
async def test_an_unload_whose_reply_is_lost_is_settled_by_looking(tmp_path, is_done):
    """Fault 20, R6."""
    async with running_rig(tmp_path) as rig:
        rig.desire(1, a="v1")
        await rig.served(1, "a")
        rig.engine.faults.order("unload", Cut(is_done=is_done))
        rig.desire(2)
        await rig.served(2)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_a_passing_refusal_is_retried_and_the_others_are_served(tmp_path, status):
    """Fault 21, R8: classified by a table; one failure delays no other."""
    async with running_rig(tmp_path) as rig:
        rig.engine.faults.order("load", Answer(status, "no"))
        rig.desire(1, a="v1", b="v2")
        await rig.served(1, "a", "b")


async def test_an_adapter_that_the_engine_keeps_refusing_is_given_up(tmp_path):
    """R8 isolation: retries are bounded, per artifact and engine process."""
    async with running_rig(tmp_path) as rig:
        rig.engine.faults.order("load", *[Answer(500, '{"error":{"message":"bad rank"}}')] * 3)
        rig.desire(1, a="v1")

        def given_up() -> bool:
            assert rig.statuses
            assert rig.status.failed
            return rig.status.failed[0].retry_at is None

        await eventually(given_up)
        (failed,) = rig.status.failed
        assert (failed.reason, failed.attempts, failed.message) == ("engine_refused", 3, "bad rank")
        assert rig.status.ready


async def test_a_listing_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path):
    """Unknown is not empty: no plan, so no load of what is loaded and no unload."""
    async with running_rig(tmp_path) as rig:
        rig.desire(1, a="v1")
        await rig.served(1, "a")
        rig.engine.faults.order("models", *[Answer(200, '{"object":"list","data":[{"id":1}]}')] * 3)
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
