"""When a swap from outside waits: two versions of a name in one batch can end vLLM."""

from __future__ import annotations

import pytest

from sidecar.engines.swap_risk import swap_risk
from sidecar.observed import DrainEvidence


def evidence(waiting: int = 0, running: int = 0, adapters: frozenset[str] | None = frozenset()) -> DrainEvidence:
    return DrainEvidence("1", waiting, running, adapters)


@pytest.mark.parametrize(
    ("seen", "listed", "max_loras"),
    [
        (evidence(), 8, 2),
        (evidence(running=1, adapters=frozenset({"other"})), 8, 2),
        (evidence(running=1, adapters=frozenset({"sql"})), 2, 4),
        (evidence(waiting=3), 8, None),
    ],
    ids=["idle", "others run", "a slot for everything", "no adapter was ever asked for"],
)
def test_nothing_to_fear(seen, listed, max_loras):
    assert swap_risk("sql", seen, listed=listed, max_loras=max_loras) == ""


@pytest.mark.parametrize(
    ("seen", "listed", "max_loras"),
    [
        (evidence(running=1, adapters=frozenset({"sql"})), 3, 4),
        (evidence(waiting=1), 8, 2),
        (evidence(running=1, adapters=None), 8, 2),
    ],
    ids=["its own run", "whose is waiting is not known", "whose run is not known"],
)
def test_a_swap_that_might_end_the_engine_says_why_and_what_to_do(seen, listed, max_loras):
    """R8: not the engine of all others for the new version of one."""
    said = swap_risk("sql", seen, listed=listed, max_loras=max_loras)
    assert f"--max-loras {listed + 2}" in said
    assert "plugin" in said
