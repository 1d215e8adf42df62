"""Installed drivers of engines: entry points of the group ``loraplane.engines``.

An entry point's name is a kind of engine, as pools name it. What it refers to makes the driver of one engine
(`sidecar.engines.driver.MakeEngine`), and is imported only by a sidecar of that kind. No list in the code stands beside
the entry points: a package that brings a driver is all that a new kind needs.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, distributions

GROUP = "loraplane.engines"
_NONE = f"this installation has no entry point of {GROUP}, so it is not whole: install it anew, with: make install"


class NoDriver(ValueError):
    """There is no driver of an engine's kind, or it cannot be imported; the message says what to do."""


@cache
def _installed() -> tuple[EntryPoint, ...]:
    """Read once: it takes tens of milliseconds, and what is installed later is found after a restart.

    Of each distribution, also where another of its name comes first: a build leaves metadata in the project's folder,
    and those of an earlier state would hide what is installed from whoever runs there.
    """
    return tuple(point for one in distributions() for point in one.entry_points if point.group == GROUP)


def check_kind(kind: str) -> str:
    """Gives the kind back.

    Raises:
        NoDriver: it has no driver here; the message names those that have one.
    """
    kinds = sorted({point.name for point in _installed()})
    if not kinds:
        raise NoDriver(_NONE)
    if kind not in kinds:
        listed = ", ".join(kinds)
        raise NoDriver(f"no driver of {kind!r} is installed: use one of {listed}, or install what brings it")
    return kind


def load_driver(kind: str) -> object:
    """Maker of drivers of a kind.

    Raises:
        NoDriver: see `check_kind`; or several packages bring one; or it cannot be imported.
    """
    check_kind(kind)
    first, *others = {point.value: point for point in _installed() if point.name == kind}.values()
    if others:
        listed = " and ".join(point.value for point in (first, *others))
        raise NoDriver(f"several packages bring a driver of {kind!r}: {listed}; uninstall all but one")
    try:
        return first.load()
    except (ImportError, AttributeError) as error:
        raise NoDriver(f"the driver of {kind!r}, {first.value}, cannot be imported: {error}") from error
