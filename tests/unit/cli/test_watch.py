"""A watch of adapters and replicas: nothing twice, nothing lost, whatever becomes of the streams."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from registry.cli.client import WatchAnswer
from registry.cli.views.columns import ADAPTERS, TENANTS
from registry.cli.views.get import Kind, Query
from registry.cli.views.output import Format, Printer
from registry.cli.watching import (
    AdapterFeed,
    AdapterGone,
    AdapterPut,
    AdapterUnmatched,
    AdapterUnreadable,
    LiveTable,
    RowFeed,
    SelectedFeed,
)
from registry.residency.health import AdapterRow, state
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import BUSY, Refusal

EXPIRED = Refusal(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", "your token has expired; take a new one")
ENOUGH = Refusal(grpc.StatusCode.PERMISSION_DENIED, "ETCD_PERMISSION", "enough")


def put(name: str, etag: str = "1") -> pb.AdapterEvent:
    return pb.AdapterEvent(put=pb.Adapter(name=name, pool="dev", etag=etag))


def gone(name: str) -> pb.AdapterEvent:
    return pb.AdapterEvent(deleted=name)


def answer(revision: int, *events: pb.AdapterEvent, **more: bool) -> pb.WatchAdaptersResponse:
    return pb.WatchAdaptersResponse(revision=revision, events=events, **more)


TORN, TORN_B = (pb.AdapterEvent(unreadable=name) for name in "ab")
# Answers, what is told of each, and where a stream would begin after it; a text begins another feed, of all ("") or of
# that name; None: the stream broke, and is begun anew.
FOLLOWED: list[Any] = [
    *("", (answer(5, put("a"), snapshot=True, more=True), ["a"], 0)),
    *(None, (answer(6, put("a"), snapshot=True, more=True), [], 0)),
    (answer(6, put("b"), snapshot=True), ["b"], 7),
    *("", (answer(5, put("a"), put("B"), put("c"), snapshot=True), ["a", "B", "c"], 6)),
    (answer(6, gone("c")), [AdapterGone("c")], 7),
    *(None, (answer(9, put("a", "8"), put("d"), snapshot=True), ["a", "d", AdapterGone("b")], 10)),
    *("", (answer(5, put("a"), snapshot=True), ["a"], 6)),
    (answer(6, put("b", "6"), gone("a"), more=True), ["b", AdapterGone("a")], 6),
    *(None, (answer(6, put("b", "6"), gone("a"), more=True), [], 6), (answer(6, put("c", "6")), ["c"], 7)),
    *("", (answer(5, put("A"), put("b"), snapshot=True), ["A", "b"], 6)),
    *((answer(6, TORN), [AdapterUnreadable("a")], 7), (answer(7, TORN, pb.AdapterEvent()), [], 8)),
    (answer(8, put("A", "8")), ["A"], 9),
    *("Acme/A", (answer(5, put("acme/a"), put("b"), snapshot=True), ["acme/a"], 6)),
    (answer(6, gone("b"), gone("acme/a")), [AdapterGone("acme/a")], 7),
]


def test_what_is_told_of_adapters_whatever_breaks_off():
    """R2 replay-equal, for who watches from outside: half a state is never taken for the whole, nothing comes twice."""
    feed = AdapterFeed(None)
    for one in FOLLOWED:
        if isinstance(one, tuple):
            response, told, start = one
            found = [news.item.name if isinstance(news, AdapterPut) else news for news in feed.take(response)]
            assert (found, feed.start) == (told, start)
            continue
        feed = feed if one is None else AdapterFeed(one or None)
        feed.begin()


def rows(feed: RowFeed, *answers: WatchAnswer) -> list[tuple[str, str]]:
    """Names and states that are told, or what became of a name."""
    found = [one for answer in answers for one in feed.take(answer)]
    return [
        (one.item.record.name, state(one.item)) if isinstance(one, AdapterPut) else (one.name, type(one).__name__)
        for one in found
    ]


def where(*names: str, serving: int = 1, pending: int = 0, **fields) -> pb.WatchResidencyResponse:
    ready, later = pb.RolloutReplica.SERVING, pb.RolloutReplica.PENDING
    counts = [pb.ResidenceCount(replicas=serving, state=ready)]
    counts += [pb.ResidenceCount(replicas=pending, state=later, reason="staging")] if pending else []
    return pb.WatchResidencyResponse(adapters=[pb.AdapterResidency(name=one, counts=counts) for one in names], **fields)


WITH_STATE = Query(Kind.ADAPTERS, "dev", None, pb.WatchResidencyRequest.COUNTS)


def test_a_row_is_told_when_its_state_is_known_and_when_it_changes():
    """What went before it was shown is not told, nor is it forgotten that what cannot be read was told. Rows that
    waited come in the order of their records; without states nothing is waited for. R2: after a break only what
    changed is told: a snapshot says what is nowhere any more; half a list that broke off says of nothing that it is
    there.
    """
    feed = RowFeed(WITH_STATE)
    feed.begin()
    assert rows(feed, answer(5, put("A"), put("b"), snapshot=True), where("A", snapshot=True, more=True)) == []
    assert rows(feed, where("b", serving=0, pending=1, snapshot=True)) == [("A", "Healthy"), ("b", "Progressing")]
    assert rows(feed, where("A"), where("b")) == [("b", "Healthy")]
    assert rows(feed, answer(6, put("c", "6"))) == [("c", "")]
    assert rows(feed, where("c"), answer(7, gone("a"))) == [("c", "Healthy"), ("a", "AdapterGone")]
    assert rows(feed, where(gone=["a", "nobody"])) == []
    assert rows(feed, answer(8, TORN_B)) == [("b", "AdapterUnreadable")]
    assert rows(feed, where(gone=["b"]), answer(9, put("b", "9")), where("b")) == [("b", ""), ("b", "Healthy")]
    feed, names = RowFeed(WITH_STATE), [f"a{number}" for number in range(40)]
    feed.begin()
    assert rows(feed, answer(5, put("c"), *map(put, names), put("b"), snapshot=True), answer(6, gone("c"))) == []
    gone_b = [("b", "AdapterUnreadable"), ("b", "AdapterGone")]
    assert rows(feed, answer(7, TORN_B), answer(8, gone("b"))) == gone_b
    assert [name for name, _ in rows(feed, where(*reversed(names), snapshot=True))] == names
    assert rows(feed, answer(9, put("c", "9"))) == [("c", "")]
    assert rows(RowFeed(Query(Kind.ADAPTERS, "dev", None)), answer(5, put("a"), snapshot=True)) == [("a", "")]
    feed = RowFeed(WITH_STATE)
    feed.begin()
    assert len(rows(feed, answer(5, put("a"), put("b"), snapshot=True), where("a", "b", snapshot=True))) == 2
    feed.begin()
    assert rows(feed, where("a", snapshot=True)) == [("b", "")]
    feed.begin()
    assert rows(feed, where("a", snapshot=True, more=True)) == []
    feed.begin()
    assert rows(feed, where("b", snapshot=True, more=True), where("a", snapshot=True)) == [("b", "Healthy")]
    feed.begin()
    assert rows(feed, where("a", snapshot=True, more=True)) == []
    feed.begin()
    assert rows(feed, where("b", snapshot=True)) == [("a", "")]
    feed.begin()
    assert rows(feed, answer(10, put("a"), snapshot=True, more=True)) == []
    feed.begin()
    assert rows(feed, answer(11, put("b"), snapshot=True)) == [("a", "AdapterGone")]


def test_of_what_a_selector_asks_for_begin_and_end_are_told_once():
    """Another's changes and end are not; what cannot be read may be asked for, so that is told."""
    feed = SelectedFeed(lambda item: item == "Good", lambda _item: "A")
    bad, good, gone_now, torn = AdapterPut("bad"), AdapterPut("Good"), AdapterGone("a"), AdapterUnreadable("a")
    news = [bad, gone_now, good, good, bad, AdapterPut("worse"), torn, gone_now, gone_now]
    told = [[], [], [good], [good], [AdapterUnmatched("A")], [], [torn], [gone_now], []]
    assert [list(feed.take(one)) for one in news] == told


