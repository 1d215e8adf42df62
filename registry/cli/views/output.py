"""Printing results: tables for people, json, yaml and names for programs.

A row of a table is one line, and a name is never cut. On a terminal, what people read (reasons, notes) is cut with …
where a row would be longer than a line; where that does not suffice the row runs on, as kubectl's do, and what people
read gets what its last line has left. So no cell is ever folded, and names, addresses and digests can be copied whole.
A file or a pipe has every cell whole.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, TypeVar

from registry.cli.failure import usage
from registry.cli.views.template import columns_of
from registry.lora.text import escaped, printable

if TYPE_CHECKING:
    from rich.console import Console

Item = TypeVar("Item")

# A file or a pipe has no width: nothing is cut or wrapped there.
_UNBOUNDED_WIDTH = 100_000
# By these programs are told to write for a terminal where there is none.
_LIKE_A_TERMINAL = ("FORCE_COLOR", "TTY_COMPATIBLE")


class Format(StrEnum):
    """Forms of output."""

    TABLE = "table"
    WIDE = "wide"  # a table that says more, where there is one; a table elsewhere
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    MANIFEST = "manifest"  # what `apply` takes; of adapters alone
    CUSTOM_COLUMNS = "custom-columns"  # =TITLE:.path,…: a table of what `json` has


class Color(StrEnum):
    """Use of colours and bold letters; `AUTO`: on a terminal, unless NO_COLOR is set."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Output:
    """A form, what stands behind it, and the use of colours."""

    form: Format
    template: str = ""
    color: Color = Color.AUTO


# What -o may be, as it is completed.
OUTPUTS = tuple(f"{form}=" if form is Format.CUSTOM_COLUMNS else form.value for form in Format)


def output_of(text: str, color: str = Color.AUTO) -> Output:
    """The form that ``-o`` names, and the use of colours that ``--color`` names.

    Raises:
        CliError: there is none of that name, or its template is wrong.
    """
    if color not in {*Color}:
        raise usage(f"--color {color}: choose one of {', '.join(Color)}")
    name, equals, template = text.partition("=")
    if name not in {*Format} or bool(equals) != (name == Format.CUSTOM_COLUMNS):
        raise usage(f"-o {text}: choose one of {', '.join(OUTPUTS)}; for any other text: -o json | jq")
    if equals:
        columns_of(template)
    return Output(Format(name), template, Color(color))


@dataclass(frozen=True, slots=True)
class OutputView(Generic[Item]):
    """Form in which items of one kind are shown: their name, their plain form, and the cells of their row by title.

    `more`: further cells, which `-o wide` shows. `order`: what a column is sorted by, where that is not its cell.
    `manifest`: what makes one; None: nothing that can be applied does. `is_dim`: true of an item that is told as it was
    last known; None: all are told as they are.
    """

    name: Callable[[Item], str]
    plain: Callable[[Item], Mapping[str, object]]
    columns: Mapping[str, Callable[[Item], str]]
    more: Mapping[str, Callable[[Item], str]] = field(default_factory=dict)
    order: Mapping[str, Callable[[Item], str]] = field(default_factory=dict)
    manifest: Callable[[Item], Mapping[str, object]] | None = None
    is_dim: Callable[[Item], bool] | None = None

    def dimmed(self, items: Sequence[Item]) -> frozenset[int]:
        """The numbers of the items that are told as they were last known."""
        return frozenset(number for number, one in enumerate(items) if self.is_dim is not None and self.is_dim(one))

    @property
    def all_columns(self) -> Mapping[str, Callable[[Item], str]]:
        """The cells of a wide row by title."""
        return {**self.columns, **self.more}


