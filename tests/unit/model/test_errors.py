"""The error tree, and the tables that translate it."""

from __future__ import annotations

from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from google.rpc.status_pb2 import Status

from registry.admin.rpc.interceptor import CODES, refusal_of
from registry.etcd3.errors import EtcdError
from registry.model.errors import Conflict, Internal, Reason, RegistryError
from registry.store.failures import REFUSALS, outcome_unknown, refusal


def leaves(root: type[Exception]) -> set[type[Exception]]:
    """All public subclasses, at any depth."""
    found = set()
    for kind in root.__subclasses__():
        found |= leaves(kind) | ({kind} if not kind.__name__.startswith("_") else set())
    return found


def test_every_error_has_a_status():
    """The table is total: a new error without a status would be INTERNAL at run time."""
    assert set(CODES) == {kind for kind in leaves(RegistryError) if kind.__module__ == "registry.model.errors"}
    assert len(set(CODES.values())) == len(CODES)


def test_every_failure_of_etcd_has_a_meaning():
    """The table is total over etcd's errors."""
    assert set(REFUSALS) == leaves(EtcdError)


def test_what_etcd_says_is_told_with_advice():
    for kind, make in REFUSALS.items():
        told = make("HERE")
        assert "HERE" in told.message, kind
        assert isinstance(told.reason, Reason)
    error = next(iter(REFUSALS)).__new__(next(iter(REFUSALS)))
    assert refusal(error).reason is REFUSALS[type(error)]("").reason


def test_an_unknown_outcome_names_the_request():
    """W8 no-false-fail: it says what to do."""
    told = outcome_unknown(EtcdError("cut"), "r1")
    assert told.metadata == {"request_id": "r1"}
    assert "retry with the same request_id 'r1'" in told.message


def test_a_status_has_reason_and_field():
    told = refusal_of(Conflict(Reason.ETAG_MISMATCH, "no", field="etag", metadata={"etag": "3"}))
    status = Status.FromString(told.details)
    info, bad = ErrorInfo(), BadRequest()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(bad)
    assert (info.reason, info.domain, dict(info.metadata)) == ("ETAG_MISMATCH", "loraplane", {"etag": "3"})
    assert (bad.field_violations[0].field, bad.field_violations[0].description) == ("etag", "no")
    assert len(Status.FromString(refusal_of(Internal(Reason.INTERNAL, "x")).details).details) == 1


def test_reasons_are_their_names():
    """Programs depend on them, so they must not differ from what the code calls them."""
    assert all(reason.name == reason.value for reason in Reason)


def test_an_error_has_what_it_was_made_with_and_no_facts_where_none_are_given():
    told, bare = Conflict(Reason.LOST_RACE, "no", field="f", metadata={"a": "b"}), Conflict(Reason.LOST_RACE, "no")
    assert (told.reason, told.message, told.field, told.metadata) == (Reason.LOST_RACE, "no", "f", {"a": "b"})
    assert (bare.field, bare.metadata) == (None, {})
    assert (str(told), str(bare), repr(told)) == ("f: no", "no", "Conflict('no')")
