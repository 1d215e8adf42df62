"""Numbers that fit, what is alone in its pool, and what this release does not know."""

from __future__ import annotations

import pytest

from registry.etcd3.ops import Delete
from registry.model.errors import InvalidArgument, Reason
from registry.model.records import AdapterSpec, Canary, RetiredRecord, SourceSpec, Strategy
from registry.transactions.adapters import too_many_changes
from registry.transactions.builder import Commit
from registry.transactions.canaries import looks_at_replicas
from registry.transactions.changes import Remove, RestoreHistory, RollbackAdapter
from registry.transactions.context import TxnLimits
from registry.transactions.plan import reads_beside, reads_of
from registry.transactions.steps import carry_unknown
from tests.support.changes import KEYS, POOL, Author, applying, creating, upsert
from tests.unit.transactions.conftest import record

NAMES = ("ax/a", "ax/b", "bx/a", "bx/b", "ax/c", "cx/a")


def operations() -> dict[tuple[str, ...], int]:
    """What a real change of each part takes at most: deletions, of which each takes the oldest out of history."""
    author = Author()
    author.change(creating())
    for version in range(12):
        author.change(applying(*(upsert(name, f"{version}") for name in NAMES)))
    found = {}
    for part in {NAMES[start:end] for start in range(6) for end in range(start + 1, 7)}:
        planned = author.plan(applying(*map(Remove, part)), "q")
        assert isinstance(planned, Commit)
        found[part] = len(planned.txn.success)
    return found


def test_the_number_that_fits_is_the_largest_of_which_each_part_fits():
    """Whatever stands in etcd; the parts are those into which the set is split."""
    needed = operations()
    for limit in range(5, 26):
        fitting = [
            count
            for count in range(1, len(NAMES))
            if all(needed[NAMES[start : start + count]] <= limit for start in range(0, len(NAMES), count))
        ]
        told = too_many_changes(NAMES, "6", TxnLimits(max_ops=limit))
        assert (told.reason, told.field) == (Reason.TOO_MANY_CHANGES, "changes")
        assert told.metadata == {"max_changes": str(max(fitting, default=0))}, limit


@pytest.mark.parametrize(("canaries", "needed"), [(0, 10), (1, 12)])
def test_a_set_that_can_never_fit_is_refused_before_anything_is_read(canaries, needed):
    """Its reads alone are too many: two of the request, the pool, a tenant, two of each adapter, two of replicas."""
    strategy = {"strategy": Strategy(canary=Canary(replicas=canaries))} if canaries else {}
    change = applying(*(upsert(f"acme/{name}", **strategy) for name in "abc"))
    assert looks_at_replicas(change) is bool(canaries)
    author = Author(limits=TxnLimits(max_ops=needed))
    assert len(reads_of(change, author.context(change, "q"))) == needed
    author.limits = TxnLimits(max_ops=needed - 1)
    with pytest.raises(InvalidArgument) as told:
        reads_of(change, author.context(change, "q"))
    assert told.value.reason is Reason.TOO_MANY_CHANGES


def test_others_are_not_looked_at_where_engines_have_many():
    author = Author()
    author.change(creating())
    for change in (applying(upsert("b")), RollbackAdapter(POOL, "b")):
        context = author.context(change)
        assert reads_beside(change, author.view(change, context), context) == ()
    author.etcd.put(KEYS.pool(POOL), b"?")
    change = applying(upsert("b"))
    assert reads_beside(change, author.view(change, author.context(change)), author.context(change)) == ()


def test_what_all_but_canaries_have_is_in_the_record_itself():
    """Whatever became of history."""
    author = Author()
    author.change(creating())
    author.change(applying(upsert("acme/a")))
    author.change(applying(upsert("acme/a", "v2", strategy=Strategy(canary=Canary(replicas=1)))))
    author.etcd.delete(KEYS.history(POOL, "acme/a", 1))
    author.change(RollbackAdapter(POOL, "acme/a"))
    assert (record(author).spec.source.uri, record(author).rollout) == ("file:///a/v1", None)


def test_what_a_later_release_added_stays_where_it_was():
    """At every depth; what is written anew counts."""

    def spec(source: dict[str, object], **fields: object) -> AdapterSpec:
        return AdapterSpec.model_validate({"source": {"uri": "file:///a", **source}, **fields})

    old = spec({"mirror": "m", "kept": 1}, owner="o", both="old")
    new = spec({"mirror": "n"}, both="new", more=True)
    assert carry_unknown(old, new) == spec({"mirror": "n", "kept": 1}, owner="o", both="new", more=True)
    assert carry_unknown(new, new) == new
    known = AdapterSpec(source=SourceSpec(uri="file:///a"))
    assert carry_unknown(known, known) == known
    with_strategy = spec({}, strategy={"canary": {"replicas": 1}, "later": 1})
    assert carry_unknown(with_strategy, known).strategy is None
    assert carry_unknown(known, with_strategy) == with_strategy


def test_history_keeps_ten_generations():
    """R16 bounded: the eleventh that goes in takes the first one out, and no earlier one does."""
    author = Author()
    author.change(creating())
    author.change(applying(upsert("a", "0")))
    for generation in range(1, 13):
        planned = author.plan(applying(upsert("a", f"{generation}")))
        assert isinstance(planned, Commit)
        gone = [op.key for op in planned.txn.success if isinstance(op, Delete)]
        assert gone == ([KEYS.history(POOL, "a", generation - 10)] if generation > 10 else []), generation
        author.change(applying(upsert("a", f"{generation}")))


@pytest.mark.parametrize(
    ("standing", "restored", "taken"),
    [
        ((), (1, 2, 3), [1]),
        ((), (3,), [3]),
        ((1,), (1, 2, 3), [2]),
        ((2,), (1, 2, 3), [3]),
        ((5,), (1, 2, 3), []),
        ((), tuple(range(1, 13)), [3]),
        ((), (1, 11), [11]),
        ((), (1, 10), [1]),
        ((), (2, 11), [2]),
    ],
)
def test_generations_that_are_restored(standing, restored, taken):
    """W6: behind those that stand, no more than history keeps, and one at a time, the oldest first."""
    author = Author()
    author.change(creating())
    retired = {
        number: RetiredRecord(
            name="a",
            pool=POOL,
            tenant="default",
            generation=number,
            spec=AdapterSpec(source=SourceSpec(uri="file:///a")),
            updated_at="",
            updated_by="",
            request_id="",
            retired_by_request="",
            deleted=True,
        )
        for number in range(1, 13)
    }
    for number in standing:
        author.etcd.put(KEYS.history(POOL, "a", number), retired[number].to_bytes())
    settled = author.change(RestoreHistory(POOL, "a", tuple(retired[number] for number in restored), None))
    stands = [int(key.rsplit(b"/", 1)[-1]) for key in author.etcd.kvs if key.startswith(KEYS.history_of(POOL, "a"))]
    assert sorted(stands) == sorted({*standing, *taken})
    assert settled.reply.etag == (None if taken else 0)
