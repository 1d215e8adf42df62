"""What this process has seen in the store while it was leased."""

from __future__ import annotations

from collections.abc import Collection

from sidecar.artifacts.types import ArtifactRef, Staged

# More than an engine holds; what is forgotten is looked up on the disk again.
MAX_REMEMBERED = 65_536
# A reference, and the fingerprint of the base that it was prepared for.
Key = tuple[ArtifactRef, str | None]


class Remembered:
    """A bounded memory, the oldest goes first. Each call is one step among threads."""

    def __init__(self) -> None:
        self._seen: dict[Key, Staged] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def get(self, key: Key) -> Staged | None:
        """What was seen, if it is remembered."""
        return self._seen.get(key)

    def put(self, key: Key, staged: Staged) -> None:
        """Remembers it."""
        self._seen[key] = staged
        if len(self._seen) > MAX_REMEMBERED:
            self._seen.pop(next(iter(self._seen)), None)

    def forget(self, artifacts: Collection[str]) -> None:
        """Forgets these artifacts, whatever they were asked for by."""
        for key, staged in list(self._seen.items()):
            if staged.id in artifacts:
                self._seen.pop(key, None)

    def clear(self) -> None:
        """Forgets everything."""
        self._seen.clear()
