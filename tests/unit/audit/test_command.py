"""loraplane-audit as it is called: wrong input, and what verify prints."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from registry.etcd3.errors import NoLeader
from registry.runtime.settings import DaemonSettings
from registry.tools.audit import main
from registry.tools.audit.compare import AuditedStore
from registry.tools.audit.lines import BeginLine, HoleLine, encode_line
from registry.tools.verify.history import Violation

ETCD = ("--etcd", "127.0.0.1:1")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def run(monkeypatch, capsys):
    def called(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["loraplane-audit", *arguments])
        monkeypatch.setattr(main, "configure_logging", lambda: None)  # logs of others would go to what is closed then
        with pytest.raises(SystemExit) as stopped:
            main.main()
        told = capsys.readouterr()
        return int(stopped.value.code or 0), told.out, told.err

    return called


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (("verify", *ETCD), "FILE…"),
        (("verify", "none", *ETCD), "none: No such file or directory"),
        (("verify", "none"), "--etcd"),
        (("follow",), "--etcd"),
        (("follow", "--etcd", "nowhere"), "etcd"),
        (("follow", *ETCD, "--etcd-user", "u"), "--etcd-password-file"),
        (("follow", *ETCD, "--out", "none/a"), "none/a: No such file or directory"),
        (("follow", *ETCD, "--after", "-1"), "--after"),
    ],
)
def test_wrong_input_is_told_in_one_line(run, tmp_path, monkeypatch, line, told):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*line)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert told in err
    assert err.startswith("loraplane-audit: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("found", "code"), [([], 0), ([Violation("A5", 7, "line 3", "gone\x1b")] * 101, 1)])
def test_findings_are_named_and_decide_about_the_exit_code(run, tmp_path, monkeypatch, found, code):
    async def verified(*_: object) -> tuple[list[Violation], str]:
        return found, "2 lines"

    monkeypatch.setattr(main, "_verified", verified)
    (tmp_path / "a").write_text(encode_line(BeginLine(0)) + encode_line(HoleLine(3, 9)))
    ended, out, _ = run("verify", str(tmp_path / "a"), *ETCD)
    assert ended == code
    assert "between revisions 3 and 9 etcd was compacted" in out
    assert out.endswith(f"2 lines: {len(found)} findings\n")
    assert ("A5 at revision 7, line 3: gone\\x1b\n" in out, "… and 1 more" in out) == (bool(found), bool(found))


@pytest.mark.parametrize(
    ("answers", "asked", "told"),
    [([[], []], [1.0], []), ([["late"], []], [1.0, 5.0], []), ([["late"], ["gone"]], [1.0, 5.0], ["gone"])],
)
async def test_what_is_found_is_looked_for_once_more(monkeypatch, answers, asked, told):
    """A5: a watch may be behind what was listed, and nothing is told of an untouched store."""
    seconds, left = list[float](), iter(answers)

    async def read(*arguments: Any) -> tuple[AuditedStore, list[str]]:
        seconds.append(arguments[-1])
        return AuditedStore("/t/", 7, {}, (), NOW), next(left)

    monkeypatch.setattr(main, "read_audited", read)
    settings, lines = DaemonSettings(etcd=("127.0.0.1:1",)), [BeginLine(0)]
    found, checked = await main._verified(settings, lines, 0, NOW, (timedelta(30), timedelta(7)))
    assert (found, seconds) == (told, asked)
    assert checked == "1 lines, 0 keys at revision 7, history from revision 7 on"


@pytest.mark.parametrize("error", [None, NoLeader("no leader"), "a signal"])
async def test_a_file_of_lines_is_given_back_however_it_ends(monkeypatch, tmp_path, error):
    """X3 given-back: its lock, too. A signal to stop is no error."""
    sink, waits = Mock(), asyncio.Event().wait
    if error == "a signal":
        monkeypatch.setattr(main, "on_stop_signal", lambda end: end())
    run = waits if error == "a signal" else AsyncMock(side_effect=error)
    monkeypatch.setattr(main, "LineFile", lambda *told: sink if told == (tmp_path / "a", 7) else None)
    monkeypatch.setattr(main, "AuditFollower", Mock(return_value=Mock(run=run)))
    with pytest.raises(NoLeader) if isinstance(error, NoLeader) else nullcontext():
        await asyncio.wait_for(main._follow(DaemonSettings(etcd=("127.0.0.1:1",)), tmp_path / "a", 7), 60)
    sink.close.assert_called_once_with()


def test_an_etcd_that_does_not_answer_is_told(run, tmp_path, monkeypatch):
    async def fails(*_: object) -> None:
        raise NoLeader("no leader")

    monkeypatch.setattr(main, "_verified", fails)
    (tmp_path / "a").touch()
    assert run("verify", str(tmp_path / "a"), *ETCD)[::2] == (
        6,
        "loraplane-audit: etcd at 127.0.0.1:1 cannot be read: no leader\n",
    )


def test_the_version_needs_no_etcd(run):
    assert run("--version")[1].startswith("loraplane-audit ")
