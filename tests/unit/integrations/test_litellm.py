"""The callback of LiteLLM, with a client and a LiteLLM that are played."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any, Self

import pytest

from loraplane import AdapterResidency, NotFound, PoolResidency, Reason, Residence, State, Unavailable
from tests.simulation.loop import virtual


@pytest.fixture
def module(monkeypatch) -> ModuleType:
    """The integration, beside what it needs of LiteLLM."""
    for name in ("litellm", "litellm.integrations", "litellm.integrations.custom_logger"):
        made = ModuleType(name)
        made.CustomLogger = type("CustomLogger", (), {"__init__": lambda self: setattr(self, "is_logger", True)})  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, made)
    monkeypatch.delitem(sys.modules, "loraplane.integrations.litellm", raising=False)
    return import_module("loraplane.integrations.litellm")


def residence(replica: str, model: str, generation: int = 1, state: State = State.SERVING) -> Residence:
    return Residence(replica, f"http://{replica}:8000/", {}, model, generation, state, "", loaded=True, last_used="")


def state(**adapters: list[Residence]) -> PoolResidency:
    found = {name: AdapterResidency(name, 1, "eager", tuple(parts), "") for name, parts in adapters.items()}
    return PoolResidency(1, MappingProxyType(found))


class PlayedRegistry:
    """A client whose states a test posts. `refusals`: what comes before them."""

    def __init__(self) -> None:
        self.states: asyncio.Queue[PoolResidency] = asyncio.Queue()
        self.refusals: list[Exception] = []
        self.opened = 0
        self.asked: list[str] = []
        self.is_open = False

    async def __aenter__(self) -> Self:
        self.opened += 1
        self.is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_open = False

    async def residency(self, pool: str) -> AsyncGenerator[PoolResidency, None]:
        self.asked.append(pool)
        if self.refusals:
            raise self.refusals.pop(0)
        while True:
            yield await self.states.get()


DEPLOYMENTS = [
    {"litellm_params": {"api_base": f"http://R{number}:8000/v1"}, "model_info": {"id": f"r{number}"}}
    for number in (1, 2, 3)
]


async def kept(routing: Any, model: str, **metadata: Any) -> list[str]:
    """The deployments that are left, asked as LiteLLM asks where a wildcard takes a model."""
    request = {"model": model, "metadata": {"model_group": model, **metadata}}
    found = await routing.async_filter_deployments("*", DEPLOYMENTS, None, request)
    return [one["model_info"]["id"] for one in found]


async def follows(module: ModuleType, *states: PoolResidency, **more: Any) -> tuple[Any, PlayedRegistry]:
    registry = PlayedRegistry()
    for one in states:
        registry.states.put_nowait(one)
    return module.LoraPlaneRouting(lambda: registry, more.pop("pools", ["p"]), **more), registry


@virtual
async def test_an_adapter_goes_to_those_that_serve_it_and_nowhere_else(module):
    """R5: not to one that brings it in, and to nobody if nobody serves it."""
    parts = [residence("r1", "a"), residence("r2", "a", state=State.PENDING)]
    routing, _ = await follows(module, state(a=parts, none=[]))
    assert await kept(routing, "a") == ["r1"]
    assert await kept(routing, "hosted_vllm/a") == ["r1"]
    assert await kept(routing, "none") == []
    assert await kept(routing, "base") == ["r1", "r2", "r3"], "LiteLLM's own matter"
    assert routing.is_logger, "LiteLLM's own part of it was made"
    await routing.aclose()


@pytest.mark.parametrize(
    "request_kwargs",
    [{"model": "a"}, *({"model": "hosted_vllm/a", "metadata": {"model_group": one}} for one in ("hosted_vllm/*", ""))],
    ids=["no group", "the group is the wildcard", "the group is empty"],
)
@virtual
async def test_a_request_says_which_model_a_wildcard_took(module, request_kwargs):
    routing, _ = await follows(module, state(a=[residence("r1", "a")]))
    [found] = await routing.async_filter_deployments("*", DEPLOYMENTS, None, request_kwargs)
    assert found["model_info"]["id"] == "r1"
    await routing.aclose()


@virtual
async def test_what_changes_counts_from_the_next_request_on(module):
    """And a name that was deleted goes nowhere: an engine's 404 would make LiteLLM pause a good replica."""
    routing, registry = await follows(module, state(a=[residence("r1", "a")]))
    assert await kept(routing, "a") == ["r1"]
    registry.states.put_nowait(state(a=[residence("r2", "a"), residence("r3", "a")]))
    await asyncio.sleep(0.01)
    assert await kept(routing, "a") == ["r2", "r3"]
    registry.states.put_nowait(state())
    await asyncio.sleep(0.01)
    assert await kept(routing, "a") == []
    registry.states.put_nowait(state(a=[residence("r3", "a")]))
    await asyncio.sleep(0.01)
    assert await kept(routing, "a") == ["r3"]
    await routing.aclose()
    assert not registry.is_open
    registry.states.put_nowait(state(a=[residence("r1", "a")]))
    assert await kept(routing, "a") == ["r1"], "who asks after its end has it follow again"
    await routing.aclose()