def test_a_live_table_is_drawn_when_it_changed_and_now_and_then():
    """Not once for each of a thousand changes; and ages go on."""
    paper, sheets = Mock(), list[tuple[list[str], str]]()
    paper.redraw = lambda _view, items, foot: sheets.append(([one.record.name for one in items], foot))
    table = LiveTable(ADAPTERS, ADAPTERS.name, paper)
    a, b = (AdapterPut(AdapterRow(pb.Adapter(name=name))) for name in ("a", "B"))
    torn = [AdapterUnreadable("b"), AdapterUnreadable("A")]
    news = [
        ([b, a], 100.0, (["a", "B"], "")),
        ([AdapterGone("a")], 100.2, None),
        (torn, 100.49, None),
        *(([], 100.5, ([], "cannot be read: a, b")), ([], 105.0, None), ([], 110.4, None)),
        ([], 110.5, ([], "cannot be read: a, b")),
        ([b, a], 112.0, (["a", "B"], "")),
        ([torn[0], AdapterGone("b"), AdapterGone("a")], 113.0, ([], "")),
        ([b], 114.0, (["B"], "")),
        ([AdapterUnmatched("B")], 115.0, ([], "")),
    ]
    for told, at, drawn in news:
        before = len(sheets)
        table.take(told, at)
        assert sheets[before:] == ([drawn] if drawn else []), at
    LiveTable(TENANTS, TENANTS.name, paper).take([], 0.0)
    assert sheets[-1] == ([], ""), "also where there is nothing yet"


