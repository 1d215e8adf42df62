"""A watch of adapters: nothing twice, nothing lost, whatever becomes of the stream."""

from __future__ import annotations

import json
from collections.abc import Iterator

import grpc
import pytest

from registry.cli.client import WatchAnswer
from registry.cli.failure import CliError, usage
from registry.cli.views.columns import ADAPTERS
from registry.cli.views.get import Kind, Query
from registry.cli.views.output import Format, Printer
from registry.cli.views.residency_view import AdapterRow, state
from registry.cli.watching import (
    AdapterFeed,
    AdapterGone,
    AdapterPut,
    AdapterUnmatched,
    AdapterUnreadable,
    LiveTable,
    RowFeed,
    SelectedFeed,
    watch,
)
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import Refusal

ENOUGH = Refusal(grpc.StatusCode.PERMISSION_DENIED, "ETCD_PERMISSION", "enough")


def put(name: str, etag: str = "1") -> pb.AdapterEvent:
    return pb.AdapterEvent(put=pb.Adapter(name=name, pool="dev", etag=etag))


def gone(name: str) -> pb.AdapterEvent:
    return pb.AdapterEvent(deleted=name)


def answer(revision: int, *events: pb.AdapterEvent, **more: bool) -> pb.WatchAdaptersResponse:
    return pb.WatchAdaptersResponse(revision=revision, events=events, **more)


def told(feed: AdapterFeed, response: pb.WatchAdaptersResponse) -> list[object]:
    return [one.item.name if isinstance(one, AdapterPut) else one for one in feed.take(response)]


def test_a_snapshot_that_broke_off_is_read_again():
    """R2 replay-equal, for who watches from outside: half a state is never taken for the whole."""
    feed = AdapterFeed(None)
    feed.begin()
    assert told(feed, answer(5, put("a"), snapshot=True, more=True)) == ["a"]
    assert feed.start == 0
    feed.begin()
    assert told(feed, answer(6, put("a"), snapshot=True, more=True)) == []
    assert told(feed, answer(6, put("b"), snapshot=True)) == ["b"]
    assert feed.start == 7


def test_what_is_gone_unseen_is_told():
    feed = AdapterFeed(None)
    feed.begin()
    told(feed, answer(5, put("a"), put("B"), put("c"), snapshot=True))
    assert told(feed, answer(6, gone("c"))) == [AdapterGone("c")]
    feed.begin()
    assert told(feed, answer(9, put("a", "8"), put("d"), snapshot=True)) == ["a", "d", AdapterGone("b")]


def test_parts_of_a_change_that_broke_off_are_told_once():
    feed = AdapterFeed(None)
    told(feed, answer(5, put("a"), snapshot=True))
    assert told(feed, answer(6, put("b", "6"), gone("a"), more=True)) == ["b", AdapterGone("a")]
    assert feed.start == 6
    feed.begin()
    assert told(feed, answer(6, put("b", "6"), gone("a"), more=True)) == []
    assert told(feed, answer(6, put("c", "6"))) == ["c"]
    assert feed.start == 7


def test_what_cannot_be_read_is_not_gone():
    feed = AdapterFeed(None)
    told(feed, answer(5, put("A"), put("b"), snapshot=True))
    assert told(feed, answer(6, pb.AdapterEvent(unreadable="a"))) == [AdapterUnreadable("a")]
    assert told(feed, answer(7, pb.AdapterEvent(unreadable="a"), pb.AdapterEvent())) == []
    assert told(feed, answer(8, put("A", "8"))) == ["A"]


def test_one_of_them():
    feed = AdapterFeed("Acme/A")
    assert told(feed, answer(5, put("acme/a"), put("b"), snapshot=True)) == ["acme/a"]
    assert told(feed, answer(6, gone("b"), gone("acme/a"))) == [AdapterGone("acme/a")]


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
    feed = RowFeed(WITH_STATE)
    feed.begin()
    assert rows(feed, answer(5, put("A"), put("b"), snapshot=True), where("A", snapshot=True, more=True)) == []
    assert rows(feed, where("b", serving=0, pending=1, snapshot=True)) == [("A", "Healthy"), ("b", "Progressing")]
    assert rows(feed, where("A"), where("b")) == [("b", "Healthy")]
    assert rows(feed, answer(6, put("c", "6"))) == [("c", "")]
    assert rows(feed, where("c"), answer(7, gone("a"))) == [("c", "Healthy"), ("a", "AdapterGone")]
    assert rows(feed, where(gone=["a", "nobody"])) == []
    assert rows(feed, answer(8, pb.AdapterEvent(unreadable="b"))) == [("b", "AdapterUnreadable")]
    assert rows(feed, where(gone=["b"]), answer(9, put("b", "9")), where("b")) == [("b", ""), ("b", "Healthy")]


