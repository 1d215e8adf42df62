"""How long a question waits and what ends it, on virtual time; what anybody's question leaves behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from registry.runtime.clock import Clock
from registry.sources.base import ArtifactError
from sidecar.artifacts.types import ArtifactRef, Stage, Staged
from sidecar.resolver.resolver import CROWDED, UNWANTED_SECONDS
from sidecar.vllm_plugin.protocol import Answer, Unresolved
from tests.simulation.loop import virtual
from tests.support.records import deletion, put
from tests.support.waiting import eventually
from tests.support.worlds import observed, path_of, pool, review
from tests.unit.resolver.test_resolver import Scene, told


async def timed(asking: Awaitable[Answer]) -> tuple[Answer, float]:
    """An answer, and the seconds that it took."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    return await asking, pytest.approx(loop.time() - begun)


def after(seconds: float, what: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_later(seconds, what)


def hold(scene: Scene, *sources: str) -> None:
    scene.store.gates |= {source: asyncio.Event() for source in sources}


def busy(scene: Scene, now: float, room: int = 1) -> None:
    """The engine has b, which has requests."""
    engine = replace(observed({"b": "of-b"}), last_used={"b": 0.0})
    review(scene.demand, scene.informer.state, engine, now=now, spec=pool(max_adapters=room + 1))


async def staged(scene: Scene, *names: str) -> None:
    for name in names:
        await scene.store.ensure(scene.demand.catalogue.whole(scene.informer.state, name).ref)
    await scene.was_woken()


@pytest.mark.parametrize("seconds", [0.0, 5.0])
@virtual
async def test_nobody_waits_longer_than_25_seconds(seconds):
    """docs/lazy.md; R8: whatever its files do, and its engine, which is asked who it is."""
    async with Scene().open() as scene:
        asked = scene.incarnation

        async def incarnation() -> str:
            await asyncio.sleep(seconds)
            return await asked()

        scene.resolver._means = replace(scene.resolver._means, incarnation=incarnation)
        hold(scene, "of-a")
        assert await timed(scene.resolver.ask("a")) == (Unresolved("staging"), 25.0)
        assert scene.demand.troubles.of("a") is None


@virtual
@pytest.mark.parametrize("change", [deletion("a", 20), put("a", 20, source="other", load="lazy"), put("a", 20)])
async def test_what_is_brought_in_goes_on_while_its_adapter_is_so_and_ends_soon_after(change):
    """Critique 29; docs/lazy.md: whoever asked may have gone, and asks again."""
    async with Scene().open() as scene:
        hold(scene, "of-a", "of-b")
        await asyncio.gather(scene.resolver.ask("a"), scene.resolver.ask("b"))
        await asyncio.sleep(60.0)
        assert scene.resolver._staging.in_progress.keys() == {scene.ref("a"), scene.ref("b")}
        kept = {scene.ref("b")}
        scene.informer.apply(20, [change])
        scene.post()
        await asyncio.sleep(UNWANTED_SECONDS)
        assert scene.resolver._staging.in_progress.keys() == kept


@virtual
async def test_what_was_brought_in_is_told_at_once():
    """R19 not-held-up."""
    async with Scene().open() as scene:
        hold(scene, "of-a")
        after(0.1, scene.store.gates["of-a"].set)
        assert await timed(scene.resolver.ask("a")) == (told("a"), 0.1)


@virtual
async def test_what_nobody_tells_of_is_seen_a_quarter_of_a_second_later():
    """R19: a place that came free."""
    async with Scene().open() as scene:
        await staged(scene, "a")
        busy(scene, 0.0)
        after(0.3, lambda: scene.look(room=2))
        assert await timed(scene.resolver.ask("a")) == (told("a"), 0.5)


class PlayedClock(Clock):
    """Stands where it is put."""

    now = 0.0

    def monotonic(self) -> float:
        return PlayedClock.now


@pytest.fixture
def clock(monkeypatch) -> type[PlayedClock]:
    monkeypatch.setattr(PlayedClock, "now", 0.0)
    return PlayedClock


@pytest.mark.parametrize("is_crowded", [True, False])
async def test_a_wait_is_over_when_its_time_is_whatever_else_happens_then(scene, clock, is_crowded):
    """R16: only who found no place is named by the status."""
    scene.resolver._clock = clock(random.Random(0))
    await staged(scene, "a")
    if is_crowded:
        busy(scene, 0.0)
    else:
        scene.store.staged.clear()
        hold(scene, "of-a")
    waiting = asyncio.create_task(scene.resolver.ask("a"))
    await eventually(lambda: scene.demand.is_asked("a"))
    clock.now = 24.9
    if is_crowded:
        busy(scene, 24.9)
    scene.resolver._staged()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    clock.now = 25.0
    scene.resolver._staged()
    assert await waiting == Unresolved("no_room" if is_crowded else "staging")
    failure = scene.demand.troubles.of("a")
    assert (failure is not None) is is_crowded
    if failure is not None:
        assert (failure.reason, failure.message, failure.attempts) == ("no_room", CROWDED, 1)
        assert (failure.retry_at, failure.since, failure.incarnation) == (25.0, 25.0, None)


@pytest.mark.parametrize(("of_all", "most"), [(128, 48), (5, 5)])
async def test_so_many_questions_wait_and_one_more_when_one_has_its_answer(scene, monkeypatch, of_all, most):
    """R16 bounded: of one origin and tenant, and of all."""
    monkeypatch.setattr("sidecar.resolver.resolver.MAX_WAITING", of_all)
    hold(scene, "of-a")
    waiting = [asyncio.create_task(scene.resolver.ask("a")) for _ in range(most)]
    await eventually(lambda: scene.demand._open["a"] == most)
    assert await scene.resolver.ask("a") == Unresolved("staging")
    waiting.pop().cancel()
    await eventually(lambda: scene.demand._open["a"] == most - 1)
    waiting.append(asyncio.create_task(scene.resolver.ask("a")))
    await eventually(lambda: scene.demand._open["a"] == most)
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert not scene.resolver._waiting


async def test_questions_about_one_tenants_adapters_leave_room_for_others(monkeypatch):
    """R8, R19: as while its bucket hangs."""
    monkeypatch.setattr("sidecar.resolver.resolver.MAX_WAITING_OF_GROUP", 1)
    scene = Scene()
    scene.informer.apply(20, [put("acme/x", 20, source="of-x", load="lazy")])
    scene.post()
    scene.look()
    async with scene.open():
        hold(scene, "of-a", "of-x")
        asking = [asyncio.create_task(scene.resolver.ask(name)) for name in ("a", "acme/x")]
        await eventually(lambda: len(scene.demand._open) == 2)
        assert await scene.resolver.ask("b") == Unresolved("staging")
        scene.store.gates["of-x"].set()
        assert await asking.pop() == told("acme/x", source="of-x")
        asking.pop().cancel()


@pytest.mark.parametrize(("place", "count"), [("file:///a", 63), ("s3://{}", 1023)])
async def test_so_many_are_brought_in_at_once_and_who_asks_for_one_of_them_waits_for_it(scene, place, count):
    """R16 bounded, R8: of one origin and tenant, and of all."""
    hold(scene, "of-a")
    staging = scene.resolver._staging
    assert staging is not None
    others = (Stage("other", ArtifactRef(f"{place.format(n)}/{n}", None), "") for n in range(count))
    staging.in_progress |= {one.ref: one for one in others}
    first = asyncio.create_task(scene.resolver.ask("a"))
    await eventually(lambda: scene.demand.is_asked("a"))
    assert await scene.resolver.ask("b") == Unresolved("staging")
    second = asyncio.create_task(scene.resolver.ask("a"))
    await eventually(lambda: scene.demand._open["a"] == 2)
    scene.store.gates["of-a"].set()
    assert await asyncio.gather(first, second) == [told("a")] * 2


async def test_who_fills_the_queue_of_one_source_or_tenant_keeps_no_other_from_being_brought_in(scene):
    """R8, R19: as while the bucket of one tenant hangs."""
    staging = scene.resolver._staging
    assert staging is not None
    of_source = [Stage("other", ArtifactRef(f"s3://slow/{n}", None), "") for n in range(64)]
    of_tenant = [Stage("acme/other", ArtifactRef(f"file:///a/acme/{n}", None), "") for n in range(64)]
    staging.in_progress |= {one.ref: one for one in (*of_source, *of_tenant)}
    assert await scene.resolver.ask("a") == told("a")


@virtual
@pytest.mark.parametrize(("pause", "waited"), [(60.0, 0.0), (24.0, 25.0)])
async def test_nobody_waits_for_what_is_not_tried_again_meanwhile(pause, waited):
    """R8: those who wait for what does not come would take the places of all others."""
    async with Scene().open() as scene:
        errors = [ArtifactError("rate_limited", "later", pause_seconds=pause) for _ in range(9)]
        scene.store.errors = {"of-a": errors}
        assert await timed(scene.resolver.ask("a")) == (Unresolved("staging"), waited)


async def test_what_somebody_touched_in_the_store_is_proven_again_before_it_is_told(scene):
    """R21 proven-here."""
    touched: set[str] = {path_of("of-a")}
    await staged(scene, "a")
    scene.store.is_intact = lambda path: path not in touched  # type: ignore[method-assign]
    ensure = scene.store.ensure

    async def proving(ref: ArtifactRef, _refused: str | None) -> Staged:
        assert scene.told == [], "the engine was told of it before"
        touched.clear()
        return await ensure(ref)

    scene.store.ensure = proving  # type: ignore[method-assign]
    assert await scene.resolver.ask("a") == told("a")
    assert scene.store.asked == 2


async def test_the_loop_hears_of_the_first_answer_and_of_each_refusal(scene):
    """R9, R19: from then on it looks often by itself."""
    await staged(scene, "a", "b")
    assert await scene.resolver.ask("a") == told("a")
    assert await scene.was_woken()
    assert await scene.resolver.ask("b") == told("b")
    assert not await scene.was_woken()
    assert await scene.resolver.ask("a") == told("a")
    assert not await scene.was_woken()
    assert await scene.resolver.ask("a") == Unresolved("refused")
    assert await scene.was_woken()
    assert await scene.resolver.ask("nobody") == Unresolved("unknown_adapter")
    assert not await scene.was_woken()


async def test_what_anybody_can_ask_is_not_logged_and_what_is_decided_is(scene):
    """X2: no question of a stranger fills a disk."""
    await staged(scene, "a")
    scene.store.errors = {"of-b": [ArtifactError("not_an_adapter", "no files")]}
    with capture_logs() as logged:
        for name in ("nobody", "e", "a", "b"):
            await scene.resolver.ask(name)
        scene.demand.suspend()
        await scene.resolver.ask("a")
    assert [one["name"] for one in logged if one["event"] == "lazy_answered"] == ["a", "b"]
