"""A fault of ours: told in one line, and where it is."""

from __future__ import annotations

import json
import sys

import pytest

from registry.cli import main


def _broken(arguments: list[str]) -> int:
    return {}[arguments[0]]


@pytest.fixture
def fails(monkeypatch, capsys):
    """Runs the program, in which something is wrong that nobody foresaw."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["loraplane", *arguments])
        monkeypatch.setattr(main, "run", _broken)
        with pytest.raises(SystemExit) as ended:
            main.main()
        captured = capsys.readouterr()
        return int(str(ended.value.code)), captured.out, captured.err

    return run


def test_what_nobody_foresaw_is_told_with_the_line_that_it_comes_from(fails):
    code, out, err = fails("get", "pools")
    line = _broken.__code__.co_firstlineno + 1
    assert (code, out) == (1, "")
    assert err == f"error: INTERNAL: KeyError: 'get' (at {__file__}:{line}); please report it\n"


def test_programs_are_told_it_as_an_object(fails, monkeypatch):
    for arguments, variable in ((("-o", "json", "get"), ""), (("get",), "json"), (("get", "-o", "json"), "")):
        monkeypatch.setenv("LORAPLANE_OUTPUT", variable)
        code, _, err = fails(*arguments)
        error = json.loads(err)["error"]
        assert (code, error["reason"], error["exit_code"]) == (1, "INTERNAL", 1)


@pytest.mark.parametrize("code", [0, 4])
def test_the_code_of_a_command_is_that_of_the_program(monkeypatch, code):
    monkeypatch.setattr(main, "run", lambda _arguments: code)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == code
