"""How stored values are read and written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import FailedPrecondition, Reason
from registry.model.base import MAX_RECORD_BYTES
from registry.model.records import AdapterRecord, AdapterSpec, PoolSpec, Source
from registry.model.status import EngineStatus, ReplicaStatus, Served

RECORD = AdapterRecord(
    name="acme/a",
    pool="p",
    tenant="acme",
    generation=1,
    spec=AdapterSpec(source=Source(uri="file:///a")),
    updated_at="t",
    updated_by="u",
)


def changed(**fields: object) -> bytes:
    return json.dumps(json.loads(RECORD.to_bytes()) | fields).encode()


def test_there_and_back():
    assert AdapterRecord.parse(RECORD.to_bytes()) == RECORD
    assert json.loads(RECORD.to_bytes())["schema"] == 1


def test_unknown_fields_stay():
    again = AdapterRecord.parse(changed(later={"deep": [1]}))
    assert json.loads(again.to_bytes())["later"] == {"deep": [1]}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", Reason.UNREADABLE_RECORD),
        (b"[]", Reason.UNREADABLE_RECORD),
        (b"[" * 3000, Reason.UNREADABLE_RECORD),
        (b"\xff", Reason.UNREADABLE_RECORD),
        (changed(generation=0), Reason.UNREADABLE_RECORD),
        (changed(generation="1"), Reason.UNREADABLE_RECORD),
        (changed(generation=2**53), Reason.UNREADABLE_RECORD),
        (changed(schema=0), Reason.UNREADABLE_RECORD),
        (changed(schema="2"), Reason.UNREADABLE_RECORD),
        (changed(schema=2), Reason.FUTURE_SCHEMA),
        (changed(schema=2, spec="of another form"), Reason.FUTURE_SCHEMA),
        (changed(padding="x" * MAX_RECORD_BYTES), Reason.UNREADABLE_RECORD),
    ],
)
def test_unreadable(value, reason):
    """R14 nack: what cannot be read is refused with its reason, and a future schema as such."""
    with pytest.raises(FailedPrecondition) as told:
        AdapterRecord.parse(value)
    assert told.value.reason is reason
    assert told.value.message


def test_a_complaint_tells_where_but_not_what():
    """X1 secret-free."""
    with pytest.raises(FailedPrecondition) as told:
        AdapterRecord.parse(changed(spec={"source": {"uri": 7, "x": "hunter2"}}))
    assert told.value.message.startswith("spec.source.uri: ")
    assert "hunter2" not in told.value.message


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(value):
    """R14 nack: arbitrary bytes are a refusal, never another error."""
    with pytest.raises(FailedPrecondition):
        PoolSpec.parse(value)


def test_a_status_may_be_larger():
    status = ReplicaStatus(
        replica="r",
        pool="p",
        engine=EngineStatus(kind="k", version="v", url="u", base_models=[], incarnation=""),
        observed_revision=1,
        ready=False,
        stale=False,
        served=Served(count=0, hash=""),
        pending=[],
        failed=[],
        note="x" * MAX_RECORD_BYTES,
        updated_at="t",
    )
    assert ReplicaStatus.parse(status.to_bytes()) == status
