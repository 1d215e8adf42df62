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
AHEAD, EARLIER = (WRITTEN + timedelta(hours=1)).isoformat(), (START - timedelta(1)).isoformat()


def adapter(written: str = WRITTEN.isoformat(), generation: int = 1) -> dict[str, DesiredAdapter]:
    read = desired(kv("A", 7, generation=generation)).adapters
    return {key: replace(adapter, updated_at=written) for key, adapter in read.items()}


def pending(generation: int = 1, *, is_settled: bool = False) -> Plan:
    return Plan(7, (), (), (), (PendingAdapter("A", generation, "not_staged", "", is_settled),), (), None)


def served(generation: int = 1) -> Plan:
    return Plan(7, (), (), (ServedAdapter("A", generation, ""),), (), (), None)


def told() -> tuple[float, float]:
    """Changes that the metric tells of, and the seconds that they took in all."""
    name = "loraplane_propagation_seconds"
    return tuple(REGISTRY.get_sample_value(f"{name}_{part}") or 0.0 for part in ("count", "sum"))  # type: ignore[return-value]


def followed(*plans: Plan, adapters: dict[str, DesiredAdapter]) -> tuple[float, float]:
    """What is told once these plans were made, one a second from when the record was written."""
    before, propagation = told(), Propagation(START)
    for seconds, plan in enumerate(plans):
        propagation.follow(plan, adapters, WRITTEN + timedelta(seconds=seconds))
    return told()[0] - before[0], told()[1] - before[1]


# What is tried again is pending again, and has been waited for since its commit.
REFUSED = Plan(7, (), (), (), (), (FailedAdapter("A", 1, "load_failed", "", 1, None, "", is_settled=False),), None)


@pytest.mark.parametrize(
    ("plans", "adapters", "seconds"),
    [
        pytest.param([pending(), pending(), served(), served()], adapter(), 2, id="from commit until served once"),
        pytest.param([pending(), REFUSED, pending(), served()], adapter(), 3, id="a refusal between ends nothing"),
        pytest.param([pending(), served()], adapter(START.isoformat()), 11, id="written as the sidecar started"),
        pytest.param([pending(), served()], adapter(AHEAD), 0, id="clocks disagree"),
        pytest.param([served()], adapter(), None, id="served before anybody waited"),
        pytest.param([pending(), pending()], adapter(), None, id="not served yet"),
        pytest.param([pending(2), served(1)], adapter(generation=2), None, id="the older generation is served"),
        pytest.param([pending(is_settled=True), served()], adapter(), None, id="this replica did not mean to"),
        pytest.param([pending(), served()], {}, None, id="deleted meanwhile"),
        pytest.param([pending(), served()], adapter(EARLIER), None, id="written before the start"),
        pytest.param([pending(), served()], adapter("yesterday"), None, id="no time"),
        pytest.param([pending(), served()], adapter("2026-01-01T00:00:10"), None, id="a time of no zone"),
    ],
)
def test_a_change_is_told_once_it_is_served_where_somebody_waited_for_it(plans, adapters, seconds):
    assert followed(*plans, adapters=adapters) == pytest.approx((int(seconds is not None), seconds or 0))
