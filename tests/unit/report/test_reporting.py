"""Who hears of a round, and in which order."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from sidecar.plan.types import RoundReport
from sidecar.report.reporting import Reporting
from tests.unit.report.test_status import plan, situation


@pytest.mark.parametrize("made", [plan(leaving=("one",)), None], ids=["a plan", "none"])
def test_a_round_is_told_to_all_parts_and_then_to_who_looks_on(made):
    """R9, R16: what is offered as the newest status has the handoffs and the room of the same round."""
    names = ["declines", "events", "finder", "served", "share", "status"]
    heard, last = Mock(), list[tuple[RoundReport, list[str]]]()
    reporting: Any = object.__new__(Reporting)
    for name in names:
        setattr(reporting, name, Mock(take=getattr(heard, name)))
    reporting.handoffs = Mock(follow=heard.handoffs)
    reporting.on_round = lambda one: last.append((one, [name for name, *_ in heard.mock_calls]))
    report = RoundReport(situation(made), 1)
    reporting.take(report)
    order = [name for name, *_ in heard.mock_calls]
    assert sorted(order) == sorted([*names, "handoffs"])
    assert all(getattr(heard, name).call_args.args == (report,) for name in names)
    assert heard.handoffs.call_args.args == (("one",) if made else (),)
    assert max(order.index("share"), order.index("handoffs")) < order.index("status")
    assert [(one, told) for one, told in last] == [(report, order)]
