"""Ends of the programs that verify: findings, failures, exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from registry.lora.text import printable
from registry.runtime.commands import Group, complaint
from registry.tools.verify.history import Violation

EXIT_FOUND, EXIT_USAGE, EXIT_UNAVAILABLE = 1, 2, 6
_MAX_SHOWN = 100


def report(found: Sequence[Violation], checked: str) -> None:
    """Prints findings, and what was checked. Raises click's Exit if there are any."""
    for one in found[:_MAX_SHOWN]:
        sys.stdout.write(printable(f"{one}") + "\n")
    if len(found) > _MAX_SHOWN:
        sys.stdout.write(f"… and {len(found) - _MAX_SHOWN} more\n")
    sys.stdout.write(f"{checked}: {len(found)} findings\n")
    if found:
        raise click.exceptions.Exit(EXIT_FOUND)


def fail(program: str, code: int, message: str) -> NoReturn:
    """Prints why the program cannot go on, and raises click's Exit."""
    sys.stderr.write(printable(f"{program}: {message}") + "\n")
    raise click.exceptions.Exit(code)


def run_program(program: str, app: Group) -> NoReturn:
    """Runs the program and ends the process; a wrong command line is told in one line."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except click.UsageError as error:
        sys.stderr.write(printable(f"{program}: {complaint(error)}; see {program} --help") + "\n")
        sys.exit(EXIT_USAGE)
