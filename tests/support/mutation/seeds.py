"""Seeds of the simulation, each a test of its own: a change of what one executes is asked of it, too.

Every other one is played without the nets below the event-driven ways: a periodic look would repair what a dead
wake-up broke.
"""

from __future__ import annotations

import pytest

from tests.simulation.simulation import simulate


@pytest.mark.parametrize("seed", range(8))
def test_seed(seed: int) -> None:
    """All that the simulation holds."""
    simulate(seed, has_nets=seed % 2 == 0)
