"""A sidecar beside an engine that has the plugin: swaps through it, says so, and settles what it does not know."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.engines.simulated.engine import Card, SimulatedVllm
from sidecar.engines.simulated.options import Options
from tests.support.adapters import write_adapter
from tests.support.rig import QUICK, running_rig
from tests.support.waiting import eventually

PLUGIN = Options(plugin=True)


class Held(SimulatedVllm):
    """Holds back what comes into memory while `gate` is not set; `held` counts it."""

    def __init__(self) -> None:
        super().__init__(PLUGIN)
        self.gate = asyncio.Event()
        self.gate.set()
        self.held = 0

    async def add(self, card: Card, hold: asyncio.Event | None = None) -> None:
        self.held += not self.gate.is_set()
        await self.gate.wait()
        await super().add(card, hold)


async def test_the_status_says_how_it_swaps_and_no_name_is_ever_unloaded(tmp_path):
    """R3 converge."""
    async with running_rig(tmp_path, SimulatedVllm(PLUGIN)) as rig:
        rig.desire(1, a="v1")
        await rig.served(1, "a")
        assert rig.status.engine.swap == "plugin"
        rig.desire(2, a="v2")
        await rig.served(2, "a")
        assert (rig.calls("load"), rig.calls("unload")) == (["a"], [])
        rig.desire(3)
        await rig.served(3)
        assert rig.calls("unload") == []  # by the plugin


async def test_without_the_plugin_the_status_says_so(tmp_path):
    """Both strategies come to the same end."""
    async with running_rig(tmp_path) as rig:
        rig.desire(1, a="v1")
        await rig.served(1, "a")
        assert rig.status.engine.swap == "pipelined"
        rig.desire(2, a="v2")
        await rig.served(2, "a")
        assert "a" in rig.calls("unload")


async def test_a_swap_that_times_out_leaves_the_old_version_and_is_settled_by_looking(tmp_path):
    """Faults 19 and 20: it may complete later, and is not made twice meanwhile; the name is there all the time."""
    engine = Held()
    async with running_rig(tmp_path, engine, QUICK) as rig:
        rig.desire(1, a="v1")
        await rig.served(1, "a")
        old = engine.cards["a"]
        engine.gate.clear()
        rig.desire(2, a="v2")
        await eventually(lambda: engine.held and rig.reasons().get("a") not in {None, "swapping", "staging"})
        assert engine.cards["a"] == old
        engine.gate.set()
        await rig.served(2, "a")
        assert engine.cards["a"].path != old.path


async def test_a_bad_version_costs_its_own_name_nothing(tmp_path):
    """R8 isolation: the engine refuses it, and the old version serves on beside its neighbours."""
    engine = SimulatedVllm(Options(plugin=True, max_lora_rank=8))
    async with running_rig(tmp_path, engine) as rig:
        rig.desire(1, a="v1", b="v1")
        await rig.served(1, "a", "b")
        old = engine.cards["a"]
        engine.options = Options(plugin=True, max_lora_rank=1)  # from here on it refuses every adapter
        rig.desire(2, a="v2", b="v1")
        await eventually(lambda: rig.reasons() == {"a": "engine_refused"})
        assert engine.cards["a"] == old
        assert rig.status.served.count == 1


async def test_what_somebody_else_unloads_is_back_at_once(tmp_path, monkeypatch):
    """R3 converge: the plugin tells of it, so that nothing waits for the look that comes every 15 seconds."""
    monkeypatch.setattr("sidecar.loop.observer.RESYNC_SECONDS", 3600.0)
    monkeypatch.setattr("sidecar.loop.reconciler.RESYNC_SECONDS", 3600.0)
    async with running_rig(tmp_path, SimulatedVllm(PLUGIN)) as rig:
        rig.desire(1, a="v1", b="v1")
        await rig.served(1, "a", "b")
        before = rig.engine.cards["a"]
        reply = await rig.client.post("/v1/unload_lora_adapter", json={"lora_name": "a"})
        assert reply.status_code == 200
        await eventually(lambda: "a" in rig.engine.cards)
        assert rig.engine.cards["a"].path == before.path
        await rig.served(1, "a", "b")


@pytest.mark.parametrize("options", [PLUGIN, Options()], ids=["plugin", "pipelined"])
async def test_what_somebody_puts_under_a_name_of_ours_is_replaced_by_what_is_desired(tmp_path, options):
    """R4 digest-true, R11 foreign-safe: other files of the store, and files that are not ours at all."""
    theirs = tmp_path / "theirs"
    write_adapter(theirs, seed=5)
    async with running_rig(tmp_path, SimulatedVllm(options)) as rig:
        rig.desire(1, a="v1", b="v2")
        await rig.served(1, "a", "b")
        ours = {name: card.path for name, card in rig.engine.cards.items()}
        for path in (ours["b"], str(theirs)):
            rig.engine.cards["a"] = rig.engine.card("a", path)  # as by a swap
            rig.reconciler.distrust()
            await eventually(lambda: rig.engine.cards.get("a") is not None and rig.engine.cards["a"].path == ours["a"])
            await rig.served(1, "a", "b")


async def test_a_name_that_was_never_ours_in_this_engine_stays_theirs(tmp_path):
    """R11 foreign-safe: a conflict is reported, and nothing is unloaded."""
    theirs = tmp_path / "theirs"
    write_adapter(theirs, seed=5)
    async with running_rig(tmp_path, SimulatedVllm(PLUGIN)) as rig:
        await rig.engine.load("a", str(theirs))
        rig.desire(1, a="v1", b="v1")
        await eventually(lambda: bool(rig.statuses) and rig.reasons() == {"a": "name_conflict"})
        assert rig.engine.cards["a"].path == str(theirs)
