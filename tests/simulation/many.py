"""Many seeds, in processes of their own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.simulation import SimulationFailed, simulate

WORKERS = 2
_CHUNK = 10


def failure_of(seed: int, *, has_nets: bool = True) -> str:
    """Plays a seed; why it failed, or nothing."""
    try:
        simulate(seed, has_nets=has_nets)
    except SimulationFailed as error:
        return str(error)
    return ""


def failures(seeds: Iterable[int], *, has_nets: bool = True) -> Iterator[str]:
    """Plays many seeds in processes of their own; tells each failure as it is found."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, mp_context=fresh) as workers:
        yield from filter(None, workers.map(partial(failure_of, has_nets=has_nets), seeds, chunksize=_CHUNK))
