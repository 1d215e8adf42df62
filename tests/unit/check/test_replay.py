"""The replay checker finds what is wrong: a good history, and one deliberate wrong in it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from registry.check.calls import Call, check_calls
from registry.check.export import decode, encode
from registry.check.fold import Fold
from registry.check.main import app
from registry.check.replay import replay
from registry.check.replicas import Listing, check_listings, check_log
from registry.check.steps import Base, Revision, Step
from registry.etcd3.ops import Event, KeyValue
from registry.model.records import (
    AdapterRecord,
    AdapterSpec,
    Canary,
    CanaryRollout,
    Placement,
    Removed,
    Source,
    Strategy,
)
from registry.transactions.changes import HaltRollout, PromoteRollout, Remove, SetTenant, SettleRemoval, Upsert
from tests.support.changes import KEYS, POOL, Desk, applying, creating, upsert
from tests.support.memory_etcd import MemoryEtcd


@pytest.fixture
def desk() -> Desk:
    """A pool; a at revisions 2 and 3, b at 4, deleted at 5; a quota at 6."""
    made = Desk(MemoryEtcd(revision=0))
    made.change(creating(), "q1")
    made.change(applying(upsert("acme/a")), "q2")
    made.change(applying(upsert("acme/a", "v2")), "q3")
    made.change(applying(upsert("acme/b")), "q4")
    made.change(applying(Remove("acme/b")), "q5")
    made.change(SetTenant("acme", 5), "q6")
    return made


def steps_of(desk: Desk) -> list[Step]:
    return [Revision(revision, events) for revision, events in desk.etcd.history]


def without(steps: list[Step], at: int, part: str) -> list[Step]:
    """The history in which one revision lacks the keys with `part`."""
    return [
        replace(step, events=tuple(event for event in step.events if part.encode() not in event.key))
        if isinstance(step, Revision) and step.revision == at
        else step
        for step in steps
    ]


def rewritten(steps: list[Step], at: int, part: str, **fields: object) -> list[Step]:
    """The history in which a value of one revision has other fields."""

    def other(event: Event) -> Event:
        if event.kv is None or part.encode() not in event.key:
            return event
        value = json.dumps(json.loads(event.kv.value) | fields).encode()
        return replace(event, kv=replace(event.kv, value=value))

    return [
        replace(step, events=tuple(map(other, step.events)))
        if isinstance(step, Revision) and step.revision == at
        else step
        for step in steps
    ]


def found(steps: list[Step]) -> set[tuple[str, int]]:
    return {(one.guarantee, one.revision) for one in replay(KEYS, steps).findings}


def test_a_good_history_has_no_findings(desk):
    fold = replay(KEYS, steps_of(desk))
    assert (fold.findings, sorted(fold.changing)) == ([], [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(
    ("at", "part", "expected"),
    [
        (3, "/audit/", ("W7", 3)),
        (3, "/history/", ("W2", 3)),
        (3, "/requests/", ("W2", 3)),
        (2, "/tenants/", ("W5", 2)),
        (4, "/adapters/", ("W7", 4)),
    ],
)
def test_a_missing_part_of_a_change_is_found(desk, at, part, expected):
    """W2 atomic-set, W5 quota-never, W7 audit-complete."""
    assert expected in found(without(steps_of(desk), at, part))


@pytest.mark.parametrize(
    ("at", "part", "fields", "expected"),
    [
        (3, "/adapters/", {"generation": 5}, ("W6", 3)),
        (6, "/tenants/", {"max_adapters": 0}, ("W5", 6)),
        (4, "/tenants/", {"adapters": 1}, ("W5", 4)),
        (3, "/audit/", {"request_id": "q9"}, ("W7", 3)),
        (3, "/audit/", {"principal": ""}, ("W7", 3)),
        (3, "/audit/", {"changes": []}, ("W7", 3)),
        (3, "/history/", {"name": "other"}, ("W2", 3)),
    ],
)
def test_a_wrong_value_is_found(desk, at, part, fields, expected):
    """W2, W5, W6 one-digest, W7."""
    assert expected in found(rewritten(steps_of(desk), at, part, **fields))


def test_the_same_spec_under_a_new_generation_is_found(desk):
    """W6: one more if and only if the spec changed."""
    steps = steps_of(desk)
    first = next(event for event in steps[1].events if b"/adapters/" in event.key)
    spec = json.loads(first.kv.value)["spec"]
    assert ("W6", 3) in found(rewritten(steps, 3, "/adapters/", spec=spec))


def canaried() -> Desk:
    """Generation 1 for all at 2; 2 for canaries at 3, halted at 4, for all at 5; 3 and 4 for canaries."""
    made = Desk(MemoryEtcd(revision=0))
    strategy = Strategy(canary=Canary(replicas=1))
    made.change(creating(), "q1")
    made.change(applying(upsert("acme/a")), "q2")
    made.change(applying(upsert("acme/a", "v2", strategy=strategy)), "q3")
    made.change(HaltRollout(POOL, "acme/a", 2, 3, "why"), "q4")
    made.change(PromoteRollout(POOL, "acme/a"), "q5")
    made.change(applying(upsert("acme/a", "v3", strategy=strategy)), "q6")
    made.change(applying(upsert("acme/a", "v4", strategy=strategy)), "q7")
    return made


def test_a_right_rollout_is_right():
    """W2, W6, W7: promoted and halted generations stay the same, and history keeps nothing of them."""
    assert found(steps_of(canaried())) == set()


def test_a_wrong_rollout_is_found():
    """W6: what all others serve is what they served before; a generation stays what it is but for its rollout."""
    steps = steps_of(canaried())
    first = AdapterRecord.parse(next(event for event in steps[1].events if b"/adapters/" in event.key).kv.value)
    other = CanaryRollout(stable_generation=7, stable_spec=first.spec).model_dump(mode="json")
    for at in (3, 4, 5, 6, 7):
        assert ("W6", at) in found(rewritten(steps, at, "/adapters/", rollout=other)), at
    for at in (4, 5):
        assert ("W6", at) in found(rewritten(steps, at, "/adapters/", updated_by="somebody")), at
    halted = next(event for event in steps[3].events if b"/adapters/" in event.key)
    assert ("W6", 5) in found(rewritten(steps, 5, "/adapters/", **json.loads(halted.kv.value)))


def test_what_all_others_serve_may_be_older_than_the_history():
    """R4: of a rollout that had begun before a compaction, the record itself tells what they serve."""
    specs = [AdapterSpec(source=Source(uri=f"file:///{n}", digest="sha256:" + str(n) * 64)) for n in (1, 2)]
    desk = Desk(MemoryEtcd(revision=0))
    desk.change(creating())
    strategy = Strategy(canary=Canary(replicas=1))
    desk.change(applying(Upsert("acme/a", specs[0]), Upsert("acme/b", specs[0])))
    desk.change(applying(Upsert("acme/a", specs[1].model_copy(update={"strategy": strategy}))))
    fold = replay(KEYS, [Base(desk.etcd.revision, tuple(desk.etcd.kvs.values()))])
    at = desk.etcd.revision
    paths = [f"/s/adapters/sha256-{number * 64}" for number in "12"]
    looks = [
        Listing(replica="r1", revision=at, adapters={"acme/b": paths[0], "acme/a": paths[1]}),
        Listing(replica="r2", revision=at, adapters={"acme/b": paths[0], "acme/a": paths[0]}),
    ]
    assert check_listings(fold, POOL, looks) == []


def test_a_generation_that_neither_the_record_nor_its_rollout_allows_is_found():
    """R4: while a rollout is on a replica serves new weights or stable ones, and afterwards only those of all."""
    specs = [AdapterSpec(source=Source(uri=f"file:///{n}", digest="sha256:" + str(n) * 64)) for n in (1, 2, 3)]
    desk, strategy = Desk(MemoryEtcd(revision=0)), Strategy(canary=Canary(replicas=1))
    desk.change(creating())
    for spec in specs:
        desk.change(applying(Upsert("acme/a", spec)))
    desk.change(applying(Upsert("acme/a", specs[0].model_copy(update={"strategy": strategy}))))
    desk.change(PromoteRollout(POOL, "acme/a"))
    fold = replay(KEYS, steps_of(desk))

    def of(*looks: tuple[int, int], unservable: tuple[str, ...] = ()) -> list[str]:
        """What is found if each artifact was listed at a revision, by a replica with which nothing was pending."""
        paths = [(at, f"/s/adapters/sha256-{str(number) * 64}") for at, number in looks]
        told = {"replica": "r1", "settled": True, "unservable": list(unservable)}
        listings = [Listing(revision=at, adapters={"acme/a": path}, **told) for at, path in paths]
        return [one.guarantee for one in check_listings(fold, POOL, listings)]

    assert of((2, 1), (3, 2), (4, 3), (5, 3), (5, 1), (6, 1)) == []
    assert of((3, 2), (5, 2)) == ["R4"]
    assert of((4, 3), (6, 3)) == ["R4"]
    assert of((3, 2), (5, 2), unservable=("acme/a",)) == []


def test_a_request_that_is_settled_twice_is_found(desk):
    """W3 idempotent."""
    (request,) = [event for event in steps_of(desk)[1].events if b"/requests/" in event.key]
    again = Revision(7, (replace(request, mod_revision=7, kv=replace(request.kv, mod_revision=7)),))
    assert ("W3", 7) in found([*steps_of(desk), again])


def test_what_was_before_a_compaction_is_taken_as_it_stood(desk):
    """A production store keeps only its last hours."""
    kvs = tuple(desk.etcd.kvs.values())
    desk.change(applying(upsert("acme/a", "v3"), upsert("acme/b")), "q7")
    revision, events = desk.etcd.history[-1]
    fold = replay(KEYS, [Base(revision - 1, kvs), Revision(revision, events)])
    assert (fold.findings, list(fold.changing)) == ([], [revision])
    assert fold.hash_at(POOL, revision) == replay(KEYS, steps_of(desk)).hash_at(POOL, revision)


CALLS = {
    "W1 lost": (Call(request_id="gone", outcome="ok", revision=3), "W1"),
    "W1 elsewhere": (Call(request_id="q2", outcome="ok", revision=3), "W1"),
    "W8": (Call(request_id="q2", outcome="refused"), "W8"),
    "W9": (Call(request_id="q2", outcome="ok", validate_only=True), "W9"),
    "W4": (Call(request_id="q3", outcome="ok", revision=3, etags={f"{KEYS.prefix}/adapters/p/acme%2Fa": 1}), "W4"),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_caller_was_told_wrongly_is_found(desk, name):
    """W1 acked-durable, W4 etag, W8 no-false-fail, W9 dry-run."""
    call, guarantee = CALLS[name]
    findings, _ = check_calls(replay(KEYS, steps_of(desk)), [call])
    assert [one.guarantee for one in findings] == [guarantee]


def test_what_callers_were_told_rightly_is_not(desk):
    calls = [
        Call(request_id="q2", outcome="ok", revision=2),
        Call(request_id="q2", outcome="ok", revision=2),
        Call(request_id="q3", outcome="ok", revision=3, etags={f"{KEYS.prefix}/adapters/p/acme%2Fa": 2}),
        Call(request_id="same", outcome="ok", revision=3, changed=False),
        Call(request_id="bad", outcome="refused"),
        Call(request_id="dry", outcome="refused", validate_only=True),
        Call(request_id="q4", outcome="unknown"),
        Call(request_id="never", outcome="unknown"),
    ]
    findings, counts = check_calls(replay(KEYS, steps_of(desk)), calls)
    assert findings == []
    assert counts == {"ok": 4, "refused": 2, "unknown, applied": 1, "unknown, not applied": 1}


def test_two_replies_to_one_request_are_found(desk):
    """W3 idempotent."""
    calls = [Call(request_id="x", outcome="ok", revision=at, changed=False) for at in (2, 3)]
    findings, _ = check_calls(replay(KEYS, steps_of(desk)), calls)
    assert [one.guarantee for one in findings] == ["W3"]


def removed(desk: Desk) -> SettleRemoval:
    """acme/a is deleted alone, as under NOSPACE."""
    record = AdapterRecord.parse(desk.etcd.kvs[KEYS.adapter(POOL, "acme/a")].value)
    revision = desk.etcd.delete(KEYS.adapter(POOL, "acme/a"))
    return SettleRemoval(record, Removed(revision=revision, at="then", by="alice"))


def test_a_removal_alone_is_found_until_it_is_accounted_for(desk):
    """W5, W7: what followed under its too high counter is no finding by itself."""
    change = removed(desk)
    desk.change(applying(upsert("acme/c")))
    assert found(steps_of(desk)) == {("W7", 7), ("W5", 7)}
    desk.change(change)
    assert found(steps_of(desk)) == set()


def test_a_removal_before_the_history_begins_is_known_from_its_settlement(desk):
    """W5, W6, W7: compaction is what follows upon NOSPACE, and takes the removal itself out of the history."""
    change = removed(desk)
    base = Base(desk.etcd.revision, tuple(desk.etcd.kvs.values()))
    desk.change(applying(upsert("acme/a", "v9")))
    desk.change(change)
    assert found([base, *steps_of(desk)[7:]]) == set()


def test_a_settlement_of_nothing_is_found(desk):
    """W7: each removal is accounted for once."""
    change = removed(desk)
    desk.change(change)
    elsewhere = replace(change, removed=change.removed.model_copy(update={"revision": 3}))
    desk.etcd.delete(KEYS.history(POOL, "acme/a", 2))
    desk.change(elsewhere)
    assert ("W7", 9) in found(steps_of(desk)) or ("W7", 10) in found(steps_of(desk))


def plan(fold: Fold, revision: int, total: int | None = None) -> dict[str, object]:
    state = fold.hash_at(POOL, revision) if total is None else total
    return {"event": "plan_made", "revision": revision, "state_hash": f"{state:064x}"}


def test_a_sidecars_log_is_held_against_the_history(desk):
    """R1 monotonic, R2 replay-equal, R11 foreign-safe."""
    fold = replay(KEYS, steps_of(desk))
    good = [plan(fold, 2), {"event": "engine_call", "call": "unload", "name": "acme/b"}, plan(fold, 5), plan(fold, 6)]
    assert check_log(fold, POOL, "r1", good) == []

    def of(*lines):
        return [one.guarantee for one in check_log(fold, POOL, "r1", lines)]

    assert of(plan(fold, 5), plan(fold, 2)) == ["R1"]
    assert of(plan(fold, 5), {"event": "removals_confirmed", "revision": 2}, plan(fold, 2)) == []
    assert of(plan(fold, 2, fold.hash_at(POOL, 3))) == ["R2"]
    assert of(plan(fold, 99, 1)) == []
    assert of({"event": "engine_call", "call": "unload", "name": "theirs"}) == ["R11"]


def test_an_adapter_that_went_before_the_history_begins_is_known(desk):
    """R11 foreign-safe: a compaction makes no adapter somebody else's."""
    fold = replay(KEYS, [Base(desk.etcd.revision, tuple(desk.etcd.kvs.values()))])
    unload = {"event": "engine_call", "call": "unload"}
    assert check_log(fold, POOL, "r1", [unload | {"name": "acme/b"}]) == []
    assert [one.guarantee for one in check_log(fold, POOL, "r1", [unload | {"name": "theirs"}])] == ["R11"]


