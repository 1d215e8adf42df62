"""Changes of some fields of an adapter: all else stays, and what results is held to the same rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from registry.model.errors import FailedPrecondition, InvalidArgument, NotFound, Reason
from registry.model.expected_answers import Expect, ExpectedAnswer
from registry.model.records import Canary, Placement, Prepare, Strategy
from registry.transactions.changes import ApplyAdapters, Remove
from registry.transactions.plan import may_be_guessed
from registry.transactions.validate import make_update
from tests.support.changes import KEYS, POOL, Author, applying, spec, upsert
from tests.unit.transactions.conftest import lives, record, refused

NAME = "acme/a"
SOURCE = {"source": {"uri": "file:///a/v2"}}
TWO = Strategy(canary=Canary(replicas=2))
ALL_ELSE: dict[str, Any] = {
    "base_model": "tiny",
    "load": "lazy",
    "priority": 7,
    "placement": Placement(replicas=4, selector={"zone": "a"}),
    "prepare": Prepare(dora="strip"),
    "labels": {"team": "bi"},
    "strategy": TWO,
    "description": "what it is for",
    "enabled": False,
    "ttl_seconds": 600,
    "expect": Expect(answers=[ExpectedAnswer(prompt=[1], tokens=[2])]),
}


def update(values: dict[str, object], *, etag: str = "") -> ApplyAdapters:
    return applying(make_update(NAME, values, list(values), etag, field="changes[0]"))


@pytest.mark.parametrize("name", ALL_ELSE)
def test_what_an_update_does_not_name_stays_as_it_is(author: Author, name: str):
    """W6: so no nightly job makes a lazy adapter eager; the new source is a new generation, once."""
    extra = {"placement": ALL_ELSE["placement"]} if name == "strategy" else {}
    author.change(applying(upsert(NAME, **extra, **{name: ALL_ELSE[name]})))
    for _ in range(2):
        author.change(update(SOURCE))
        assert record(author).spec == spec("v2", **extra, **{name: ALL_ELSE[name]})
        assert record(author).generation == 2


@pytest.mark.parametrize("name", ALL_ELSE)
def test_what_an_update_names_is_replaced_whole_and_nothing_else(author: Author, name: str):
    apart = {"placement": "load", "load": "placement"}.get(name, "load")  # a lazy adapter has no number of replicas
    given = {key: value for key, value in ALL_ELSE.items() if key != apart}
    author.change(applying(upsert(NAME, **given)))
    author.change(update({name: getattr(spec(), name)}))
    assert record(author).spec == spec(**{key: value for key, value in given.items() if key != name})


def test_an_update_without_a_record_to_keep_is_refused(author: Author):
    """R14 nack: nothing is kept of what cannot be read, and nothing made up."""
    none = refused(author, update({"priority": 3}))
    assert (type(none), none.reason, none.field) == (NotFound, Reason.ADAPTER_NOT_FOUND, "changes[0].update.name")
    author.etcd.put(KEYS.adapter(POOL, NAME), b"?")
    told = refused(author, update(SOURCE))
    assert (type(told), told.reason, told.field) == (
        *(FailedPrecondition, Reason.UNREADABLE_RECORD),
        "changes[0].update.name",
    )


def test_what_is_given_has_to_go_with_what_is_kept(author: Author):
    author.change(applying(upsert(NAME, strategy=TWO)))
    told = refused(author, update({"placement": {"replicas": 1}}))
    assert (type(told), told.field) == (InvalidArgument, "changes[0].update.spec.strategy.canary.replicas")


def test_a_kept_strategy_has_its_canaries_or_the_new_weights_wait(author: Author):
    """X2, R20: they are counted as where the strategy is given, so that it has to be read first."""
    author.change(applying(upsert(NAME, strategy=TWO)))
    lives(author, "r")
    told = refused(author, update(SOURCE))
    assert (told.reason, told.field) == (
        Reason.CANARY_TOO_LARGE,
        "changes[0].update.spec.strategy.canary.replicas",
    )
    kept, given = update(SOURCE), update({**SOURCE, "strategy": None})
    both = replace(given, changes=(*given.changes, Remove("acme/b"), *kept.changes))
    assert [may_be_guessed(one) for one in (kept, given, both)] == [False, True, False], "any of them counts"
    author.change(update({**SOURCE, "strategy": None}))
    assert record(author).rollout is None


def test_a_credential_goes_with_a_source_that_takes_it(author: Author):
    author.change(update({"source": {"uri": "s3://b/a"}, "credentials": "s3"}))
    told = refused(author, update(SOURCE))
    assert (told.reason, told.field) == (Reason.UNSUPPORTED, "changes[0].update.spec.credentials")
    author.change(update({"source": {"uri": "s3://b/a2"}}))
    assert record(author).spec.credentials == "s3"
    author.change(update({**SOURCE, "credentials": None}))


def test_a_retry_names_nothing_and_takes_nothing_away(author: Author):
    """W3 idempotent: repeated with its id it is the same request, whatever the record has become by it."""
    author.change(applying(upsert(NAME, **ALL_ELSE | {"load": "eager"})))
    before = record(author)
    again = ApplyAdapters(POOL, (make_update(NAME, {}, [], "", field="changes[0]", retry=True),), retry=True)
    replies = [author.change(again, "mine").reply for _ in range(2)]
    after = record(author)
    assert (after.spec, after.generation, replies[0]) == (before.spec, 1, replies[1])
    assert after.retry is not None


@pytest.mark.parametrize("mask", [[], ["source", "sorce"], ["source.uri"]])
def test_a_mask_names_fields(mask: list[str]):
    with pytest.raises(InvalidArgument, match="no field that can be replaced; name some of source, base_model") as told:
        make_update(NAME, SOURCE, mask, "", field="changes[3]")
    assert told.value.field == "changes[3].update_mask"
