"""Manifests that are larger than a message."""

from __future__ import annotations

import pytest

from registry.cli import change_set
from registry.v1 import registry_pb2 as pb
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


@pytest.mark.parametrize(
    ("bounds", "parts"),
    [
        ({"_MAX_SENT": 2}, ["ab", "cd", "e"]),
        ({"_MAX_SENT": 5}, ["abcde"]),
        ({"_MAX_SENT_BYTES": 1}, list("abcde")),
        ({"_MAX_SENT_BYTES": 180}, ["ab", "cd", "e"]),
    ],
)
def test_each_part_is_as_large_as_it_may_be_and_none_is_empty(cli, admin, manifest, monkeypatch, bounds, parts):
    """One that alone is too large goes alone: the service says what is wrong with it."""
    for name, value in bounds.items():
        monkeypatch.setattr(change_set, name, value)
    admin.answers |= {"ApplyAdapters": [applied], "GetPool": [pb.Pool(name="dev")]}
    assert cli("apply", "-f", manifest(*"abcde"), "--no-atomic").code == 0
    sent = admin.asked("ApplyAdapters")
    assert ["".join(change.upsert.name for change in one.changes) for one in sent] == parts
