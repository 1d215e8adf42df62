"""What each rule of the fold finds, and what it does not: both sides of each."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from registry.tools.verify.fold import Fold, generation_faults
from tests.support.changes import KEYS
from tests.support.checkers.index import HistoryIndex
from tests.unit.verify.written import ONE, POOL_RECORD, TWO, Written, adapter, rollout

CANARY = adapter(generation=2, spec=TWO, **rollout(1, ONE))
THIRD = {"uri": "3"}
OTHERS = "was for all replicas, or for others than its canaries to serve another"
SAYS = "generation {} says that others serve {!r}, and they serve another"
NOT_THE_SAME_GENERATION = "generation 1 follows 1, and is not the same"
TTL = {"ttl_seconds": 60}
AGAIN = {"retry": {"request_id": "q"}}
NOT_BEFORE = "generation {} keeps {}, which was not served before"


def keeping(generation: int, spec: dict[str, object], keep: int | None, kept: dict[int, dict[str, object]]) -> object:
    """A record that keeps earlier generations."""
    told = [{"generation": number, "spec": {"source": one}} for number, one in kept.items()]
    return adapter(generation=generation, spec={"source": spec, "keep": keep}, kept=told)


FIRST = adapter(spec={"source": ONE})
# The newest generation of history, what stood, what is written, and what is found.
GENERATIONS: dict[str, tuple[int, object, object, list[str]]] = {
    "the first": (0, None, adapter(), []),
    "the first, not from 1 on": (0, None, adapter(generation=2), ["generation 2 follows 0"]),
    "the next": (1, adapter(), adapter(generation=2, spec=TWO), []),
    "one too far": (1, adapter(), adapter(generation=3, spec=TWO), ["generation 3 follows 1"]),
    "one given already": (2, adapter(), adapter(generation=2, spec=TWO), ["generation 2 follows 2"]),
    "after a deletion": (4, None, adapter(generation=5), []),
    "the same spec": (1, adapter(), adapter(generation=2), ["generation 2 has the same spec as the one before"]),
    "no generation at all": (1, adapter(), {"spec": TWO}, ["generation None follows 1"]),
    "in the place of what has none": (1, {"spec": TWO}, adapter(generation=2), []),
    "neither has one": (1, {"spec": TWO}, {"spec": ONE}, ["generation None follows 1"]),
    "canaries begin": (1, adapter(), CANARY, []),
    "canaries go on": (2, CANARY, adapter(generation=3, spec=THIRD, **rollout(1, ONE)), []),
    "canaries beside another generation": (1, adapter(), CANARY | rollout(2, ONE), [SAYS.format(2, (2, ONE))]),
    "canaries beside another spec": (1, adapter(), CANARY | rollout(1, TWO), [SAYS.format(2, (1, TWO))]),
    "canaries beside what only canaries served": (
        *(2, CANARY, adapter(generation=3, spec=THIRD, **rollout(2, TWO))),
        [SAYS.format(3, (2, TWO))],
    ),
    "canaries beside nothing": (0, None, adapter(**rollout(1, ONE)), [SAYS.format(1, (1, ONE))]),
    "for all after canaries": (2, CANARY, adapter(generation=3, spec=ONE), []),
    "written twice": (1, adapter(), adapter(), ["generation 1 was written twice"]),
    "a retry": (1, adapter(), adapter(**AGAIN), []),
    "a retry that changes more": (1, adapter(), adapter(**AGAIN, labels={}), [NOT_THE_SAME_GENERATION]),
    "a retry that leaves out": (1, adapter(labels={}), adapter(**AGAIN), [NOT_THE_SAME_GENERATION]),
    "another ttl": (1, adapter(), adapter(spec=ONE | TTL, expires_at="soon"), []),
    "only another time of its end": (1, adapter(), adapter(expires_at="soon"), ["generation 1 was written twice"]),
    "a new generation with nothing but another ttl": (
        *(1, adapter(), adapter(generation=2, spec=ONE | TTL)),
        ["generation 2 has the same spec as the one before"],
    ),
    "another keep": (1, adapter(), adapter(spec=ONE | {"keep": 2}), []),
    "keeps what was replaced": (1, FIRST, keeping(2, TWO, 2, {1: ONE}), []),
    "keeps what was kept": (2, keeping(2, TWO, 2, {1: ONE}), keeping(3, ONE, 3, {2: TWO, 1: ONE}), []),
    "keeps what is too old": (
        *(2, keeping(2, TWO, 2, {1: ONE}), keeping(3, ONE, 2, {2: TWO, 1: ONE})),
        ["generation 3 keeps 1, with keep 2"],
    ),
    "keeps what is no earlier one": (1, FIRST, keeping(2, TWO, 2, {2: TWO}), ["generation 2 keeps 2, with keep 2"]),
    "keeps without keep": (1, FIRST, keeping(2, TWO, None, {1: ONE}), ["generation 2 keeps 1, with keep 1"]),
    "keeps what was not there": (1, None, keeping(2, TWO, 2, {1: ONE}), [NOT_BEFORE.format(2, 1)]),
    "keeps nothing's weights": (0, None, adapter(spec={"keep": 2}, kept=[{}]), [NOT_BEFORE.format(1, 0)]),
    "keeps other weights": (1, FIRST, keeping(2, TWO, 2, {1: TWO}), [NOT_BEFORE.format(2, 1)]),
    "another spec": (1, adapter(), adapter(spec=TWO), [NOT_THE_SAME_GENERATION, "generation 1 was written twice"]),
    "halted": (2, CANARY, CANARY | rollout(1, ONE, halted="why"), []),
    "promoted": (2, CANARY, adapter(generation=2, spec=TWO, rollout=None), []),
    "canaries of what all have": (1, adapter(), adapter(**rollout(1, ONE)), [f"generation 1 {OTHERS}"]),
    "other canaries": (2, CANARY, CANARY | rollout(1, TWO), [f"generation 2 {OTHERS}"]),
    "others than before": (2, CANARY, CANARY | rollout(3, ONE), [f"generation 2 {OTHERS}"]),
}


@pytest.mark.parametrize(("before", "old", "new", "faults"), GENERATIONS.values(), ids=GENERATIONS)
def test_generations_go_on_by_one_if_and_only_if_the_spec_changes(before, old, new, faults):
    """W6 one-digest: and what canaries do not serve is what all served before."""
    assert list(generation_faults(before, old, new)) == faults


def test_whole_changes_are_right():
    """W2, W3, W5, W6, W7: each with all that belongs to it."""
    history = Written()
    second = adapter(generation=2, spec=TWO)
    history.write(history.whole(None, adapter()))
    history.write(history.whole(adapter(), second))
    history.write(history.whole(None, adapter("acme/b"), count=2, quota=2))
    history.write(history.whole(second, None, count=1))
    history.write(history.whole(None, adapter(generation=3), count=2))
    fold = history.fold()
    assert (fold.findings, list(fold.changing)) == ([], [1, 2, 3, 4, 5, 6])
    assert fold.changing[2] == "/t/audit/p/q2"
    assert fold.stored == history.stands


def changed(**parts: object) -> list[tuple[str, int, str]]:
    """What is found where one change, of a second generation at revision 3, has other parts."""
    history = Written()
    history.write(history.whole(None, adapter()))
    whole = history.whole(adapter(), adapter(generation=2, spec=TWO))
    names = {key.partition("/")[0]: key for key in whole}
    for part, value in parts.items():
        if part == "more":
            whole |= value  # type: ignore[operator] # a dictionary
        elif value is None:
            del whole[names[part]]
        elif part == "audit":
            whole[names[part]] |= value  # type: ignore[operator] # a dictionary
        else:
            whole[names[part]] = value
    history.write(whole)
    return history.found()


TELLS = {"kind": "adapter", "name": "acme/a", "before": adapter(), "after": adapter(generation=2, spec=TWO)}
OTHER_RECORD = "history has another record than the one that was replaced"
NOT_THE_SAME = "history and what was replaced are not the same"
PARTS: dict[str, tuple[dict[str, object], list[tuple[str, int, str]]]] = {
    "whole": ({}, []),
    "no audit": ({"audit": None}, [("W7", 3, "0 audit records for 1 changes")]),
    "two audits": ({"more": {"audit/p/x": {}}}, [("W7", 3, "2 audit records for 1 changes")]),
    "no request": ({"requests": None}, [("W2", 3, "0 request records in the revision")]),
    "two requests": ({"more": {"requests/x": {}}}, [("W2", 3, "2 request records in the revision")]),
    "a request expires with it": ({"more": {"requests/q1": None}}, []),
    "an audit record expires with it": ({"more": {"audit/p/q1": None}}, []),
    "no history": ({"history": None}, [("W2", 3, NOT_THE_SAME)]),
    "other history": ({"history": {"generation": 1}}, [("W2", 3, OTHER_RECORD)]),
    "more history": ({"more": {"history/p/acme%2Fa/9": adapter()}}, [("W2", 3, NOT_THE_SAME)]),
    "old history goes": ({"more": {"history/p/acme%2Fa/9": None}}, []),
    "another request": ({"audit": {"request_id": "x"}}, [("W7", 3, "it names request 'x', not 'q3'")]),
    "nobody": ({"audit": {"principal": ""}}, [("W7", 3, "it does not say who, or in which role")]),
    "no role": ({"audit": {"role": ""}}, [("W7", 3, "it does not say who, or in which role")]),
    "told as quoted": ({"audit": {"changes": [TELLS | {"before": {"unreadable": json.dumps(adapter())}}]}}, []),
}


@pytest.mark.parametrize(("parts", "findings"), PARTS.values(), ids=PARTS)
def test_a_change_has_all_that_belongs_to_it(parts, findings):
    """W2 atomic-set, W7 audit-complete: just what is wrong is found, where it is."""
    assert changed(**parts) == findings


@pytest.mark.parametrize(
    "told",
    [
        [],
        [TELLS, TELLS],
        [TELLS | {"kind": "pool"}],
        [TELLS | {"before": None}],
        [TELLS | {"after": None}],
        [TELLS | {"before": {"unreadable": "{}"}}],
        [TELLS | {"before": {"unreadable": 7}}],
    ],
)
def test_an_audit_record_tells_just_what_was_changed(told):
    """W7 audit-complete."""
    ((guarantee, revision, message),) = changed(audit={"changes": told})
    assert (guarantee, revision, message.startswith("it tells ")) == ("W7", 3, True)


@pytest.mark.parametrize("kind", ["pools", "tenants", "drains"])
def test_each_kind_of_change_has_its_audit_record(kind):
    """W7: of pools, tenants and orders to replicas; that an order goes with its lease is no change."""
    about = {"pools": ("pool", "p"), "tenants": ("tenant", "acme"), "drains": ("replica", "r1")}[kind]
    key = {"pools": "pools/p", "tenants": "tenants/acme", "drains": "drains/p/r1"}[kind]
    history = Written(pool=False)
    first, second = {"name": about[1], "n": 1}, {"name": about[1], "n": 2}
    history.write({key: first, **history.books(*about, None, first)})
    history.write({key: second, **history.books(*about, first, second)})
    assert (history.found(), list(history.fold().changing)) == ([], [1, 2])
    history.write({key: first})
    history.write({key: None})
    missing = "0 audit records for 1 changes"
    assert history.found() == [("W7", at, missing) for at in ([3] if kind == "drains" else [3, 4])]
    history.write({key: first, **history.books(*about, first, first)})
    assert [(guarantee, at) for guarantee, at, _ in history.found()][-1] == ("W7", 5), "nothing stood before"


def test_what_nobody_keeps_under_a_key_of_no_kind_is_nothing():
    history = Written()
    history.write({"adapters/p": {}, "adapters/p/a/b": {}, "pools/p/q": {}, "tenants": {}, "others/p/a": {}})
    history.write({"adapters/p": None, "requests/a/b/c": {}, "status/r1": {}, "history/p/a": {}})
    history.write({"": {"adapters": 1}})
    for index in (history.index(), HistoryIndex(KEYS).replay([history.base()])):
        assert (index.adapters, list(index.pool_stories), index.statuses) == ({}, ["p"], {})
        assert list(index.requests) == ["q1"]
        assert index.findings == []


@pytest.mark.parametrize(("quota", "is_over"), [(None, False), (2, False), (1, True), (0, True), (True, False)])
def test_a_tenant_may_have_as_many_as_its_quota(quota, is_over):
    """W5 quota-never: at the quota, and one above it."""
    history = Written()
    history.write(history.whole(None, adapter()))
    history.write(history.whole(None, adapter("acme/b"), count=2, quota=quota))
    assert history.found() == ([("W5", 3, f"it has 2 adapters, its quota is {quota}")] if is_over else [])


@pytest.mark.parametrize("counter", [0, 1, 3])
def test_a_counter_says_how_many_there_are(counter):
    """W5: neither more nor less, wherever it is written."""
    history = Written()
    history.write(history.whole(None, adapter()))
    history.write(history.whole(None, adapter("acme/b"), count=counter))
    assert history.found() == [("W5", 3, f"its counter says {counter}, it has 2 adapters")]
    told = {"adapters": counter + 1}
    history.write({"tenants/acme": told, **history.books("tenant", "acme", {"adapters": counter}, told)})
    assert [one for one in history.found() if one[1] == 4 and one[0] == "W5"] == (
        [] if counter == 1 else [("W5", 4, f"its counter says {counter + 1}, it has 2 adapters")]
    )


def test_a_request_is_settled_once():
    """W3 idempotent: also after its record has expired, and whoever had stood before the history begins."""
    history = Written()
    history.write({"requests/a/x": {"reply": {}}})
    history.write({"requests/a/x": None, "requests/b/x": {}, "requests/x": {}})
    assert history.found() == []
    base = history.base()
    history.write({"requests/a/x": {"reply": {"n": 1}}})
    again = ("W3", 4, "this request was settled before, at 2")
    assert history.found() == [again]
    assert history.fold().requests["a/x"] == (4, {"reply": {"n": 1}})
    assert history.found(base, 3) == []
    history.write({"requests/b/x": {}})
    assert history.found(base, 3) == [("W3", 5, "this request was settled before, at 3")]
    assert Fold(KEYS).replay([base]).requests == {"q1": (1, {"reply": {}}), "b/x": (3, {}), "x": (3, {})}


def test_what_stood_when_the_history_begins():
    """W6: generations go on from records and from history."""
    history = Written()
    history.write(history.whole(None, adapter()))
    history.write(history.whole(adapter(), adapter(generation=2, spec=TWO)))
    history.write(history.whole(None, adapter("acme/b"), count=2))
    history.write(history.whole(adapter("acme/b"), None, count=1))
    base = history.base()
    fold = Fold(KEYS).replay([base])
    assert (fold.findings, fold.revision, fold.first_revision) == ([], 5, 5)
    assert fold.stored == history.stands == history.fold().stored
    assert fold.has_pool
    history.write(history.whole(adapter(generation=2, spec=TWO), adapter(generation=3)))
    history.write(history.whole(None, adapter("acme/b", 2), count=2))
    assert history.found(base, 5) == []
    history.write(history.whole(adapter(generation=3), adapter(generation=5, spec=TWO)))
    assert history.found(base, 5) == [("W6", 8, "generation 5 follows 3")]


@pytest.mark.parametrize(("written", "has_pool"), [({"pools/p": None}, True), ({"adapters/p/a": {}}, False)])
def test_a_pool_is_known_also_of_what_is_gone(written, has_pool):
    history = Written(pool=False)
    history.write(written)
    assert history.fold().has_pool is has_pool
    assert Fold(KEYS).replay([history.base(), *history.steps]).has_pool is has_pool


@pytest.mark.parametrize(("deleted", "next_one"), [(True, 4), (False, 5), (None, 4)])
def test_a_name_goes_on_from_its_history(deleted, next_one):
    """W6: what was replaced and not deleted was followed by a generation more, wherever that went."""
    retired = adapter(generation=3) | ({} if deleted is None else {"deleted": deleted})
    for given in (4, 5):
        history = Written()
        history.write({"history/p/acme%2Fa/3": retired})
        base = history.base()
        history.write(history.whole(None, adapter(generation=given)))
        faults = [] if given == next_one else [("W6", 3, f"generation {given} follows {next_one - 1}")]
        assert history.found(base, 2) == faults


@pytest.mark.parametrize(("counter", "off"), [(1, 0), (3, 2), (0, -1)])
def test_a_counter_may_be_off_where_the_history_begins(counter, off):
    """W5: it is told for what it is, until it was found to be right."""
    history = Written()
    history.write({"adapters/p/acme%2Fa": adapter(), "tenants/acme": {"adapters": counter}})
    base = history.base()
    assert history.found(base, 2) == ([("W5", 2, f"its counter is off by {off}")] if off else [])
    history.write(history.whole(None, adapter("acme/b"), count=counter + 1))
    assert history.found(base, 2) == ([("W5", 2, f"its counter is off by {off}")] if off else [])
    fixed, before = {"adapters": 2}, {"adapters": counter + 1, "max_adapters": None}
    history.write({"tenants/acme": fixed, **history.books("tenant", "acme", before, fixed)})
    assert [one for one in history.found(base, 2) if one[0] == "W5"] == []


def restored(*more: Mapping[str, object], history_of: str = "acme/a") -> Written:
    """History of a name that comes alone, after what was written before."""
    history = Written()
    for one in more:
        history.write(one)
    old = adapter(history_of, 4) | {"deleted": True}
    key = f"history/p/{history_of.replace('/', '%2F')}/4"
    history.write({key: old, **history.books("history", history_of, None, old)})
    return history


def test_history_of_a_backup_comes_alone():
    """W2, W6, W7: of a name that does not exist, or no longer, and may go again; a name goes on from it."""
    gone = restored()
    gone.write({"history/p/acme%2Fa/4": None})
    history = restored()
    history.write(history.whole(None, adapter(generation=5)))
    before = Written()
    before.write(before.whole(None, adapter()))
    before.write(before.whole(adapter(), None, count=0))
    old = adapter(generation=4) | {"deleted": True}
    before.write({"history/p/acme%2Fa/4": old, **before.books("history", "acme/a", None, old)})
    assert gone.found() == history.found() == before.found() == []
    history = restored()
    history.write(history.whole(None, adapter()))
    assert history.found() == [("W6", 3, "generation 1 follows 4")]


@pytest.mark.parametrize(
    "before",
    [
        {"history/p/acme%2Fa/4": adapter(generation=4), "audit/p/x": {}},
        {"adapters/p/acme%2Fa": adapter(), "tenants/acme": {"adapters": 1}},
    ],
    ids=["it stood there", "the adapter stands"],
)
def test_history_of_what_exists_is_not_written_anew(before):
    """W6: what stood is known by it."""
    anew = ("W6", 3, "history of what exists was written anew")
    assert [one for one in restored(before).found() if one[1] == 3] == [anew]
    assert [one for one in restored(before, history_of="acme/b").found() if one[1] == 3] == []


@pytest.mark.parametrize("value", [b"", b"?", b"{}"], ids=["empty", "no JSON", "nothing in it"])
def test_whatever_is_written_past_the_admin_service_is_no_deletion(value):
    """W5, W7: also a value without a byte."""
    history = Written()
    history.write({"adapters/p/acme%2Fa": value})
    counted = ("W5", 2, "its counter says 0, it has 1 adapters")
    assert [one for one in history.found() if one[0] != "W6"] == [counted, ("W7", 2, "0 audit records for 1 changes")]


@pytest.mark.parametrize("beside", ["adapters/p/acme%2Fb", "pools/p"])
def test_deletions_wait_for_their_repair_only_where_they_come_alone(beside):
    """W7: one that comes with another change is a change without its audit record."""
    history = Written()
    history.write(history.whole(None, adapter()))
    history.write({"adapters/p/acme%2Fa": None, beside: adapter("acme/b") if "adapters" in beside else POOL_RECORD})
    assert ("W7", 3, "0 audit records for 2 changes") in history.found()
    assert not [one for one in history.found() if "deleted past the admin service" in one[2]]
