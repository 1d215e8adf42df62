"""Many seeds, in processes of their own."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from tests.simulation.shrink import shrunk, told
from tests.simulation.simulation import SimulationFailed, simulate

WORKERS = 2
_CHUNK = 10
# A bug that every seed shows need not be shrunk with each of them.
MOST_SHRUNK = 2
_shrunk: list[int] = []


@dataclass(frozen=True)
class Played:
    """A seed that was played; `failure`: why it failed, or nothing; `seconds` of processor time, without shrinking."""

    seed: int
    failure: str
    seconds: float


def play(seed: int, *, has_nets: bool = True) -> Played:
    """Plays a seed, and shrinks it if it fails."""
    begun, failed = time.process_time(), None
    try:
        simulate(seed, has_nets=has_nets)
    except SimulationFailed as error:
        failed = error
    seconds = time.process_time() - begun
    if failed is None:
        return Played(seed, "", seconds)
    if len(_shrunk) < MOST_SHRUNK:
        _shrunk.append(seed)
        return Played(seed, f"{failed.command}, shrunk: {told(shrunk(failed))}", seconds)
    return Played(seed, str(failed), seconds)


def _settle() -> None:
    """What was imported is there to the end: no world has to look for garbage in it."""
    gc.collect()
    gc.freeze()


def play_all(seeds: Iterable[int]) -> Iterator[Played]:
    """Plays many seeds in processes of their own; tells each as it ends."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, fresh, _settle) as workers:
        yield from workers.map(play, seeds, chunksize=_CHUNK)
