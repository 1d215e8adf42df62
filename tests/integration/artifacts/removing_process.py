"""A process that stages artifacts, lets go of them and removes them. Started by the tests beside it.

Arguments: store, replica, allowed root, how many rounds, at which step of the last round to die ("-": at none), and
pairs of URI and digest. Prints a line for each artifact that it has leased and seen whole, and each step.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import structlog

from registry.sources.stop import Stop
from sidecar.artifacts.steps import RemovalStep, Step
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef, Staged
from tests.support.adapters import digest_of


class Worker:
    """One replica's sidecar without an engine: it leases, reads as an engine would, and lets go."""

    def __init__(self, root: Path, replica: str, allowed: Path, refs: list[ArtifactRef]) -> None:
        self.dies_at = "-"
        self._refs = refs
        self._held: dict[str, Staged] = {}
        self._chance = random.Random(os.getpid())
        self._store = LocalStore(root, replica, [allowed.as_uri()], grace_seconds=0.0, on_step=self._on_step)

    def _on_step(self, step: Step | RemovalStep) -> None:
        if step == self.dies_at:
            print(step, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    async def round(self, *, holds: int) -> None:
        """Stages one, reads all that it holds, lets go of some until so many are left, removes whatever may go."""
        ref = self._chance.choice(self._refs)
        staged = await self._store.ensure(ref)
        self._held[staged.id] = staged
        for one in self._held.values():
            assert digest_of(Path(one.path)) == one.digest, f"{one.path} is not whole"
        print("whole", flush=True)
        gone = self._chance.sample(sorted(self._held), max(0, len(self._held) - holds))
        assert self._store.let_go(gone) == set(gone)
        self._held = {artifact: one for artifact, one in self._held.items() if artifact not in gone}
        stop = Stop()
        self._store.upkeep.write_leases(stop)
        self._store._removal.tidy(stop)
        self._store._removal.collect(1 << 60, stop)


async def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    root, replica, allowed, rounds, dies_at, *pairs = sys.argv[1:]
    refs = [ArtifactRef(uri, digest) for uri, digest in zip(pairs[::2], pairs[1::2], strict=True)]
    worker = Worker(Path(root), replica, Path(allowed), refs)
    for left in reversed(range(int(rounds))):
        worker.dies_at = "-" if left else dies_at
        await worker.round(holds=min(left, 1))
    print("end", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
