"""Global options may stand anywhere in the command line; this puts them first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

GLOBAL_OPTIONS = frozenset({"--admin", "--output", "-o", "--tls-ca", "--tls-cert", "--tls-key"})


def hoist(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The global options with their values, and the rest, each in its order. What follows ``--`` stays."""
    first: list[str] = []
    rest: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--":
            rest += [argument, *waiting]
        elif argument in GLOBAL_OPTIONS:
            first += [argument, *_value(waiting)]
        elif argument.partition("=")[0] in GLOBAL_OPTIONS or _is_short_output(argument):
            first.append(argument)
        else:
            rest.append(argument)
    return first, rest


def form_asked(first: Sequence[str], otherwise: str) -> str:
    """The form of output that the global options ask for, also where they could not be parsed."""
    for argument, value in pairwise([*first, ""]):
        if argument in {"-o", "--output"}:
            otherwise = value
        elif argument.startswith("--output=") or _is_short_output(argument):
            otherwise = argument.removeprefix("--output").removeprefix("-o").removeprefix("=")
    return otherwise


def _value(waiting: Iterator[str]) -> list[str]:
    value = next(waiting, None)
    return [] if value is None else [value]


def _is_short_output(argument: str) -> bool:
    """True for ``-ojson``, not for ``--other``."""
    return argument.startswith("-o") and len(argument) > 2