def listing(revision: int, *names: str, settled: bool = False, digest: str = "0" * 64) -> Listing:
    adapters = dict.fromkeys(names, f"/store/adapters/sha256-{digest}") | {"foreign": "/elsewhere"}
    return Listing(replica="r1", revision=revision, adapters=adapters, settled=settled)


def test_listings_are_held_against_the_history(desk):
    """R3 converge, R4 digest-true, R6 unload-eventual."""
    fold = replay(KEYS, steps_of(desk))

    def of(*listings):
        return [one.guarantee for one in check_listings(fold, POOL, listings)]

    assert of(listing(4, "acme/a", "acme/b", settled=True), listing(5, "acme/a", settled=True)) == []
    assert of(listing(5, "acme/a"), listing(6, "acme/a", "acme/b")) == ["R6"]
    assert of(listing(5, "acme/a", "acme/b", settled=True)) == ["R6"]
    assert of(listing(5, settled=True)) == ["R3"]
    for name, digit in (("one", "1"), ("same", "1"), ("other", "2")):
        source = Source(uri="file:///a/v1", digest="sha256:" + digit * 64)
        desk.change(applying(Upsert(name, AdapterSpec(source=source))))
    fold = replay(KEYS, steps_of(desk))
    assert of(listing(9, "one", "same", digest="a" * 64), listing(9, "other", digest="b" * 64)) == []
    assert of(listing(9, "one", digest="a" * 64), listing(9, "other", digest="a" * 64)) == ["R4"]


