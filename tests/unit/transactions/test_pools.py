"""Which fields of a pool an update replaces, by its mask and without one."""

from __future__ import annotations

import json

import pytest

from registry.lora.base import fingerprint
from registry.model.errors import Conflict, FailedPrecondition, InvalidArgument, Reason
from registry.model.expected_answers import Expect, ExpectedAnswer
from registry.model.records import AdapterSpec, Canary, Placement, PoolLimits, SourceSpec, Strategy
from registry.transactions import validate
from registry.transactions.builder import Commit
from registry.transactions.changes import (
    Change,
    ConfirmRemovals,
    Remove,
    RollbackAdapter,
    UpdatePool,
    Upsert,
    payload_digest,
)
from registry.transactions.decode import ReadSet
from registry.transactions.plan import plan_change, reads_of
from tests.support.changes import KEYS, POOL, Author, applying, creating, upsert
from tests.unit.transactions.conftest import refused

SHAPES = {"model.layers.0.self_attn.q_proj": (16, 16)}
BASE = {"modules": SHAPES, "fingerprint": fingerprint(SHAPES)}
PLAIN: dict[str, object] = {"name": POOL, "base_models": ["base"]}
LIMITS = {"max_rank": 8, "max_adapters": 4, "target_modules": ["q_proj"]}


def update(limits: dict[str, object], base: object = None, mask: list[str] | None = None) -> UpdatePool:
    return validate.make_update_pool(PLAIN | {"limits": limits, "base": base}, mask=mask)


def stored(author) -> dict[str, object]:
    found = json.loads(author.etcd.kvs[KEYS.pool(POOL)].value)
    return {**found["limits"], "base": found["base"], "base_models": found["base_models"]}


@pytest.fixture
def whole() -> Author:
    """A pool with everything."""
    author = Author()
    author.change(creating())
    author.change(update(LIMITS, BASE))
    return author


OTHER_SHAPES = {"model.layers.0.mlp.up_proj": (32, 16)}
OTHER = {"modules": OTHER_SHAPES, "fingerprint": fingerprint(OTHER_SHAPES)}


@pytest.mark.parametrize(
    ("names", "base", "mask", "expected"),
    [
        (["base"], None, None, {"max_rank": 16, "max_adapters": None}),
        (["base"], None, ["base"], {"base": None}),
        (["base"], OTHER, ["base"], {"base": OTHER}),
        (["base"], None, ["limits.target_modules"], {"target_modules": None}),
        (["base"], None, ["limits"], {"target_modules": None, "max_rank": 16, "max_adapters": None}),
        (["base"], None, ["limits.max_rank", "base"], {"max_rank": 16, "base": None}),
        ([], None, ["limits.max_rank"], {"max_rank": 16}),
    ],
)
def test_a_mask_replaces_what_it_names_and_nothing_else(whole, names, base, mask, expected):
    """R5, R15: who knows nothing of a base clears none, and removals that somebody vouched for stay confirmed."""
    whole.change(ConfirmRemovals(POOL, 2))
    before = stored(whole)
    whole.change(
        validate.make_update_pool(PLAIN | {"base_models": names, "limits": {"max_rank": 16}, "base": base}, mask=mask)
    )
    after = stored(whole)
    if base:
        assert after["base"]["fingerprint"] == base["fingerprint"]
        after, expected = after | {"base": None}, {"base": None}
    assert after == before | expected
    assert json.loads(whole.etcd.kvs[KEYS.pool(POOL)].value)["removals_confirmed_revision"] == 2


@pytest.mark.parametrize(
    ("says", "becomes"),
    [({}, ("vllm", "plain")), ({"engine": "axolotl"}, ("axolotl", "plain")), ({"engine_names": "versioned"}, None)],
)
def test_a_pool_that_cannot_be_read_becomes_what_is_said(whole, says, becomes):
    """No part of it is kept: of another kind of engine, adapters would be refused that it has."""
    whole.etcd.put(KEYS.pool(POOL), b"?")
    told = refused(whole, update({}, mask=["base"]))
    assert (type(told), told.field) == (InvalidArgument, "update_mask")
    whole.change(validate.make_update_pool(PLAIN | {"limits": {"max_rank": 16}, **says}))
    assert stored(whole) == PoolLimits(max_rank=16).model_dump() | {"base": None, "base_models": ["base"]}
    assert engines(whole) == (becomes or ("vllm", "versioned"))


def test_a_pool_may_ask_for_digests(whole):
    """W6 one-digest, R4: what has none is refused, also by a rollback; what has one, and a deletion, is not."""
    whole.change(applying(upsert("a", "v1"), upsert("b", "v1")))
    whole.change(update({"require_digest": True}, mask=["limits.require_digest"]))
    pinned = Upsert("a", AdapterSpec(source=SourceSpec(uri="file:///a/v2", digest="sha256:" + "1" * 64)), None)
    for number, unpinned in enumerate((applying(upsert("c")), applying(pinned, upsert("b", "v2")))):
        told = refused(whole, unpinned)
        assert (type(told), told.reason) == (FailedPrecondition, Reason.DIGEST_REQUIRED)
        assert told.field == f"changes[{number}].upsert.spec.source.digest"
    whole.change(applying(pinned))
    told = refused(whole, RollbackAdapter(POOL, "a"))
    assert (type(told), told.field) == (FailedPrecondition, "spec.source.digest")
    whole.change(applying(Remove("b")))