def changes(out: str) -> list[tuple[str, str]]:
    found = [json.loads(line) for line in out.splitlines()]
    return [(one["change"], one["name"] if "name" in one else one["item"]["name"]) for one in found]


BROKEN = Refusal(grpc.StatusCode.UNAVAILABLE, "ETCD_UNAVAILABLE")
COMPACTED = Refusal(grpc.StatusCode.FAILED_PRECONDITION, "REVISION_COMPACTED", "no")


def labelled(name: str, etag: str, **labels: str) -> pb.AdapterEvent:
    return pb.AdapterEvent(put=pb.Adapter(name=name, pool="dev", etag=etag, spec=pb.AdapterSpec(labels=labels)))


def test_a_watch_comes_back_after_a_pause_where_it_was(cli, admin, time):
    """R2 replay-equal, for who watches from outside: nothing twice, nothing lost; anew after a compaction. What changed
    meanwhile is compared with what was shown: what begins and ceases to have a label is told over a break, too.
    """
    admin.script = [
        ("WatchAdapters", answer(5, put("a"), put("b"), snapshot=True)),
        ("WatchAdapters", BROKEN),
        ("WatchAdapters", answer(6, pb.AdapterEvent(unreadable="a"))),
        ("WatchAdapters", BUSY),
        ("WatchAdapters", COMPACTED),
        ("WatchAdapters", answer(9, put("c"), snapshot=True)),
        ("WatchAdapters", ENOUGH),
    ]
    script = list(admin.script)
    ran = cli("-o", "json", "get", "adapters", "-w")
    assert ran.code == 4
    first = [("put", "a"), ("put", "b"), ("unreadable", "a")]
    assert changes(ran.out) == [*first, ("put", "c"), ("deleted", "a"), ("deleted", "b")]
    assert [one.start_revision for one in admin.asked("WatchAdapters")] == [0, 6, 7, 0]
    assert (len(time.pauses) >= 1, all(0.1 < one < 10 for one in time.pauses)) == (True, True)
    admin.script = script
    assert "a  unreadable" in cli("get", "adapters", "-w").out.splitlines()
    first = answer(5, labelled("a", "1", team="x"), labelled("b", "1"), labelled("c", "1"), snapshot=True)
    second = answer(6, labelled("b", "6", team="x"), labelled("c", "6"), gone("c"))
    third = answer(7, labelled("a", "7", team="y"), labelled("b", "7", team="x", tier="1"), gone("b"))
    admin.answers["WatchAdapters"] = [[first, second, BROKEN], [third, ENOUGH]]
    ran = cli("-o", "json", "get", "adapters", "-w", "-l", "team=x")
    told = [("put", "a"), ("put", "b"), ("unmatched", "a"), ("put", "b"), ("deleted", "b")]
    assert changes(ran.out) == told


