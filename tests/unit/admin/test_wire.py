"""Bounds on the bytes of a request."""

from __future__ import annotations

import time

import pytest

from registry.admin.rpc.decode import MAX_FIELDS, SMALL_BYTES, parser_of
from registry.admin.rpc.service import DESCRIPTOR
from registry.model.errors import InvalidArgument, Reason
from registry.transactions.context import TxnLimits
from registry.v1 import registry_pb2 as pb
from tests.support.admin import change_set, put

LIMITS = TxnLimits()
METHODS = DESCRIPTOR.methods_by_name
apply = parser_of(METHODS["ApplyAdapters"].input_type, LIMITS)
create = parser_of(METHODS["CreatePool"].input_type, LIMITS)


def refused(parse, raw: bytes) -> InvalidArgument:
    started = time.thread_time()
    with pytest.raises(InvalidArgument) as told:
        parse(raw)
    assert time.thread_time() - started < 4.0, "while its lines are counted too"
    return told.value


def test_what_is_asked_comes_through():
    large = change_set(*(put(f"acme/n{i}", labels={f"k{j}": "x" * 60 for j in range(64)}) for i in range(62)))
    shapes = [pb.BaseModule(pattern=f"model.layers.{i}.q_proj", outputs=8, inputs=8) for i in range(4096)]
    pool = pb.CreatePoolRequest(pool=pb.Pool(name="p", base=pb.BaseShapes(modules=shapes, fingerprint="f")))
    for parse, request in ((apply, change_set(put("a"))), (apply, large), (create, pool)):
        assert parse(request.SerializeToString()) == request


def test_too_many_changes_are_refused_before_they_are_parsed():
    """X2 unbreakable: with the number that does fit."""
    request = change_set(*(put(f"acme/n{i}") for i in range(5_000)))
    told = refused(apply, request.SerializeToString())
    assert (told.reason, told.field, told.metadata["max_changes"]) == (Reason.TOO_MANY_CHANGES, "changes", "41")
    told = refused(apply, b"\x0a\x01p" + b"\x12\x00" * 200_000)
    assert told.reason is Reason.TOO_MANY_CHANGES


@pytest.mark.parametrize(
    "made",
    [
        lambda: change_set(put("a", labels={f"{i:x}": "" for i in range(30_000)})),
        lambda: change_set(*(put(f"a{i}", labels={f"{j:x}": "" for j in range(2000)}) for i in range(40))),
        lambda: pb.CreatePoolRequest(pool=pb.Pool(base_models=["b"] * (MAX_FIELDS + 1))),
        lambda: pb.UpdatePoolRequest(update_mask={"paths": ["x"] * (MAX_FIELDS + 1)}),
    ],
    ids=["one change", "many changes", "names", "mask"],
)
def test_too_many_fields_are_refused_before_they_are_parsed(made):
    """X2 unbreakable."""
    request = made()
    parse = parser_of(request.DESCRIPTOR, LIMITS)
    assert refused(parse, request.SerializeToString()).reason is Reason.TOO_LARGE


@pytest.mark.parametrize(
    "start", [b"\x0a", b"\x12\xff\xff\xff\xff\x0f", b"\x12\x05\x0a", b"\x80" * 100, b"\x09x", b"\x07"]
)
@pytest.mark.parametrize("filling", [b"", b"\x80", b"\x0b\x0c", b"\xff"])
def test_bytes_that_are_no_request_are_refused(start, filling):
    """X2 unbreakable."""
    for raw in (start + filling * 2 * SMALL_BYTES, filling * 2 * SMALL_BYTES + start):
        assert refused(apply, raw).reason in {Reason.INVALID_FIELD, Reason.TOO_LARGE, Reason.TOO_MANY_CHANGES}


UNKNOWN = b"\x78\x00"  # a number in field 15, which no request of ours has


@pytest.mark.parametrize(
    ("limits", "parse_of", "most"),
    [
        (LIMITS, "CreatePool", 20_000),
        (LIMITS, "ApplyAdapters", 20_000),
        (TxnLimits(max_ops=200), "ApplyAdapters", 25_000),
        (TxnLimits(max_ops=200), "UpdatePool", 25_000),
    ],
)
def test_a_request_has_so_many_fields_at_most(limits, parse_of, most):
    """X2 unbreakable: a pool's modules need 16,384, and a change set 250 for each of its changes."""
    parse = parser_of(METHODS[parse_of].input_type, limits)
    parse(UNKNOWN * most)
    told = refused(parse, UNKNOWN * (most + 1))
    assert (told.reason, f"more than {most} fields" in told.message) == (Reason.TOO_LARGE, True)


