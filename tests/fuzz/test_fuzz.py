"""All targets of the fuzzer: what is kept, and a few hurt cases of a fixed seed; `make fuzz` searches on."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.fuzzer import Bounds, search
from tests.fuzz.targets import TARGETS

SEED = 13
# For machines that are ten times slower.
PATIENCE = 10.0


@pytest.mark.parametrize("name", TARGETS)
async def test_no_case_ends_freezes_or_fools_a_reader(name, tmp_path):
    """X2 unbreakable, X1 secret-free, R12, R14: a refusal has a reason, and what was served goes on."""
    target = TARGETS[name]
    bounds = Bounds(runs=target.runs, patience=PATIENCE)
    found = await search(target, tmp_path, random.Random(SEED), bounds)
    assert not found.findings, "\n".join(map(str, found.findings.values()))
    assert found.executions >= target.runs
