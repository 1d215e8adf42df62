"""Faults that a test orders. Each has to strike: otherwise the test says nothing of what it is called after."""

from __future__ import annotations

from collections.abc import Callable

_orders: list[tuple[str, Callable[[], bool]]] = []


def ordered(what: str, has_struck: Callable[[], bool]) -> None:
    """Has the running test fail at its end if the fault has not struck by then."""
    _orders.append((what, has_struck))


def left() -> list[str]:
    """What never struck of all that was ordered since the last call."""
    orders = _orders[:]
    _orders.clear()
    return [what for what, has_struck in orders if not has_struck()]
