"""``make sim SEED=n`` plays one seed and shows its trace; ``make soak`` plays very many and tells those that fail."""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.support.sim.simulation import SimulationFailed, simulate

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


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="make sim")
    parser.add_argument("--seed", type=int, help="play this one, and print its trace")
    parser.add_argument("--no-nets", action="store_true", help="of that one: without periodic looks")
    parser.add_argument("--count", type=int, default=3000, help="play so many, from a seed by chance on")
    asked = parser.parse_args()
    if asked.seed is not None:
        _one(asked.seed, has_nets=not asked.no_nets)
    else:
        _many(asked.count)


def _one(seed: int, *, has_nets: bool) -> None:
    outcome = simulate(seed, has_nets=has_nets)
    sys.stdout.write("\n".join([*outcome.trace, ""]))
    sys.stdout.write(f"seed {seed}: all held; converged {outcome.converged_after_seconds:g} s after healing\n")


def _many(count: int) -> None:
    first = random.SystemRandom().randrange(1 << 40)
    found = 0
    for failure in failures(range(first, first + count)):
        found += 1
        sys.stdout.write(f"{failure}\n\n")
    sys.stdout.write(f"{count} seeds from {first} on: {found} failed\n")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