def engines(author) -> tuple[object, object]:
    found = json.loads(author.etcd.kvs[KEYS.pool(POOL)].value)
    return found["engine"], found["engine_names"]


def test_a_pool_says_what_its_engines_are_and_how_they_name_adapters():
    author = Author()
    author.change(validate.make_create_pool(PLAIN | {"engine": "sglang"}))
    assert engines(author) == ("sglang", "plain")
    author.change(validate.make_update_pool(PLAIN | {"engine_names": "versioned"}))
    assert engines(author) == ("sglang", "versioned")
    author.change(validate.make_update_pool(PLAIN | {"engine": "vllm"}, mask=["limits"]))
    assert engines(author) == ("sglang", "versioned")
    author.change(validate.make_update_pool(PLAIN | {"base_models": []}, mask=["engine", "engine_names"]))
    assert engines(author) == ("vllm", "plain")


def test_a_pool_of_a_kind_that_nobody_drives_any_more_stays_as_it_is_and_can_be_changed(whole):
    """R14: sidecars of the release before go on by it, until it is of another kind or deleted."""
    key = KEYS.pool(POOL)
    whole.etcd.put(key, whole.etcd.kvs[key].value.replace(b'"engine":"vllm"', b'"engine":"dynamo"'))
    whole.change(update({"max_rank": 8}, mask=["limits.max_rank"]))
    assert (engines(whole), stored(whole)["max_rank"]) == (("dynamo", "plain"), 8)
    whole.change(applying(upsert("a", "v1")))
    whole.change(applying(Remove("a")))
    whole.change(validate.make_update_pool(PLAIN | {"base_models": []}, mask=["engine"]))
    assert engines(whole) == ("vllm", "plain")


def test_the_kind_of_engine_stays_while_there_are_adapters(whole):
    """What one kind serves, another may not; the transaction itself finds a concurrent apply."""
    to_sglang = validate.make_update_pool(PLAIN | {"base_models": [], "engine": "sglang"}, mask=["engine"])
    whole.change(applying(upsert("a", "v1")))
    told = refused(whole, to_sglang)
    assert (type(told), told.reason, told.field) == (FailedPrecondition, Reason.POOL_NOT_EMPTY, "pool.engine")
    whole.change(applying(Remove("a")))
    whole.change(to_sglang)
    assert engines(whole) == ("sglang", "plain")


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("engine", "sglang", "sglang"),
        ("engine", "axolotl", "axolotl"),
        ("engine_names", "versioned", "versioned names"),
    ],
)
def test_what_the_engines_cannot_do_is_refused(whole, field, value, named):
    """Nothing in other engines asks for an adapter that is not loaded; and vLLM does not by another name."""
    lazy = Upsert("a", AdapterSpec(source=SourceSpec(uri="file:///a/v1"), load="lazy"), None)
    whole.change(applying(lazy))
    whole.change(applying(Remove("a")))
    whole.change(validate.make_update_pool(PLAIN | {"base_models": [], field: value}, mask=[field]))
    told = refused(whole, applying(lazy))
    assert (type(told), told.reason, told.field) == (
        InvalidArgument,
        Reason.UNSUPPORTED,
        "changes[0]." + "upsert.spec.load",
    )
    assert named in told.message
    told = refused(whole, RollbackAdapter(POOL, "a", 1))
    assert (type(told), told.field) == (InvalidArgument, "spec.load")


@pytest.mark.parametrize(
    ("prompt", "tokens", "field"),
    [
        ([1, 2**31 - 1], [2], "prompt.1"),
        ([1, 100], [2], "prompt.1"),
        ([99], [0, 99, 100], "tokens.2"),
        ([99], [99], ""),
    ],
)
def test_no_answers_are_expected_of_tokens_that_the_base_does_not_know(prompt, tokens, field):
    """X2 unbreakable: an engine that checks no prompt would end of it. A rollback is no way around it."""
    shapes = SHAPES | {"model.embed_tokens": (100, 16)}
    right = ExpectedAnswer(prompt=[1], tokens=[2])
    spec = AdapterSpec(
        source=SourceSpec(uri="file:///a"),
        expect=Expect(answers=[right, ExpectedAnswer(prompt=prompt, tokens=tokens)]),
    )
    author = Author()
    author.change(creating())
    author.change(applying(Upsert("early", spec), upsert("a")))
    author.change(applying(Remove("early")))
    author.change(update({}, {"modules": shapes, "fingerprint": fingerprint(shapes)}))
    for change, where in (
        (applying(Upsert("a", spec)), "changes[0].upsert.spec"),
        (RollbackAdapter(POOL, "early"), "spec"),
    ):
        if not field:
            assert author.change(change).reply.etag is None
            continue
        told = refused(author, change)
        assert (type(told), told.field) == (InvalidArgument, f"{where}.expect.answers.1.{field}")
        assert "knows 100, numbered from 0" in told.message


