"""What lazy adapters whose newest generation fails are answered with; and a wrong answer is found."""

from __future__ import annotations

from functools import partial
from unittest import mock

import pytest

from registry.model.records import AdapterSpec, PoolLimits, SourceSpec
from registry.transactions.changes import ApplyAdapters, Change, CreatePool, Remove, Upsert
from sidecar.resolver.resolver import Resolver
from sidecar.vllm_plugin.protocol import Resolved
from tests.simulation.artifacts import HIGH_RANK, MISSING, REFUSED, ROOT, path_of, source_of
from tests.simulation.engines import BASE
from tests.simulation.history import POOL
from tests.simulation.lazy import served
from tests.simulation.simulation import play_by_hand
from tests.simulation.world import World
from tests.support.waiting import eventually

# One whose engines have the plugin.
SEED = 60


class Stage:
    """One replica of a world, and whoever publishes the lazy adapter "a"."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.host = world.replicas[0]
        self._made = 0

    async def start(self) -> None:
        self.world.admins[0].start()
        await self._change(CreatePool(POOL, (BASE,), PoolLimits()))
        self.host.engine.start()
        self.world.start(self.host)
        await eventually(lambda: self.world.checks.said_ready.get(self.host.name))

    async def publish(self, source: str) -> None:
        """Publishes it of a source; empty: deletes it. Waits until that is followed."""
        spec = AdapterSpec(source=SourceSpec(uri=f"{ROOT}{source}"), load="lazy")
        change = Upsert("a", spec) if source else Remove("a")
        await self._change(ApplyAdapters(POOL, (change,)))
        await eventually(lambda: self.world.checks.applied[self.host.name] >= self.world.checks.oracle.moments[-1][0])

    async def asked(self) -> str:
        """The source that a request for it is served of; empty: it is refused."""
        return source_of(await served(self.host, "a") or "")

    async def served_once(self, source: str) -> None:
        """Publishes a good one, and asks for it until the replica has seen it loaded."""
        await self.publish(source)
        await eventually(partial(self._is_remembered, source))

    def restart(self) -> None:
        self.host.engine.kill()
        self.host.engine.start()

    async def _change(self, change: Change) -> None:
        self._made += 1
        await self.world.change(change, f"req-{self._made}")

    async def _is_remembered(self, source: str) -> bool:
        checks = self.world.checks
        return await self.asked() == source and source in checks.last_good(self.host.name, "a", checks.oracle.newest)


async def fall_back(newest: str, world: World) -> None:
    """An engine that restarts is asked for what fails; then for another adapter of that name, which fails too."""
    stage = Stage(world)
    await stage.start()
    await stage.served_once("good1")
    await stage.publish(newest)
    stage.restart()
    await eventually(stage.asked)
    assert await stage.asked() == "good1"
    await stage.publish("")
    await stage.publish(newest)
    stage.restart()
    assert await stage.asked() == ""
    assert world.checks.violations == []


@pytest.mark.parametrize("newest", [f"{MISSING}2", f"{HIGH_RANK}2", f"{REFUSED}2"])
def test_what_a_lazy_adapter_falls_back_to(newest: str) -> None:
    """R13 static-stable: what this replica served last of it, and of no other adapter of that name."""
    play_by_hand(SEED, partial(fall_back, newest))


async def answer_wrongly(newest: str, told: str, world: World) -> None:
    """The sidecar tells of another source than it should."""
    stage = Stage(world)
    await stage.start()
    for source in ("good1", "good2"):
        await stage.served_once(source)
    await stage.publish(newest)
    answer = Resolved(path_of(stage.host.name, told), prove=False, expect="", version="")
    world.checks.violations.clear()
    stage.restart()
    with mock.patch.object(Resolver, "_settle", mock.AsyncMock(return_value=answer)):
        await stage.asked()
    assert [one for one in world.checks.violations if "R4" in one]


@pytest.mark.parametrize(
    ("newest", "told"), [("good3", "good2"), (f"{MISSING}3", "good1"), (f"{MISSING}3", "good9"), ("", "good2")]
)
def test_a_wrong_answer_is_found(newest: str, told: str) -> None:
    """R4: the one before although the newest can be had, an older one, another one, one of what was deleted."""
    play_by_hand(SEED, partial(answer_wrongly, newest, told))
