"""Plays seeds of the simulation until one fails: ``python -m tests.support.mutants.seeds COUNT``.

Each is played twice, the second time without the nets below the event-driven ways: a periodic look would otherwise
repair what a dead wake-up broke, and neither be found.
"""

from __future__ import annotations

import sys

from tests.simulation.simulation import SimulationFailed, simulate


def main() -> None:
    """The command; exits with 1 and one line on what failed."""
    for seed in range(int(sys.argv[1])):
        for has_nets in (True, False):
            try:
                simulate(seed, has_nets=has_nets)
            except SimulationFailed as error:
                nets = "" if has_nets else " without nets"
                sys.exit(f"seed {seed}{nets}: {str(error).splitlines()[-1][:200]}")


if __name__ == "__main__":
    main()