def test_what_is_placed_need_not_be_everywhere(desk):
    """R3 converge: on which replicas it had to be is not in the history."""
    for name, placement in (("some", Placement(replicas=1)), ("labelled", Placement(selector={"zone": "a"}))):
        placed = AdapterSpec(source=Source(uri=f"file:///{name}"), placement=placement)
        desk.change(applying(Upsert(name, placed)))
    fold, newest = replay(KEYS, steps_of(desk)), desk.etcd.revision
    lists = [listing(newest, "acme/a", *names, settled=True) for names in ((), ("some",), ("some", "labelled"))]
    assert list(check_listings(fold, POOL, lists)) == []


def test_an_export_is_read_as_it_was_written(desk):
    odd = Revision(7, (Event(b"/t/\xff", 7, KeyValue(b"/t/\xff", b"\x00\xfe", 7, 7, 1, 5)), Event(b"/t/x", 7, None)))
    steps = [Base(1, tuple(desk.etcd.kvs.values())), *steps_of(desk), odd]
    assert list(decode(encode(steps))) == steps
    with pytest.raises(ValueError, match="line 2"):
        list(decode([next(encode(steps)), "{}"]))


def run(*arguments: str) -> int:
    return app(args=arguments, standalone_mode=False) or 0


def test_the_command_tells_a_counter_example_and_fails(desk, tmp_path, capsys):
    history, calls = tmp_path / "h.jsonl", tmp_path / "calls.jsonl"
    history.write_text("\n".join(encode(steps_of(desk))))
    calls.write_text(Call(request_id="q2", outcome="ok", revision=2).model_dump_json())
    arguments = ("verify", "--history", str(history), "--prefix", "/t", "--calls", str(calls))
    assert run(*arguments) == 0
    assert "6 changes, 1 calls ok: 0 findings" in capsys.readouterr().out
    calls.write_text(Call(request_id="gone", outcome="ok", revision=2).model_dump_json())
    assert run(*arguments) == 1
    assert "W1 at revision 2, gone: acknowledged at revision 2, and is not there" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--history", "absent"], "absent"),
        (["--history", "bad"], "line 1"),
        (["--history", "empty", "--calls", "bad"], "bad, line 1"),
        (["--history", "empty", "--log", "bad"], "--pool"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(arguments, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad").write_text("?")
    (tmp_path / "empty").write_text("")
    assert run("verify", *arguments) == 2
    assert words in capsys.readouterr().err
