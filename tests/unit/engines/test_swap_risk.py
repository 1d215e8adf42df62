"""When a swap from outside waits: two versions of a name in one batch can end vLLM."""

from __future__ import annotations

import pytest

from sidecar.engines.observed import DrainEvidence
from sidecar.engines.vllm.swap_risk import QUEUE_SECONDS, LastThere, reload_risk, swap_risk


def evidence(waiting: int = 0, running: int = 0, adapters: frozenset[str] | None = frozenset()) -> DrainEvidence:
    return DrainEvidence("1", waiting, running, adapters)


@pytest.mark.parametrize(
    ("seen", "listed", "max_loras", "is_risky"),
    [
        (evidence(), 8, 2, False),
        (evidence(running=1, adapters=frozenset({"other"})), 8, 2, False),
        (evidence(running=1, adapters=frozenset({"sql"})), 2, 4, False),
        (evidence(waiting=3), 8, None, False),
        (evidence(running=1, adapters=frozenset({"sql"})), 3, 4, True),
        (evidence(waiting=1), 8, 2, True),
        (evidence(running=1, adapters=None), 8, 2, True),
    ],
    ids=["idle", "others", "a slot for each", "none was asked for", "itself", "unknown who waits", "unknown who runs"],
)
def test_a_swap_that_might_end_the_engine_says_why_and_what_to_do(seen, listed, max_loras, is_risky):
    """R8: not the engine of all others for the new version of one."""
    said = swap_risk("sql", seen, listed=listed, max_loras=max_loras)
    assert bool(said) is is_risky
    assert not is_risky or (f"--max-loras {listed + 2}" in said and "plugin" in said)


@pytest.mark.parametrize(
    ("seen", "gone_seconds", "is_risky"),
    [
        (evidence(running=1, adapters=frozenset({"sql"})), 1e6, True),
        (evidence(waiting=1), QUEUE_SECONDS - 1, True),
        (evidence(running=1, adapters=None), QUEUE_SECONDS - 1, True),
        (evidence(waiting=1, running=1, adapters=frozenset({"other"})), QUEUE_SECONDS, False),
        (evidence(waiting=1, running=1, adapters=None), QUEUE_SECONDS, False),
        (evidence(), 0.0, False),
    ],
    ids=["its own run", "whose waits", "whose runs", "nobody waits so long", "nor runs", "idle"],
)
def test_a_name_that_was_unloaded_is_not_loaded_beside_requests_of_what_it_was(seen, gone_seconds, is_risky):
    """R8: and yet a busy engine does not keep it away for ever."""
    assert bool(reload_risk("sql", seen, listed=8, max_loras=2, gone_seconds=gone_seconds)) == is_risky


def test_what_an_engine_had_is_known_of_one_process_and_of_so_many_names():
    there = LastThere()
    there.note("1", ["a", "b"], 1.0)
    there.note("1", ["a"], 3.0)
    assert (there.seconds_since("a", 5.0), there.seconds_since("b", 5.0), there.seconds_since("c", 5.0)) == (2, 4, None)
    there.note("1", (f"n{number}" for number in range(10_000 - 1)), 6.0)
    assert (there.seconds_since("a", 7.0), there.seconds_since("b", 7.0)) == (4, None)
    assert there.seconds_since("n0", 7.0) == 1
    there.note("1", ["one more"], 7.0)
    assert there.seconds_since("a", 7.0) is None, "it was there last before all others"
    there.note("2", ["c"], 8.0, was_asked=True)
    assert (there.seconds_since("n9998", 9.0), there.seconds_since("c", 9.0)) == (None, 1)


@pytest.mark.parametrize(
    ("seen", "names", "is_clear"),
    [
        (evidence(), {"x"}, True),
        (evidence(), None, True),
        (evidence(waiting=1), {"x"}, False),
        (evidence(waiting=1), None, False),
        (evidence(adapters=None), {"x"}, True),
        (evidence(running=1, adapters=None), {"x"}, False),
        (evidence(running=1), {"x"}, True),
        (evidence(running=1), None, True),
        (evidence(running=1, adapters=frozenset({"y"})), {"x"}, True),
        (evidence(running=1, adapters=frozenset({"x", "y"})), {"x"}, False),
        (evidence(running=1, adapters=frozenset({"y"})), {"x", "y"}, False),
        (evidence(running=1, adapters=frozenset({"y"})), set(), True),
        (evidence(running=1, adapters=frozenset({"y"})), None, False),
        (evidence(adapters=frozenset({"x"})), {"x"}, True),
    ],
)
def test_when_no_request_of_an_adapter_is_left(seen, names, is_clear):
    """R7 files-pinned: whatever is not known may be one."""
    assert seen.is_clear_of(names) is is_clear
