"""How long changes took until they were served, as the metric tells it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import REGISTRY

from sidecar.desired.informer import DesiredAdapter
from sidecar.loop.rounds import Propagation
from sidecar.plan.types import FailedAdapter, PendingAdapter, Plan, ServedAdapter
from tests.support.records import kv
from tests.support.worlds import desired

START = datetime(2026, 1, 1, tzinfo=UTC)
WRITTEN = START + timedelta(seconds=10)


def adapter(written: str = WRITTEN.isoformat(), generation: int = 1) -> dict[str, DesiredAdapter]:
    read = desired(kv("A", 7, generation=generation)).adapters
    return {key: replace(adapter, updated_at=written) for key, adapter in read.items()}


def pending(generation: int = 1, *, is_settled: bool = False) -> Plan:
    return Plan(7, (), (), (), (PendingAdapter("A", generation, "not_staged", "", is_settled),), (), None)


def served(generation: int = 1) -> Plan:
    return Plan(7, (), (), (ServedAdapter("A", generation, ""),), (), (), None)


class Told:
    """What the metric gained since this was made."""

    def __init__(self) -> None:
        self._before = self._now()

    def _now(self) -> tuple[float, float]:
        name = "loraplane_propagation_seconds"
        return REGISTRY.get_sample_value(f"{name}_count") or 0.0, REGISTRY.get_sample_value(f"{name}_sum") or 0.0

    @property
    def gained(self) -> tuple[float, float]:
        """Changes, and seconds that they took in all."""
        return tuple(now - before for now, before in zip(self._now(), self._before, strict=True))  # type: ignore[return-value]


def followed(*plans: Plan, adapters: dict[str, DesiredAdapter]) -> tuple[float, float]:
    """What is told once these plans were made, one a second from when the record was written."""
    told, propagation = Told(), Propagation(START)
    for seconds, plan in enumerate(plans):
        propagation.follow(plan, adapters, WRITTEN + timedelta(seconds=seconds))
    return told.gained


def test_from_the_commit_until_it_is_served_once():
    assert followed(pending(), pending(), served(), served(), adapters=adapter()) == pytest.approx((1, 2))


def test_a_refusal_between_ends_nothing():
    """What is tried again is pending again, and has been waited for since its commit."""
    refused = FailedAdapter("A", 1, "load_failed", "", 1, None, "", is_settled=False)
    plans = pending(), Plan(7, (), (), (), (), (refused,), None), pending(), served()
    assert followed(*plans, adapters=adapter()) == pytest.approx((1, 3))


@pytest.mark.parametrize(
    ("plans", "adapters"),
    [
        pytest.param([served()], adapter(), id="served before anybody waited"),
        pytest.param([pending(), pending()], adapter(), id="not served yet"),
        pytest.param([pending(2), served(1)], adapter(generation=2), id="the older generation is served"),
        pytest.param([pending(is_settled=True), served()], adapter(), id="this replica did not mean to"),
        pytest.param([pending(), served()], {}, id="deleted meanwhile"),
        pytest.param([pending(), served()], adapter((START - timedelta(1)).isoformat()), id="written before the start"),
        pytest.param([pending(), served()], adapter("yesterday"), id="no time"),
        pytest.param([pending(), served()], adapter("2026-01-01T00:00:10"), id="a time of no zone"),
    ],
)
def test_nothing_is_told_of_what_nobody_waited_for(plans, adapters):
    assert followed(*plans, adapters=adapters) == (0, 0)


def test_clocks_that_disagree_give_no_negative_time():
    ahead = adapter((WRITTEN + timedelta(hours=1)).isoformat())
    assert followed(pending(), served(), adapters=ahead) == (1, 0)


def test_what_was_written_as_the_sidecar_started_is_counted():
    assert followed(pending(), served(), adapters=adapter(START.isoformat())) == (1, pytest.approx(11))
