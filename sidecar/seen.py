"""What a look at the engine shows that the one before it did not, as the fields of log lines. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from sidecar.observed import Observed

MAX_NAMES_A_LINE = 100


def seen_since(before: Observed | None, now: Observed) -> Iterator[dict[str, object]]:
    """The fields of each line; none if nothing changed. All lines of one look together tell it, none is very long.

    `whole`: the engine's process is another than before, so all that it lists is told. `adapters` has the paths of what
    came or moved, and None for what is gone. `more`: another line tells the rest.
    """
    incarnation = now.facts.incarnation
    is_whole = before is None or before.facts.incarnation != incarnation
    known = {} if before is None or is_whole else before.adapters
    changed: dict[str, str | None] = {name: path for name, path in now.adapters.items() if known.get(name) != path}
    changed |= dict.fromkeys(known.keys() - now.adapters.keys())
    if not is_whole and not changed:
        return
    names = sorted(changed)
    for start in range(0, max(1, len(names)), MAX_NAMES_A_LINE):
        end = start + MAX_NAMES_A_LINE
        told = {name: changed[name] for name in names[start:end]}
        yield {"incarnation": incarnation, "whole": is_whole and not start, "adapters": told, "more": end < len(names)}
