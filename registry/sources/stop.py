"""How somebody who waits for a source tells it that he does not any more."""

from __future__ import annotations

from threading import Event

from registry.sources.errors import ArtifactError


class Stop:
    """Tells a worker thread that nobody waits for it any more."""

    def __init__(self) -> None:
        self._event = Event()

    def set(self) -> None:
        self._event.set()

    def check(self, wait_seconds: float = 0.0) -> None:
        """Returns after the time.

        Raises:
            ArtifactError: ``staging_stopped``, at once when `set` is called.
        """
        if self._event.wait(wait_seconds) if wait_seconds else self._event.is_set():
            raise ArtifactError("staging_stopped", "the staging was stopped before its end", permanent=False)