class Printer:
    """Writes to standard output in the form that the user asked for; `template` is what stands behind that."""

    def __init__(self, form: Format, template: str = "", color: Color = Color.AUTO) -> None:
        self.form = Format.TABLE if form is Format.WIDE else form
        self.is_wide = form is Format.WIDE
        self._template = template
        self._color = color

    @cached_property
    def console(self) -> Console:
        """Drawing on a terminal."""
        from rich.console import Console  # noqa: PLC0415 - takes as long to import as all else that `get` needs

        tty = sys.stdout.isatty()
        plain = not self._has_styles(tty)
        return Console(width=None if tty else _UNBOUNDED_WIDTH, highlight=False, soft_wrap=not tty, no_color=plain)

    @property
    def is_table(self) -> bool:
        return self.form is Format.TABLE

    @property
    def is_plain(self) -> bool:
        """True where whole values are asked for: json and yaml."""
        return self.form in {Format.JSON, Format.YAML}

    @property
    def is_live(self) -> bool:
        """True if there is a person to show progress to."""
        return self.is_table and self.console.is_terminal

    def columns(self, view: OutputView[Item]) -> Mapping[str, Callable[[Item], str]]:
        """The cells of a row by title, as many as were asked for."""
        return view.all_columns if self.is_wide else view.columns

    def items(self, view: OutputView[Item], items: Sequence[Item]) -> None:
        """Prints a list."""
        match self.form:
            case Format.TABLE:
                columns = self.columns(view)
                rows = ([cell(one) for cell in columns.values()] for one in items)
                self.table(tuple(columns), rows, view.dimmed(items))
            case Format.NAME:
                self.lines(view.name(one) for one in items)
            case Format.MANIFEST:
                self.documents(_manifests(view, items))
            case Format.CUSTOM_COLUMNS:
                chosen = columns_of(self._template)
                self.table(
                    [one.title for one in chosen], ([one.cell(view.plain(it)) for one in chosen] for it in items)
                )
            case _:
                self.plain({"items": [view.plain(one) for one in items]})

    def item(self, view: OutputView[Item], item: Item) -> None:
        """Prints one item, which in json and yaml is not in a list."""
        if self.is_plain:
            self.plain(view.plain(item))
        else:
            self.items(view, [item])

    def plain(self, value: Mapping[str, object]) -> None:
        """Prints a value as YAML where YAML was asked for, else as JSON."""
        if self.form is Format.YAML:
            write_out(yaml_document(value))
        else:
            write_out(escaped(json.dumps(value, indent=2, ensure_ascii=False)) + "\n")

    def documents(self, values: Iterable[Mapping[str, object]]) -> None:
        """Prints YAML documents, whatever form was asked for."""
        for value in values:
            write_out(yaml_document(value))

    def event(self, value: Mapping[str, object]) -> None:
        """Prints one value of an endless stream: JSON in one line, or a YAML document."""
        if self.form is Format.YAML:
            self.plain(value)
        else:
            write_out(escaped(json.dumps(value, ensure_ascii=False)) + "\n")

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[str]], dimmed: frozenset[int] = frozenset()) -> None:
        """Prints a table, each row in one line; elsewhere than on a terminal all cells are whole."""
        cells = [[printable(cell) for cell in row] for row in rows]
        write_out("".join(f"{line}\n" for line in table_lines(titles, cells, self._paper(), dimmed)))

    def fields(self, fields: Mapping[str, str]) -> None:
        """Prints names and values below each other."""
        width = max(map(len, fields), default=0) + 1
        for name, value in fields.items():
            write_out(f"{printable(name) + ':':<{width}} {printable(value)}\n")

    def header(self, view: OutputView[Item]) -> None:
        """Prints the titles of the rows of an endless stream, if they have any."""
        if self.form is Format.CUSTOM_COLUMNS:
            self.lines(["  ".join(one.title for one in columns_of(self._template))])
        elif self.is_table:
            self.lines(["  ".join(self.columns(view))])

    def row(self, view: OutputView[Item], item: Item) -> None:
        """Prints one item of an endless stream: a row, a name, or a value."""
        match self.form:
            case Format.TABLE:
                self.lines(["  ".join(cell(item) for cell in self.columns(view).values())])
            case Format.CUSTOM_COLUMNS:
                self.lines(["  ".join(one.cell(view.plain(item)) for one in columns_of(self._template))])
            case Format.NAME | Format.MANIFEST:
                self.item(view, item)
            case _:
                self.event({"change": "put", "item": view.plain(item)})

    def redraw(self, view: OutputView[Item], items: Sequence[Item], foot: str) -> None:
        """Draws a table in place of all that the terminal shows, as far as there is room, and a last line."""
        columns = self.columns(view)
        # Beside the titles, what says that there is more, and where the cursor comes to stand.
        room = max(1, self.console.size.height - 3 - bool(foot))
        rows = [[printable(cell(one)) for cell in columns.values()] for one in items[:room]]
        paper = replace(self._paper(), is_screen=True)
        lines = table_lines(tuple(columns), rows, paper, view.dimmed(items[:room]))
        more = f"… and more, of {len(items)} in all" if len(items) > room else ""
        self.console.clear()
        write_out("".join(f"{line}\n" for line in lines))
        self.lines(one for one in (more, foot) if one)

    def fate(self, name: str, change: str) -> None:
        """Prints what else became of an item of an endless stream, e.g. ``deleted``."""
        if self.is_plain:
            self.event({"change": change, "name": name})
        elif self.form in {Format.TABLE, Format.CUSTOM_COLUMNS}:
            self.lines([f"{name}  {change}"])

    def lines(self, lines: Iterable[str]) -> None:
        """Prints lines. What anybody wrote, such as a name or a tensor's, has no power over the terminal."""
        for line in lines:
            write_out(printable(line) + "\n")

    def _paper(self) -> Paper:
        tty = sys.stdout.isatty()
        return Paper(shutil.get_terminal_size().columns if tty else None, self._has_styles(tty))

    def _has_styles(self, tty: bool) -> bool:
        if self._color is not Color.AUTO:
            return self._color is Color.ALWAYS
        is_terminal = tty and os.environ.get("TERM") != "dumb"
        return not os.environ.get("NO_COLOR") and (is_terminal or any(map(os.environ.get, _LIKE_A_TERMINAL)))


