"""The command that checks an exported history."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import pytest
import typer.main

from registry.etcd3.errors import EtcdUnavailable
from registry.etcd3.ops import Event, KeyValue
from registry.runtime.program import variable_of
from registry.tools.verify import main as command
from registry.tools.verify.export import decode, encode
from registry.tools.verify.history import HistoryBase, Revision
from registry.tools.verify.main import app, main
from registry.tools.verify.replay import LoggedCall
from tests.unit.verify.conftest import steps_of

FLAGS = [
    pytest.param(flag, id=f"{name} {flag.opts[0]}")
    for name, command in typer.main.get_command(app).commands.items()
    for flag in command.params
]


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_has_its_variable_and_help(flag):
    assert flag.envvar == variable_of(flag.opts[0])
    assert flag.help


def test_an_export_is_read_as_it_was_written(author):
    odd = Revision(7, (Event(b"/t/\xff", 7, KeyValue(b"/t/\xff", b"\x00\xfe", 7, 7, 1, 5)), Event(b"/t/x", 7, None)))
    steps = [HistoryBase(1, tuple(author.etcd.kvs.values())), *steps_of(author), odd]
    assert list(decode(encode(steps))) == steps
    with pytest.raises(ValueError, match="line 2"):
        list(decode([next(encode(steps)), "{}"]))


@pytest.mark.parametrize(
    "line",
    [
        *("?", "5", "[]", '"base"', "null", "{}", '{"base": null}', '{"base": 1}', '{"base": 1, "kvs": 3}'),
        *(
            '{"base": 1, "kvs": [[]]}',
            '{"base": 1, "kvs": [{}]}',
            '{"revision": "x"}',
            '{"revision": 1, "events": [7]}',
        ),
    ],
)
def test_a_line_that_is_none_of_an_export_is_told_by_its_number(line):
    """X2 unbreakable: whatever stands in the file."""
    good = next(encode([Revision(7, (Event(b"/t/x", 7, None),))]))
    with pytest.raises(ValueError, match=r"^line 2 of the history is none of an export"):
        list(decode([good, line]))


@pytest.fixture
def history(author, tmp_path) -> Path:
    """A file with the history of the pool p, below /t."""
    file = tmp_path / "h.jsonl"
    file.write_text("\n".join(encode(steps_of(author))))
    return file


@pytest.mark.parametrize("line", ["5", "[1]", '"plan_made"', "null", "true"])
def test_a_line_of_a_log_that_is_no_object_is_passed_over(line, history, tmp_path, capsys):
    """As a traceback is: the lines around it count."""
    log = tmp_path / "r1.log"
    log.write_text(f'{line}\n{{"event": "plan_made", "revision": 2, "state_hash": "x"}}\n')
    assert run("verify", "--history", str(history), "--prefix", "/t", "--pool", "p", "--log", str(log)) == 1
    assert "6 changes, 1 plans, 0 loads, 0 statuses, 0 removals: 1 findings" in capsys.readouterr().out


def run(*arguments: str) -> int:
    return app(args=arguments, standalone_mode=False) or 0


def test_the_command_tells_a_counter_example_and_fails(history, tmp_path, capsys):
    calls = tmp_path / "calls.jsonl"
    calls.write_text(LoggedCall(request_id="q2", caller="operator:alice", outcome="ok", revision=2).model_dump_json())
    arguments = ("verify", "--history", str(history), "--prefix", "/t", "--calls", str(calls))
    assert run(*arguments) == 0
    assert "6 changes, 1 calls ok: 0 findings" in capsys.readouterr().out
    calls.write_text(LoggedCall(request_id="gone", outcome="ok", revision=2).model_dump_json())
    assert run(*arguments) == 1
    assert "W1 at revision 2, gone: acknowledged at revision 2, and is not there" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("count", "shown"), [(20, 20), (21, 20), (45, 20)], ids=["as many as are shown", "one more", "many more"]
)
def test_of_many_findings_the_first_are_shown_and_the_rest_counted(history, tmp_path, capsys, count, shown):
    calls = tmp_path / "calls.jsonl"
    lost = [LoggedCall(request_id=f"gone-{number}", outcome="ok", revision=2) for number in range(count)]
    calls.write_text("\n".join(call.model_dump_json() for call in lost))
    assert run("verify", "--history", str(history), "--prefix", "/t", "--calls", str(calls)) == 1
    *told, last = capsys.readouterr().out.splitlines()
    more = [f"… and {count - shown} more"] if count > shown else []
    assert told[shown:] == more
    assert all(f"gone-{number}: acknowledged" in line for number, line in enumerate(told[:shown]))
    assert last.endswith(f": {count} findings")


@pytest.fixture
def etcd(author, monkeypatch) -> Iterator[mock.AsyncMock]:
    """In place of what reads etcd; whatever comes of it, the connection is closed."""
    client = mock.AsyncMock()
    monkeypatch.setattr(command, "Client", lambda _options: client)
    reads = mock.AsyncMock(side_effect=lambda _, prefix, **__: steps_of(author) if prefix == "/t" else [])
    monkeypatch.setattr(command, "read_history", reads)
    yield reads
    assert client.aclose.await_count == reads.await_count > 0


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (EtcdUnavailable("no member answers", maybe_applied=False), "etcd at a:1 cannot be read: no member answers"),
        (TimeoutError(), "etcd at a:1 cannot be read: it takes too long"),
        (ValueError("there is no revision 9 yet"), "etcd at a:1 cannot be read: there is no revision 9 yet"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_etcd_that_does_not_answer_is_told_as_that(error, told, tmp_path, etcd, capsys):
    """Nothing is written, and the exit code is that of an etcd that is away."""
    etcd.side_effect = error
    assert run("export", "--etcd", "a:1", "--out", str(tmp_path / "h")) == 6
    assert capsys.readouterr().err == f"loraplane-verify: {told}\n"
    assert not (tmp_path / "h").exists()


def test_what_was_read_is_written_and_can_be_verified(author, tmp_path, etcd, capsys):
    arguments = ("export", "--etcd", "a:1", "--out", str(tmp_path / "h"))
    assert run(*arguments, "--prefix", "/t", "--from-revision", "3") == 0
    assert capsys.readouterr().out == f"6 revisions in {tmp_path / 'h'}\n"
    assert list(decode((tmp_path / "h").read_text().splitlines())) == steps_of(author)
    assert run(*arguments) == 2
    assert "holds nothing below '/loraplane/v1'" in capsys.readouterr().err
    asked = [(one.args[1], one.kwargs) for one in etcd.await_args_list]
    assert asked == [("/t", {"from_revision": 3}), ("/loraplane/v1", {"from_revision": 1})]
    assert run(*arguments[:-1], str(tmp_path / "no" / "h"), "--prefix", "/t") == 2
    assert f"--out {tmp_path / 'no' / 'h'}: No such file or directory" in capsys.readouterr().err
    assert run(*arguments, "--etcd-user", "u") == 2


def test_the_command_tells_how_much_it_compared(history, tmp_path, capsys):
    """A log that is not one of JSON lines holds no plan, and nothing of it was checked."""
    log, looks = tmp_path / "r1.log", tmp_path / "looks.jsonl"
    log.write_text("12:00 [info] plan_made revision=2\n")
    looks.write_text('{"replica": "r1", "revision": 3, "adapters": {}}\n')
    arguments = ("verify", "--history", str(history), "--prefix", "/t", "--pool", "p")
    assert run(*arguments, "--log", str(log), "--listings", str(looks)) == 0
    assert (
        "6 changes, 0 plans, 0 loads, 0 statuses, 0 removals, 1 looks, 0 of them at a known time: 0 f"
        in capsys.readouterr().out
    )
    log.write_text('{"event": "plan_made", "revision": 2, "state_hash": "x"}\n')
    assert run(*arguments, "--log", str(log)) == 1
    assert "6 changes, 1 plans, 0 loads, 0 statuses, 0 removals: 1 findings" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--history", "absent"], "absent"),
        (["--history", "bad"], "line 1"),
        (["--history", "good", "--calls", "bad", "--prefix", "/t"], "bad, line 1"),
        (["--history", "empty"], "no pool below '/loraplane/v1'"),
        (["--history", "good", "--prefix", "/u"], "no pool below '/u'; --prefix"),
        (["--history", "good", "--prefix", "/t", "--pool", "dve", "--log", "good"], "no pool 'dve', but p"),
        (["--history", "empty", "--log", "bad"], "--pool"),
        (["--history", "good", "--prefix", "/t", "--pool", "p", "--log", "torn"], "torn, line 2: plan_made has no"),
    ],
)
def test_what_cannot_be_checked_is_named(arguments, words, author, tmp_path, capsys, monkeypatch):
    """A file, or a name that the history does not have: of nothing everything would hold."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good").write_text("\n".join(encode(steps_of(author))))
    (tmp_path / "bad").write_text("?")
    (tmp_path / "torn").write_text('Traceback\n{"event": "plan_made", "revision": 2}\n')
    (tmp_path / "empty").write_text("")
    assert run("verify", *arguments) == 2
    assert words in capsys.readouterr().err


def test_the_variables_are_read(history, monkeypatch, capsys):
    monkeypatch.setenv("LORAPLANE_HISTORY", str(history))
    monkeypatch.setenv("LORAPLANE_PREFIX", "/t")
    assert run("verify") == 0
    assert "6 changes: 0 findings" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["", "verify", "frob", "verify --frob", "export --etcd a:1 --out x --from-revision 0"])
def test_a_wrong_command_line_is_told_in_one_line(line, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["loraplane-verify", *line.split()])
    with pytest.raises(SystemExit) as stopped:
        main()
    told = capsys.readouterr().err
    assert (stopped.value.code, told.count("\n")) == (2, 1)
    assert re.fullmatch("loraplane-verify: .{10,}; see loraplane-verify --help\n", told)


def test_version(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["loraplane-verify", "--version"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert (stopped.value.code, capsys.readouterr().out) == (0, f"loraplane-verify {version('loraplane')}\n")


def test_what_is_found_is_in_the_exit_code(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["loraplane-verify", "verify", "--history", str(tmp_path / "absent")])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
