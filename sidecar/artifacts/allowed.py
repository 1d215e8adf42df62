"""Which sources a host allows: nothing, unless it is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sidecar.artifacts.file_source import FileSource, path_of
from sidecar.artifacts.source import Source
from sidecar.artifacts.types import ArtifactError, StoreError


class AllowedSources:
    """Makes sources from URIs, which is where they are allowed or refused."""

    def __init__(self, prefixes: Sequence[str]) -> None:
        """Allows what is below these URIs.

        Raises:
            StoreError: one of them cannot be followed.
        """
        self._roots = tuple(_root(prefix) for prefix in prefixes)

    def source(self, uri: str) -> Source:
        """The source at `uri`.

        Raises:
            ArtifactError: ``unsupported_scheme`` or ``source_not_allowed``.
        """
        scheme, separator, _ = uri.partition("://")
        if scheme != "file" or not separator:
            raise ArtifactError(
                "unsupported_scheme", f"the scheme {scheme[:40]!r} is not known here; use file://", permanent=True
            )
        return FileSource.at(uri, self._roots)


def _root(prefix: str) -> Path:
    remedy = "give file:///absolute/directory"
    if not prefix.startswith("file://"):
        raise StoreError(f"--allow-source {prefix!r}: its scheme is not known here; {remedy}")
    try:
        return path_of(prefix)
    except ValueError as error:
        raise StoreError(f"--allow-source {prefix!r}: {error}; {remedy}") from error
