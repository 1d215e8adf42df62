"""The list of models that our plugin writes in place of vLLM's: vLLM's own code and ours side by side."""

from __future__ import annotations

from tests.support.vllm_listing import both

COUNTS = (0, 1000, 2000)
MOST_MILLISECONDS = 0.5


def test_the_list_is_vllms_own_to_the_byte_and_costs_its_event_loop_nothing():
    """But for times and random numbers in it. A router polls it every few seconds, beside every request."""
    found = both(*COUNTS)
    assert [(one["adapters"], one["same"]) for one in found] == [(count, True) for count in COUNTS]
    assert max(one["ours_ms"] for one in found) <= MOST_MILLISECONDS
    assert found[-1]["own_ms"] > 10 * MOST_MILLISECONDS, "else it would need no cache"
