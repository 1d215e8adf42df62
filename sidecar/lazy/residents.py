"""Which lazy adapters stay loaded: those that are used, as many as there is room for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet

# For lazy adapters, where neither the engine nor the pool limits what is loaded: listings must stay small.
DEFAULT_ROOM = 100


def stay(
    used_at: Mapping[str, float], asked: AbstractSet[str], *, room: int, now: float, idle_seconds: float
) -> frozenset[str]:
    """Chooses among the lazy adapters that are loaded.

    Args:
        used_at: of each that is loaded, monotonic seconds of its last use.
        asked: those that the engine has just asked for: they stay, whatever room there is.
        room: how many may stay; eager adapters have had theirs before.
        now: monotonic seconds.
        idle_seconds: what was not used for longer goes.
    """
    in_use = [key for key, at in used_at.items() if key in asked or now - at <= idle_seconds]
    wanted = sorted(in_use, key=lambda key: (key not in asked, -used_at[key], key))
    return frozenset(wanted[: max(room, _count(in_use, asked))])


def _count(keys: Collection[str], among: AbstractSet[str]) -> int:
    return sum(key in among for key in keys)
