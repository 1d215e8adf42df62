"""Bounds on the bytes of a request."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.admin.rpc.service import DESCRIPTOR
from registry.admin.rpc.wire import MAX_FIELDS, SMALL_BYTES, parser_of
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
    request = change_set(*(put(f"acme/n{i}") for i in range(100_000)))
    told = refused(apply, request.SerializeToString())
    assert (told.reason, told.field, told.metadata["max_changes"]) == (Reason.TOO_MANY_CHANGES, "changes", "41")
    told = refused(apply, b"\x0a\x01p" + b"\x12\x00" * 2_000_000)
    assert told.reason is Reason.TOO_MANY_CHANGES


@pytest.mark.parametrize(
    "request_",
    [
        change_set(put("a", labels={f"{i:x}": "" for i in range(300_000)})),
        change_set(*(put(f"a{i}", labels={f"{j:x}": "" for j in range(2000)}) for i in range(40))),
        pb.CreatePoolRequest(pool=pb.Pool(base_models=["b"] * (MAX_FIELDS + 1))),
        pb.UpdatePoolRequest(update_mask={"paths": ["x"] * (MAX_FIELDS + 1)}),
    ],
    ids=["one change", "many changes", "names", "mask"],
)
def test_too_many_fields_are_refused_before_they_are_parsed(request_):
    """X2 unbreakable."""
    parse = parser_of(request_.DESCRIPTOR, LIMITS)
    assert refused(parse, request_.SerializeToString()).reason is Reason.TOO_LARGE


@pytest.mark.parametrize(
    "start", [b"\x0a", b"\x12\xff\xff\xff\xff\x0f", b"\x12\x05\x0a", b"\x80" * 100, b"\x09x", b"\x07"]
)
@pytest.mark.parametrize("filling", [b"", b"\x80", b"\x0b\x0c", b"\xff"])
def test_bytes_that_are_no_request_are_refused(start, filling):
    """X2 unbreakable: also numbers without end, whose reading would grow with the square."""
    for raw in (start + filling * 2 * SMALL_BYTES, filling * 2 * SMALL_BYTES + start):
        assert refused(apply, raw).reason in {Reason.INVALID_FIELD, Reason.TOO_LARGE, Reason.TOO_MANY_CHANGES}


@given(st.binary(max_size=200))
def test_any_bytes(raw):
    """X2 unbreakable."""
    for content in (raw, raw * (SMALL_BYTES // max(1, len(raw)) + 1)):
        for parse in (apply, create):
            with suppress(InvalidArgument):
                parse(content)