def test_a_watch_goes_on_with_a_new_token_when_its_own_ends(cli, admin, time, tmp_path):
    """A6 rotates: nothing is lost or told twice. If there is no new one, one line says so."""
    token = tmp_path / "token"
    token.write_text("one")

    def replaced(_request: object) -> list[object]:
        token.write_text("two")
        return [answer(5, put("a"), snapshot=True), EXPIRED]

    admin.answers["WatchAdapters"] = [replaced, [answer(6, put("b", "6")), EXPIRED], [EXPIRED]]
    ran = cli("--token-file", str(token), "-o", "json", "get", "adapters", "-w")
    assert changes(ran.out) == [("put", "a"), ("put", "b")]
    assert [one.start_revision for one in admin.asked("WatchAdapters")] == [0, 6, 7]
    shown = [dict(one)["authorization"] for one in admin.channels[0].metadata if one]
    assert shown[-3:] == ["Bearer one", "Bearer two", "Bearer two"]
    assert ran.code == 4
    assert json.loads(ran.err.splitlines()[-1])["error"]["message"] == "your token has expired; take a new one"


def test_which_adapters_come_to_a_state_and_leave_it_is_told(cli, admin):
    """And what replicas serve of each, as it comes."""
    watched = [
        ("WatchAdapters", answer(5, put("a"), put("b"), snapshot=True)),
        ("WatchResidency", where("a", "b", snapshot=True)),
        ("WatchResidency", where("a", serving=0, pending=1)),
        ("WatchResidency", where("a")),
        ("WatchAdapters", ENOUGH),
    ]
    for flags, told in (
        ([], ["a dev Healthy 1/1", "b dev Healthy 1/1", "a dev Progressing 0/1", "a dev Healthy 1/1"]),
        (["--field-selector", "state=progressing"], ["a dev Progressing 0/1", "a unmatched"]),
    ):
        admin.script = list(watched)
        ran = cli("get", "adapters", "-w", *flags)
        assert (ran.code, [" ".join(line.split()[:4]) for line in ran.lines[1:]]) == (4, told)


COUNTS, WHOLE = pb.WatchResidencyRequest.COUNTS, pb.WatchResidencyRequest.REPLICAS_AND_COUNTS
LOOKS = {
    "get adapters -w": ("", COUNTS),
    "get adapter sql -w": ("", COUNTS),
    "get adapter sql -w -o wide": ("sql", WHOLE),
    "get adapters -w -o wide": ("", WHOLE),
    "get adapters -w -o json": None,
    "get adapters -w -o json --field-selector state=healthy": ("", COUNTS),
}


@pytest.mark.parametrize("line", LOOKS)
def test_a_watch_asks_for_no_more_than_it_shows(cli, admin, line):
    """With their replicas, those of all adapters are very many; and one that does not exist yet has counts."""
    residency = [("WatchResidency", where(snapshot=True))] if LOOKS[line] else []
    admin.script = [("WatchAdapters", answer(5, put("sql"), snapshot=True)), *residency, ("WatchAdapters", ENOUGH)]
    assert cli(*line.split()).code == 4
    asked = [(one.name, one.detail) for one in admin.asked("WatchResidency")]
    assert asked == ([LOOKS[line]] if LOOKS[line] else [])
    assert {one.pool for one in (*admin.asked("WatchResidency"), *admin.asked("WatchAdapters"))} == {"dev"}


def listed(*replicas: tuple[str, str]) -> pb.ListReplicasResponse:
    found = [pb.Replica(name=name, pool="dev", labels={"zone": zone}) for name, zone in replicas]
    return pb.ListReplicasResponse(replicas=found)


def test_which_replicas_come_go_and_no_longer_match_is_told(cli, admin, time):
    """One that comes back with other labels is not deleted; and what did not change is not told again."""
    looks = [listed(("r1", "a")), listed(("r1", "b")), listed(("r1", "a")), listed(), ENOUGH]
    for flags, told in (
        (["-l", "zone=a"], [("put", "r1"), ("unmatched", "r1"), ("put", "r1"), ("deleted", "r1")]),
        ([], [("put", "r1"), ("put", "r1"), ("put", "r1"), ("deleted", "r1")]),
    ):
        admin.answers["ListReplicas"] = list(looks)
        assert changes(cli("-o", "json", "get", "replicas", "-w", "--pool", "dev", *flags).out) == told
    admin.answers["ListReplicas"] = [listed(("r1", "a"), ("r2", "a")), listed(("r1", "a")), ENOUGH]
    assert [line.split()[:2] for line in cli("get", "replicas", "-w").lines[1:]] == [
        *(["r1", "dev"], ["r2", "dev"], ["dev/r2", "deleted"]),
    ]
    admin.answers["ListReplicas"] = [listed(("r1", "a")), listed(), ENOUGH]
    printed = cli("get", "replicas", "-w", "--pool", "dev", "-o", "custom-columns=NAME:.name,POOL:.pool").out
    assert printed == "NAME  POOL\nr1  dev\nr1  deleted\n"