def test_fields_within_fields_are_counted_and_those_within_text_are_not():
    modules = pb.BaseShapes(modules=[pb.BaseModule(pattern="", outputs=1, inputs=1)] * 6_665)
    inner = pb.CreatePoolRequest(pool=pb.Pool(base=modules)).SerializeToString()
    create(inner + UNKNOWN * (20_000 - 3 * 6_665 - 2))
    assert refused(create, inner + UNKNOWN * (20_000 - 3 * 6_665 - 1)).reason is Reason.TOO_LARGE
    text = pb.CreatePoolRequest(request_id="x\x00" * 15_000).SerializeToString()
    create(text + UNKNOWN * 19_999)
    assert refused(create, text + UNKNOWN * 20_000).reason is Reason.TOO_LARGE


# Whatever is stepped over wrongly is a number without an end.
NEVER = b"\xff"


@pytest.mark.parametrize(
    "field",
    [
        b"\x79" + NEVER * 8,
        b"\x7d" + NEVER * 4,
        b"\x7a\x04" + NEVER * 4,
        b"\x7a\x80\x01" + NEVER * 128,
        b"\x7a\x81\x80\x00" + NEVER,
        b"\x78" + NEVER * 9 + b"\x01",
        b"\x7b\x7c",
        b"\xf8\x7f" + b"\x00",
    ],
    ids=["fixed64", "fixed32", "bytes", "many bytes", "a long number", "64 bits", "group", "a large tag"],
)
def test_what_a_request_may_hold_is_stepped_over_as_it_is_read(field):
    """X2 unbreakable: what protobuf reads is not refused, whoever's field it is."""
    raw = field * (SMALL_BYTES // len(field) + 1)
    create(raw)
    apply(raw)
    for cut in (1, len(field) // 2):
        if cut < len(field) and not field.startswith(b"\x7b"):
            assert refused(create, raw[:-cut]).reason is Reason.INVALID_FIELD


def named(names: list[str], *, deleted: bool) -> bytes:
    """A change set that is too large to be parsed unseen."""
    changes = [pb.AdapterChange(delete=name) if deleted else put(name) for name in names]
    return change_set(*changes, request_id="x" * 2 * SMALL_BYTES).SerializeToString()


@pytest.mark.parametrize("deleted", [True, False])
def test_as_many_changes_are_looked_at_as_could_ever_fit(deleted):
    """X2 unbreakable: how many do, is told for their names: each tenant takes a place of its own."""
    parse = parser_of(METHODS["ApplyAdapters"].input_type, TxnLimits(max_ops=16))
    assert len(parse(named([f"a{number}" for number in range(9)], deleted=deleted)).changes) == 9
    fits = []
    for pattern in ("acme/n{}", "t{}/n", "n{}"):
        told = refused(parse, named([pattern.format(number) for number in range(10)], deleted=deleted))
        assert (told.reason, "more than 9 changes" in told.message) == (Reason.TOO_MANY_CHANGES, True)
        fits.append(int(told.metadata["max_changes"]))
    one_tenant, many_tenants, no_tenant = fits
    assert many_tenants < one_tenant <= no_tenant


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def test_a_fault_of_ours_is_not_told_as_bytes_that_are_no_request(monkeypatch):
    """R12."""

    def breaks(*_: object) -> None:
        raise KeyError("of ours")

    monkeypatch.setattr("registry.admin.rpc.decode.check_fields", breaks)
    with pytest.raises(KeyError):
        create(UNKNOWN * SMALL_BYTES)


_TOO_LARGE = "x" * (64 * 1024 + 1)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (change_set(put("a"), put("b", labels={"team": _TOO_LARGE})), "changes[1].upsert.spec.labels"),
        (change_set(put("a", labels={_TOO_LARGE: ""})), "changes[0].upsert.spec.labels"),
        (change_set(put("a"), request_id=_TOO_LARGE), "request_id"),
        (pb.RestoreHistoryRequest(generations=[b"", _TOO_LARGE.encode()]), "generations[1]"),
        (pb.UpdatePoolRequest(update_mask={"paths": ["a", _TOO_LARGE]}), "update_mask.paths[1]"),
        (pb.ListPoolsRequest(page_token=_TOO_LARGE), "page_token"),
    ],
)
def test_a_value_that_is_larger_than_a_record_is_refused_before_anything_is_made_of_it(request_, field):
    """X3 given-back: neither a text, nor an error that has it."""
    told = refused(parser_of(request_.DESCRIPTOR, LIMITS), request_.SerializeToString())
    assert (told.reason, told.field) == (Reason.TOO_LARGE, field)
    assert len(told.message) < 200


def test_a_value_of_a_field_that_nobody_knows_is_bounded_too():
    """X3 given-back: protobuf would keep it."""
    large = b"\x7a" + _varint(len(_TOO_LARGE)) + _TOO_LARGE.encode()
    assert refused(create, large).field is None
    create(large[:1] + _varint(len(_TOO_LARGE) - 1) + large[4:-1])
