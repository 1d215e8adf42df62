"""How stored values are read and written."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Annotated, Union, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from registry.model.errors import FailedPrecondition, Reason
from registry.model.records import AdapterRecord, AdapterSpec, PoolSpec, SourceSpec, TenantRecord
from registry.model.status import Presence, ReplicaStatus
from registry.model.stored import MAX_RECORD_BYTES, MAX_TRANSACTION_BYTES, Part, read_json

RECORD = AdapterRecord(
    name="acme/a",
    pool="p",
    tenant="acme",
    generation=1,
    spec=AdapterSpec(source=SourceSpec(uri="file:///a")),
    updated_at="t",
    updated_by="u",
)


def changed(**fields: object) -> bytes:
    return json.dumps(json.loads(RECORD.to_bytes()) | fields).encode()


def test_the_largest_value_is_one_that_etcd_takes_as_it_is_set_up_by_default():
    """W1: with room for what stands beside it in its transaction; 1.5 MiB is etcd's --max-request-bytes."""
    assert 1_000_000 <= MAX_TRANSACTION_BYTES <= 0.95 * 1.5 * (1 << 20)


def test_a_copy_of_what_is_frozen_is_itself():
    """Pydantic makes one of each default, for each of a thousand manifests."""
    assert copy.deepcopy(RECORD.spec.placement) is RECORD.spec.placement


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


def _parts(kind: type) -> set[type]:
    return {kind}.union(*(_parts(below) for below in kind.__subclasses__()))


def _numbers(annotation: object, metadata: Sequence[object] = ()) -> Iterator[set[str]]:
    """Of each number in an annotation the names of its bounds."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        yield from _numbers(inner, [*metadata, *more])
    elif annotation in (int, float):
        found = [one.metadata if isinstance(one, FieldInfo) else [one] for one in metadata]
        yield {type(bound).__name__ for many in found for bound in many}
    for inner in get_args(annotation) if get_origin(annotation) is not Annotated else ():
        yield from _numbers(inner, metadata if get_origin(annotation) in (Union, UnionType) else ())


def test_every_number_of_what_is_stored_is_bounded():
    """R14 nack: a number of 400 digits is one bad value, and nothing has to calculate with it."""
    unbounded = [
        f"{kind.__name__}.{name}"
        for kind in sorted(_parts(Part), key=lambda kind: kind.__name__)
        if kind.__module__.startswith("registry.model.")
        for name, field in kind.model_fields.items()
        for bounds in _numbers(field.annotation, field.metadata)
        if not bounds >= {"Ge", "Le"}
    ]
    assert unbounded == []


@pytest.mark.parametrize("kind", [Presence, ReplicaStatus, PoolSpec, TenantRecord, AdapterRecord])
def test_a_number_of_400_digits_is_refused(kind):
    """R14 nack."""
    for name, field in kind.model_fields.items():
        if any(True for _ in _numbers(field.annotation, field.metadata)):
            with pytest.raises(FailedPrecondition) as told:
                kind.parse(json.dumps({field.alias or name: 10**400}).encode())
            assert len(told.value.message) < 300


def test_json_that_is_nested_too_deeply_is_none():
    with pytest.raises(ValueError, match="too deeply"):
        read_json("[" * 30_000)


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
