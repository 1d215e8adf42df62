"""What a place that adapters come from must be able to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

# Takes a file's name, its size in bytes and its content.
Receive = Callable[[str, int, Iterator[bytes]], None]


class Source(Protocol):
    """One place that an adapter's files can be had from."""

    def fetch(self, receive: Receive) -> None:
        """Hands over the files of `manifest.FILES`, each once, as one state of the source.

        Raises:
            ArtifactError: they cannot be had, or changed while they were read; or what `receive` raises.
        """
        ...
