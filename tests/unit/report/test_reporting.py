"""Who hears of a round, and in which order."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from registry.runtime.clock import Clock
from sidecar.metrics import CERTIFICATE_EXPIRES
from sidecar.plan.types import RoundReport
from sidecar.report.cache import StatusCache
from sidecar.report.reporting import Reporting
from sidecar.report.status import ReplicaIdentity
from tests.support.tls import Authority
from tests.support.waiting import eventually
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


async def test_certificates_that_are_replaced_are_told_with_the_next_look(monkeypatch, tmp_path):
    own = Authority(tmp_path, "ca").issue("own", days=2)
    monkeypatch.setattr("sidecar.report.reporting.CERTIFICATES_SECONDS", 0.001)
    offered = list[Any]()
    reporting: Any = object.__new__(Reporting)
    replica = ReplicaIdentity("r", "p", "vllm", "http://e")
    reporting.status = StatusCache(replica, Clock(), lambda read: offered.append(read()))
    reporting.certificates = {"--http-tls-cert": Path(own.certificate)}
    watching = asyncio.create_task(reporting.watch_certificates())
    await eventually(lambda: offered)
    first = offered[-1].certificates
    reporting.status.refresh_metrics()
    shown = CERTIFICATE_EXPIRES.labels("--http-tls-cert")._value.get()
    assert ([one.flag for one in first], shown) == (
        ["--http-tls-cert"],
        datetime.fromisoformat(first[0].ends).timestamp(),
    )
    await asyncio.sleep(0.05)
    assert len(offered) == 1, "what is as before is not told anew"
    reporting.certificates.clear()
    await eventually(lambda: offered[-1].certificates == [])
    watching.cancel()