def write_out(text: str) -> None:
    """Writes text to standard output at once; ends the process where nobody reads it any more.

    Raises:
        BrokenPipeError: nobody does, and this is not the main thread.
        CliError: it takes no more.
    """
    try:
        sys.stdout.write(text.encode(errors="backslashreplace").decode())  # half of a character is no text
        sys.stdout.flush()
    except BrokenPipeError:
        if threading.current_thread() is not threading.main_thread():
            raise  # the main thread alone can end so
        end_unread()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left, when the process ends
        what = "what this was to change may be changed all the same: loraplane events tells"
        raise usage(f"standard output cannot be written: {error.strerror}; write to another place; {what}") from error


def end_unread() -> None:
    """Ends the process as others do whose reader left, without a word. For the main thread.

    Not by the signal's default from the start on: gRPC's threads write to pipes of their own, which nobody may read
    while a process ends.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.raise_signal(signal.SIGPIPE)


def write_error(text: str) -> None:
    """Writes text to standard error at once. Where that takes no more the text is lost, and nothing fails for it."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # for what is left, and what comes


def _manifests(view: OutputView[Item], items: Sequence[Item]) -> list[Mapping[str, object]]:
    if view.manifest is None:
        raise usage("-o manifest is for adapters; for these, choose json or yaml")
    return [view.manifest(one) for one in items]


def yaml_document(value: Mapping[str, object]) -> str:
    """A document of YAML in which texts with power over a terminal are quoted twice, and escaped as YAML does.

    Lists of numbers stand in brackets.
    """
    import yaml  # noqa: PLC0415 - for this form alone

    class Dumper(yaml.SafeDumper):
        """Quotes such texts so."""

    def quoted(dumper: Dumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')

    def listed(dumper: Dumper, values: list[object]) -> yaml.SequenceNode:
        in_one_line = all(isinstance(one, int | float) for one in values)
        return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=in_one_line)

    Dumper.add_representer(str, quoted)
    Dumper.add_representer(list, listed)
    return escaped(yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, explicit_start=True))


# Columns of words for people, cut before a row runs on; all of it stands in `-o wide` on a pipe, and in `describe`.
PROSE = frozenset({"CHANGED", "REASONS", "REASON", "NOTE", "WHY", "MESSAGE", "BASE MODELS", "REPLICAS"})
# The least that is left of a cell that is cut, in columns of the terminal.
_LEAST = 12
# Of what says who did what, an old and a new value.
_LEAST_OF = {"CHANGED": 40, "WHY": 40}
_GAP = "  "
# All printable letters before this one take one column; from here on some take none or two.
_FIRST_OF_ODD_WIDTH = "\u0300"
_BOLD, _DIM, _GREEN, _YELLOW, _RED, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
# Colours of cells in columns that say how something is.
_COLOURS = {
    "STATE": {
        **dict.fromkeys(("Healthy", "serving"), _GREEN),
        **dict.fromkeys(("Progressing", "pending", "Disabled"), _YELLOW),
        **dict.fromkeys(("Degraded", "Halted", "failed", "unknown"), _RED),
    },
    "READY": {"yes": _GREEN, "no": _RED},
}


