"""Lazy adapters on one replica: a simulated engine that has the plugin asks the sidecar at the first request."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry.model.records import Expect
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
    """R9: nothing is loaded before; then the status names it with its generation and its last use."""
    async with running_rig(tmp_path, SimulatedVllm(options)) as rig:
        rig.desire(1, lazy="ab", a="v1", b="v1", e="v1")
        await rig.served(1, "e")
        assert rig.status.lazy.model_dump() == {"count": 2, "servable": True, "reason": "", "resident": []}
        assert await rig.request("a") == 200
        await eventually(lambda: resident(rig) == {"a": 1})
        assert rig.status.served.count == 1
        assert rig.calls("load") == ["e"]
        assert await rig.request("nobody") == 404
        assert await rig.request("A") == 404, "a name is what its record says, to the letter"


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


async def test_one_that_answers_otherwise_is_unloaded_after_its_first_request_and_refused_from_then_on(
    tmp_path, options
):
    """R22 applied-whole, R5: as one without an effect; what no record expects is served."""
    never = Expect.model_validate({"answers": [{"prompt": [1], "tokens": [1]}]})
    async with running_rig(tmp_path, SimulatedVllm(replace(options, proves=True))) as rig:
        rig.desire(1, lazy="a", expect=never, a="v1")
        await rig.served(1)
        assert await rig.request("a") == 200
        await eventually(lambda: rig.engine.cards == {})
        assert await rig.request("a") == 404
        await eventually(lambda: [(one.name, one.reason) for one in rig.status.failed] == [("a", "not_as_expected")])
        rig.desire(2, lazy="a", a="v1")

        async def is_served() -> bool:  # the engine remembers for a second that there is no such name
            return await rig.request("a") == 200

        await eventually(is_served)


async def test_without_a_plugin_the_status_says_what_is_missing(tmp_path):
    async with running_rig(tmp_path) as rig:
        rig.desire(1, lazy="a", a="v1")
        await rig.served(1)
        assert rig.status.lazy.reason == "needs_plugin"
        assert await rig.request("a") == 404


async def test_a_deleted_one_is_refused_at_once_and_unloaded(tmp_path, options):
    """R6 unload-eventual."""
    async with running_rig(tmp_path, SimulatedVllm(options)) as rig:
        rig.desire(1, lazy="a", a="v1")
        await rig.served(1)
        assert await rig.request("a") == 200
        rig.desire(2)
        await rig.served(2)
        assert await rig.request("a") == 404
        assert rig.engine.cards == {}


async def test_one_that_is_deleted_right_after_the_answer_does_not_stay(tmp_path, options):
    """R6: the engine lists it only after the plan that was made for the deletion."""
    engine = SimulatedVllm(options)
    async with running_rig(tmp_path, engine) as rig:
        rig.desire(1, lazy="a", a="v1")
        await rig.served(1)
        tell = rig.demand.tell

        def delete_then_tell(*told, **fields) -> None:
            tell(*told, **fields)
            rig.desire(2)

        rig.demand.tell = delete_then_tell
        assert await rig.request("a") == 200
        await rig.served(2)


async def test_a_new_generation_is_swapped_in_and_the_old_one_never_answered_again(tmp_path, options):
    """R4 digest-true, R9 status-truth."""
    async with running_rig(tmp_path, SimulatedVllm(options)) as rig:
        rig.desire(1, lazy="a", a="v1")
        await rig.served(1)
        assert await rig.request("a") == 200
        old = rig.engine.cards["a"].path
        rig.desire(2, lazy="a", a="v2")
        await eventually(lambda: resident(rig) == {"a": 2})
        assert rig.engine.cards["a"].path != old
        assert rig.calls("unload") == []


async def test_a_lazy_one_made_eager_and_back_is_never_unloaded(tmp_path, options):
    async with running_rig(tmp_path, SimulatedVllm(options)) as rig:
        rig.desire(1, lazy="a", a="v1")
        await rig.served(1)
        assert await rig.request("a") == 200
        card = rig.engine.cards["a"]
        rig.desire(2, a="v1")
        await rig.served(2, "a")
        rig.desire(3, lazy="a", a="v1")
        await eventually(lambda: resident(rig) == {"a": 3})
        assert rig.engine.cards["a"] == card


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


async def test_an_engine_full_of_eager_adapters_says_no_room(tmp_path, options):
    eager = {f"e{number}": "v1" for number in range(5)}
    async with running_rig(tmp_path, SimulatedVllm(options)) as rig:
        rig.desire(1, lazy="a", a="v1", **eager)
        await eventually(lambda: rig.statuses and rig.reasons() == {"e4": "over_capacity"})
        await eventually(lambda: rig.status.lazy.reason == "no_room")
        assert await rig.request("a") == 404
        assert await rig.request("e4") == 404, "an eager one is not loaded by asking for it"


def happened(rig: Rig) -> list[str]:
    """What the ring tells of adapters."""
    events: Any = rig.sidecar.events.as_dict()["events"]
    return [f"{one['event']} {one['name']}" for one in events if one["name"]]


async def test_what_is_idle_is_unloaded_and_its_files_stay_for_the_grace(tmp_path, options):
    """R7 files-pinned."""
    engine = SimulatedVllm(options)
    async with running_rig(tmp_path, engine) as rig:
        rig.desire(1, lazy="a", a="v1")
        await rig.served(1)
        assert await rig.request("a") == 200
        path = engine.cards["a"].path
        rig.let_idle(0.1)
        await eventually(lambda: not engine.cards)
        assert is_there(path)
        assert rig.status.lazy.resident == []
        await eventually(lambda: happened(rig)[-2:] == ["loaded a", "evicted a"])


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


async def test_after_a_restart_of_the_sidecar_what_is_loaded_is_recognised(tmp_path, options):
    """R12 crash-only: from the engine's listing alone, and nothing is loaded twice."""
    engine = SimulatedVllm(options)
    async with serving(engine) as url:
        async with running(Rig(tmp_path, engine, url)) as first:
            first.desire(1, lazy="a", a="v1")
            await first.served(1)
            assert await first.request("a") == 200
            card = engine.cards["a"]
        async with running(Rig(tmp_path, engine, url)) as second:
            second.store.take_over()
            second.desire(1, lazy="a", a="v1")
            await eventually(lambda: second.statuses and resident(second) == {"a": 1})
            assert engine.cards["a"] == card


