"""Names of their own for generations, on real etcd: what releases of vLLM before 0.31 need, and others may have."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.fleet import SimulatedEngine, serves, settled
from tests.support.waiting import eventually

OLD = "0.30.1"


@pytest.fixture(params=[OLD, "0.32.0"])
async def engine(request, tmp_path) -> AsyncIterator[SimulatedEngine]:
    engine = SimulatedEngine(tmp_path, "--vllm-version", request.param)
    await engine.start()
    yield engine
    engine.program.kill()


@pytest.fixture
def old(engine) -> bool:
    """The engine remembers what weights a name had."""
    return OLD in engine.program.arguments


async def test_a_generation_is_served_under_its_own_name(hand, engine, sidecar):
    """R3, R6, R9: changed, the pool turned to plain names and back, deleted; the engine restarted meanwhile."""
    await hand.pool(engine_names="versioned")
    await hand.put(hand.record("acme/a", "v1"), hand.record("b", "v2", generation=3))
    sidecar.program.start()
    await serves(engine, sidecar, "acme/a@1", "b@3")
    revision = await hand.put(hand.record("acme/a", "v3", generation=2))
    await serves(engine, sidecar, "acme/a@2", "b@3")
    status = await settled(sidecar, revision)
    assert (status["engine"]["names"], status["served"]["count"]) == ("versioned", 2)
    engine.program.kill()
    await engine.start()
    await serves(engine, sidecar, "acme/a@2", "b@3")
    await hand.pool()
    await serves(engine, sidecar, "acme/a", "b")
    await hand.pool(engine_names="versioned")
    await serves(engine, sidecar, "acme/a@2", "b@3")
    revision = await hand.delete("b")
    await serves(engine, sidecar, "acme/a@2")
    assert (await settled(sidecar, revision))["served"]["count"] == 1


async def test_with_plain_names_other_weights_wait_for_another_name_or_process(hand, engine, sidecar, old):
    """R4, facts 0.5: a swap, and a name that is deleted and added again, also after a restart of the sidecar."""
    await hand.pool()
    await hand.put(hand.record("a", "v1"), hand.record("b", "v1"))
    sidecar.program.start()
    first = await serves(engine, sidecar, "a", "b")
    await hand.delete("b")
    await serves(engine, sidecar, "a")
    sidecar.program.kill()
    sidecar.program.start()
    await hand.put(hand.record("a", "v2", generation=2), hand.record("b", "v2", generation=2))
    if not old:

        async def are_new() -> bool:
            now = await engine.listing()
            return set(now) == {"a", "b"} and not set(now.values()) & set(first.values())

        await eventually(are_new)
        return
    await eventually(lambda: refused(sidecar, "a", "b"))
    status = await sidecar.status()
    assert (status["engine"]["swap"], status["ready"]) == ("refused", True)
    assert await engine.listing() == {"a": first["a"]}
    await hand.pool(engine_names="versioned")
    await serves(engine, sidecar, "a@2", "b@2")
    await hand.pool()
    await eventually(lambda: refused(sidecar, "a", "b"))
    engine.program.kill()
    await engine.start()
    await serves(engine, sidecar, "a", "b")


async def refused(sidecar, *names: str) -> bool:
    return await sidecar.failed() == dict.fromkeys(names, "name_remembered")
