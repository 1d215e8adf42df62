"""R26: what the plugin says of an answer names the version whose files the request was bound to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

from tests.simulation.artifacts import digest_of, path_of, source_of
from tests.simulation.engines import EngineHost
from tests.simulation.history import Version
from tests.simulation.world import ReplicaHost, World

_PROOF = re.compile(r"(?P<name>[^@ ]+)@(?P<generation>[0-9]+) (?P<digest>sha256:[0-9a-f]{64})")
# What could not be told is told at the next look.
TELL_SECONDS = 40


class Answers:
    """Follows every answer of an engine with our plugin."""

    def __init__(self, world: World) -> None:
        self.world = world

    def r26_answered_by(self, host: EngineHost, name: str, path: str, proof: str) -> None:
        """The name, the digest of the files, and a generation that was ever made of them; without a proof nothing."""
        if not proof:
            return
        self.world.told["R26"] += 1
        found, source = _PROOF.fullmatch(proof), source_of(path)
        if found is None or (found["name"], found["digest"]) != (name, digest_of(source)):
            self.world.checks.violated(f"R26 {host.replica} answers {name} from {source}, and says {proof}")
        elif Version(int(found["generation"]), source) not in set(self._ever(name)):
            self.world.checks.violated(f"R26 {host.replica} answers {name} from {source} as {proof}, which never was")

    def _ever(self, name: str) -> Iterator[Version]:
        oracle = self.world.checks.oracle
        for _, moment in (one for moments in (oracle.moments, *oracle.past) for one in moments):
            for wanted in moment.wanted.values():
                if wanted.name == name:
                    yield from wanted.versions


async def are_proven(world: World) -> None:
    """Once all has healed, an answer of whatever is served as desired has a proof."""
    unproven: list[str] = []
    for _ in range(TELL_SECONDS if world.has_plugin else 0):
        unproven = [f"{replica.name}: {name}" for replica in world.replicas for name in _unproven(world, replica)]
        if not unproven:
            return
        await asyncio.sleep(1.0)
    if unproven:
        world.checks.violated(f"R26 answers say nothing of what made them: {unproven}")


def _unproven(world: World, replica: ReplicaHost) -> Iterator[str]:
    engine, moment = replica.engine.engine, world.checks.oracle.newest
    share = moment.share(replica.name, world.checks.live.get(replica.name))
    for one in moment.wanted.values():
        card = None if engine is None else engine.cards.get(one.name)
        if card is None or engine is None or engine.plugin is None or engine.plugin.is_leaving(card):
            continue
        # One that is to serve another generation may answer with an earlier one that is made of the same.
        if share.get(one.name) == one.newest and card.path == path_of(replica.name, one.newest.source):
            proof = engine.plugin.version_of(card)
            if not proof.startswith(f"{one.name}@{one.newest.generation} "):
                yield one.name