class Defect(Exception):
    """A fault of ours."""


@virtual
async def test_a_fault_of_ours_is_not_repeated_in_silence_and_the_next_request_begins_anew(module):
    routing, registry = await follows(module, state(a=[residence("r1", "a")]))
    registry.refusals = [Defect()]
    assert await kept(routing, "a") == ["r1", "r2", "r3"]
    assert (await kept(routing, "a"), registry.asked, registry.opened) == (["r1"], ["p", "p"], 2)
    await routing.aclose()


@virtual
async def test_a_request_whose_caller_leaves_leaves_nothing_behind(module):
    """X3 given-back: no state may ever come."""
    routing, _ = await follows(module, pools=["p", "q"])
    request = asyncio.create_task(kept(routing, "a"))
    await asyncio.sleep(1)
    request.cancel()
    await asyncio.wait([request])
    await asyncio.sleep(0.01)
    assert [one for one in asyncio.all_tasks() if one.get_coro().__qualname__ == "_all_known"] == []
    await routing.aclose()


@virtual
async def test_who_cannot_connect_holds_no_request_up(module):
    """As with an address that is none; each request tries anew."""
    tried: list[None] = []

    def connect() -> Any:
        tried.append(None)
        raise Defect

    routing = module.LoraPlaneRouting(connect, ["p", "q"])
    began = asyncio.get_running_loop().time()
    assert [await kept(routing, "a") for _ in range(2)] == [["r1", "r2", "r3"]] * 2
    assert (asyncio.get_running_loop().time(), len(tried)) == (began, 2)
    await routing.aclose()


@virtual
async def test_a_request_may_ask_for_a_generation(module):
    parts = [residence("r1", "a", 1), residence("r2", "a", 3)]
    routing, _ = await follows(module, state(a=parts))
    for asked, found in ((1, ["r1"]), ("3", ["r2"]), (4, []), ("new", []), (None, ["r1", "r2"])):
        assert await kept(routing, "a", loraplane_generation=asked) == found
    await routing.aclose()


@virtual
async def test_versioned_names_are_models_of_their_own_and_so_are_generations_that_are_kept(module):
    parts = [replace(residence("r1", "a@3", 3), earlier=(2,)), residence("r2", "a@3", 3)]
    routing, _ = await follows(module, state(a=parts))
    assert (await kept(routing, "a@2"), await kept(routing, "a@3")) == (["r1"], ["r1", "r2"])
    assert await kept(routing, "a") == [], "no engine answers to it"
    await routing.aclose()


@pytest.mark.parametrize("known", [[], [state()]], ids=["none is known", "one of two pools is known"])
@pytest.mark.parametrize(("fail_open", "found"), [(True, ["r1", "r2", "r3"]), (False, [])])
@virtual
async def test_before_a_first_state_requests_wait_a_moment_once(module, known, fail_open, found):
    routing, registry = await follows(module, *known, fail_open=fail_open, pools=["p", "q"][: 1 + len(known)])
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await kept(routing, "a") == found
    assert loop.time() - began == pytest.approx(5.0)
    assert await kept(routing, "a") == found
    assert loop.time() - began == pytest.approx(5.0)
    await asyncio.sleep(0.01)
    waits = [one for one in asyncio.all_tasks() if one.get_coro().__qualname__ == "_all_known"]
    assert waits == [], "R16 bounded"
    for _ in range(1 + len(known)):
        registry.states.put_nowait(state(a=[residence("r1", "a")]))
        await asyncio.sleep(0.01)
    assert await kept(routing, "a") == ["r1"]
    await routing.aclose()


@virtual
async def test_a_registry_that_refuses_is_asked_again_and_the_last_state_counts(module):
    routing, registry = await follows(module, state(a=[residence("r1", "a")]))
    registry.refusals = [NotFound(Reason.POOL_NOT_FOUND, "none"), Unavailable(Reason.ADMIN_UNAVAILABLE, "away")]
    first = asyncio.create_task(kept(routing, "a"))
    await asyncio.sleep(30)
    assert await first == ["r1", "r2", "r3"]
    assert await kept(routing, "a") == ["r1"]
    assert registry.asked == ["p"] * 3
    await routing.aclose()


