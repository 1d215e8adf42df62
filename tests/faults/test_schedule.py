"""A cluster of three under writes while its members are killed and frozen, with the replay checker on."""

from __future__ import annotations

import os
import sys

from tests.faults.schedule import play

SEED, FAULTS = int(os.environ.get("SEED", "7")), int(os.environ.get("FAULTS", "4"))
SECONDS = float(os.environ.get("SECONDS", "0"))


async def test_a_schedule_of_faults_loses_and_doubles_nothing(three, tmp_path):
    """Faults 1, 6, 36, 40: W1 to W8, R1, R2, R3, R6, R11, R16. `make soak` plays it for longer."""
    story = await play(tmp_path, three, seed=SEED, faults=FAULTS, seconds=SECONDS)
    sys.stdout.write(story.report() + "\n")
    assert len(story.faults) >= FAULTS
    assert any(call.outcome == "ok" for call in story.calls)
