"""Tables on a terminal and elsewhere, and the forms of values."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import redirect_stdout

import pytest
import yaml

from registry.cli.views.output import Format, OutputView, Printer, yaml_document
from tests.unit.cli.test_sets import Terminal

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


def test_a_table_on_a_terminal_stays_within_it_and_loses_nothing(drawn):
    header, *rows = seen(drawn(lambda printer: printer.items(VIEW, [LONG])))
    assert header.split() == ["TEXT", "END"]
    assert max(map(len, [header, *rows])) <= 30
    assert len(rows) > 1
    assert "".join(row.split()[0] for row in rows) == LONG
    assert [row.split()[1:] for row in rows] == [["x"], *[[]] * (len(rows) - 1)]


@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_who_reads_what_is_drawn_for_a_terminal_may_ask_for_it(capsys, monkeypatch, name):
    Printer(Format.TABLE).items(VIEW, ["a"])
    assert "\x1b[" not in capsys.readouterr().out
    monkeypatch.setenv(name, "1")
    Printer(Format.TABLE).items(VIEW, ["a"])
    assert "\x1b[" in capsys.readouterr().out


def test_without_a_terminal_a_row_is_a_line(capsys):
    Printer(Format.TABLE).items(VIEW, [LONG * 40, "b"])
    header, first, second = capsys.readouterr().out.splitlines()
    assert first == f"{LONG * 40}  x"
    assert header.index("END") == second.index("x") == first.rindex("x")
    Printer(Format.TABLE).items(VIEW, ["", "b"])
    assert capsys.readouterr().out == "TEXT  END\n      x\nb     x\n"


@pytest.mark.parametrize("wide", ["\u8a9e\u6587", "e\u0300te\u0300", "e\u0301te\u0301"])
def test_letters_of_other_widths_stay_in_their_columns(capsys, wide):
    """A letter may take two columns, or none; the cells beside them are plain."""
    Printer(Format.TABLE).items(VIEW, [wide, "abcdefgh"])
    odd = capsys.readouterr().out.splitlines()[1]
    columns = {"\u8a9e": 2, "\u6587": 2, "\u0300": 0, "\u0301": 0}
    assert sum(columns.get(one, 1) for one in odd[: odd.index("x")]) == len("abcdefgh  ")


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


@pytest.mark.parametrize(("items", "is_more"), [(["a" * 30, *"bcdef"], False), (["a" * 30, *"bcdefg"], True)])
def test_a_live_table_of_folded_rows_is_cut_as_well(drawn, items, is_more):
    """A row of two lines takes the room of two."""
    lines = seen(drawn(lambda printer: printer.redraw(VIEW, items, "")))
    assert [len(line.split()[0]) > 1 for line in lines[1:3]] == [True, True]
    assert [line.split()[0] for line in lines[3:8]] == list("bcdef")
    assert lines[8:] == (["\u2026 and more, of 7 in all"] if is_more else [])


def test_a_small_terminal_shows_one_row(drawn):
    lines = seen(drawn(lambda printer: printer.redraw(VIEW, ["a", "b"], ""), lines=2))
    assert [line.split()[0] for line in lines] == ["TEXT", "a", "\u2026"]


def test_lists_of_numbers_are_one_line_of_yaml_and_others_are_not():
    value = {"none": [], "numbers": [1, 2.5], "texts": ["a", "b"], "mixed": ["a", 1], "deep": [{"at": [1]}]}
    assert "Gr\u00f6\u00dfe, \u6a21\u578b" in yaml_document({"letters": "Gr\u00f6\u00dfe, \u6a21\u578b"})
    text = yaml_document(value)
    assert yaml.safe_load(text) == value
    assert text.splitlines()[1:3] == ["none: []", "numbers: [1, 2.5]"]
    assert text.splitlines()[3:] == ["texts:", "- a", "- b", "mixed:", "- a", "- 1", "deep:", "- at: [1]"]


def test_an_empty_jsonpath_prints_nothing_and_text_ends_its_line(capsys):
    for template, printed in (("{.none}", ""), ("{.text}", "a\n"), ('{.text}{"\\n"}', "a\n")):
        Printer(Format.JSONPATH, template).item(VIEW, "a")
        assert capsys.readouterr().out == printed, template


def test_a_name_with_half_a_letter_is_printed(capfd):
    """X2: as JSON and file names may hold it, and UTF-8 cannot."""
    Printer(Format.TABLE).lines(["a\udc80b"])
    assert capfd.readouterr().out.startswith("a\\udc80b")


def test_fields_stand_below_each_other(capsys):
    Printer(Format.TABLE).fields({"A": "1", "LONGER": "2"})
    assert capsys.readouterr().out == "A:      1\nLONGER: 2\n"
