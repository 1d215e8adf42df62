"""The whole command line: each flag has its help, those that say where things are a variable, each command its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from registry.cli.command_tree import LazyCommand
from registry.cli.main import make_command, run
from registry.cli.options import GLOBAL_OPTIONS
from registry.runtime.program import variable_of

ROOT = make_command()
ROOT.commands = {name: child.load() for name, child in ROOT.commands.items() if isinstance(child, LazyCommand)}


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


# Of all that the command line may say, what the environment may say too: nothing of it is written into a record.
WHERE_AND_WHO = (
    "--context --admin --tls-ca --tls-cert --tls-key --pool --output --timeout --look-seconds --credentials "
    "--hf-endpoint --etcd --etcd-tls-ca --etcd-tls-cert --etcd-tls-key --etcd-user --etcd-password-file"
).split()


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_has_its_help_and_only_what_says_where_things_are_a_variable(flag, request):
    long = next(name for name in flag.opts if name.startswith("--"))
    is_asked = long in WHERE_AND_WHO and "set-context" not in request.node.name
    assert flag.envvar == (variable_of(long) if is_asked else None)
    assert flag.help


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_says_what_it_does(path, capsys):
    assert run([*path.split()[1:], "--help"]) == 0
    assert COMMANDS[path].help.splitlines()[0] in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_the_commands_are_those_of_the_interface():
    expected = (
        "apply add set get describe events delete retry history rollback rollout diff check digest publish sign doctor"
        " expect"
    )
    more = "top export edit label explain schema completion config backup restore drain undrain pool replica tenant dev"
    assert set(ROOT.commands) == {*expected.split(), *more.split()}
    contexts = {f"{verb}-context" for verb in ("set", "use", "delete")}
    assert set(ROOT.commands["config"].commands) == contexts | {"get-contexts"}
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