def test_after_a_break_only_what_changed_is_told():
    """A snapshot of where they are says also what is nowhere any more."""
    feed = RowFeed(WITH_STATE)
    feed.begin()
    assert len(rows(feed, answer(5, put("a"), put("b"), snapshot=True), where("a", "b", snapshot=True))) == 2
    feed.begin()
    assert rows(feed, where("a", snapshot=True)) == [("b", "")]
    feed.begin()
    assert rows(feed, where("a", snapshot=True, more=True)) == []
    feed.begin()
    assert rows(feed, where("b", snapshot=True, more=True), where("a", snapshot=True)) == [("b", "Healthy")]


def test_what_went_before_it_was_shown_is_not_told():
    """Nor is it forgotten that what cannot be read was told."""
    feed = RowFeed(WITH_STATE)
    feed.begin()
    assert rows(feed, answer(5, put("a"), put("b"), snapshot=True), answer(6, gone("a"))) == []
    assert rows(feed, answer(7, pb.AdapterEvent(unreadable="b")), answer(8, gone("b"))) == [
        ("b", "AdapterUnreadable"),
        ("b", "AdapterGone"),
    ]
    assert rows(feed, where(snapshot=True), answer(9, put("a", "9"))) == [("a", "")]


def test_rows_that_waited_come_in_the_order_of_their_records():
    feed = RowFeed(WITH_STATE)
    feed.begin()
    names = [f"a{number}" for number in range(40)]
    assert rows(feed, answer(5, *map(put, names), snapshot=True)) == []
    assert [name for name, _ in rows(feed, where(*reversed(names), snapshot=True))] == names


def test_without_states_nothing_is_waited_for():
    feed = RowFeed(Query(Kind.ADAPTERS, "dev", None))
    assert rows(feed, answer(5, put("a"), snapshot=True)) == [("a", "")]


def selected(feed: SelectedFeed, told: object) -> list[object]:
    return list(feed.take(told))


def test_of_what_a_selector_asks_for_begin_and_end_are_told_once():
    """Another's changes and end are not; what cannot be read may be asked for, so that is told."""
    feed = SelectedFeed(lambda item: item == "Good", lambda _item: "A")
    assert selected(feed, AdapterPut("bad")) == []
    assert selected(feed, AdapterGone("a")) == []
    assert selected(feed, AdapterPut("Good")) == [AdapterPut("Good")]
    assert selected(feed, AdapterPut("Good")) == [AdapterPut("Good")]
    assert selected(feed, AdapterPut("bad")) == [AdapterUnmatched("A")]
    assert selected(feed, AdapterPut("worse")) == []
    assert selected(feed, AdapterUnreadable("a")) == [AdapterUnreadable("a")]
    assert selected(feed, AdapterGone("a")) == [AdapterGone("a")]
    assert selected(feed, AdapterGone("a")) == []


class Paper:
    """What is drawn on it, sheet by sheet."""

    def __init__(self) -> None:
        self.sheets: list[tuple[list[str], str]] = []

    def redraw(self, _view, items, foot: str) -> None:
        self.sheets.append(([one.record.name for one in items], foot))


def test_a_live_table_is_drawn_when_it_changed_and_now_and_then():
    """Not once for each of a thousand changes; and ages go on."""
    paper = Paper()
    table = LiveTable(ADAPTERS, paper)
    a, b = (AdapterPut(AdapterRow(pb.Adapter(name=name))) for name in ("a", "B"))
    table.take([b, a], 100.0)
    assert paper.sheets == [(["a", "B"], "")]
    table.take([AdapterGone("a")], 100.2)
    table.take([AdapterUnreadable("b")], 100.3)
    assert len(paper.sheets) == 1
    table.take([], 100.6)
    assert paper.sheets[1:] == [([], "cannot be read: b")]
    table.take([], 105.0)
    assert len(paper.sheets) == 2
    table.take([], 111.0)
    table.take([b], 112.0)
    table.take([AdapterUnreadable("b"), AdapterGone("b")], 113.0)
    table.take([b], 114.0)
    table.take([AdapterUnmatched("B")], 115.0)
    assert paper.sheets[2:] == [([], "cannot be read: b"), (["B"], ""), ([], ""), (["B"], ""), ([], "")]