def test_replicas_of_several_pools_that_have_one_name_are_told_apart(cli, admin, time, monkeypatch):
    """None hides another, in lines or in a table that is drawn anew."""
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="dev"), pb.Pool(name="ops")])]

    def both(pool: str, names: str) -> pb.ListReplicasResponse:
        return pb.ListReplicasResponse(replicas=[pb.Replica(name=name, pool=pool) for name in names])

    looks = [both("dev", "a"), both("ops", "ab"), both("dev", "a"), both("ops", "b"), ENOUGH]
    admin.answers["ListReplicas"] = list(looks)
    told = [" ".join(line.split()[:2]) for line in cli("get", "replicas", "-w").lines[1:]]
    assert told == ["a dev", "a ops", "b ops", "ops/a deleted"]
    admin.answers["ListReplicas"] = list(looks)
    assert cli("-o", "name", "get", "replicas", "-w").out == "a\na\nb\n"
    drawn: list[list[str]] = []
    monkeypatch.setattr(Printer, "is_live", property(lambda _self: True))
    monkeypatch.setattr(
        Printer, "redraw", lambda _self, _view, rows, _foot: drawn.append([f"{one.pool}/{one.name}" for one in rows])
    )
    time.monotonic = lambda: 100.0 * len(time.pauses)
    admin.answers["ListReplicas"] = list(looks)
    cli("get", "replicas", "-w")
    assert drawn == [["dev/a", "ops/a", "ops/b"], ["dev/a", "ops/b"]]


def test_a_look_that_finds_nobody_ends_a_watch_only_if_it_is_the_first(cli, admin, time):
    """Restarts are waited for, of replicas as of adapters; where nobody ever answered, that is told."""
    gone = Refusal(grpc.StatusCode.UNAVAILABLE)
    watch = ["get", "replicas", "-w", "--pool", "dev", "--timeout", "0.1"]
    looks = [listed(("r1", "a"), ("r2", "a")), gone, listed(("r1", "a")), ENOUGH]
    admin.answers["ListReplicas"] = [lambda _asked: looks[len(time.pauses)]]
    assert changes(cli("-o", "json", *watch).out) == [("put", "r1"), ("put", "r2"), ("deleted", "r2")]
    admin.answers["ListReplicas"] = [gone]
    assert cli(*watch).code == 6
    admin.answers |= {name: [[gone]] for name in ("WatchAdapters", "WatchResidency", "WatchRollout")}
    for line in ("get adapters -w", "rollout sql"):
        ran = cli(*line.split(), "--pool", "dev")
        assert (ran.code, "error: ADMIN_UNAVAILABLE: " in ran.err) == (6, True)


def test_on_a_terminal_a_watch_draws_what_there_is(cli, admin, time, monkeypatch, capsys):
    """In YAML it is documents."""
    drawn: list[tuple[list[str], str]] = []
    monkeypatch.setattr(Printer, "is_live", property(lambda _self: True))
    monkeypatch.setattr(
        Printer, "redraw", lambda _self, _view, rows, foot: drawn.append(([one.name for one in rows], foot))
    )
    time.monotonic = lambda: 100.0 * len(time.pauses)
    admin.answers["ListReplicas"] = [listed(("r1", "a")), listed(("r2", "a")), ENOUGH]
    ran = cli("get", "replicas", "-w")
    assert (ran.code, ran.out, drawn, len(time.pauses)) == (4, "", [(["r1"], ""), (["r2"], "")], 2)
    Printer(Format.YAML).event({"a": 1})
    Printer(Format.YAML).fate("x", "deleted")
    assert capsys.readouterr().out == "---\na: 1\n---\nchange: deleted\nname: x\n"