async def test_one_bad_adapter_delays_no_other_and_is_named_in_the_status(tmp_path, options):
    """R8 isolation, R14."""
    async with running_rig(tmp_path, SimulatedVllm(options)) as rig:
        rig.desire(1, lazy=["bad", "good"], bad="broken", good="v1")
        (rig.sources / "broken" / "adapter_config.json").write_text("{}")
        await rig.served(1)
        async with asyncio.TaskGroup() as tasks:
            bad = tasks.create_task(rig.request("bad"))
            good = tasks.create_task(rig.request("good"))
        assert (bad.result(), good.result()) == (404, 200)
        await eventually(lambda: "bad" in rig.reasons())
        (failed,) = rig.status.failed
        assert failed.retry_at is None
        assert rig.status.ready


async def test_an_adapter_above_the_rank_is_refused_and_served_once_the_pool_allows_it(tmp_path, options):
    """R8: a lazy adapter has to be as fit for the replica as an eager one."""
    async with running_rig(tmp_path, SimulatedVllm(options)) as rig:
        spec = rig.mailbox.snapshot.pool
        rig.set_pool(spec.model_copy(update={"limits": spec.limits.model_copy(update={"max_rank": 2})}))
        rig.desire(1, lazy="a", a="v1")
        await rig.served(1)

        async def is_refused() -> bool:
            """A sidecar that has not looked yet says only that it is not ready: whoever wants to know asks again."""
            assert await rig.request("a") == 404
            return rig.reasons() == {"a": "rank_too_high"}

        await eventually(is_refused)
        assert rig.engine.cards == {}
        rig.set_pool(spec.model_copy(update={"limits": spec.limits.model_copy(update={"max_rank": 8})}))

        async def is_served() -> bool:
            return await rig.request("a") == 200

        await eventually(is_served)
        await eventually(lambda: rig.reasons() == {})


async def test_hostile_names_are_refused_and_leave_nothing_behind(tmp_path, options):
    """R16 bounded."""
    async with running_rig(tmp_path, SimulatedVllm(options)) as rig:
        rig.desire(1, lazy="a", a="v1")
        await rig.served(1)
        hostile = [f"evil/{number}" for number in range(1000)] + ["../../etc", "a/../a", "a%2Fb", "\u202e" * 50]
        limit = asyncio.Semaphore(16)

        async def refused(name: str) -> bool:
            async with limit:
                return await rig.request(name) == 404

        assert all(await asyncio.gather(*map(refused, hostile)))
        assert await rig.request("a") == 200
        assert rig.status.failed == []
        assert list(rig.engine.cards) == ["a"]


async def test_many_names_at_once_are_each_served_at_their_first_request(tmp_path, options):
    """R16 bounded: fifteen times as many as there is room for, and nobody is refused for that."""
    names = [f"n{number}" for number in range(60)]
    async with running_rig(tmp_path, SimulatedVllm(options)) as rig:
        rig.desire(1, lazy=names, **dict.fromkeys(names, "v1"))
        await rig.served(1)
        limit = asyncio.Semaphore(12)

        async def status_of(name: str) -> int:
            async with limit:
                return await rig.request(name)

        assert set(await asyncio.gather(*map(status_of, names))) == {200}
        await eventually(lambda: len(rig.engine.cards) == 4)
        await eventually(lambda: len(resident(rig)) == 4)
