"""A number of replicas that follows requests in a record: what it may be, what changes it, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from registry.model.errors import Conflict, InvalidArgument, Reason
from registry.model.records import Placement
from registry.model.status import ByLoad
from registry.transactions.changes import RollbackAdapter, ScaleAdapter
from registry.transactions.supported import check_supported
from tests.support.changes import KEYS, POOL, Author, applying, spec, upsert
from tests.support.history_check import check_history
from tests.unit.transactions.conftest import audits, etag, record, refused

NAME = "acme/a"
BY_LOAD = Placement(replicas=2, by_load=ByLoad(max=8, per_replica=50))
WHY = "101.0 requests at once on 2 replicas, 50 are to be on each"


def put(source: str = "v1", placement: Placement = BY_LOAD, **more: Any):
    return applying(upsert(NAME, source, placement=placement, **more))


def step(author: Author, replicas: int = 3) -> ScaleAdapter:
    return ScaleAdapter(POOL, NAME, etag(author), replicas, WHY)


def number(author: Author) -> int | None:
    scaled = record(author).scaled
    return None if scaled is None else scaled.replicas


def test_a_step_is_one_audited_revision_of_the_same_generation(author: Author):
    """W3, W6, W7: with its reason, once."""
    author.change(put())
    asked = step(author)
    first = author.change(asked, "scale-1")
    made = record(author)
    assert made.scaled is not None
    assert (made.generation, made.scaled.replicas, made.scaled.reason) == (1, 3, WHY)
    assert made.spec.placement == BY_LOAD
    assert KEYS.history(POOL, NAME, 1) not in author.etcd.kvs
    assert [one.reason for one in audits(author) if one.method == "ScaleAdapter"] == [WHY]
    assert author.change(asked, "scale-1") == first
    author.change(step(author, 4), "scale-2")
    check_history(KEYS, author.etcd.history)


def test_the_number_outlives_generations_and_ends_with_its_range(author: Author):
    author.change(put())
    author.change(step(author), "scale-1")
    author.change(put("v2"))
    assert (record(author).generation, number(author)) == (2, 3)
    author.change(RollbackAdapter(POOL, NAME, 1))
    assert (record(author).generation, number(author)) == (3, 3)
    author.change(put("v1", Placement(replicas=5)))
    assert (record(author).generation, number(author)) == (4, None)
    check_history(KEYS, author.etcd.history)


def test_a_step_of_what_was_written_meanwhile_or_is_not_within_its_range_is_refused(author: Author):
    """W4: the etag says of which record the number was found."""
    author.change(put())
    before = step(author)
    author.change(put("v2"))
    assert isinstance(refused(author, before), Conflict)
    for beyond in (1, 9):
        error = refused(author, step(author, beyond))
        assert isinstance(error, InvalidArgument)
        assert f"by no load that makes it {beyond} replicas" in error.message
    for placement in (Placement(replicas=2), Placement(by_load=BY_LOAD.by_load)):
        made = record(author).spec.model_copy(update={"placement": placement})
        kv = author.etcd.kvs[KEYS.adapter(POOL, NAME)]
        author.etcd.put(kv.key, record(author).model_copy(update={"spec": made}).to_bytes())
        assert isinstance(refused(author, step(author, 2)), InvalidArgument)


@pytest.mark.parametrize(
    ("placement", "more", "field", "said"),
    [
        (Placement(by_load=ByLoad(max=2, per_replica=1)), {}, "placement.replicas", "give min, such as 1"),
        (
            Placement(replicas=5, by_load=ByLoad(max=4, per_replica=1)),
            {},
            "placement.replicas",
            "min 5 is more than max 4; use a max of at least 5, or a smaller min",
        ),
        (BY_LOAD, {"ttl_seconds": 600}, "ttl_seconds", "a ttl begins anew whenever the record is written"),
        (BY_LOAD, {"load": "lazy"}, "placement", "a lazy adapter is loaded wherever it is asked for"),
    ],
)
def test_a_range_that_cannot_be_is_refused(placement: Placement, more: dict[str, Any], field: str, said: str):
    with pytest.raises(InvalidArgument, match=said) as caught:
        check_supported(spec(placement=placement, **more), field="spec")
    assert (caught.value.field, caught.value.reason) == (
        f"spec.{field}",
        Reason.UNSUPPORTED if field in {"ttl_seconds", "placement"} else Reason.INVALID_FIELD,
    )


def test_what_asks_for_no_load_is_written_as_before():
    """Earlier releases, and whoever looks for bytes of a record, find what they know."""
    assert b'"placement":{"replicas":"all","selector":{}}' in record_bytes(Placement())
    assert b'"placement":{"replicas":2,"selector":{},"by_load":{"max":8,"per_replica":50}}' in record_bytes(BY_LOAD)


def record_bytes(placement: Placement) -> bytes:
    return spec(placement=placement).model_dump_json().encode()
