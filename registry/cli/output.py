"""Printing results: tables for people, json, yaml and names for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from registry.lora.findings import printable

Item = TypeVar("Item")

# A file or a pipe has no width: nothing is cut or wrapped there.
_UNBOUNDED_WIDTH = 100_000


class Format(StrEnum):
    """Forms of output."""

    TABLE = "table"
    WIDE = "wide"  # a table that says more, where there is one; a table elsewhere
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class View(Generic[Item]):
    """How items of one kind are shown: their name, their plain form, and the cells of their row by title."""

    name: Callable[[Item], str]
    plain: Callable[[Item], Mapping[str, object]]
    columns: Mapping[str, Callable[[Item], str]]


class Printer:
    """Writes to standard output in the form that the user asked for."""

    def __init__(self, form: Format) -> None:
        self.form = Format.TABLE if form is Format.WIDE else form
        self.is_wide = form is Format.WIDE
        tty = sys.stdout.isatty()
        self.console = Console(width=None if tty else _UNBOUNDED_WIDTH, highlight=False, soft_wrap=not tty)

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

    def items(self, view: View[Item], items: Sequence[Item]) -> None:
        """Prints a list."""
        match self.form:
            case Format.TABLE:
                self.table(tuple(view.columns), ([cell(one) for cell in view.columns.values()] for one in items))
            case Format.NAME:
                self.lines(view.name(one) for one in items)
            case _:
                self.plain({"items": [view.plain(one) for one in items]})

    def item(self, view: View[Item], item: Item) -> None:
        """Prints one item, which in json and yaml is not in a list."""
        if self.is_plain:
            self.plain(view.plain(item))
        else:
            self.items(view, [item])

    def plain(self, value: Mapping[str, object]) -> None:
        """Prints a value as YAML where YAML was asked for, else as JSON."""
        if self.form is Format.YAML:
            self._write(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, explicit_start=True))
        else:
            self._write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def event(self, value: Mapping[str, object]) -> None:
        """Prints one value of an endless stream: JSON in one line, or a YAML document."""
        if self.form is Format.YAML:
            self.plain(value)
        else:
            self._write(json.dumps(value, ensure_ascii=False) + "\n")

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Prints a table whose cells are shown whole."""
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for title in titles:
            table.add_column(title, overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        for line in self._rendered(table):
            self._write(line + "\n")

    def fields(self, fields: Mapping[str, str]) -> None:
        """Prints names and values below each other."""
        width = max(map(len, fields), default=0) + 1
        for name, value in fields.items():
            self._write(f"{name + ':':<{width}} {_printable_lines(value)}\n")

    def row(self, view: View[Item], item: Item) -> None:
        """Prints one item of an endless stream: a row, a name, or a value."""
        match self.form:
            case Format.TABLE:
                self.lines(["  ".join(cell(item) for cell in view.columns.values())])
            case Format.NAME:
                self.lines([view.name(item)])
            case _:
                self.event({"change": "put", "item": view.plain(item)})

    def fate(self, name: str, change: str) -> None:
        """Prints what else became of an item of an endless stream, e.g. ``deleted``."""
        if self.is_plain:
            self.event({"change": change, "name": name})
        elif self.is_table:
            self.lines([f"{name}  {change}"])

    def lines(self, lines: Iterable[str]) -> None:
        """Prints lines. What anybody wrote, such as a name or a tensor's, has no power over the terminal."""
        for line in lines:
            self._write(printable(line) + "\n")

    def _rendered(self, table: Table) -> list[str]:
        with self.console.capture() as captured:
            self.console.print(table)
        return [line.rstrip() for line in captured.get().splitlines()]

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))
