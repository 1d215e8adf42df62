"""What `get` finds, chooses and orders; what it says of what it leaves out; and which look a watch takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from registry.cli.client import AdminClient
from registry.cli.failure import CliError, Exit
from registry.cli.views.columns import TENANTS
from registry.cli.views.get import Kind, Query, cell_filter, find, kind_of, label_filter, labels_of, sorted_by
from registry.cli.views.output import Format, Printer
from registry.cli.views.residency_view import AdapterRow
from registry.cli.watching import AdapterGone, AdapterUnreadable, LiveTable, RowFeed
from registry.client.address import Tls
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import Hold, Refusal
from tests.unit.cli.test_feed import ENOUGH, Paper, answer, gone, put, where

NOT_FOUND = Refusal(grpc.StatusCode.NOT_FOUND, "REPLICA_NOT_FOUND", "none")
REFUSED = Refusal(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", "not you")


@pytest.mark.parametrize(
    ("terms", "labels"),
    [
        ([], {}),
        (["a=1"], {"a": "1"}),
        (["a=1,b=2", "c=3"], {"a": "1", "b": "2", "c": "3"}),
        (["a=1", "a=1"], {"a": "1"}),
        (["a=b=c"], {"a": "b=c"}),
        (["a="], {"a": ""}),
    ],
)
def test_labels_that_are_asked_for(terms, labels):
    assert labels_of(terms) == labels


@pytest.mark.parametrize("term", ["a", "=1", "", "a=1,", "a=1,a=2"])
def test_what_asks_for_no_label_or_for_two_values_is_refused(term):
    """A selector that was mistyped would select everything, or nothing."""
    with pytest.raises(CliError) as raised:
        labels_of([term])
    assert raised.value.failure.exit is Exit.USAGE


def tenants(*names: str) -> list[pb.Tenant]:
    return [pb.Tenant(name=name, adapters=len(name)) for name in names]


@pytest.mark.parametrize(
    ("column", "names"),
    [
        ("name", ["R2", "r10", "r10a", "s"]),
        ("NAME", ["R2", "r10", "r10a", "s"]),
        ("-name", ["s", "r10a", "r10", "R2"]),
        ("adapters", ["s", "R2", "r10", "r10a"]),
        ("-adapters", ["r10a", "r10", "R2", "s"]),
    ],
)
def test_items_are_ordered_by_a_column_numbers_by_their_value(column, names):
    found = sorted_by(TENANTS, tenants("r10a", "R2", "s", "r10"), column)
    assert [one.name for one in found] == names


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], ["ab", "B", "c"]),
        (["name=b"], ["B"]),
        (["NAME=B"], ["B"]),
        (["adapters=1"], ["B", "c"]),
        (["adapters=1,name=c"], ["c"]),
        (["adapters=1", "name=ab"], []),
        (["max adapters=-"], ["ab", "B", "c"]),
    ],
)
def test_items_are_chosen_by_what_their_columns_say(words, names):
    fits = cell_filter(TENANTS, words)
    assert [one.name for one in tenants("ab", "B", "c") if fits(one)] == names


@pytest.mark.parametrize("words", [["name"], ["none=1"], ["name=a,"], ["=a"]])
def test_what_chooses_by_no_column_is_refused(words):
    with pytest.raises(CliError) as raised:
        cell_filter(TENANTS, words)
    assert raised.value.failure.exit is Exit.USAGE


@pytest.mark.parametrize(
    ("word", "kind"),
    [("adapter", Kind.ADAPTERS), ("Replicas", Kind.REPLICAS), ("POOL", Kind.POOLS), ("tenants", Kind.TENANTS)],
)
def test_a_kind_is_named_in_singular_or_plural(word, kind):
    assert kind_of(word) is kind


@pytest.mark.parametrize(("word", "told"), [("adaptors", "did you mean adapters?"), ("xyz", "choose one of adapters")])
def test_what_is_no_kind_is_told_with_what_was_meant(word, told):
    with pytest.raises(CliError, match="is no kind") as raised:
        kind_of(word)
    assert told in raised.value.failure.message


def test_only_adapters_and_replicas_have_labels():
    wanted = {"team": "x"}
    row = AdapterRow(pb.Adapter(spec=pb.AdapterSpec(labels={"team": "x", "more": "1"})))
    assert label_filter(Query(Kind.ADAPTERS, None, None, labels=wanted))(row)
    assert not label_filter(Query(Kind.ADAPTERS, None, None, labels={"team": "y"}))(row)
    for kind in (Kind.POOLS, Kind.TENANTS):
        assert label_filter(Query(kind, None, None))(object())
        with pytest.raises(CliError, match="nothing else has labels"):
            label_filter(Query(kind, None, None, labels=wanted))


Found = tuple[list[Any], list[str]]


@pytest.fixture
def found(address) -> Any:
    """What is found of a kind, by name where one is given, and what is said of what is left out."""

    def look(kind: Kind, name: str | None = None, pool: str | None = None, detail: int | None = None) -> Found:
        notes: list[str] = []
        with AdminClient(address, Tls(), timeout_seconds=60.0) as client:
            return find(client, Query(kind, pool, name, detail), notes.append), notes

    return look


def test_what_cannot_be_read_is_counted_and_the_first_ten_are_named(found, admin):
    names = [f"n{number}" for number in range(11)]
    admin.answers["ListAdapters"] = [
        pb.ListAdaptersResponse(unreadable=names[:4], next_page_token="n"),  # noqa: S106 - of a listing
        pb.ListAdaptersResponse(unreadable=names[4:]),
    ]
    _, notes = found(Kind.ADAPTERS)
    told = ", ".join(names[:10])
    assert notes == [f"11 adapters of pool dev cannot be read, and are left out: {told}, …; see loraplane doctor"]
    admin.answers["ListTenants"] = [pb.ListTenantsResponse(unreadable=names[:10])]
    _, notes = found(Kind.TENANTS)
    assert notes == [f"10 tenants cannot be read, and are left out: {told}; see loraplane doctor"]
    admin.answers["ListPools"] = [pb.ListPoolsResponse(unreadable=["p"])]
    assert found(Kind.POOLS) == ([], ["1 pools cannot be read, and are left out: p; see loraplane doctor"])


@pytest.mark.parametrize(
    ("lacking", "missing", "groups", "told"),
    [
        (0, 0, [], None),
        (1, 1, [], None),
        (2, 1, [], "pool dev expects 2 more replicas than live"),
        (2, 2, [(1, 3)], "pool dev expects 2 more replicas than live: zone=a: 1 of 3"),
        (1, 1, [(3, 3)], None),
    ],
)
def test_replicas_that_have_no_row_are_told_of(found, admin, lacking, missing, groups, told):
    admin.answers["ListReplicas"] = [
        pb.ListReplicasResponse(
            replicas=[pb.Replica(name="r1", pool="dev")],
            missing=[pb.MissingReplica(name=f"m{number}") for number in range(missing)],
            lacking=lacking,
            groups=[
                pb.GroupPresence(expected=pb.ReplicaGroup(labels={"zone": "a"}, replicas=all_), live=live)
                for live, all_ in groups
            ],
        )
    ]
    rows, notes = found(Kind.REPLICAS)
    assert (len(rows), notes) == (1 + missing, [told] if told else [])


def test_a_replica_that_does_not_live_is_found_by_its_name(found, admin):
    admin.answers["GetReplica"] = [NOT_FOUND]
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(missing=[pb.MissingReplica(name="r2")])]
    [one], _ = found(Kind.REPLICAS, "r2")
    assert (one.name, one.pool, one.missing) == ("r2", "dev", True)
    with pytest.raises(CliError) as raised:
        found(Kind.REPLICAS, "r3")
    assert raised.value.failure.exit is Exit.NOT_FOUND
    admin.answers["GetReplica"] = [REFUSED]
    with pytest.raises(CliError, match="not you"):
        found(Kind.REPLICAS, "r2")


def test_a_name_is_looked_for_in_every_pool_but_not_past_a_refusal(found, admin):
    """Who may not see one pool is told so, and not that there is nothing."""
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="a"), pb.Pool(name="b")])]
    admin.answers["GetReplica"] = [NOT_FOUND, pb.Replica(name="r1", pool="b")]
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse()]
    [one], _ = found(Kind.REPLICAS, "r1")
    assert one.pool == "b"
    admin.answers["GetReplica"] = [NOT_FOUND]
    with pytest.raises(CliError, match=r"there is no replica 'r1' in any pool \(a, b\)"):
        found(Kind.REPLICAS, "r1")
    admin.answers["GetReplica"] = [NOT_FOUND, REFUSED]
    with pytest.raises(CliError, match="not you"):
        found(Kind.REPLICAS, "r1")
    admin.answers["ListPools"] = [pb.ListPoolsResponse()]
    with pytest.raises(CliError, match="there is no pool either"):
        found(Kind.REPLICAS, "r1")


def test_a_tenant_is_found_in_any_letters(found, admin):
    admin.answers["ListTenants"] = [pb.ListTenantsResponse(tenants=tenants("acme", "other"))]
    assert [one.name for one in found(Kind.TENANTS, "ACME")[0]] == ["acme"]
    assert len(found(Kind.TENANTS)[0]) == 2
    with pytest.raises(CliError, match="there is no tenant 'none'"):
        found(Kind.TENANTS, "none")


LOOKS = {
    "get adapters -w": [("", pb.WatchResidencyRequest.COUNTS)],
    "get adapter sql -w": [("", pb.WatchResidencyRequest.COUNTS)],
    "get adapter sql -w -o wide": [("sql", pb.WatchResidencyRequest.REPLICAS_AND_COUNTS)],
    "get adapters -w -o wide": [("", pb.WatchResidencyRequest.REPLICAS_AND_COUNTS)],
    "get adapters -w -o json": [],
    "get adapters -w -o json --field-selector state=healthy": [("", pb.WatchResidencyRequest.COUNTS)],
}


@pytest.mark.parametrize("line", LOOKS)
def test_a_watch_asks_for_no_more_than_it_shows(cli, admin, line):
    """With their replicas, those of all adapters are very many; and one that does not exist yet has counts."""
    is_asked = threading.Event()

    def residency(_request: object) -> list[object]:
        is_asked.set()
        return [pb.WatchResidencyResponse(snapshot=True), Hold()]

    def adapters(_request: object) -> Iterator[object]:
        """Ends when all are asked that will be, however slow the machine is."""
        yield answer(5, put("sql"), snapshot=True)
        assert not LOOKS[line] or is_asked.wait(60)
        yield ENOUGH

    admin.answers |= {"WatchResidency": [residency], "WatchAdapters": [adapters]}
    ran = cli(*line.split())
    assert ran.code == 4
    assert [(one.name, one.detail) for one in admin.asked("WatchResidency")] == LOOKS[line]
    assert {one.pool for one in (*admin.asked("WatchResidency"), *admin.asked("WatchAdapters"))} == {"dev"}


@pytest.mark.parametrize("reason", ["REVISION_COMPACTED", "UNREADABLE_RECORD"])
def test_a_watch_ends_by_a_refusal_that_another_beginning_does_not_mend(cli, admin, reason):
    """It began with what there is now already, or it is another refusal."""
    refusal = Refusal(grpc.StatusCode.FAILED_PRECONDITION, reason, "no")
    first = [answer(5, put("a"), snapshot=True), refusal]
    admin.answers["WatchAdapters"] = [[refusal]] if reason == "REVISION_COMPACTED" else [first]
    ran = cli("get", "adapters", "-w", "-o", "json")
    assert (ran.code, len(admin.asked("WatchAdapters"))) == (4, 1)


@pytest.fixture
def time(monkeypatch) -> list[float]:
    """Passes at once; how long was waited each time."""
    pauses: list[float] = []

    class Time:
        @staticmethod
        def sleep(seconds: float) -> None:
            pauses.append(seconds)

        @staticmethod
        def monotonic() -> float:
            return 100.0 * len(pauses)

    monkeypatch.setattr("registry.cli.watching.time", Time)
    return pauses


def test_a_watch_comes_back_after_a_pause(cli, admin, time):
    broken = Refusal(grpc.StatusCode.UNAVAILABLE, "ETCD_UNAVAILABLE")
    admin.answers["WatchAdapters"] = [[answer(5, put("a"), snapshot=True), broken], [answer(6, gone("a"))], [ENOUGH]]
    ran = cli("get", "adapters", "-w", "-o", "json")
    assert (ran.code, ran.out.count('"put"'), ran.out.count('"deleted"')) == (4, 1, 1)
    assert [one.start_revision for one in admin.asked("WatchAdapters")] == [0, 6, 7]
    assert len(time) == 2
    assert all(0.1 < one < 10 for one in time)


def test_on_a_terminal_a_watch_draws_what_there_is(cli, admin, time, monkeypatch):
    drawn: list[tuple[list[str], str]] = []
    monkeypatch.setattr(Printer, "is_live", property(lambda _self: True))
    monkeypatch.setattr(
        Printer, "redraw", lambda _self, _view, rows, foot: drawn.append(([one.name for one in rows], foot))
    )
    lists = [pb.ListReplicasResponse(replicas=[pb.Replica(name=name, pool="dev")]) for name in ("r1", "r2")]
    admin.answers["ListReplicas"] = [*lists, ENOUGH]
    ran = cli("get", "replicas", "-w")
    assert (ran.code, ran.out, drawn) == (4, "", [(["r1"], ""), (["r2"], "")])
    assert len(time) == 2


def test_a_live_table_is_drawn_empty_at_once():
    paper = Paper()
    LiveTable(TENANTS, paper).take([], 0.0)
    assert paper.sheets == [([], "")]


@pytest.mark.parametrize(("later", "drawn"), [(0.49, 1), (0.5, 2)])
def test_changes_are_drawn_after_half_a_second(later, drawn):
    paper = Paper()
    table = LiveTable(TENANTS, paper)
    table.take([], 100.0)
    table.take([AdapterGone("a")], 100.0 + later)
    assert len(paper.sheets) == drawn


@pytest.mark.parametrize(("later", "drawn"), [(9.9, 1), (10.0, 2)])
def test_what_does_not_change_is_drawn_every_ten_seconds(later, drawn):
    """Since ages go on."""
    paper = Paper()
    table = LiveTable(TENANTS, paper)
    table.take([], 100.0)
    table.take([], 100.0 + later)
    assert len(paper.sheets) == drawn


def test_a_live_table_names_all_that_cannot_be_read():
    paper = Paper()
    table = LiveTable(TENANTS, paper)
    table.take([AdapterUnreadable("b"), AdapterUnreadable("A")], 0.0)
    assert paper.sheets == [([], "cannot be read: a, b")]


def test_counts_that_come_with_a_watch_are_shown(cli, admin, capsys):
    shown: list[str] = []

    def residency(_request: object) -> Iterator[object]:
        """Ends when they are shown, or never will be."""
        yield where("a", snapshot=True)
        for _ in range(6000):
            shown.append(capsys.readouterr().out)
            if "1/1" in "".join(shown):
                break
            threading.Event().wait(0.01)
        yield ENOUGH

    admin.answers["WatchAdapters"] = [[answer(5, put("a"), snapshot=True), Hold()]]
    admin.answers["WatchResidency"] = [residency]
    assert cli("get", "adapters", "-w").code == 4
    assert "a  dev  Healthy  1/1" in "".join(shown)


def test_what_was_listed_of_a_stream_that_broke_is_forgotten():
    """R2: half a list says of nothing that it is there."""
    feed = RowFeed(Query(Kind.ADAPTERS, "dev", None, pb.WatchResidencyRequest.COUNTS))
    feed.begin()
    assert (
        len([*feed.take(answer(5, put("a"), put("b"), snapshot=True)), *feed.take(where("a", "b", snapshot=True))]) == 2
    )
    feed.begin()
    assert list(feed.take(where("a", snapshot=True, more=True))) == []
    feed.begin()
    [told] = feed.take(where("b", snapshot=True))
    assert (told.item.record.name, told.item.residency) == ("a", None)


def test_a_watch_in_yaml_is_documents(capsys):
    printer = Printer(Format.YAML)
    printer.event({"a": 1})
    printer.fate("x", "deleted")
    assert capsys.readouterr().out == "---\na: 1\n---\nchange: deleted\nname: x\n"
