"""``make sim SEED=n`` plays one seed and shows its trace; ``make soak`` plays very many and tells those that fail."""

from __future__ import annotations

import argparse
import random
import sys
from time import process_time

from tests.simulation.cut import Cut, read_cut
from tests.simulation.many import play_all
from tests.simulation.shrink import shrunk, told
from tests.simulation.simulation import SimulationFailed, simulate


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="make sim")
    parser.add_argument("--seed", type=int, help="play this one, and print its trace")
    parser.add_argument("--no-nets", action="store_true", help="of that one: without periodic looks")
    parser.add_argument("--only", help="of that one: these events alone, as a shrunk failure names them")
    parser.add_argument("--seconds", type=float, help="of that one: so long")
    parser.add_argument("--shrink", action="store_true", help="of that one, if it fails: the least that fails alike")
    parser.add_argument("--count", type=int, default=3000, help="play so many")
    parser.add_argument("--first", type=int, help="of so many; one by chance if it is not given")
    asked = parser.parse_args()
    if asked.seed is not None:
        _one(asked.seed, read_cut(asked.only, asked.seconds), has_nets=not asked.no_nets, shrinks=asked.shrink)
    else:
        _many(asked.count, asked.first)


def _one(seed: int, cut: Cut, *, has_nets: bool, shrinks: bool) -> None:
    started = process_time()
    try:
        outcome = simulate(seed, has_nets=has_nets, cut=cut)
    except SimulationFailed as failure:
        found = told(shrunk(failure)) if shrinks else "\n".join([*failure.trace, "", *failure.violations])
        sys.stdout.write(f"{found}\n")
        sys.exit(1)
    sys.stdout.write("\n".join([*outcome.trace, ""]))
    sys.stdout.write(f"seed {seed}: all held; converged {outcome.converged_after_seconds:g} s after healing\n")
    sys.stdout.write(_speed(1, process_time() - started))


def _speed(worlds: int, seconds: float) -> str:
    """By the processor's time: what else the machine has to do is no matter."""
    return f"{worlds / seconds:.2f} worlds a second and core\n"


def _many(count: int, given: int | None) -> None:
    first = random.SystemRandom().randrange(1 << 40) if given is None else given
    found, seconds = 0, 0.0
    for played in play_all(range(first, first + count)):
        seconds += played.seconds
        if played.failure:
            found += 1
            sys.stdout.write(f"{played.failure}\n\n")
    sys.stdout.write(f"{count} seeds from {first} on: {found} failed\n")
    sys.stdout.write(_speed(count, seconds))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
