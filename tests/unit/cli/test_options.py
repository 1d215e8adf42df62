"""The whole command line: each flag has its variable and its help, each command its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from registry.cli.hoist import GLOBAL_OPTIONS
from registry.cli.main import make_app, run
from registry.daemon.flags import variable_of

ROOT = typer.main.get_command(make_app())


def _commands(command: Any, path: str = "loraplane") -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, f"{path} {name}")


TYPERS_OWN = {"--version", "--install-completion", "--show-completion"}
COMMANDS = dict(_commands(ROOT))
FLAGS = [
    pytest.param(flag, id=f"{path} {flag.opts[0]}")
    for path, command in COMMANDS.items()
    for flag in command.params
    if flag.param_type_name == "option" and flag.opts[0] not in TYPERS_OWN
]


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_has_its_variable_and_help(flag):
    long = next(name for name in flag.opts if name.startswith("--"))
    assert flag.envvar == variable_of(long)
    assert flag.help


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_says_what_it_does(path, capsys):
    assert run([*path.split()[1:], "--help"]) == 0
    assert COMMANDS[path].help.splitlines()[0] in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_the_commands_are_those_of_the_interface():
    expected = "apply add get describe delete history rollback rollout diff check digest publish sign doctor".split()
    assert set(ROOT.commands) == {*expected, "break-glass", "pool", "tenant", "dev"}
    assert set(ROOT.commands["break-glass"].commands) == {"delete", "settle"}
    assert set(ROOT.commands["pool"].commands) >= {"create", "delete"}
    assert set(ROOT.commands["dev"].commands) == {"up", "status", "down"}


def test_what_may_stand_anywhere_are_the_options_of_the_root():
    assert {name for flag in ROOT.params for name in flag.opts} - TYPERS_OWN == GLOBAL_OPTIONS


def test_no_command_has_a_flag_of_the_root():
    for path, command in COMMANDS.items():
        names = {name for flag in command.params for name in flag.opts}
        assert path == "loraplane" or not names & GLOBAL_OPTIONS


def test_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("loraplane ")