@virtual
async def test_a_pool_that_is_not_there_is_told_and_leaves_the_others_routed(module, caplog):
    """R5: else each adapter would go anywhere for one name that was mistyped, and nobody would hear of it."""

    class OnePool(PlayedRegistry):
        async def residency(self, pool: str) -> AsyncGenerator[PoolResidency, None]:
            if pool != "p":
                raise NotFound(Reason.POOL_NOT_FOUND, f"there is no pool {pool!r}")
            yield state(a=[residence("r1", "a")])
            await self.states.get()

    routing = module.LoraPlaneRouting(OnePool, ["typo", "p"])
    assert (await kept(routing, "a"), await kept(routing, "base")) == (["r1"], ["r1", "r2", "r3"])
    await asyncio.sleep(20)
    assert [one.getMessage() for one in caplog.records if one.name == module.__name__] == [
        "LoraPlane: cannot follow pool typo: there is no pool 'typo'",
        "LoraPlane: nothing is heard of typo; until then all deployments are left",
    ]
    await routing.aclose()


@virtual
async def test_of_a_new_state_only_what_changed_is_looked_at(module, monkeypatch):
    """Requests wait meanwhile: of 100,000 adapters it took a third of a second at each change of one."""
    looked, models_of = list[str](), module._models_of
    monkeypatch.setattr(module, "_models_of", lambda one: looked.append(one.name) or models_of(one))
    first = state(a=[residence("r1", "a")], b=[residence("r2", "b")], c=[residence("r1", "c")])
    routing, registry = await follows(module, first)
    await kept(routing, "a")
    assert sorted(looked) == ["a", "b", "c"]
    looked.clear()
    changed = {**first.adapters, **state(a=[residence("r3", "a")]).adapters}
    del changed["c"]
    registry.states.put_nowait(PoolResidency(2, MappingProxyType(changed)))
    await asyncio.sleep(0.01)
    assert sorted(looked) == ["a", "a", "c"]
    assert [await kept(routing, name) for name in "abc"] == [["r3"], ["r2"], []]
    await routing.aclose()


@virtual
async def test_a_deployment_without_an_address_serves_nothing(module):
    routing, _ = await follows(module, state(a=[residence("r1", "a")]))
    odd = [{"litellm_params": None}, {"litellm_params": {"api_base": 7}}, {}]
    assert await routing.async_filter_deployments("a", odd, None) == []
    assert await routing.async_filter_deployments("a", odd, None, {"metadata": 7, "model": 7}) == []
    await routing.aclose()


def test_another_event_loop_gets_a_connection_of_its_own(module):
    """As where LiteLLM is used from several threads, or tests."""
    made: list[PlayedRegistry] = []

    def connect() -> PlayedRegistry:
        made.append(PlayedRegistry())
        made[-1].states.put_nowait(state(a=[residence("r1", "a")]))
        return made[-1]

    routing = module.LoraPlaneRouting(connect, ["p"])
    with asyncio.Runner() as one, asyncio.Runner() as other:
        for runner in (one, other):
            assert runner.run(kept(routing, "a")) == ["r1"]
    assert len(made) == 2


@virtual
async def test_of_names_that_are_gone_a_bounded_number_is_kept(module, monkeypatch):
    """R16 bounded: of those that went last."""
    monkeypatch.setattr(module, "GONE_KEPT", 2)
    routing, _ = await follows(module, *(state(**{one: [] for one in names}) for names in ("abc", "bc", "ac", "c", "")))
    await kept(routing, "a")
    await asyncio.sleep(0.01)
    assert [len(await kept(routing, name)) for name in "abc"] == [0, 3, 0]
    await routing.aclose()
    await routing.aclose()


@virtual
async def test_a_registry_is_named_by_its_address(module, monkeypatch):
    asked: list[str] = []
    registry = PlayedRegistry()
    registry.states.put_nowait(state(a=[residence("r1", "a")]))
    monkeypatch.setattr(module, "AsyncRegistry", lambda address: asked.append(address) or registry)
    routing = module.LoraPlaneRouting("admin:7600", ["p"])
    assert (await kept(routing, "a"), asked) == (["r1"], ["admin:7600"])
    await routing.aclose()


@pytest.mark.parametrize("pools", [[], "p"])
def test_pools_are_named(module, pools):
    with pytest.raises(ValueError, match="name at least one pool"):
        module.LoraPlaneRouting("admin:7600", pools)
