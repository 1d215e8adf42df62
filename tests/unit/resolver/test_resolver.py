"""The resolver: what it tells at once, what it waits for, and what it never waits for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from unittest import mock

import pytest

from registry.runtime.clock import Clock
from registry.sources.base import ArtifactError
from sidecar.artifacts.types import ArtifactRef, Staged
from sidecar.desired.informer import Informer
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.engines.driver import EngineUnreachable
from sidecar.plan.planner import make_plan
from sidecar.resolver.demand import ResidentSet
from sidecar.resolver.policy import Catalogue
from sidecar.resolver.resolver import Means, Resolver
from sidecar.vllm_plugin.protocol import Resolved, Unresolved, expected_key
from tests.support.records import POOL, deletion, kv, put
from tests.support.waiting import eventually
from tests.support.worlds import known, observed, path_of, pool, review

DIGEST = "sha256:" + "d" * 64


def told(name: str, generation: int = 1, *, source: str = "", prove: bool = False) -> Resolved:
    """Where the files of a generation are, and what proves it in an answer (R26)."""
    return Resolved(path_of(source or f"of-{name}"), prove, version=f"{name}@{generation} {DIGEST}")


class Store:
    """Stages what `gate` lets through; `errors` befall refs by their source, as often as there are some."""

    def __init__(self) -> None:
        self.staged: dict[ArtifactRef, Staged] = {}
        self.errors: dict[str, list[ArtifactError]] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.asked = 0
        self.left: dict[ArtifactRef, Staged] = {}
        self.recalled: list[list[ArtifactRef]] = []

    async def recall(self, refs: list[ArtifactRef]) -> bool:
        """Finds what an earlier process left."""
        self.recalled.append(refs)
        await asyncio.sleep(0)
        found = {ref: self.left[ref] for ref in refs if ref in self.left}
        self.staged |= found
        return bool(found)

    def lookup(self, ref: ArtifactRef) -> Staged | None:
        return self.staged.get(ref)

    def is_intact(self, _path: str) -> bool:
        return True

    async def ensure(self, ref: ArtifactRef, refused: str | None = None) -> Staged:
        self.asked += 1
        source = ref.uri.rsplit("/", 1)[-1]
        if source in self.gates:
            await self.gates[source].wait()
        if self.errors.get(source):
            raise self.errors[source].pop(0)
        self.staged[ref] = Staged(source, path_of(source), DIGEST, 8)
        return self.staged[ref]


class Owner:
    refusal = ""


class Scene:
    """A resolver whose engine was looked at, with lazy adapters a, b, c and d of sources of their own."""

    def __init__(self, *, answer_seconds: float = 25.0, **spec: object) -> None:
        self.informer = Informer(POOL)
        lazy = [kv(name, 1, source=f"of-{name}", load="lazy", **spec) for name in "abcd"]
        self.informer.replace(10, [*lazy, kv("e", 2)])
        self.mailbox, self.store, self.owner = Mailbox(), Store(), Owner()
        self.demand = ResidentSet(Catalogue(self.informer))
        self.told: list[tuple[str, str]] = []
        self.process: str | None = "e1"
        self.resolver = Resolver(
            Means(self.mailbox, self.store, self.owner, self.incarnation),  # type: ignore[arg-type]
            self.demand,
            Clock(random.Random(0)),
            self.told.append,
            answer_seconds=answer_seconds,
        )
        self.post()
        self.look()

    def ref(self, name: str) -> ArtifactRef:
        adapter = self.demand.catalogue.whole(self.informer.state, name)
        assert adapter is not None
        return adapter.ref

    def post(self) -> None:
        self.mailbox.post(Snapshot(desired=self.informer.state))

    async def incarnation(self) -> str:
        if self.process is None:
            raise EngineUnreachable("it is busy")
        return self.process

    def look(self, room: int = 9, paused: str = "", incarnation: str = "e1") -> None:
        engine = replace(observed(incarnation=incarnation), paused=paused)
        review(self.demand, self.informer.state, engine, now=0.0, spec=pool(max_adapters=room + 1))

    async def was_woken(self) -> bool:
        """Whether the loop was to look again since this was asked last."""
        was = self.mailbox._wake.is_set()
        await self.mailbox.wait(0.0)
        return was

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Scene]:
        task = asyncio.create_task(self.resolver.run())
        await asyncio.sleep(0)
        yield self
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_what_is_not_there_is_staged_and_told_once_its_files_are_held(scene):
    """R7 files-pinned: they are held before the answer is given."""
    assert await scene.resolver.ask("a") == told("a")
    assert scene.told == [("a", path_of("of-a"))]
    assert scene.demand.uses(0.0) == set(scene.told)
    assert await scene.resolver.ask("a") == told("a")
    assert scene.store.asked == 1


async def test_what_an_earlier_process_staged_is_looked_for_before_it_is_judged(scene):
    """R12, X2: beside the event loop, once for each question; in the step of the answer memory alone is asked."""
    scene.store.left = {scene.ref("a"): Staged("of-a", path_of("of-a"), DIGEST, 8)}
    assert await scene.resolver.ask("a") == told("a")
    assert (scene.store.recalled, scene.store.asked) == ([list(scene.store.left)], 0)
    assert await scene.resolver.ask("a") == told("a")
    assert len(scene.store.recalled) == 1


@pytest.mark.parametrize("name", ["nobody", "", "a" * 5000, "A", "a\0", "%", "../a"])
async def test_for_a_name_that_nobody_knows_nobody_is_asked_anything(name):
    """X3 given-back: anybody may ask for any name."""
    asked = mock.AsyncMock(return_value="e1")
    async with Scene().open() as scene:
        scene.resolver._means = replace(scene.resolver._means, incarnation=asked)
        assert await scene.resolver.ask(name) == Unresolved("unknown_adapter")
    assert (asked.mock_calls, scene.store.asked) == ([], 0)


async def test_what_is_asked_for_is_noted_as_used_whatever_the_answer_is(scene):
    """R25: a request came for it, which the engine may have forgotten by the next look; R16: of no other name."""
    scene.owner.refusal = "taken"
    for name in ("a", "A", "nobody", "e"):
        await scene.resolver.ask(name)
    assert scene.demand.asked == {"a"}


async def test_whether_to_prove_is_told_and_what_has_no_effect_is_refused():
    """R22 applied-whole: after the first request, and from then on."""
    scene, seen = Scene(), observed()
    seen = replace(seen, facts=replace(seen.facts, proves=True))

    def look(without: frozenset[str], prove: str = "effect") -> None:
        engine, spec = replace(seen, no_effect=without), pool(max_adapters=10, prove=prove)
        review(scene.demand, scene.informer.state, engine, now=0.0, spec=spec)

    async with scene.open():
        look(frozenset())
        assert await scene.resolver.ask("a") == told("a", prove=True)
        look(frozenset({path_of("of-a")}))
        assert await scene.resolver.ask("a") == Unresolved("refused")
        failure = scene.demand.troubles.of("a")
        assert failure is not None
        assert failure.reason == "no_effect"
        look(frozenset({path_of("of-a")}), prove="off")
        assert await scene.resolver.ask("a") == told("a")


@pytest.mark.parametrize("can", [True, False])
async def test_what_is_expected_is_told_to_a_plugin_that_can_prove_it(can):
    """R22 applied-whole: after the first request; one that answers otherwise is refused from then on."""
    answer = {"prompt": [1], "tokens": [2], "logprobs": [-1.0]}
    scene, seen = Scene(expect={"answers": [answer]}), observed()
    seen = replace(seen, facts=replace(seen.facts, proves=True, expects=can))
    async with scene.open():
        review(scene.demand, scene.informer.state, seen, now=0.0, spec=pool(max_adapters=10))
        told = await scene.resolver.ask("a")
        assert isinstance(told, Resolved)
        assert (told.prove, bool(told.expect)) == (True, can)
        if not can:
            return
        seen = replace(seen, unexpected={expected_key(told.path, told.expect): "otherwise"})
        review(scene.demand, scene.informer.state, seen, now=0.0, spec=pool(max_adapters=10))
        assert await scene.resolver.ask("a") == Unresolved("refused")
        failure = scene.demand.troubles.of("a")
        assert failure is not None
        assert (failure.reason, failure.message[:9]) == ("not_as_expected", "otherwise")


async def test_unknown_eager_and_unready_are_told_at_once():
    """R10: who lost the replica id answers nothing."""
    async with Scene().open() as scene:
        assert await scene.resolver.ask("nobody") == Unresolved("unknown_adapter")
        assert await scene.resolver.ask("e") == Unresolved("not_lazy")
        scene.owner.refusal = "another has it"
        assert await scene.resolver.ask("a") == Unresolved("not_ready")
        scene.owner.refusal = ""
        scene.look(paused="it sleeps")
        assert await scene.resolver.ask("a") == Unresolved("not_ready"), "it would load it when it wakes, or never"
        scene.demand.suspend()
        assert await scene.resolver.ask("a") == Unresolved("not_ready")
        scene.look(room=0)
        assert await scene.resolver.ask("a") == Unresolved("no_room")
    assert await Scene().resolver.ask("a") == Unresolved("not_ready"), "it does not run yet"
    before = Scene()
    before.mailbox.post(Snapshot())
    assert await before.resolver.ask("a") == Unresolved("not_ready")


async def test_a_process_that_was_not_looked_at_is_not_answered_by_what_the_one_before_was(scene):
    """R23 same-base: it may have another base; the question waits for the look, and is never answered without one."""
    assert await scene.resolver.ask("a") == told("a")
    scene.process, scene.resolver._answer_seconds = "e2", 0.05
    assert await scene.resolver.ask("a") == Unresolved("not_ready")
    assert await scene.resolver.ask("nobody") == Unresolved("unknown_adapter"), "whoever asks"
    scene.resolver._answer_seconds = 60.0
    asking = asyncio.create_task(scene.resolver.ask("a"))
    await eventually(lambda: scene.demand.is_asked("a"))
    scene.look(incarnation="e2")
    assert await asking == told("a")


async def test_an_engine_that_does_not_say_who_it_is_is_asked_again(scene):
    """R23: until it does, as far as the question may wait; others are answered meanwhile."""
    scene.process = None
    asking = asyncio.create_task(scene.resolver.ask("a"))
    await eventually(lambda: scene.demand.is_asked("a"))
    scene.process = "e1"
    assert await asking == told("a")


async def test_what_could_not_be_called_while_a_name_was_asked_for_is_called_once_it_is_not(scene):
    """R3: an adapter that is eager now, and in the store, does not wait for the next look at the engine."""
    scene.store.gates["of-a"] = asyncio.Event()
    asking = asyncio.create_task(scene.resolver.ask("a"))
    await eventually(lambda: scene.demand.is_asked("a"))
    scene.informer.apply(11, [put("a", 11, source="of-a", generation=2)])
    scene.post()
    await scene.mailbox.wait(None)  # that of the change, after which the name could not be called yet
    assert await asking == Unresolved("not_lazy")
    assert not scene.demand.is_asked("a")
    async with asyncio.timeout(60):
        await scene.mailbox.wait(None)


async def test_one_that_hangs_delays_no_other(scene):
    """R8 isolation."""
    scene.store.gates["of-a"] = asyncio.Event()
    slow = asyncio.create_task(scene.resolver.ask("a"))
    assert await scene.resolver.ask("b") == told("b")
    assert scene.demand.is_asked("a")
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)
    assert not scene.demand.is_asked("a"), "nothing is left of a question that is broken off"


async def test_what_is_deleted_or_replaced_while_it_is_brought_in_is_not_told(scene):
    """R4, R6: a path is answered only if it is that of the newest state."""
    scene.store.gates |= {"of-a": asyncio.Event(), "of-b": asyncio.Event()}
    gone, changed = asyncio.create_task(scene.resolver.ask("a")), asyncio.create_task(scene.resolver.ask("b"))
    await eventually(lambda: scene.store.asked == 2)
    scene.informer.apply(11, [deletion("a", 11), put("b", 11, generation=2, source="of-c", load="lazy")])
    for gate in scene.store.gates.values():
        gate.set()
    await eventually(lambda: len(scene.store.staged) == 2)
    assert not gone.done(), "the record has moved on, and what is followed not yet"
    scene.post()
    assert await gone == Unresolved("unknown_adapter")
    assert await changed == told("b", 2, source="of-c")


async def test_what_breaks_the_rules_is_refused_with_the_reason_in_the_status(scene):
    engine = observed(max_lora_rank=4)
    review(scene.demand, scene.informer.state, engine, now=0.0)
    await scene.store.ensure(scene.demand.catalogue.whole(scene.informer.state, "a").ref)
    await scene.was_woken()
    assert await scene.resolver.ask("a") == Unresolved("refused")
    assert scene.demand.troubles.of("a").reason == "rank_too_high"
    assert await scene.was_woken()
    assert await scene.resolver.ask("a") == Unresolved("refused")
    assert not await scene.was_woken(), "that is known"


async def test_who_finds_no_place_has_one_made_at_once(scene, monkeypatch):
    """R19 not-held-up: nothing else is expected of the engine, which is looked at rarely then."""
    monkeypatch.setattr("sidecar.resolver.demand.MAX_ABOVE_ROOM", 0)
    monkeypatch.setattr("sidecar.resolver.demand.EXPECT_SECONDS", 0.0)
    scene.look(room=1)
    assert await scene.resolver.ask("a") == told("a")
    await scene.store.ensure(scene.demand.catalogue.whole(scene.informer.state, "b").ref)
    seen, now = observed({"a": "of-a"}), scene.resolver._clock.monotonic()
    review(scene.demand, scene.informer.state, seen, now=now, spec=pool(max_adapters=2))
    await scene.mailbox.wait(0.0)
    assert not scene.demand.is_expecting
    waiting = asyncio.create_task(scene.resolver.ask("b"))
    await scene.mailbox.wait(60.0)
    assert scene.demand.is_asked("b")
    assert asyncio.get_running_loop().time() < now + 30.0
    waiting.cancel()


class Refusing(Scene):
    """As `Scene`, and of ``a`` generation 1 was served before generation 2, whose files are not as they should be."""

    def __init__(self, **spec: object) -> None:
        super().__init__(**spec)
        self.informer.note_served([("a", 1)])
        self.publish(2, "bad")
        self.store.errors["bad"] = [ArtifactError("not_finite", "one of its numbers is none")] * 9

    def publish(self, generation: int, source: str) -> None:
        change = put("a", 10 + generation, generation=generation, source=source, load="lazy")
        self.informer.apply(10 + generation, [change])
        self.post()
        self.look()


async def test_a_lazy_name_whose_newest_generation_is_refused_is_answered_with_the_last_good_one(refusing, monkeypatch):
    """R13, R21: its files are proven by this process first, and held; and it goes on as refused."""
    assert await refusing.resolver.ask("a") == told("a")
    assert refusing.told == [("a", path_of("of-a"))]
    assert refusing.store.asked == 2
    assert await refusing.resolver.ask("a") == told("a")
    assert refusing.store.asked == 2
    loaded = observed({"a": "of-a"})
    ((adapter, failure),) = refusing.demand.candidates(refusing.informer.state, loaded, now=0.0).troubles
    assert (adapter.generation, failure.reason) == (2, "not_finite")
    damaged = iter([False])
    monkeypatch.setattr(refusing.store, "is_intact", lambda _path: next(damaged, True))
    assert await refusing.resolver.ask("a") == told("a")
    assert refusing.store.asked == 3, "what is damaged is proven anew"
    refusing.publish(3, "right")
    assert await refusing.resolver.ask("a") == told("a", 3, source="right")


async def test_the_newest_is_waited_for_until_it_is_known_to_fail():
    """R4: nobody is answered with what was replaced before only because the newest takes its time."""
    scene = Refusing()
    scene.store.gates["bad"] = asyncio.Event()
    async with scene.open():
        asking = asyncio.create_task(scene.resolver.ask("a"))
        await eventually(lambda: scene.store.asked)
        assert not asking.done()
        scene.store.gates["bad"].set()
        assert await asking == told("a")


async def test_a_newest_that_cannot_be_had_now_has_the_last_good_one_told_meanwhile():
    scene = Refusing()
    scene.store.errors["bad"] = [ArtifactError("source_io", "not now")]
    async with scene.open():
        assert await scene.resolver.ask("a") == told("a")
        await eventually(lambda: scene.resolver._clock.monotonic() > (scene.demand.troubles.of("a").retry_at or 0.0))
        await scene.resolver.ask("a")
        await eventually(lambda: any(ref.uri.endswith("bad") for ref in scene.store.staged))
        assert await scene.resolver.ask("a") == told("a", 2, source="bad")
        assert scene.demand.troubles.of("a") is None


async def test_a_last_good_generation_that_is_not_fit_either_is_not_told():
    """R4, R5: it is held to what holds now; and what fails of it is asked for no oftener than anything."""
    scene = Refusing()
    scene.store.errors["of-a"] = [ArtifactError("signature_missing", "nobody signed it")] * 9
    async with scene.open():
        for _ in range(2):
            assert await scene.resolver.ask("a") == Unresolved("refused")
            scene.look()
        assert scene.store.asked == 2
        assert scene.demand.troubles.of("a@1") is not None
        scene.publish(3, "bad")
        assert scene.demand.troubles.of("a@1") is not None, "it is still what was served last"
        assert await scene.resolver.ask("a") == Unresolved("refused")


@pytest.mark.parametrize("how", ["deleted", "made anew"])
async def test_what_was_deleted_has_no_last_good_generation(refusing, how):
    """R6: the name may be another tenant's now."""
    refusing.informer.apply(20, [deletion("a", 20)])
    if how == "made anew":
        refusing.publish(12, "bad")
    refusing.post()
    refusal = "unknown_adapter" if how == "deleted" else "refused"
    assert await refusing.resolver.ask("a") == Unresolved(refusal)
    assert refusing.told == []


async def test_a_refusal_is_over_once_the_newest_is_served(refusing):
    """R9: though it was not asked for again."""
    assert await refusing.resolver.ask("a") == told("a")
    state, engine = refusing.informer.state, observed({"a": "bad"})
    newest = refusing.demand.catalogue.whole(state, "a")
    found = {newest.ref: Staged("bad", path_of("bad"), "", 8)}
    facts = replace(known(state), staged=found, lazy=refusing.demand.candidates(state, engine, now=0.0))
    refusing.demand.follow(make_plan(state, pool(), engine, facts, now=0.0))
    assert refusing.demand.troubles.of("a") is None
