"""Lazy adapters on one replica: a simulated engine that has the plugin asks the sidecar at the first request."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.engines.simulated.app import SimulatedServer, serving
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.loop.drain import DrainTracker
from sidecar.vllm_plugin.protocol import Step
from tests.support.rig import Keeping, Rig, running, running_rig
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def patience(monkeypatch) -> None:
    """Engine and sidecar are one process here, and whoever stands still for two seconds has still asked a question."""
    monkeypatch.setattr("sidecar.resolver.server.TRANSFER_SECONDS", 60.0)


@pytest.fixture
def options() -> Iterator[Options]:
    """Of an engine with the plugin; its socket has a short path, as the kernel wants it."""
    folder = Path(tempfile.mkdtemp(prefix="lp-"))
    yield Options(plugin=True, resolver=str(folder / "s"), max_cpu_loras=4)
    shutil.rmtree(folder)


def resident(rig: Rig) -> dict[str, int]:
    return {one.name: one.generation for one in rig.status.lazy.resident}


def is_there(path: str) -> bool:
    return Path(path).is_dir()


async def test_a_lazy_adapter_is_served_at_its_first_request_and_the_status_tells_where_it_is(tmp_path, options):
    """R4, R6, R8, R9, R12: nothing is loaded before; swapped, deleted, and known again after a restart."""
    engine = SimulatedVllm(options)
    async with serving(engine) as url:
        async with running(Rig(tmp_path, engine, url)) as rig:
            rig.desire(1, lazy=["a", "b", "bad"], a="v1", b="v1", bad="broken", e="v1")
            (rig.sources / "broken" / "adapter_config.json").write_text("{}")
            await rig.served(1, "e")
            assert rig.status.lazy.model_dump() == {"count": 3, "servable": True, "reason": "", "resident": []}
            assert [await rig.request(name) for name in ("a", "bad", "b")] == [200, 404, 200]
            await eventually(lambda: resident(rig) == {"a": 1, "b": 1} and "bad" in rig.reasons())
            assert (rig.status.served.count, rig.status.ready, rig.calls("load")) == (1, True, ["e"])
            hostile = ["nobody", "A", "../../etc", "a/../a", "a%2Fb", "\u202e" * 50]  # a name is that of its record
            assert {await rig.request(name) for name in hostile} == {404}
            old = engine.cards["a"].path
            rig.desire(2, lazy=["a"], a="v2", e="v1")
            await eventually(lambda: resident(rig) == {"a": 2} and set(engine.cards) == {"a", "e"})
            assert engine.cards["a"].path != old
            assert await rig.request("b") == 404
            card = engine.cards["a"]
        async with running(Rig(tmp_path, engine, url)) as second:
            second.store.take_over()
            second.desire(2, lazy=["a"], a="v2", e="v1")
            await eventually(lambda: second.statuses and resident(second) == {"a": 2})
            assert engine.cards["a"] == card


async def test_one_without_effect_is_unloaded_after_its_first_request_and_refused_from_then_on(
    tmp_path, options, monkeypatch
):
    """R22 applied-whole, R5: the first request does not wait for the proof; the status says why there is no second."""

    async def as_the_base(*_: object) -> tuple[Step, ...]:
        return ((0, {0: -1.0}),)

    monkeypatch.setattr(SimulatedServer, "prober", staticmethod(as_the_base))
    async with running_rig(tmp_path, SimulatedVllm(options)) as rig:
        rig.desire(1, lazy="a", a="v1")
        await rig.served(1)
        assert await rig.request("a") == 200
        await eventually(lambda: rig.engine.cards == {})
        assert await rig.request("a") == 404
        await eventually(lambda: [(one.name, one.reason) for one in rig.status.failed] == [("a", "no_effect")])
        assert resident(rig) == {}


async def test_the_least_recently_used_make_room_and_no_eager_one_goes(tmp_path, options):
    """R16 bounded: two eager ones and two lazy ones fill an engine for four."""
    names = [f"n{number}" for number in range(12)]
    async with running_rig(tmp_path, SimulatedVllm(options)) as rig:
        rig.desire(1, lazy=names, e1="v1", e2="v1", **dict.fromkeys(names, "v1"))
        await rig.served(1, "e1", "e2")
        for name in names:
            assert await rig.request(name) == 200
        await eventually(lambda: set(rig.engine.cards) == {"e1", "e2", "n10", "n11"})
        await eventually(lambda: set(resident(rig)) == {"n10", "n11"})
        assert await rig.request("n0") == 200, "what made room comes back when it is asked for"


class Hasty(DrainTracker):
    """Believes an engine at once."""

    def proven(self) -> frozenset[str]:
        return frozenset(self._idle)


async def test_no_file_goes_between_the_answer_and_the_listing(tmp_path, options):
    """R7 files-pinned: a keeper that removes whatever may go runs all the time, while the engine is slow to load."""
    slow = SimulatedVllm(Options(plugin=True, resolver=options.resolver, load_seconds=1.0))
    hasty = Keeping(grace_seconds=0, pause_seconds=0.01, drain_tracker=Hasty)
    async with serving(slow) as url, running(Rig(tmp_path, slow, url, hasty)) as rig:
        rig.desire(1, lazy="a", a="v1")
        await rig.served(1)
        for _ in range(2):
            assert await rig.request("a") == 200
            assert is_there(slow.cards["a"].path)
            rig.let_idle(0.0)
            await eventually(lambda: not slow.cards)
            rig.let_idle()
        assert not slow.dead.is_set()
