"""Showing rollouts while they are followed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.live import Live
from rich.table import Table
from rich.text import Text

from registry.cli.client import Client
from registry.cli.output import Printer
from registry.cli.rollout import Followed, Target, describe, follow_all
from registry.lora.findings import printable
from registry.v1 import registry_pb2 as pb

_SHOWN = 20


class _Board:
    """The newest news of every rollout; told from many threads, shown by one."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._lock = threading.Lock()
        self._lines: dict[Target, str] = {}

    def seen(self, target: Target, rollout: pb.Rollout) -> None:
        """Takes news; without a terminal it prints them, once each."""
        line = describe(Followed(target, rollout))
        with self._lock:
            changed = self._lines.get(target) != line
            self._lines[target] = line
            if changed and self._printer.is_table and not self._printer.is_live:
                self._printer.lines([line])

    def __rich__(self) -> Table:
        """The latest news, for a terminal."""
        table = Table.grid()
        with self._lock:
            lines = list(self._lines.values())
        for line in lines[-_SHOWN:]:
            table.add_row(Text(printable(line)))
        if len(lines) > _SHOWN:
            table.add_row(Text(f"and {len(lines) - _SHOWN} more"))
        return table


@contextmanager
def _shown(board: _Board, printer: Printer) -> Iterator[None]:
    if not printer.is_live:
        yield
        return
    with Live(board, console=printer.console, refresh_per_second=8):
        yield


def follow_shown(client: Client, targets: Sequence[Target], timeout_seconds: float, printer: Printer) -> list[Followed]:
    """Follows rollouts and shows how far they are: live on a terminal, else a line for every change."""
    board = _Board(printer)
    with _shown(board, printer):
        return follow_all(client, targets, timeout_seconds, board.seen)