@pytest.fixture
def single() -> Author:
    """With a pool whose engines have one adapter at a time."""
    author = Author()
    author.change(validate.make_create_pool(PLAIN | {"engine": "axolotl"}))
    return author


def names(author: Author) -> set[str]:
    return {key.decode().rsplit("/", 1)[-1] for key in author.etcd.kvs if key.startswith(KEYS.adapters(POOL))}


def full(author: Author, change: Change) -> FailedPrecondition:
    """The refusal of a change, by which nothing changes."""
    told = refused(author, change)
    assert isinstance(told, FailedPrecondition)
    assert told.reason is Reason.POOL_FULL
    return told


def test_a_second_adapter_is_refused_and_the_first_is_named(single):
    single.change(applying(upsert("acme/a")))
    refusal = full(single, applying(upsert("b")))
    assert (refusal.field, refusal.metadata) == ("changes[0].upsert.name", {"name": "acme/a"})
    assert "axolotl" in refusal.message
    single.change(applying(upsert("acme/a", "v2")))
    single.change(applying(Remove("acme/a"), upsert("b")))
    assert names(single) == {"b"}
    refusal = full(single, applying(Remove("b"), upsert("a"), upsert("c")))
    assert (refusal.field, refusal.metadata) == ("changes[2].upsert.name", {"name": "a"})
    assert full(single, applying(upsert("c"), upsert("b", "v2"))).field == "changes[0].upsert.name"
    assert isinstance(refused(single, applying(upsert("c", etag=7))), Conflict)


def test_a_rollback_that_would_make_a_second_is_refused(single):
    single.change(applying(upsert("a")))
    single.change(applying(Remove("a"), upsert("b")))
    assert full(single, RollbackAdapter(POOL, "a", 1)).field == "name"
    single.change(applying(Remove("b")))
    single.change(RollbackAdapter(POOL, "a", 1))
    assert names(single) == {"a"}


def written_past_us(author: Author, name: str, like: str) -> None:
    """A record that stands there without a transaction of ours."""
    value = author.etcd.kvs[KEYS.adapter(POOL, like)].value
    author.etcd.put(KEYS.adapter(POOL, name), value.replace(f'"name":"{like}"'.encode(), f'"name":"{name}"'.encode()))


@pytest.mark.parametrize("other", ["0", "g", "zz"])
def test_a_race_for_the_only_place_has_one_winner(single, other):
    """The transaction itself compares every name that there could be, between those that it changes too."""
    single.change(applying(upsert("d")))
    change = applying(Remove("d"), upsert("m"))
    context = single.context(change)
    seen = single.view(change, context)
    guess = ReadSet(0, reads_of(change, context), seen.found)
    written_past_us(single, other, like="d")
    for view in (guess, seen):
        planned = plan_change(change, view, context)
        assert isinstance(planned, Commit)
        assert not single.etcd.txn(planned.txn).succeeded
        with pytest.raises(FailedPrecondition):
            single.settle(change, context, view)
    assert names(single) == {"d", other}


def test_what_was_written_past_us_can_be_changed_and_deleted(single):
    single.change(applying(upsert("a")))
    written_past_us(single, "b", like="a")
    single.change(applying(upsert("a", "v2")))
    full(single, applying(upsert("c"), Remove("a")))
    single.change(applying(Remove("b")))
    single.change(applying(upsert("c"), Remove("a")))
    assert names(single) == {"c"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (applying(upsert("a", placement=Placement(replicas=2))), "changes[0].upsert.spec.placement"),
        (applying(upsert("a", placement=Placement(selector={"zone": "a"}))), "changes[0].upsert.spec.placement"),
        (
            validate.make_update_pool(PLAIN | {"engine_names": "versioned"}),
            "pool.engine_names",
        ),
        (
            validate.make_create_pool(
                {"name": "q", "base_models": ["base"], "engine": "axolotl", "engine_names": "versioned"}
            ),
            "pool.engine_names",
        ),
        (applying(upsert("a", strategy=Strategy(canary=Canary(replicas="50%")))), None),
    ],
)
def test_what_such_engines_cannot_do(single, change, field):
    """R5: who does not have it would answer for it from the base; with canaries each has a generation."""
    if field is None:
        single.change(applying(upsert("a", "v0")))
        (outcome,) = single.change(change).reply.adapters
        assert outcome.record is not None
        assert outcome.record.rollout is not None
        return
    told = refused(single, change)
    assert (type(told), told.reason, told.field) == (InvalidArgument, Reason.UNSUPPORTED, field)


class Colliding(str):
    """Text whose place in a set is that in which it was put in: of others, each process has an order of its own."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 1


def test_a_repeated_update_is_the_same_in_every_process():
    """W3 idempotent: a set of fields has another order in each process, and would be taken for another update."""
    fields = [Colliding(one) for one in ("max_rank", "base", "prove")]
    orders = (frozenset(fields), frozenset(reversed(fields)))
    assert len({tuple(one) for one in orders}) == 2
    assert len({payload_digest(UpdatePool("p", ("b",), PoolLimits(), fields=one)) for one in orders}) == 1
