"""Words of others in each form of output."""

from __future__ import annotations

import json

import pytest
import typer
import yaml

from registry.cli import main
from registry.cli.failure import CommandFailure, Exit
from registry.cli.views.output import Format, OutputView, Printer
from registry.tools.verify import main as verify_main

HOSTILE = "evil\nready: yes\r\x1b[2J\x9b31m\x85\u202egnp\u2066\u2028 end"
PLAIN = "Größe 模型 עברית"
VIEW: OutputView[dict[str, str]] = OutputView(lambda one: one["name"], dict, {"NAME": lambda one: one["name"]})


def is_safe(text: str, lines: int) -> bool:
    return text.count("\n") == lines and all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("form", [Format.TABLE, Format.WIDE, Format.NAME])
def test_lines_and_cells_cannot_be_forged(form, capsys):
    """X2: what somebody wrote ends no line, in no form."""
    Printer(form).items(VIEW, [{"name": HOSTILE}])
    Printer(form).row(VIEW, {"name": HOSTILE})
    Printer(form).lines([HOSTILE])
    assert is_safe(capsys.readouterr().out, 3 if form == Format.NAME else 4)


def test_a_description_has_one_line_a_field(capsys):
    """X2: a message with line breaks forged fields of `describe`."""
    Printer(Format.TABLE).fields({"Name": "x", "Status note": HOSTILE, HOSTILE: PLAIN})
    told = capsys.readouterr().out
    assert is_safe(told, 3)
    assert "\\nready: yes" in told
    assert PLAIN in told


@pytest.mark.parametrize(("form", "read"), [(Format.JSON, json.loads), (Format.YAML, yaml.safe_load)])
def test_json_and_yaml_mean_what_was_written_and_show_it_in_escapes(form, read, capsys):
    """X2: C1 controls and bidirectional overrides too, in keys as in values."""
    value = {"name": HOSTILE, HOSTILE: [HOSTILE, PLAIN], "plain": PLAIN, "long": f"{HOSTILE} 😀 " * 40}
    for show in (Printer(form).plain, Printer(form).event):
        show(value)
        told = capsys.readouterr().out
        assert read(told) == value
        assert is_safe(told, told.count("\n"))
        assert PLAIN in told


@pytest.mark.parametrize("form", ["json", "table"])
def test_errors_are_one_line(form, capsys):
    """X2: with `-o json` too."""
    failure = CommandFailure(Exit.INTERNAL, "X", HOSTILE, HOSTILE, {"k": HOSTILE}, HOSTILE)
    main._report(failure, ["-o", form])
    told = capsys.readouterr().err
    assert is_safe(told, 1)
    if form == "json":
        assert json.loads(told)["error"]["message"] == HOSTILE


class Replayed:
    """A fold of one revision."""

    first_revision = revision = 1
    changing = ()


def test_the_replay_checker_shows_findings_and_complaints_in_one_line_each(capsys):
    """X2: keys of etcd are anybody's bytes."""
    with pytest.raises(typer.Exit):
        verify_main._report(Replayed(), [HOSTILE], {})
    assert is_safe(capsys.readouterr().out, 2)
    with pytest.raises(typer.Exit):
        verify_main._fail(2, HOSTILE)
    assert is_safe(capsys.readouterr().err, 1)