@dataclass(frozen=True, slots=True)
class Paper:
    """Medium of a table: its width in columns (None: a file or a pipe, which has none), and whether it shows styles.

    `is_screen`: it is drawn anew again and again, so that rows are cut: what runs on would push others out.
    """

    width: int | None = None
    has_styles: bool = False
    is_screen: bool = False


def table_lines(
    titles: Sequence[str], rows: Sequence[Sequence[str]], paper: Paper, dimmed: Container[int] = ()
) -> list[str]:
    """The head and the rows, each in one line, those with these numbers dimmed. Cells are printable."""
    widths = _widths(titles, [titles, *rows], paper)
    if paper.is_screen and paper.width is not None:
        ends = accumulate(widths, lambda end, width: end + len(_GAP) + width)
        widths = [max(0, width - max(0, end - paper.width)) for width, end in zip(widths, ends, strict=True)]
    head = _line(titles, titles, widths, Paper())
    styled_head = f"{_BOLD}{head}{_PLAIN}" if paper.has_styles else head
    return [
        styled_head,
        *(_row(titles, row, widths, paper, is_dim=number in dimmed) for number, row in enumerate(rows)),
    ]


def _widths(titles: Sequence[str], rows: Sequence[Sequence[str]], paper: Paper) -> list[int]:
    widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    if paper.width is None:
        return widths
    gaps = len(_GAP) * (len(widths) - 1)
    prose = {
        place: max(_LEAST_OF.get(title, _LEAST), width_of(title))
        for place, title in enumerate(titles)
        if title in PROSE
    }
    shortest = gaps + sum(min(width, prose.get(place, width)) for place, width in enumerate(widths))
    lines = 1 if paper.is_screen else max(1, -(-shortest // max(1, paper.width)))
    spare = lines * paper.width - sum(widths) - gaps
    while spare < 0 and (widest := max(prose, key=widths.__getitem__, default=None)) is not None:
        least = prose[widest]
        if widths[widest] <= least:
            break
        rest = [widths[place] for place in prose if place != widest]
        # At once down to the next widest, which is then cut alike.
        step = min(-spare, widths[widest] - least, max(1, widths[widest] - max(rest, default=0)))
        widths[widest] -= step
        spare += step
    return widths


def _row(titles: Sequence[str], row: Sequence[str], widths: Sequence[int], paper: Paper, *, is_dim: bool) -> str:
    if is_dim and paper.has_styles:
        return f"{_DIM}{_line(titles, row, widths, Paper())}{_PLAIN}"
    return _line(titles, row, widths, paper)


def _line(titles: Sequence[str], row: Sequence[str], widths: Sequence[int], paper: Paper) -> str:
    cells = [cut(cell, width) for cell, width in zip(row, widths, strict=True)]
    last = max((place for place, cell in enumerate(cells) if cell), default=0)
    padded = [
        _styled(title, cell, paper) + ("" if place == last else " " * (width - width_of(cell)))
        for place, (title, cell, width) in enumerate(zip(titles, cells, widths, strict=True))
    ]
    return _GAP.join(padded[: last + 1])


def _styled(title: str, cell: str, paper: Paper) -> str:
    colour = _COLOURS.get(title, {}).get(cell) if paper.has_styles else None
    return f"{colour}{cell}{_PLAIN}" if colour else cell


def width_of(text: str) -> int:
    """Number of columns of a terminal that a text takes."""
    if text.isascii() or max(text) < _FIRST_OF_ODD_WIDTH:
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - for such letters alone

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """The text, or as much of its beginning as `width` columns hold, and … for the rest."""
    if width_of(text) <= width:
        return text
    if width == 0:
        return ""
    short = text[: width - 1]
    while width_of(short) > width - 1:
        short = short[:-1]
    return f"{short}…"
