"""What a place that adapters come from must be able to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from registry.sources.stop import Stop

# Takes a file's name, its size in bytes and its content. A file that comes again takes the place of what came of it.
Receive = Callable[[str, int, Iterator[bytes]], None]


class Source(Protocol):
    """One place that an adapter's files can be had from."""

    def fetch(self, receive: Receive, stop: Stop) -> None:
        """Hands over the files of `manifest.FILES`, as one state of the source; ends soon after it is stopped.

        Raises:
            ArtifactError: they cannot be had, or changed while they were read; or what `receive` raises.
        """
        ...
