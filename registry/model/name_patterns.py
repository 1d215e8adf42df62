"""Patterns of names, with ``*`` for any part. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NamePatterns:
    """Patterns of names, taken apart once.

    Attributes:
        words: the patterns as they are written.
        any_case: names in another case are meant too, as of tenants; two pools may differ in nothing else.
        exact: those without ``*``.
        begin: beginnings of names, of patterns whose only ``*`` ends them.
        parts: of each of the others the beginning, what has to follow in turn, and the end.
    """

    words: tuple[str, ...]
    any_case: bool = False
    exact: frozenset[str] = field(init=False, repr=False, compare=False)
    begin: tuple[str, ...] = field(init=False, repr=False, compare=False)
    parts: tuple[tuple[str, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        split = [tuple((word.lower() if self.any_case else word).split("*")) for word in self.words]
        object.__setattr__(self, "exact", frozenset(one[0] for one in split if one[1:] == ()))
        object.__setattr__(self, "begin", tuple(one[0] for one in split if one[1:] == ("",)))
        object.__setattr__(self, "parts", tuple(one for one in split if one[1:] > ("",)))

    def match(self, name: str) -> bool:
        """True for a name that one stands for."""
        if name.startswith(self.begin) or name in self.exact:
            return True
        if self.any_case and (lower := name.lower()) != name:
            return self.match(lower)
        # Most have none, and a generator that yields nothing takes as long as all of the above.
        return bool(self.parts) and any(_fits(one, name) for one in self.parts)


def _fits(pattern: tuple[str, ...], name: str) -> bool:
    """True for a name of these parts.

    Callers choose names, and are asked about before these are checked, so each part is looked for once, from where the
    one before it ends. A regular expression would try all ways to share a long name out among several stars.
    """
    first, *middle, last = pattern
    at, end = len(first), len(name) - len(last)
    if at > end or not name.startswith(first) or not name.endswith(last):
        return False
    for part in middle:
        at = name.find(part, at, end) + len(part)
        if at < len(part):
            return False
    return True