def test_the_command_tells_what_cannot_be_read(cli, admin):
    changes = answer(6, pb.AdapterEvent(unreadable="a"), gone("b"))
    admin.answers["WatchAdapters"] = [[answer(5, put("a"), put("b"), snapshot=True), changes, ENOUGH]]
    assert "a  unreadable" in cli("get", "adapters", "-w").out.splitlines()
    lines = [json.loads(line) for line in cli("-o", "json", "get", "adapters", "-w").out.splitlines()]
    assert lines[-2:] == [{"change": "unreadable", "name": "a"}, {"change": "deleted", "name": "b"}]


def test_the_command_begins_anew_after_a_compaction(cli, admin):
    first = [answer(5, put("a"), put("b"), snapshot=True), Refusal(grpc.StatusCode.UNAVAILABLE, "ETCD_UNAVAILABLE")]
    compacted = Refusal(grpc.StatusCode.FAILED_PRECONDITION, "REVISION_COMPACTED")
    admin.answers["WatchAdapters"] = [first, [compacted], [answer(9, put("a"), snapshot=True), ENOUGH]]
    lines = [json.loads(line) for line in cli("-o", "json", "get", "adapters", "-w").out.splitlines()]
    assert [line["change"] for line in lines] == ["put", "put", "deleted"]
    assert lines[-1]["name"] == "b"
    assert [one.start_revision for one in admin.asked("WatchAdapters")] == [0, 6, 0]


def labelled(name: str, etag: str, **labels: str) -> pb.AdapterEvent:
    spec = pb.AdapterSpec(labels=labels)
    return pb.AdapterEvent(put=pb.Adapter(name=name, pool="dev", etag=etag, spec=spec))


def changes(out: str) -> list[tuple[str, str]]:
    found = [json.loads(line) for line in out.splitlines()]
    return [(one["change"], one["name"] if "name" in one else one["item"]["name"]) for one in found]


def test_the_command_tells_what_begins_and_what_ceases_to_have_a_label(cli, admin):
    """Also over a break: what changed meanwhile is compared with what was shown."""
    first = answer(5, labelled("a", "1", team="x"), labelled("b", "1"), labelled("c", "1"), snapshot=True)
    second = answer(6, labelled("b", "6", team="x"), labelled("c", "6"), gone("c"))
    third = answer(7, labelled("a", "7", team="y"), labelled("b", "7", team="x", tier="1"), gone("b"))
    broken = Refusal(grpc.StatusCode.UNAVAILABLE, "ETCD_UNAVAILABLE")
    admin.answers["WatchAdapters"] = [[first, second, broken], [third, ENOUGH]]
    ran = cli("-o", "json", "get", "adapters", "-w", "-l", "team=x")
    told = [("put", "a"), ("put", "b"), ("unmatched", "a"), ("put", "b"), ("deleted", "b")]
    assert changes(ran.out) == told


class PlayedWatch:
    """A client whose two streams bring what a test lays down, in its order; real ones come in any."""

    def __init__(self, *batches: list[WatchAnswer]) -> None:
        self._batches = batches

    def watch_pool(self, *_asked: object) -> Iterator[list[WatchAnswer]]:
        yield from self._batches
        raise usage("enough")


def test_which_adapters_come_to_a_state_and_leave_it_is_told(capsys):
    client = PlayedWatch(
        [answer(5, put("a"), put("b"), snapshot=True), where("a", "b", snapshot=True)],
        [where("a", serving=0, pending=1)],
        [where("a")],
    )
    with pytest.raises(CliError, match="enough"):
        watch(client, WITH_STATE, ["state=progressing"], Printer(Format.TABLE))
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[:3] for line in lines] == [["a", "dev", "Progressing"], ["a", "unmatched"]]


def test_the_command_tells_which_replicas_no_longer_match(cli, admin):
    """One that comes back with other labels is not deleted."""
    lists = [
        pb.ListReplicasResponse(replicas=[pb.Replica(name=name, pool="dev", labels={"zone": zone})])
        for name, zone in (("r1", "a"), ("r1", "b"), ("r1", "a"))
    ]
    admin.answers["ListReplicas"] = [*lists, pb.ListReplicasResponse(), ENOUGH]
    ran = cli("-o", "json", "get", "replicas", "-w", "-l", "zone=a")
    assert changes(ran.out) == [("put", "r1"), ("unmatched", "r1"), ("put", "r1"), ("deleted", "r1")]
