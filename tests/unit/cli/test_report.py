"""What is told of changes and of rollouts that are waited for: on a terminal, in a pipe, and to programs."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from registry.cli.change.sets import Applied, Change, ChangeBatch, NotApplied
from registry.cli.client import AdminClient
from registry.cli.failure import CommandFailure, Exit
from registry.cli.rollout import FollowedRollout
from registry.cli.views.output import Format, Printer
from registry.cli.views.report import follow_shown, print_plain, print_table
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.test_rollout import BAD, DONE, FULL, LATE, PENDING, SERVING, rollout, target


def result(outcome: int, name: str, stable: int = 0) -> pb.AdapterResult:
    canaries = pb.CanaryRollout(stable_generation=stable) if stable else None
    return pb.AdapterResult(outcome=outcome, adapter=pb.Adapter(name=name, pool="dev", generation=4, rollout=canaries))


OUTCOMES = ("created", "updated", "unchanged", "deleted")
CREATED, UPDATED, UNCHANGED, DELETED = (pb.AdapterResult.Outcome.Value(one.upper()) for one in OUTCOMES)


def batch(request_id: str, *names: str) -> ChangeBatch:
    return ChangeBatch("dev", tuple(Change("dev", pb.AdapterChange(delete=name), name) for name in names), request_id)


def applied(request_id: str, revision: int, *results: pb.AdapterResult) -> Applied:
    names = [one.adapter.name for one in results]
    response = pb.ApplyAdaptersResponse(results=results, revision=revision, request_id=request_id)
    return Applied(batch(request_id, *names), response)


FULL_UP = CommandFailure(Exit.REFUSED, "QUOTA_EXCEEDED", "full", "a.yaml", {"k": "v"}, "q2")
GOOD = applied("q1", 7, result(CREATED, "a"), result(UPDATED, "b", stable=3), result(UNCHANGED, "c", stable=3))
LATER = applied("q3", 9, result(DELETED, "d"))
REFUSED = NotApplied(batch("q2", "e", "f"), FULL_UP)


def test_people_and_programs_read_each_change_each_transaction_and_what_failed(capsys):
    seen = [FollowedRollout(target(), DONE), FollowedRollout(target(), None)]
    taken: list[Any] = []
    printer = Printer(Format.JSON)
    printer.plain = taken.append  # type: ignore[method-assign]
    print_plain(printer, [REFUSED, LATER, GOOD], seen, dry_run=False)
    [value] = taken
    assert (value["request_id"], value["revision"], value["dry_run"]) == ("q2", 9, False)
    results = [f"{one['outcome']} {one['adapter']['name']}" for one in value["results"]]
    assert results == ["deleted d", "created a", "updated b", "unchanged c"]
    about = {"pool": "dev", "error": None}
    assert value["transactions"] == [
        {"request_id": "q2", "pool": "dev", "changes": 2, "revision": None, "error": FULL_UP.as_dict()},
        {"request_id": "q3", **about, "changes": 1, "revision": 9},
        {"request_id": "q1", **about, "changes": 3, "revision": 7},
    ]
    assert [one["done"] for one in value["rollouts"]] == [True]
    print_plain(printer, [REFUSED], [], dry_run=True)
    assert (taken[1]["revision"], taken[1]["dry_run"]) == (None, True)
    print_plain(Printer(Format.NAME), [GOOD, REFUSED, LATER], [], dry_run=False)
    assert capsys.readouterr().out.split() == ["a", "b", "c", "d"]
    print_table(Printer(Format.TABLE), [GOOD, REFUSED, LATER], dry_run=False)
    assert capsys.readouterr().out.splitlines() == [
        "OUTCOME    NAME  POOL  GENERATION",
        *(f"{outcome:9}  {name}     dev   4" for outcome, name in zip(OUTCOMES, "abcd", strict=True)),
        "revision 7, request id q1",
        "revision 9, request id q3",
        "2 of 3 transactions applied",
        "b: only canaries take generation 4 for now, all others keep 3",
        "error: QUOTA_EXCEEDED: a.yaml: full (request id q2)",
    ]
    print_table(Printer(Format.TABLE), [LATER], dry_run=True)
    told = capsys.readouterr().out.splitlines()[2:]
    assert told == ["dry run, nothing was changed; revision 9, request id q3"], "of one nothing is counted"


def waits(client: AdminClient, form: Format, *names: str) -> list[pb.Rollout | None]:
    return [one.rollout for one in follow_shown(client, [target(name=name) for name in names], 60, Printer(form))]


def test_in_a_pipe_one_rollout_is_told_as_it_changes_and_several_every_five_seconds(
    client, admin, capsys, time, monkeypatch
):
    """And no line twice; programs get none."""
    admin.answers["WatchRollout"] = [[rollout(LATE), rollout(LATE), rollout(SERVING), DONE]]
    for form in Format:
        assert waits(client, form, "sql") == [DONE]
        lines = ["0 of 1 replicas serve it (r0 pending: staging)", "1 of 1 replicas serve it"]
        told = [f"sql generation 4: {line}" for line in lines if form in {Format.TABLE, Format.WIDE}]
        assert (form, capsys.readouterr().out.splitlines()) == (form, told)
    monkeypatch.setattr("registry.cli.rollout._AT_ONCE", 1)
    news = [(10.0, LATE), (4.9, (PENDING, "loading")), (0.1, (PENDING, "checking"))]
    slow = time.later(*((later, rollout(one)) for later, one in news), (4.0, DONE))
    admin.answers["WatchRollout"] = [lambda request: [DONE] if request.name == "b" else slow(request)]
    waits(client, Format.TABLE, "a", "b")
    assert capsys.readouterr().out.splitlines() == [
        "0/2 served, 1 staging, 1 without a report, slowest r0",
        "0/2 served, 1 checking, 1 without a report, slowest r0",
        "2/2 served",
    ]


STYLES = {"bold": "\x1b[1m", "red": "\x1b[31m", "green": "\x1b[32m"}


@pytest.fixture
def drawn(client, admin, monkeypatch) -> Any:
    """What a person sees who waits there: the lines of all drawings, with their styles."""
    seen = io.StringIO()
    console = Console(file=seen, force_terminal=True, width=200, height=60, color_system="standard")
    monkeypatch.setattr(Printer, "console", console)

    def wait(**rollouts: pb.Rollout) -> list[tuple[str, str]]:
        admin.answers["WatchRollout"] = [lambda request: [rollouts[request.name]]]
        waits(client, Format.TABLE, *rollouts)
        found = []
        for line in seen.getvalue().replace("\x1b[2K", "").replace("\x1b[1A", "").replace("\r", "\n").splitlines():
            style = next((name for name, begun in STYLES.items() if line.startswith(begun)), "")
            bare = line.removeprefix(STYLES.get(style, "")).partition("\x1b[0m")[0].rstrip()
            if bare and not bare.startswith("\x1b[?"):
                found.append((bare, style))
        return found

    return wait


@pytest.mark.parametrize(
    ("of", "line", "style"),
    [
        (DONE, "1 of 1 replicas serve it", "green"),
        (rollout(FULL), "0 of 1 replicas serve it (r0 pending: over_capacity)", ""),
        (BAD, "replicas_failed (r0 failed)", "red"),
    ],
)
def test_on_a_terminal_one_rollout_is_green_red_or_plain_and_stands_there_once(drawn, of, line, style):
    found = drawn(sql=of)
    assert (found[-1], len({told for told, _ in found})) == ((f"sql generation 4: {line}", style), 1)


@pytest.mark.parametrize(("bad", "more"), [(2, None), (20, None), (21, 1), (23, 3)])
def test_on_a_terminal_several_rollouts_are_a_sum_and_their_failures(drawn, bad, more):
    """Of very many failures the first are named, and the rest counted."""
    expected = [(f"1/{bad + 1} served, {bad} failed", "bold")]
    expected += [("sql generation 4: replicas_failed (r0 failed)", "red")] * min(bad, 20)
    expected += [(f"and {more} more failed", "red")] if more else []
    assert drawn(**{f"a{number:02}": BAD for number in range(bad)}, z=DONE)[-len(expected) :] == expected
