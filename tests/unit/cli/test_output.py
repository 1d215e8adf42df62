"""The forms of output: tables on a terminal and elsewhere, values, templates; and words of others in each."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from contextlib import redirect_stdout

import click
import pytest
import yaml

from registry.cli import main
from registry.cli.failure import CliError, CommandFailure, Exit
from registry.cli.views.output import Color, Format, Output, OutputView, Printer, output_of, write_out, yaml_document
from registry.cli.views.template import columns_of
from registry.tools.verify import program
from registry.tools.verify.history import Violation
from tests.unit.cli.conftest import Terminal

VIEW: OutputView[str] = OutputView(
    name=str, plain=lambda one: {"text": one}, columns={"TEXT": str, "END": lambda _: "x"}
)
LONG = "".join(f"part{number:02}" for number in range(12))
Draw = Callable[[Printer], None]


@pytest.fixture
def drawn(monkeypatch) -> Callable[..., str]:
    """What is written to a terminal of 30 columns."""

    def draw(draws: Draw, lines: int = 10) -> str:
        for name, value in {"TERM": "xterm", "COLUMNS": "30", "LINES": str(lines), "NO_COLOR": "1"}.items():
            monkeypatch.setenv(name, value)
        with redirect_stdout(Terminal()) as terminal:
            draws(Printer(Format.TABLE))
        return terminal.getvalue()

    return draw


def seen(written: str) -> list[str]:
    """The lines that a person sees, without what styles them."""
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", written).splitlines()


def test_what_is_written_to_a_pipe_is_there_at_once():
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), write_through=False)) as pipe:
        write_out("event \ud800\n")
        assert pipe.buffer.getvalue() == b"event \\ud800\n"


def test_a_row_is_a_line_and_a_name_is_whole(drawn, capsys):
    """On a narrow terminal too. A letter may take two columns, or none; the cells beside them are plain."""
    header, row = seen(drawn(lambda printer: printer.items(VIEW, [LONG])))
    assert (header.split(), row.split()) == (["TEXT", "END"], [LONG, "x"])
    Printer(Format.TABLE).items(VIEW, [LONG * 40, "b"])
    header, first, second = capsys.readouterr().out.splitlines()
    assert first == f"{LONG * 40}  x"
    assert header.index("END") == second.index("x") == first.rindex("x")
    Printer(Format.TABLE).items(VIEW, ["", "b"])
    assert capsys.readouterr().out == "TEXT  END\n      x\nb     x\n"
    for wide, columns in (("\u8a9e\u6587", 4), ("e\u0300te\u0300", 3), ("e\u0301te\u0301", 3)):
        Printer(Format.TABLE).items(VIEW, [wide, "abcdefgh"])
        odd = capsys.readouterr().out.splitlines()[1]
        assert columns + odd.index("x") - len(wide) == len("abcdefgh  ")


@pytest.mark.parametrize(("foot", "room"), [([], 7), (["the foot"], 6)])
@pytest.mark.parametrize("over", [-1, 0, 1, 40])
def test_a_live_table_has_as_much_as_there_is_room_for_and_its_foot(drawn, foot, room, over):
    """That there is more is said below the table where there is, the foot last; and nothing scrolls out at the top."""
    count = room + over
    written = drawn(lambda printer: printer.redraw(VIEW, [f"n{one}" for one in range(count)], "".join(foot)))
    assert "\x1b[2J" in written.partition("TEXT")[0]
    header, *rows = seen(written)
    assert header.split() == ["TEXT", "END"]
    shown = min(count, room)
    assert [row.split()[0] for row in rows[:shown]] == [f"n{one}" for one in range(shown)]
    assert rows[shown:] == [*([f"\u2026 and more, of {count} in all"] if over > 0 else []), *foot]
    assert written.count("\n") < 10
    header, row = seen(drawn(lambda printer: printer.redraw(VIEW, ["a" * 40], "")))
    assert row == "a" * 29 + "\u2026", "a row that ran on would push others out"


def test_lists_of_numbers_are_one_line_of_yaml_and_others_are_not():
    value = {"none": [], "numbers": [1, 2.5], "texts": ["a", "b"], "mixed": ["a", 1], "deep": [{"at": [1]}]}
    assert "Gr\u00f6\u00dfe, \u6a21\u578b" in yaml_document({"letters": "Gr\u00f6\u00dfe, \u6a21\u578b"})
    text = yaml_document(value)
    assert (yaml.safe_load(text), text.splitlines()[1:3]) == (value, ["none: []", "numbers: [1, 2.5]"])
    assert text.splitlines()[3:] == ["texts:", "- a", "- b", "mixed:", "- a", "- 1", "deep:", "- at: [1]"]


HOSTILE = "evil\nready: yes\r\x1b[2J\x9b31m\x85\u202egnp\u2066\u2028 end"
PLAIN = "Größe 模型 עברית"


def is_safe(text: str, lines: int) -> bool:
    return text.count("\n") == lines and all(line.isprintable() for line in text.split("\n"))


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


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (".items[*].name", r"a,b\x1b"),
        *(("items[-1].name", r"b\x1b"), ("$.items[0].n[*]", "1,2")),
        *((".items[0].labels['x/y']", "1"), (".items[0].labels.x/y", "1"), (".items[0].labels", '{"x/y": "1"}')),
        *(("{.items[0].*}", 'a,{"x/y": "1"},[1, 2]'), (".items[1].n", "<none>")),
        *((path, "<none>") for path in (".items[7].name", ".nothing", ".items.name", ".items[0].name[0]")),
    ],
)
def test_a_cell_is_what_its_path_leads_to(path, text):
    items = [{"name": "a", "labels": {"x/y": "1"}, "n": [1, 2]}, {"name": "b\x1b", "labels": {}, "n": None}]
    (column,) = columns_of(f"X:{path}")
    assert column.cell({"items": items}) == text


@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_who_reads_what_is_drawn_for_a_terminal_may_ask_for_it(capfd, monkeypatch, drawn, name):
    for asked in (False, True):
        if asked:
            monkeypatch.setenv(name, "1")
        Printer(Format.TABLE).items(VIEW, ["a"])
        assert ("\x1b[" in capfd.readouterr().out) == asked
    lines = seen(drawn(lambda printer: printer.redraw(VIEW, ["a", "b"], ""), lines=2))
    assert [line.split()[0] for line in lines] == ["TEXT", "a", "\u2026"], "a small one shows one row"


def test_what_is_printed_ends_its_line(capfd):
    """X2: also half a letter, as JSON and file names may hold it and UTF-8 cannot."""
    Printer(Format.TABLE).lines(["a\udc80b"])
    assert capfd.readouterr().out.startswith("a\\udc80b")
    Printer(Format.TABLE).fields({"A": "1", "LONGER": "2"})
    assert capfd.readouterr().out == "A:      1\nLONGER: 2\n"


@pytest.mark.parametrize("form", [Format.TABLE, Format.WIDE, Format.NAME])
def test_lines_and_cells_cannot_be_forged(form, capsys):
    """X2: what somebody wrote ends no line, in no form; a message with line breaks forged fields of `describe`."""
    Printer(form).items(VIEW, [HOSTILE])
    Printer(form).row(VIEW, HOSTILE)
    Printer(form).lines([HOSTILE])
    assert is_safe(capsys.readouterr().out, 3 if form == Format.NAME else 4)
    Printer(Format.TABLE).fields({"Name": "x", "Status note": HOSTILE, HOSTILE: PLAIN})
    told = capsys.readouterr().out
    assert (is_safe(told, 3), "\\nready: yes" in told, PLAIN in told) == (True, True, True)
    for report, lines in (
        (lambda: program.report([Violation("W3", 1, HOSTILE, HOSTILE)], "1 revision"), 2),
        (lambda: program.fail("loraplane-verify", 2, HOSTILE), 1),
    ):
        with pytest.raises(click.exceptions.Exit):
            report()
        shown = capsys.readouterr()
        assert is_safe(shown.out + shown.err, lines), "keys of etcd are anybody's bytes"


def test_a_wrong_form_is_refused_before_anybody_is_asked(cli, admin):
    for columns in ("", "NAME", "NAME:", ":.name", "NAME:.name,", "NAME:.a b", "NAME:.a..b", "NAME:.a[?(@.b)]"):
        with pytest.raises(CliError, match="-o custom-columns"):
            columns_of(columns)
    for output in ("custom-columns=NAME", "custom-columns", "jsonpath={.a}", "json=x", "neither"):
        assert (cli("get", "adapters", "-o", output).code, admin.requests) == (2, [])


@pytest.mark.parametrize(
    ("color", "variables", "styled"),
    [
        *(("auto", {}, True), ("auto", {"NO_COLOR": "1"}, False), ("auto", {"TERM": "dumb"}, False)),
        *(("never", {"FORCE_COLOR": "1"}, False), ("always", {"NO_COLOR": "1"}, True)),
    ],
)
def test_colours_are_for_terminals_unless_somebody_says_otherwise(monkeypatch, color, variables, styled):
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with redirect_stdout(Terminal()) as terminal:
        Printer(Format.TABLE, color=Color(color)).items(VIEW, ["a"])
        assert Printer(Format.TABLE, color=Color(color)).console.no_color is not styled
    assert ("\x1b[1mTEXT" in terminal.getvalue()) is styled
    assert output_of("table", color) == Output(Format.TABLE, color=Color(color))


def test_a_use_of_colours_that_is_none_is_refused():
    with pytest.raises(CliError, match="--color sometimes: choose one of auto, always, never"):
        output_of("table", "sometimes")
