"""A process that stages artifacts, lets go of them and removes them. Started by the tests beside it.

Arguments: store, replica, allowed root, how many rounds, at which point of the last round to die ("-": at none), and
pairs of URI and digest. Prints a line for each artifact that it has leased and seen whole, and the point.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import structlog

from registry.runtime.failpoints import Point, handling
from registry.sources.base import Stop
from sidecar.artifacts.store import LocalStore, StoreLimits
from sidecar.artifacts.types import ArtifactRef, Staged
from tests.corpus.in_process import InProcessExaminer
from tests.support.adapters import digest_of


class Worker:
    """One replica's sidecar without an engine: it leases, reads as an engine would, and lets go."""

    def __init__(self, root: Path, replica: str, allowed: Path, refs: list[ArtifactRef]) -> None:
        self.dies_at = "-"
        self._refs = refs
        self._held: dict[str, Staged] = {}
        self._clock = random.Random(os.getpid())
        examiner = InProcessExaminer()
        self._store = LocalStore(
            root, replica, [allowed.as_uri()], limits=StoreLimits(grace_seconds=0.0), examiner=examiner
        )

    def die_if_due(self, point: Point) -> None:
        if point == self.dies_at:
            print(point, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    async def round(self, *, holds: int) -> None:
        """Stages one, reads all that it holds, lets go of some until so many are left, removes whatever may go."""
        ref = self._clock.choice(self._refs)
        staged = await self._store.ensure(ref)
        self._held[staged.id] = staged
        for one in self._held.values():
            assert digest_of(Path(one.path)) == one.digest, f"{one.path} is not whole"
        print("whole", flush=True)
        gone = self._clock.sample(sorted(self._held), max(0, len(self._held) - holds))
        assert self._store.let_go(gone) == set(gone)
        self._held = {artifact: one for artifact, one in self._held.items() if artifact not in gone}
        stop = Stop()
        self._store.maintenance.write_leases(stop)
        self._store.maintenance.collector.tidy(stop)
        self._store.maintenance.collector.collect(1 << 60, stop)


async def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    root, replica, allowed, rounds, dies_at, *pairs = sys.argv[1:]
    refs = [ArtifactRef(uri, digest) for uri, digest in zip(pairs[::2], pairs[1::2], strict=True)]
    worker = Worker(Path(root), replica, Path(allowed), refs)
    with handling(worker.die_if_due):
        for left in reversed(range(int(rounds))):
            worker.dies_at = "-" if left else dies_at
            await worker.round(holds=min(left, 1))
    print("end", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
