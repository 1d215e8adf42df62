"""Audit records as changes on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from registry.admin.rpc.encode_changes import first_id, recorded_changes
from registry.model.errors import FailedPrecondition, InvalidArgument, Reason
from registry.model.records import AuditChange, AuditRecord
from registry.v1 import registry_pb2 as pb


def told(before: dict[str, Any] | None, after: dict[str, Any] | None, kind: Any = "adapter") -> pb.RecordedChange:
    change = AuditChange(kind=kind, name="sql", before=before, after=after)
    record = AuditRecord(
        at="2026-01-02T03:04:05Z", principal="alice", role="operator", request_id="q", method="M", changes=[change]
    )
    (one,) = recorded_changes(record.to_bytes())
    return one


def adapter(generation: object = 1, **more: object) -> dict[str, object]:
    return {"generation": generation, "updated_at": f"{generation}", "spec": {"priority": 1}, **more}


RECORD = AuditRecord(
    at="t",
    principal="p",
    role="r",
    request_id="q",
    method="m",
    changes=[AuditChange(kind="pool", name="sql", before={"a": 1}, after={"b": 1})],
).to_bytes()
CANARIES = {"stable_generation": 1, "halted": ""}


@pytest.mark.parametrize(
    ("before", "after", "kind", "expected"),
    [
        (None, adapter(), "adapter", ("created", 1, [])),
        (adapter(3), None, "adapter", ("deleted", 3, [])),
        (adapter(1), adapter(2, spec={"priority": 2, "load": "lazy"}), "adapter", ("updated", 2, ["load", "priority"])),
        (adapter(1), adapter(1, retry={"replica": ""}), "adapter", ("updated", 1, ["retry"])),
        (adapter(2, rollout=CANARIES), adapter(2), "adapter", ("promoted", 2, [])),
        (adapter(2, rollout=CANARIES), adapter(3), "adapter", ("updated", 3, [])),
        (adapter(1), adapter(2, rollout=CANARIES), "adapter", ("updated", 2, [])),
        ({"unreadable": "?"}, adapter(1, spec=None), "adapter", ("updated", 1, ["unreadable"])),
        (adapter("?"), adapter(1.5), "adapter", ("updated", 0, [])),
        ({"limits": 1}, {"limits": 2}, "pool", ("updated", 0, ["limits"])),
        (None, {"drain": True}, "replica", ("drain", 0, [])),
        ({"drain": True}, {"drain": False}, "replica", ("undrain", 0, ["drain"])),
    ],
)
def test_who_did_what(before, after, kind, expected):
    """W7: names of fields, not their values."""
    one = told(before, after, kind)
    assert (one.action, one.generation, list(one.fields)) == expected
    assert (one.at, one.principal, one.role, one.request_id, one.method, one.name) == (
        "2026-01-02T03:04:05Z",
        "alice",
        "operator",
        "q",
        "M",
        "sql",
    )


def test_a_halt_is_told_once_with_why():
    halted = {**CANARIES, "halted": "2 of 2 refused"}
    one = told(adapter(2, rollout=CANARIES), adapter(2, rollout=halted))
    assert (one.action, one.note) == ("halted", "2 of 2 refused")
    assert told(adapter(2, rollout=halted), adapter(2, rollout=halted)).action == "updated"


@pytest.mark.parametrize("value", [b"{}", RECORD.replace(b"sql", b"\\ud800"), RECORD.replace(b'"b"', b'"\\ud800"')])
def test_what_cannot_be_read_is_refused(value):
    """X2: also half a character, which a message cannot hold."""
    assert [one.name for one in recorded_changes(RECORD)] == ["sql"]
    with pytest.raises(FailedPrecondition):
        list(recorded_changes(value))


def test_ids_sort_by_time():
    assert first_id("") == ""
    assert first_id("2026-01-02T05:04:05.25+02:00") == "20260102T030405.250000Z"
    for text in ("yesterday", "0001-01-01T00:00:00+14:00"):
        with pytest.raises(InvalidArgument) as refused:
            first_id(text)
        assert (refused.value.reason, refused.value.field) == (Reason.INVALID_FIELD, "since")


@pytest.mark.parametrize(
    ("generation", "told_as"), [(1, 1), (2**63 - 1, 2**63 - 1), (2**63, 0), (0, 0), (-1, 0), (True, 0), ("1", 0)]
)
def test_a_generation_is_one_that_a_message_can_hold(generation, told_as):
    """X2: an audit record may be of somebody else's making."""
    assert told(None, adapter(generation)).generation == told_as
