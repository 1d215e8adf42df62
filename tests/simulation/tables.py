"""The plugin's table of adapters: what a failed call takes away, and what is given back when nobody needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sidecar.engines.transport import Reply
from tests.simulation.engines import EngineHost, SimEngine
from tests.simulation.loop import State
from tests.simulation.world import World

# What nobody uses leaves an engine's memory by the second sweep of the drain; a sweep waits for a step, and a load.
GIVE_BACK_SECONDS = 10.0
LOOK_SECONDS = 1.0


@dataclass
class Tables:
    """Looks at the plugin in each engine."""

    world: World
    _since: dict[SimEngine, float] = field(default_factory=dict)

    async def oversee(self) -> None:
        """Looks all the time at what each engine that runs holds for nobody."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for host in self.world.replicas:
                if host.engine.engine is not None:
                    self._look(host.engine, host.engine.engine)

    def _look(self, host: EngineHost, engine: SimEngine) -> None:
        """X3, R16: locks, weights and earlier versions are given back a while after the last who needs them."""
        held = dict(_held(engine)) if host.process.state is State.RUNS and _is_at_rest(host, engine) else {}
        if not held:
            self._since.pop(engine, None)
            self.world.told["tables at rest"] += engine.plugin is not None
        elif _now() - self._since.setdefault(engine, _now()) > GIVE_BACK_SECONDS:
            self.world.checks.violated(f"X3 the plugin of {host.replica} holds {held} for nobody")
            self._since[engine] = _now()

    def r13_takes_nothing(self, host: EngineHost, name: str, before: Mapping[str, str], reply: Reply) -> None:
        """R13: a call that is not carried out leaves the name what it was; a swap is never a time without the name."""
        self.world.told["plugin's calls refused" if reply.status != 200 else "plugin's calls"] += 1
        if reply.status != 200 and name in before and name not in host.listing:
            self.world.checks.violated(f"R13 {host.replica}: a call that fails with {reply.body!r} takes {name} away")


def _is_at_rest(host: EngineHost, engine: SimEngine) -> bool:
    """Whether nobody asks anything of it."""
    return not (host.busy or engine.requests or engine.coming or engine.resolved or engine.unbound or host.is_stalled)


def _held(engine: SimEngine) -> Iterator[tuple[str, object]]:
    """What is held beside what is registered, by what it is."""
    if engine.plugin is None:
        return
    known = engine.left_behind | {card.number for card in engine.cards.values()}
    if locks := sorted(engine._name_locks):
        yield "locks", locks
    if weights := {number: path for number, path in engine._resident.items() if number not in known}:
        yield "weights", weights
    if retired := [one.adapter.lora_name for one in engine.plugin.retired]:
        yield "earlier versions", retired


def _now() -> float:
    return asyncio.get_running_loop().time()
