"""What one process of a sidecar saw its engine list, look by look, as its log tells the changes. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from registry.check.listed import artifact_of

_FAR = 1 << 62


@dataclass
class Looks:
    """Looks are numbered from 0 on. Only those that showed a change are known.

    Attributes:
        times: unix seconds of each.
        incarnations: the engine's process that each showed.
    """

    times: list[float] = field(default_factory=list)
    incarnations: list[str] = field(default_factory=list)
    _stories: dict[str, list[tuple[int, str | None]]] = field(default_factory=lambda: defaultdict(list))
    _present: set[str] = field(default_factory=set)

    @property
    def count(self) -> int:
        """How many there were."""
        return len(self.times)

    def forget(self) -> None:
        """The next look shows another process of the engine, which has nothing of what the last one had."""
        for name in self._present:
            self._stories[name].append((self.count, None))
        self._present.clear()

    def change(self, adapters: Mapping[str, str | None]) -> None:
        """Part of what the next look shows otherwise than the one before it."""
        for name, path in adapters.items():
            self._stories[name].append((self.count, path))
            (self._present.discard if path is None else self._present.add)(name)

    def close(self, at: float, incarnation: str) -> None:
        """Ends the look."""
        self.times.append(at)
        self.incarnations.append(incarnation)

    def path(self, name: str, number: int) -> str | None:
        """What a look showed under a name."""
        story = self._stories.get(name, [])
        at = bisect_right(story, number, key=itemgetter(0))
        return story[at - 1][1] if at else None

    def names(self, number: int) -> set[str]:
        """Every name that a look showed."""
        return {name for name in self._stories if self.path(name, number) is not None}

    def spans(self) -> dict[str, list[range]]:
        """By artifact the numbers of the looks in a row that listed it under one name."""
        found: dict[str, list[range]] = defaultdict(list)
        for story in self._stories.values():
            ends = [*(number for number, _ in story[1:]), _FAR]
            for (number, path), end in zip(story, ends, strict=True):
                artifact = artifact_of(path) if path else None
                if artifact is not None:
                    found[artifact].append(range(number, min(end, self.count)))
        return found
