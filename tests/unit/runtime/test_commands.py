"""Commands of click that are made from functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest

from registry.runtime.commands import Group, argument, command, complaint, flag, version_flag

CALLS: list[Mapping[str, Any]] = []


@dataclass(frozen=True)
class Shared:
    """What several commands take."""

    folder: Annotated[Path | None, flag("--dir", help="A folder.")] = None
    seconds: Annotated[float, flag("--seconds", "-s", help="How long.", min=0.5, max=9, envvar="FRY_SECONDS")] = 3.0


def fry(
    context: click.Context,
    name: Annotated[str, argument(help="What.")],
    more: Annotated[list[str] | None, argument(metavar="[MORE]...", help="What else.")] = None,
    *,
    eggs: Annotated[int, flag("--eggs", help="How many.", min=1)],
    pans: Annotated[list[int] | None, flag("--pan", help="Which.")] = None,
    salty: Annotated[bool, flag("--salty", help="With salt.")] = False,
    hot: Annotated[bool | None, flag("--hot/--cold", help="At first.")] = None,
    fat: Annotated[Literal["oil", "butter"] | None, flag("--fat", help="In which.")] = None,
    shared: Shared,
) -> None:
    """Fry what
    is there.

    More of that.
    """
    CALLS.append({**locals(), "context": context.command.name})


GROUP = Group(
    "kitchen", {"fry": command("fry", fry), "boil": command("boil", lambda: None)}, params=[version_flag("k")]
)
NOTHING = {"more": (), "pans": (), "salty": False, "hot": None, "fat": None, "shared": Shared()}


def run(*arguments: str) -> object:
    return GROUP.main(list(arguments), prog_name="kitchen", standalone_mode=False)


@pytest.mark.parametrize(
    ("line", "called"),
    [
        ("a --eggs 2", {"eggs": 2}),
        ("a b c --eggs 2", {"eggs": 2, "more": ("b", "c")}),
        ("a --eggs 2 --pan 1 --pan 0", {"eggs": 2, "pans": (1, 0)}),
        ("a --eggs 2 --salty --cold --fat oil", {"eggs": 2, "salty": True, "hot": False, "fat": "oil"}),
        ("a --eggs 2 --dir x -s 0.5", {"eggs": 2, "shared": Shared(Path("x"), 0.5)}),
    ],
)
def test_a_function_is_called_with_what_the_line_gives_and_its_own_defaults(line, called):
    CALLS.clear()
    run("fry", *line.split())
    assert [{"context": "fry", "name": "a", **NOTHING, **called}] == CALLS


def test_a_path_may_be_one_that_is_only_written_to(monkeypatch, tmp_path):
    monkeypatch.setattr("os.access", lambda *_: False)
    run("fry", "a", "--eggs", "2", "--dir", f"{tmp_path}")
    assert CALLS[-1]["shared"] == Shared(tmp_path)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("fry --eggs 1", "Missing argument 'name'"),
        ("fry a", "Missing option '--eggs'"),
        ("fry a --eggs 0", "Invalid value for '--eggs': Input should be greater than or equal to 1"),
        (
            "fry a --eggs 1.5",
            "Invalid value for '--eggs': Input should be a valid integer, unable to parse string as an integer",
        ),
        ("fry a --eggs 1 -s 9.5", "(env var: 'FRY_SECONDS'): Input should be less than or equal to 9"),
        ("fry a --eggs 1 -s nan", "(env var: 'FRY_SECONDS'): Input should be greater than or equal to 0.5"),
        ("fry a --eggs 1 -s x", "Input should be a valid number, unable to parse string as a number"),
        ("fry a --fat lard", "Invalid value for '--fat': 'lard' is not one of 'oil', 'butter'"),
        ("fry a --egs 1", "No such option: --egs (Possible options: --eggs)"),
        ("fry a --frob", "No such option: --frob"),
        ("bake", "No such command 'bake'"),
        ("boil eggs", "Got unexpected extra argument (eggs)"),
        ("", "name a command"),
    ],
)
def test_a_mistake_is_told_in_one_line(line, told):
    with pytest.raises(click.UsageError) as raised:
        run(*line.split())
    said = complaint(raised.value)
    assert (said.endswith(told), "\n" in said) == (True, False), said


def test_a_group_tells_its_commands_as_they_are_declared_and_a_command_its_bounds(capsys):
    with pytest.raises(click.UsageError):
        run()
    assert capsys.readouterr().out.split("Commands:\n")[1].split() == ["fry", "Fry", "what", "is", "there.", "boil"]
    run("fry", "--help")
    shown = " ".join(capsys.readouterr().out.split())
    for part in (
        "Usage: kitchen fry [OPTIONS] NAME [MORE]...",
        "Fry what is there. More of that.",
        "How many. From 1.",
        "How long. From 0.5 to 9. [env var: FRY_SECONDS; default: 3.0]",
    ):
        assert part in shown
    assert (run("--version"), capsys.readouterr().out[:2]) == (0, "k ")
