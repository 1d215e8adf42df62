"""What callers, logs and listings say, held against the history."""

from __future__ import annotations

import pytest

from registry.model.records import AdapterSpec, Placement, SourceSpec
from registry.tools.verify.fold import Fold
from registry.tools.verify.history import HistoryBase
from registry.tools.verify.replay import LoggedCall, check_calls, replay
from registry.tools.verify.replicas import EngineListing, check_listings, check_log
from registry.transactions.changes import Upsert
from tests.support.changes import ALICE, KEYS, POOL, applying
from tests.unit.verify.conftest import steps_of

ADAPTER = f"{KEYS.prefix}/adapters/p/acme%2Fa"
CALLS = {
    "W1 lost": (LoggedCall(request_id="gone", outcome="ok", revision=3), "W1"),
    "W1 elsewhere": (LoggedCall(request_id="q2", caller=ALICE, outcome="ok", revision=3), "W1"),
    "W8": (LoggedCall(request_id="q2", caller=ALICE, outcome="refused"), "W8"),
    "W9": (LoggedCall(request_id="q2", caller=ALICE, outcome="ok", validate_only=True), "W9"),
    "W4": (
        LoggedCall(request_id="q3", caller=ALICE, outcome="ok", revision=3, etags={ADAPTER: 1}),
        "W4",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_caller_was_told_wrongly_is_found(author, name):
    """W1 acked-durable, W4 etag, W8 no-false-fail, W9 dry-run."""
    call, guarantee = CALLS[name]
    findings, _ = check_calls(replay(KEYS, steps_of(author)), [call])
    assert [one.guarantee for one in findings] == [guarantee]


def test_what_callers_were_told_rightly_is_not(author):
    calls = [
        LoggedCall(request_id="q2", caller=ALICE, outcome="ok", revision=2),
        LoggedCall(request_id="q2", caller=ALICE, outcome="ok", revision=2),
        LoggedCall(request_id="q3", caller=ALICE, outcome="ok", revision=3, etags={ADAPTER: 2}),
        LoggedCall(request_id="same", outcome="ok", revision=3, changed=False),
        LoggedCall(request_id="bad", outcome="refused"),
        LoggedCall(request_id="dry", outcome="refused", validate_only=True),
        LoggedCall(request_id="q4", caller=ALICE, outcome="unknown"),
        LoggedCall(request_id="never", outcome="unknown"),
    ]
    findings, counts = check_calls(replay(KEYS, steps_of(author)), calls)
    assert findings == []
    assert counts == {"ok": 4, "refused": 2, "unknown, applied": 1, "unknown, not applied": 1}


def test_two_replies_to_one_request_are_found(author):
    """W3 idempotent."""
    calls = [LoggedCall(request_id="x", outcome="ok", revision=at, changed=False) for at in (2, 3)]
    findings, _ = check_calls(replay(KEYS, steps_of(author)), calls)
    assert [one.guarantee for one in findings] == ["W3"]


def plan(fold: Fold, revision: int, total: int | None = None) -> dict[str, object]:
    state = fold.hash_at(POOL, revision) if total is None else total
    return {"event": "plan_made", "revision": revision, "state_hash": f"{state:064x}"}


def test_a_sidecars_log_is_held_against_the_history(author):
    """R1 monotonic, R2 replay-equal, R11 foreign-safe."""
    fold = replay(KEYS, steps_of(author))
    good = [plan(fold, 2), {"event": "engine_call", "call": "unload", "name": "acme/b"}, plan(fold, 5), plan(fold, 6)]
    assert check_log(fold, POOL, "r1", good) == []

    def of(*lines):
        return [one.guarantee for one in check_log(fold, POOL, "r1", lines)]

    assert of(plan(fold, 5), plan(fold, 2)) == ["R1"]
    assert of(plan(fold, 5), {"event": "removals_confirmed", "revision": 2}, plan(fold, 2)) == []
    assert of(plan(fold, 2, fold.hash_at(POOL, 3))) == ["R2"]
    assert of(plan(fold, 99, 1)) == []
    assert of({"event": "engine_call", "call": "unload", "name": "theirs"}) == ["R11"]
    assert of({"event": "engine_call", "call": "unload", "name": "loraplane-check-a1b2"}) == []


def test_an_adapter_that_went_before_the_history_begins_is_known(author):
    """R11 foreign-safe: a compaction makes no adapter somebody else's."""
    fold = replay(KEYS, [HistoryBase(author.etcd.revision, tuple(author.etcd.kvs.values()))])
    unload = {"event": "engine_call", "call": "unload"}
    assert check_log(fold, POOL, "r1", [unload | {"name": "acme/b"}]) == []
    assert [one.guarantee for one in check_log(fold, POOL, "r1", [unload | {"name": "theirs"}])] == ["R11"]


def listing(revision: int, *names: str, settled: bool = False, digest: str = "0" * 64) -> EngineListing:
    adapters = dict.fromkeys(names, f"/store/adapters/sha256-{digest}") | {"foreign": "/elsewhere"}
    return EngineListing(replica="r1", revision=revision, adapters=adapters, settled=settled)


def test_listings_are_held_against_the_history(author):
    """R3 converge, R4 digest-true, R6 unload-eventual."""
    fold = replay(KEYS, steps_of(author))

    def of(*listings):
        return [one.guarantee for one in check_listings(fold, POOL, listings)]

    assert of(listing(4, "acme/a", "acme/b", settled=True), listing(5, "acme/a", settled=True)) == []
    assert of(listing(5, "acme/a"), listing(6, "acme/a", "acme/b")) == ["R6"]
    assert of(listing(5, "acme/a", "acme/b", settled=True)) == ["R6"]
    assert of(listing(5, settled=True)) == ["R3"]
    assert of(listing(5, "acme/a@2", settled=True)) == []
    assert of(listing(5, "acme/a@2", "acme/b@1", settled=True)) == ["R6"]
    for name, digit in (("one", "1"), ("same", "1"), ("other", "2")):
        source = SourceSpec(uri="file:///a/v1", digest="sha256:" + digit * 64)
        author.change(applying(Upsert(name, AdapterSpec(source=source))))
    fold = replay(KEYS, steps_of(author))
    assert of(listing(9, "one", "same", digest="a" * 64), listing(9, "other", digest="b" * 64)) == []
    assert of(listing(9, "one", digest="a" * 64), listing(9, "other", digest="a" * 64)) == ["R4"]


def test_an_adapter_by_the_name_of_the_base_model_is_found(author):
    """R5 no-silent-base: whatever somebody wrote into the store; what others loaded is not ours to name."""
    fold = replay(KEYS, steps_of(author))
    base = EngineListing(replica="r1", revision=6, adapters={"Base": "/elsewhere"})
    assert check_listings(fold, POOL, [listing(6, "acme/a"), base]) == []
    assert [one.guarantee for one in check_listings(fold, POOL, [listing(6, "Base")])] == ["R5"]
    compacted = replay(KEYS, [HistoryBase(author.etcd.revision, tuple(author.etcd.kvs.values()))])
    assert [one.guarantee for one in check_listings(compacted, POOL, [listing(6, "base")])] == ["R5"]


def test_what_is_placed_need_not_be_everywhere(author):
    """R3 converge: on which replicas it had to be is not in the history."""
    for name, placement in (("some", Placement(replicas=1)), ("labelled", Placement(selector={"zone": "a"}))):
        placed = AdapterSpec(source=SourceSpec(uri=f"file:///{name}"), placement=placement)
        author.change(applying(Upsert(name, placed)))
    fold, newest = replay(KEYS, steps_of(author)), author.etcd.revision
    lists = [listing(newest, "acme/a", *names, settled=True) for names in ((), ("some",), ("some", "labelled"))]
    assert list(check_listings(fold, POOL, lists)) == []
