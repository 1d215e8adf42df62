"""Manifests that are larger than a message."""

from __future__ import annotations

from tests.unit.cli.fake_admin import applied


def test_no_atomic_sends_no_message_that_the_service_does_not_take(cli, admin, manifest):
    """One of 5 MiB is refused by gRPC itself, which does not say how much fits."""
    admin.answers["ApplyAdapters"] = [applied]
    names = [f"a{number}" for number in range(300)]
    path = manifest(*names, placement={"selector": {f"label-{number}": "x" * 256 for number in range(64)}})
    ran = cli("-o", "json", "apply", "-f", path)
    assert (ran.code, ran.error["reason"]) == (4, "TOO_LARGE")
    assert "--no-atomic" in ran.error["message"]
    assert cli("apply", "-f", path, "--no-atomic", "--request-id", "q1").code == 0
    sent = admin.asked("ApplyAdapters")
    assert [change.upsert.name for one in sent for change in one.changes] == names
    assert [one.request_id for one in sent] == ["q1:part1", "q1:part2"]
