"""The command that checks an exported history."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import pytest

from registry.etcd3.errors import EtcdUnavailable
from registry.etcd3.ops import Event, KeyValue
from registry.runtime.program import variable_of
from registry.tools.verify import main as command
from registry.tools.verify.export import decode, encode
from registry.tools.verify.history import HistoryBase, Revision, Step
from registry.tools.verify.main import app, main
from tests.support.changes import KEYS
from tests.unit.verify.conftest import steps_of

FLAGS = [
    pytest.param(flag, id=f"{name} {flag.opts[0]}") for name, command in app.commands.items() for flag in command.params
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


def run(*arguments: str) -> int:
    return app(args=arguments, standalone_mode=False) or 0


def again(author, count: int) -> list[Step]:
    """The history, and so many revisions more in each of which a request of it is settled again."""
    key = KEYS.request("q2", "operator:alice")
    kv = author.etcd.kvs[key]
    return [*steps_of(author), *(Revision(at, (Event(key, at, kv),)) for at in range(7, 7 + count))]


def test_the_command_tells_a_counter_example_and_fails(author, history, capsys):
    assert run("verify", "--history", str(history), "--prefix", "/t") == 0
    assert capsys.readouterr().out == "revisions 0 to 6, 6 changes: 0 findings\n"
    history.write_text("\n".join(encode(again(author, 1))))
    assert run("verify", "--history", str(history), "--prefix", "/t") == 1
    found = "W3 at revision 7, operator:alice/q2: this request was settled before, at 2"
    assert capsys.readouterr().out == f"{found}\nrevisions 0 to 7, 6 changes: 1 findings\n"


@pytest.mark.parametrize(
    ("count", "shown"), [(100, 100), (101, 100), (145, 100)], ids=["as many as are shown", "one more", "many more"]
)
def test_of_many_findings_the_first_are_shown_and_the_rest_counted(author, history, capsys, count, shown):
    history.write_text("\n".join(encode(again(author, count))))
    assert run("verify", "--history", str(history), "--prefix", "/t") == 1
    *told, last = capsys.readouterr().out.splitlines()
    more = [f"… and {count - shown} more"] if count > shown else []
    assert told[shown:] == more
    assert all(line.startswith(f"W3 at revision {at}, ") for at, line in enumerate(told[:shown], start=7))
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--history", "absent"], "absent"),
        (["--history", "bad"], "line 1"),
        (["--history", "empty"], "no pool below '/loraplane/v1'"),
        (["--history", "good", "--prefix", "/u"], "no pool below '/u'; --prefix"),
    ],
)
def test_what_cannot_be_checked_is_named(arguments, words, author, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good").write_text("\n".join(encode(steps_of(author))))
    (tmp_path / "bad").write_text("?")
    (tmp_path / "empty").write_text("")
    assert run("verify", *arguments) == 2
    assert words in capsys.readouterr().err


def test_the_variables_are_read(history, monkeypatch, capsys):
    monkeypatch.setenv("LORAPLANE_HISTORY", str(history))
    monkeypatch.setenv("LORAPLANE_PREFIX", "/t")
    assert run("verify") == 0
    assert "6 changes: 0 findings" in capsys.readouterr().out


@pytest.fixture
def ended(monkeypatch) -> Callable[..., int]:
    """Runs the program; its exit code."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["loraplane-verify", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        return int(stopped.value.code or 0)

    return run


@pytest.mark.parametrize("line", ["", "verify", "frob", "verify --frob", "export --etcd a:1 --out x --from-revision 0"])
def test_a_wrong_command_line_is_told_in_one_line(line, ended, capsys):
    assert ended(*line.split()) == 2
    assert re.fullmatch("loraplane-verify: .{10,}; see loraplane-verify --help\n", capsys.readouterr().err)


def test_a_process_ends_with_what_is_found_and_tells_its_version(ended, capsys):
    assert ended("verify", "--history", "absent") == 2
    assert ended("--version") == 0
    assert capsys.readouterr().out == f"loraplane-verify {version('loraplane')}\n"
