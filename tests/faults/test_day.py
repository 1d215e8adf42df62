"""A fleet's day: publishes of every kind of placement, refused versions, and kills of everything."""

from __future__ import annotations

import os
import sys

import pytest

from tests.faults.day import GROWN_SHARE, WARM_SECONDS, fleet, grown, play

SEED, FAULTS = int(os.environ.get("SEED", "7")), int(os.environ.get("FAULTS", "6"))
SECONDS = float(os.environ.get("SECONDS", "0"))


@pytest.mark.skipif("SECONDS" not in os.environ, reason="a fleet's day is played by make soak")
async def test_a_days_mix_leaves_no_adapter_without_its_places(three, tmp_path):
    """R24 always-placed, R3, R13, R16, and all that loraplane-verify checks. `make soak` plays it for longer."""
    async with fleet(tmp_path, three, SEED) as day:
        try:
            await play(day, faults=FAULTS, seconds=SECONDS)
        finally:
            sys.stdout.write("\n".join(["", day.report(), *day.found[:20]]) + "\n")
        assert not day.found
        if day.seconds > 2 * WARM_SECONDS:
            assert all(grown(told) < GROWN_SHARE for told in day.memory.values())
