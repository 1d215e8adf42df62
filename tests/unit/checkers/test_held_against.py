"""Calls, logs, listings and files, held against a history: both sides of each rule."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.support.changes import KEYS
from tests.support.checkers.calls import LoggedCall, check_calls
from tests.support.checkers.index import HistoryIndex
from tests.support.checkers.logs import SidecarProcess, TakenState
from tests.support.checkers.replay import check_replicas
from tests.support.checkers.replicas import GONE_SECONDS, EngineListing, check_files, check_listings, check_log
from tests.unit.checkers.story import Story, path_of
from tests.unit.verify.written import TWO, Written, adapter, rollout

KEY = "/t/adapters/p/acme%2Fa"


def simple() -> HistoryIndex:
    """a at revision 2 with request q2, again at 3 with q3, deleted at 4 with q4."""
    history = Written()
    second = adapter(generation=2, spec=TWO)
    history.write(history.whole(None, adapter()))
    history.write(history.whole(adapter(), second))
    history.write(history.whole(second, None, count=0))
    return history.index()


ACKED, DRY = "acknowledged at revision", ["W9 at revision 2, q2: a dry run made a revision"]
CALLS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "right": ({"revision": 2}, []),
    "at another revision": ({"revision": 3}, [f"W1 at revision 3, q2: {ACKED} 3, and applied at 2"]),
    "one revision too early": ({"revision": 1}, [f"W1 at revision 1, q2: {ACKED} 1, and applied at 2"]),
    "lost": ({"request_id": "x", "revision": 2}, [f"W1 at revision 2, x: {ACKED} 2, and is not there"]),
    "before the history begins": ({"request_id": "x", "revision": 0}, []),
    "nothing changed": ({"request_id": "x", "revision": 2, "changed": False}, []),
    "nothing changed, they say": (
        {"revision": 3, "changed": False},
        [f"W1 at revision 3, q2: {ACKED} 3, and applied at 2"],
    ),
    "refused": ({"request_id": "x", "outcome": "refused"}, []),
    "refused and applied": ({"outcome": "refused"}, ['W8 at revision 2, q2: answered "not applied", and was applied']),
    "unknown": ({"outcome": "unknown"}, []),
    "a dry run": ({"request_id": "x", "validate_only": True, "revision": 2}, []),
    "a dry run that is applied": ({"validate_only": True}, DRY),
    "a dry run that is refused and applied": ({"validate_only": True, "outcome": "refused"}, DRY),
    "the right etags": ({"request_id": "q3", "revision": 3, "etags": {KEY: 2}}, []),
    "the etag of nothing": ({"revision": 2, "etags": {KEY: 0}}, []),
    "stale etags": (
        {"request_id": "q3", "revision": 3, "etags": {KEY: 1, "/t/pools/p": 1}},
        [
            f"W4 at revision 3, {KEY}: changed with etag 1, when it was 2",
            "W4 at revision 3, /t/pools/p: changed with etag 1, when it was None",
        ],
    ),
    "the request of another caller": (
        {"caller": "operator:alice", "revision": 2},
        [f"W1 at revision 2, q2: {ACKED} 2, and is not there"],
    ),
}


@pytest.mark.parametrize(("fields", "findings"), CALLS.values(), ids=CALLS)
def test_what_callers_were_told(fields, findings):
    """W1 acked-durable, W4 etag, W8 no-false-fail, W9 dry-run."""
    call = LoggedCall(**{"request_id": "q2", "outcome": "ok"} | fields)
    told, counts = check_calls(simple(), [call])
    assert [str(one) for one in told] == findings
    applied = "applied" if call.request == "q2" else "not applied"
    assert counts == {f"unknown, {applied}" if call.outcome == "unknown" else call.outcome: 1}


def test_a_request_that_changed_nothing_is_not_applied():
    """W1, W8: its record has no reply, or none is there any more."""
    history = Written()
    history.write({"requests/x": {"reply": None}, "requests/y": {}, "requests/operator:z/z": {"reply": {}}})
    calls = [LoggedCall(request_id=one, outcome="refused") for one in ("x", "y", "z")]
    calls.append(LoggedCall(request_id="z", caller="operator:z", outcome="unknown"))
    assert check_calls(history.index(), calls) == ([], Counter({"refused": 3, "unknown, applied": 1}))


@pytest.mark.parametrize(
    ("second", "is_found"),
    [
        ({"revision": 3}, True),
        ({"revision": 2}, False),
        ({"revision": 3, "outcome": "unknown"}, False),
        ({"revision": 3, "validate_only": True}, False),
        ({"revision": 3, "caller": "operator:alice"}, False),
    ],
)
def test_a_request_has_one_reply(second, is_found):
    """W3 idempotent: of one caller, in earnest."""
    first: dict[str, Any] = {"request_id": "x", "outcome": "ok", "revision": 2, "changed": False}
    findings, _ = check_calls(simple(), [LoggedCall(**first), LoggedCall(**first | second)])
    assert [str(one) for one in findings] == (["W3, x: the same request was answered with [2, 3]"] if is_found else [])


def plan(revision: int, state: int | None = None) -> dict[str, object]:
    index = simple()
    return {
        "event": "plan_made",
        "revision": revision,
        "state_hash": f"{index.hash_at('p', revision) if state is None else state:064x}",
    }


def unload(name: str, call: str = "unload") -> dict[str, object]:
    return {"event": "engine_call", "call": call, "name": name, "outcome": "Done()"}


EARLIER = "a plan was made from this revision after one from"
NEVER = "was unloaded, and was never in pool 'p'"
OTHER_STATE = "R2 at revision {}, r1.log: the sidecar's state is 000000000000…, replayed"
LOGS: dict[str, tuple[list[dict[str, object]], list[str]]] = {
    "right": ([plan(2), plan(2), plan(3), plan(4)], []),
    "back": ([plan(3), plan(2)], [f"R1 at revision 2, r1.log: {EARLIER} 3"]),
    "back, and judged by the newest": (
        [plan(3), plan(1), plan(2), plan(3)],
        [f"R1 at revision 1, r1.log: {EARLIER} 3", f"R1 at revision 2, r1.log: {EARLIER} 3"],
    ),
    "back to a new store": ([plan(3), {"event": "removals_confirmed", "revision": 2}, plan(2)], []),
    "further back than that": (
        [plan(3), {"event": "removals_confirmed", "revision": 2}, plan(1)],
        [f"R1 at revision 1, r1.log: {EARLIER} 2"],
    ),
    "another state": ([plan(2, 0)], [f"{OTHER_STATE.format(2)} {simple().hash_at('p', 2):064x}"[:-52] + "…"]),
    "another state of a later history": ([plan(5, 7)], []),
    "another state at its end": ([plan(4, 7)], [f"{OTHER_STATE.format(4)} 000000000000…"]),
    "ours unloaded": ([unload("acme/a"), unload("ACME/A@7"), unload("loraplane-check-x")], []),
    "theirs unloaded": ([plan(3), unload("theirs")], [f"R11 at revision 3, r1.log: 'theirs' {NEVER}"]),
    "theirs unloaded first": ([unload("theirs")], [f"R11, r1.log: 'theirs' {NEVER}"]),
    "theirs loaded": ([unload("theirs", "load")], []),
    "something else": ([{"event": "else", "call": "unload", "name": "theirs", "revision": 9}, plan(2)], []),
}


@pytest.mark.parametrize(("lines", "findings"), LOGS.values(), ids=LOGS)
def test_what_a_log_says(lines, findings):
    """R1 monotonic, R2 replay-equal, R11 foreign-safe."""
    assert [str(one) for one in check_log(simple(), "p", "r1.log", lines)] == findings


def test_plans_from_before_the_history_begins_are_not_judged():
    """R2: at its beginning they are."""
    history = Written()
    history.write(history.whole(None, adapter()))
    index = HistoryIndex(KEYS).replay([history.base()])
    assert [one.guarantee for one in check_log(index, "p", "r1.log", [plan(1, 7), plan(2, 7)])] == ["R2"]


def pinned(digit: str) -> dict[str, Any]:
    return {"source": {"uri": f"file:///{digit}", "digest": f"sha256:{digit * 64}"}}


def look(revision: int, unservable: tuple[str, ...] = (), /, **names: str) -> EngineListing:
    """What r1 listed with which nothing was pending, by name and digit of its artifact; a longer text is a path."""
    told = {
        name.replace("acme_", "acme/"): path if len(path) > 1 else path_of(path)
        for name, path in ({"theirs": "/x"} | names).items()
    }
    return EngineListing(replica="r1", revision=revision, adapters=told, settled=True, unservable=list(unservable))


def busy(revision: int, /, **names: str) -> EngineListing:
    """The same of one with which something was."""
    return look(revision, **names).model_copy(update={"settled": False})


def seen(history: Written, *looks: EngineListing) -> list[str]:
    return [str(one) for one in check_listings(history.index(), "p", looks)]


def of_two() -> Written:
    """acme/a at revision 2, b at 3; a is deleted at 4 and comes back at 5; b goes at 6; 7 is of something else."""
    history = Written()
    history.write(history.whole(None, adapter(spec=pinned("1"))))
    history.write({"adapters/p/b": adapter("b", spec=pinned("2"))})
    history.write(history.whole(adapter(spec=pinned("1")), None, count=0))
    history.write(history.whole(None, adapter(generation=2, spec=pinned("3"))))
    history.write({"adapters/p/b": None})
    history.write({"status/p/r9": b"says"})
    return history


OTHER_DIGEST = (
    f"R4 at revision {{}}, r1: {{!r}} is served from sha256-{'1' * 64}, which was made of another digest than its "
    "records may have"
)
LISTED: dict[str, tuple[list[EngineListing], list[str]]] = {
    "right": (
        [look(1), look(2, acme_a="1"), look(3, acme_a="1", b="2"), look(4, b="2"), look(5, acme_a="3", b="2")],
        [],
    ),
    "missing": ([look(3)], [f"R3 at revision 3, r1: '{key}' is desired and not listed" for key in ("acme%2Fa", "b")]),
    "missing, and not settled": ([busy(3)], []),
    "missing, and failed": ([look(3, ("acme/A", "b@2"))], []),
    "gone, and listed": ([look(4, acme_a="1", b="2")], ["R6 at revision 4, r1: 'acme%2Fa' is listed and not desired"]),
    "gone, listed and not settled": ([busy(4, acme_a="1", b="2")], []),
    "gone, listed and failed": ([look(4, ("acme/a",), acme_a="1", b="2")], []),
    "back too early": (
        [busy(6, acme_a="3"), busy(7, acme_a="3", b="2"), busy(7, acme_a="3", b="2")],
        ["R6 at revision 7, r1: 'b' was deleted, gone at 6, and is back"],
    ),
    "back when it is made again": ([look(4, b="2"), look(5, acme_a="3", b="2")], []),
    "not yet made": ([busy(1), look(2, acme_a="1")], []),
    "of other digests": ([busy(3, acme_a="1", b="1")], [OTHER_DIGEST.format(3, "b")]),
    "of the record of then": (
        [look(2, acme_a="1"), look(5, acme_a="1", b="2")],
        [OTHER_DIGEST.format(5, "acme/a")],
    ),
    "of an older record, not settled": ([look(2, acme_a="1"), busy(5, acme_a="1", b="2")], []),
    "of an older record, and failed": ([look(2, acme_a="1"), look(5, ("acme/a",), acme_a="1", b="2")], []),
    "the base model": (
        [busy(3, BASE="9")],
        ["R5 at revision 3, r1: 'BASE' is an adapter, and the name of the base model"],
    ),
    "the base model, theirs": ([busy(3, BASE="/x")], []),
}


@pytest.mark.parametrize(("looks", "findings"), LISTED.values(), ids=LISTED)
def test_what_engines_list(looks, findings):
    """R3 converge, R4 digest-true, R5 no-silent-base, R6 unload-eventual."""
    assert seen(of_two(), *looks) == findings


def going(seconds: float, revision: int = 4, /, removing: int = 1, **names: str) -> EngineListing:
    """A settled look at r1 then, while so many removals were under way."""
    return look(revision, **names).model_copy(update={"at": seconds, "removing": removing, "incarnation": "e1"})


GONE = "R6 at revision 4, r1: 'acme%2Fa' is not desired, and listed for {} s since that is known"
NOT_DESIRED = "R6 at revision 4, r1: 'acme%2Fa' is listed and not desired"
AT, LATE = (going(seconds, acme_a="1", b="2") for seconds in (0.0, GONE_SECONDS + 1.0))


def other(look: EngineListing, **fields: object) -> EngineListing:
    return look.model_copy(update=fields)


ON_ITS_WAY: dict[str, tuple[list[EngineListing], list[str]]] = {
    "on its way out": ([AT, other(LATE, at=GONE_SECONDS)], []),
    "more than are on their way": ([other(AT, removing=0)], [NOT_DESIRED]),
    "another is": ([going(0.0, acme_a="1", b="2", c="3")], [NOT_DESIRED, NOT_DESIRED.replace("acme%2Fa", "c")]),
    "it never arrives": ([AT, LATE], [GONE.format(61)]),
    "it never arrives, and that is told": ([other(one, unservable=["acme/a"]) for one in (AT, LATE)], []),
    "it went and came again": ([AT, going(30.0, removing=0, b="2"), going(LATE.at or 0.0, 5, acme_a="3", b="2")], []),
    "another process of the engine": ([AT, other(LATE, incarnation="e2")], []),
    "another replica": ([AT, other(LATE, replica="r2")], []),
    "not another replica": ([AT, other(going(30.0, removing=0, b="2"), replica="r2"), LATE], [GONE.format(61)]),
    "while others are pending": ([AT, other(LATE, settled=False)], []),
    "nobody knows when": ([other(one, at=None) for one in (AT, LATE)], []),
    "an older version of what stays": ([going(0.0, 5, acme_a="1", b="2")], []),
}


@pytest.mark.parametrize(("looks", "findings"), ON_ITS_WAY.values(), ids=ON_ITS_WAY)
def test_what_is_on_its_way_out_is_told_and_arrives(looks, findings):
    """R6 unload-eventual: no finding while the status says that so many removals are under way, for a while."""
    assert seen(of_two(), *looks) == findings


def test_looks_of_a_time_that_the_history_does_not_cover_are_not_judged():
    """R3, R4, R5, R6: what was desired before the last compaction, or since the export, nobody knows."""
    history = of_two()
    base = history.base()
    history.write({"adapters/p/c": adapter("c", spec=pinned("4"))})
    index = HistoryIndex(KEYS).replay([base, *history.steps[-1:]])
    looks = [look(2, acme_a="1"), busy(3, acme_a="1", b="2", BASE="9"), look(4, acme_a="1", b="2"), look(9)]
    assert check_listings(index, "p", looks) == []
    _, counts = check_replicas(index, "p", [], [*looks, look(7, acme_a="3"), look(8, acme_a="3", c="4")])
    assert counts["looks"] == 2
    assert [one.guarantee for one in check_listings(index, "p", [look(7, acme_a="3", b="2"), look(7)])] == ["R6", "R3"]


@pytest.mark.parametrize(("kept", "is_found"), [({1, 2}, True), ({2}, False), ({1}, False), (set(), False)])
def test_what_a_history_does_not_begin_with_may_be_listed_still(kept, is_found):
    """R4: an engine is behind, and holds what was replaced before the last compaction; the last ten are kept."""
    history = Written()
    history.write({f"adapters/p/{one}": adapter(one, spec=pinned(one)) for one in "1239"})
    history.write({f"history/p/a/{one}": adapter("a", one, spec=pinned(str(one))) for one in kept})
    history.write({"adapters/p/a": adapter("a", 3, spec=pinned("3"))})
    base = history.base()
    history.write({"status/p/r1": b"says"})
    index, known = HistoryIndex(KEYS).replay([base, *history.steps[-1:]]), busy(4, **{one: one for one in "1239"})
    found = [[one.guarantee for one in check_listings(index, "p", [known, busy(5, a=digit)])] for digit in "1239"]
    assert found == [[], [], [], ["R4"] if is_found else []]


def test_a_name_with_a_generation_is_of_that_ones_digest():
    """R4: what is kept is listed beside what is newer; from other files than its own it is a finding."""
    history = Written()
    for one in "123":
        history.write({"adapters/p/a": adapter("a", int(one), spec=pinned(one))})
    index = HistoryIndex(KEYS).replay(history.steps)
    kept = [look(2, **{"a@1": "1"}), look(3, **{"a@1": "1", "a@2": "2"}), look(4, **{"a@2": "2", "a@3": "3"})]
    assert check_listings(index, "p", kept) == []
    other = look(4, **{"a@2": "1", "a@3": "3"})
    assert [one.guarantee for one in check_listings(index, "p", [*kept, other])] == ["R4"]


def test_what_was_unloaded_before_the_history_begins_may_have_been_ours():
    """R11: its record and its history went before; what is unloaded later is known."""
    index = HistoryIndex(KEYS).replay([of_two().base()])
    assert check_log(index, "p", "r1.log", [{"event": "plan_made", "revision": 2, "state_hash": ""}, unload("c")]) == []
    assert [one.guarantee for one in check_log(index, "p", "r1.log", [plan_of(index), unload("c")])] == ["R11"]


def plan_of(index: HistoryIndex) -> dict[str, object]:
    revision = index.revision
    return {"event": "plan_made", "revision": revision, "state_hash": f"{index.hash_at('p', revision):064x}"}


def test_each_replica_is_held_against_its_own_looks():
    """R6: what one has lost another may still have."""
    gone, kept = busy(6, acme_a="3"), busy(6, acme_a="3", b="2")
    assert seen(of_two(), gone, kept.model_copy(update={"replica": "r2"})) == []


def test_another_pool_has_names_of_its_own():
    """R3, R6: of the same store."""
    history = of_two()
    history.write({"adapters/q/c": adapter("c")})
    assert seen(history, look(7, acme_a="3")) == []
    assert seen(history, look(7, acme_a="3", c="9")) == ["R6 at revision 7, r1: 'c' is listed and not desired"]


@pytest.mark.parametrize(
    ("spec", "missing"),
    [
        ({"load": "lazy"}, []),
        ({"load": "eager"}, ["R3"]),
        ({"placement": {"replicas": "all"}}, ["R3"]),
        ({"placement": {"replicas": "all", "selector": {}}}, ["R3"]),
        ({"placement": {"replicas": 1}}, []),
        ({"placement": {"selector": {"zone": "a"}}}, []),
        ({"placement": {"replicas": "all", "selector": {"zone": "a"}}}, []),
    ],
)
def test_only_what_is_everywhere_has_to_be_listed(spec, missing):
    """R3 converge, R6: what is asked for, or placed, may be listed, and be listed nowhere."""
    history = Written()
    history.write({"adapters/p/a": adapter("a", spec=pinned("1") | spec)})
    found = [check_listings(history.index(), "p", [one]) for one in (look(2), look(2, a="1"))]
    assert [[one.guarantee for one in each] for each in found] == [missing, []]


@pytest.mark.parametrize(
    ("before", "spec", "digits", "is_found"),
    [
        (None, pinned("1"), "1", False),
        (None, {"source": {"uri": "file:///x"}}, "1", False),
        ({"source": {"uri": "file:///x"}}, pinned("1"), "2", False),
        (pinned("2"), pinned("1"), "1", False),
        (pinned("2"), pinned("1"), "2", False),
        (pinned("1"), pinned("1") | {"load": "eager"}, "1", False),
        (pinned("3"), pinned("1"), "2", True),
    ],
    ids=["pinned", "not pinned", "one is not pinned", "the newer", "the older", "one source twice", "neither"],
)
def test_an_artifact_was_made_of_one_digest(before, spec, digits, is_found):
    """R4 digest-true: by what it was listed for before; of what is not pinned, nothing is known."""
    history = Written()
    history.write(
        {"adapters/p/one": adapter("one", spec=pinned("1")), "adapters/p/two": adapter("two", spec=pinned("2"))}
    )
    first = {"adapters/p/a": adapter("a", spec=before)} if before else {}
    history.write(first)
    history.write({"adapters/p/a": adapter("a", generation=2, spec=spec)})
    looks = [busy(2, one="1", two="2"), busy(4, a=digits)]
    assert [one.guarantee for one in check_listings(history.index(), "p", looks)] == (["R4"] if is_found else [])


def test_what_others_serve_in_a_rollout_is_known_from_the_record():
    """R4: while it is on, of a settled replica too."""
    history = Written()
    history.write({f"adapters/p/{one}": adapter(one, spec=pinned(one)) for one in "123"})
    history.write({"adapters/p/a": adapter("a", generation=2, spec=pinned("2"), **rollout(1, pinned("1")))})
    known = busy(2, **{"1": "1", "2": "2", "3": "3"})
    found = [
        [one.guarantee for one in check_listings(history.index(), "p", [known, busy(3, a=digit)])] for digit in "123"
    ]
    assert found == [[], [], ["R4"]]


def taken(
    *spans: tuple[float, dict[str, str | None]], at: float = 1000.0, grace: float = 600.0, replica: str = "r1"
) -> SidecarProcess:
    """A sidecar that saw such looks at such times, and removed artifact 1 then."""
    process = SidecarProcess(f"{replica}.log", replica, "s", grace)
    for seconds, adapters in spans:
        process.looks.change({name: path and path_of(path) for name, path in adapters.items()})
        process.looks.close(seconds, "e1")
    process.removals.append(TakenState(at, "1" * 64))
    return process


EARLY = "R7, r1.log: sha256-111111111111… was removed, and r1's engine "


@pytest.mark.parametrize(
    ("spans", "findings"),
    [
        ([(0.0, {"a": "1"}), (404.9, {"b": "2"}), (405.0, {"a": None})], []),
        (
            [(0.0, {"a": "1"}), (405.1, {"b": "2"}), (405.2, {"a": None})],
            ["had listed it 594.9 s before; the grace is 600 s"],
        ),
        ([(1000.0, {"a": "1"})], ["had listed it 0.0 s before; the grace is 600 s"]),
        ([(1000.1, {"a": "1"})], []),
        ([(0.0, {"a": "1"}), (1005.0, {"b": "2"})], ["listed it before and after"]),
        ([(0.0, {"a": "1"}), (1004.9, {"b": "2"})], []),
        ([(0.0, {"a": "1"}), (1005.0, {"a": "2"})], []),
        ([(0.0, {"a": "1"}), (1001.0, {"b": "2"}), (1006.0, {"c": "2"})], []),
        ([(0.0, {"a": "1"}), (1.0, {"a": None}), (1010.0, {"a": "1"})], []),
        ([(0.0, {"b": "2"}), (999.0, {"c": "2"})], []),
    ],
)
def test_a_file_goes_no_sooner_than_the_grace_after_it_was_listed(spans, findings):
    """R7 files-pinned: clocks may differ by five seconds."""
    found, counts = check_files([taken(*spans)], [])
    assert [str(one) for one in found] == [EARLY + one for one in findings]
    assert counts == {"removals": 1, "of them at a known time": 0}


def test_a_removal_is_found_once_and_each_of_them_counts():
    """R7: whatever number of engines had it."""
    first, second = (taken((990.0, {"a": "1"}), replica=one) for one in ("r1", "r2"))
    first.removals.append(TakenState(1500.0, "1" * 64))
    first.removals.append(TakenState(1500.0, "2" * 64))
    found, counts = check_files([first, second], [])
    assert [(one.where, " 10.0 s" in one.message, " 510.0 s" in one.message) for one in found] == [
        ("r1.log", True, False),
        ("r1.log", False, True),
        ("r2.log", True, False),
    ]
    assert counts["removals"] == 4


@pytest.mark.parametrize(
    ("at", "seconds"),
    [(1000.1, None), (1000.0, "0.0"), (405.1, "594.9"), (405.0, None)],
    ids=["later", "then", "within the grace", "before it"],
)
def test_what_others_saw_at_a_known_time(at, seconds):
    """R7: from when the file went back to the grace before."""
    process = taken((0.0, {"z": "9"}))
    right = EngineListing(replica="r1", revision=1, adapters={"t": "/x", "a": path_of("1")}, at=at, incarnation="e1")
    wrong = [other(right, **of) for of in ({"at": None}, {"incarnation": "e2"}, {"replica": "r2"})]
    found, counts = check_files([process], [*wrong, other(right, adapters={"a": path_of("2")}), right])
    told = f"{EARLY}was seen to list it {seconds} s before; the grace is 600 s"
    assert [str(one) for one in found] == ([told] if seconds else [])
    assert counts["of them at a known time"] == 2


def test_what_is_not_datable_is_not_counted():
    """R7: of a process whose store is not known, or whose clock was set back."""
    early = (990.0, {"a": "1"})
    placeless, moved = taken(early), taken(early)
    placeless.store, moved.is_steady = "", False
    found, counts = check_files([placeless, moved], [])
    assert (found, counts["removals"]) == ([], 0)


def test_a_store_that_replicas_share_is_one():
    """R7: the sidecar that removes is not the one whose engine lists; another store has an artifact of its own."""
    ours, theirs = Story(), Story()
    ours.start()
    ours.now += 10.0
    ours.log("artifact_removed", artifact="1" * 64, size_bytes=1)
    theirs.start(replica="r2")
    theirs.look(whole=True, a="1")

    def found() -> list[str]:
        logs = [("r1.log", ours.lines), ("r2.log", theirs.lines)]
        return [f"{one}" for one in check_replicas(ours.index(), "p", logs, [])[0]]

    assert ["r2's engine had listed it 10.0 s before" in one for one in found()] == [True]
    theirs.lines[0]["store"] = "another"
    assert found() == []
