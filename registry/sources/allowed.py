"""Sources that a host allows: nothing, unless it is configured.

What goes over the network is imported when the first such source is used: the clients of object stores and of web
servers take megabytes that a sidecar has no use for whose artifacts lie in a directory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from registry.model.source_uri import (
    SourcePrefix,
    SourceUri,
    SourceUriError,
    kind_of,
    parse_prefix,
    parse_source,
    scheme_of,
    without_secrets,
)
from registry.sources.base import ArtifactError, Source, SourceLimits, StoreError
from registry.sources.credentials import Credentials, HeldCredential
from registry.sources.fetcher import Command, FetchedSource, Workspace, parse_fetchers, temporary_folder
from registry.sources.file import FileSource, path_of
from registry.sources.urls import WebUrl, parse_url

if TYPE_CHECKING:
    from registry.sources.http import Web
    from registry.sources.object_stores import Stores
    from registry.sources.origins import Origins

DEFAULT_HUB = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Options for reaching sources that are not this host's own directories.

    Attributes:
        credentials: what records may name.
        hub: base URL of the hub behind hf://.
        limits: how long a source may keep us waiting.
        fetchers: ``SCHEME=COMMAND``, what fetches sources of further schemes.
    """

    credentials: Credentials = field(default_factory=Credentials)
    hub: str = DEFAULT_HUB
    limits: SourceLimits = field(default_factory=SourceLimits)
    fetchers: tuple[str, ...] = ()


class AllowedSources:
    """Makes sources from URIs, which is where they are allowed or refused. Nothing is connected to here.

    What the stagings of a host share in reaching other hosts is kept here; close it when they have ended.
    """

    def __init__(
        self,
        prefixes: Sequence[str],
        remote: RemoteOptions | None = None,
        paused: Path | None = None,
        workspace: Workspace = temporary_folder,
    ) -> None:
        """Allows what is below these URIs. `paused`: the file of `Origins`; None: none. `workspace`: for fetchers.

        Raises:
            StoreError: one of them cannot be followed.
        """
        remote = remote or RemoteOptions()
        self._roots = tuple(_root(prefix) for prefix in prefixes if prefix.startswith("file:"))
        self._named = tuple(_named(prefix) for prefix in prefixes if not prefix.startswith("file:"))
        self._credentials = remote.credentials
        self._hub = _hub(remote.hub)
        self._limits = remote.limits
        self._fetchers: Mapping[str, Command] = parse_fetchers(remote.fetchers)
        self._workspace = workspace
        self._paused = paused
        self._opened = ExitStack()

    def close(self) -> None:
        """Closes the connections that are kept."""
        self._opened.close()

    def source(self, uri: str, credentials: str | None = None) -> Source:
        """The source at `uri`, to be read with the credential of that name.

        Raises:
            ArtifactError: ``unsupported_scheme``, ``invalid_source``, ``source_not_allowed``, ``unknown_credential``
                or ``credential_not_bound``.
        """
        try:
            scheme = scheme_of(uri)
        except SourceUriError as error:
            raise ArtifactError("unsupported_scheme", str(error)) from None
        if kind_of(scheme) == "folder":
            return FileSource.at(uri, self._roots)
        try:
            parsed = parse_source(uri)
        except SourceUriError as error:
            message = f"{without_secrets(uri)!r} names no source: {error}"
            raise ArtifactError("invalid_source", message) from None
        self._check_allowed(parsed, uri)
        return self._remote(parsed, self._credentials.hold(credentials, parsed))

    def names(self, uri: str) -> bool:
        """True for a folder below an allowed one as both are written. Nothing is looked at there: a mount may hang."""
        try:
            path = path_of(uri) if uri.startswith("file:") else None
        except ValueError:
            return False
        return path is not None and ".." not in path.parts and any(map(path.is_relative_to, self._roots))

    def _check_allowed(self, source: SourceUri, uri: str) -> None:
        if not any(prefix.covers(source.scheme, source.authority, source.path) for prefix in self._named):
            message = f"{without_secrets(uri)} is not below a prefix that this host allows; see --allow-source"
            raise ArtifactError("source_not_allowed", message)

    def _remote(self, source: SourceUri, held: HeldCredential | None) -> Source:
        if source.kind == "fetched":
            return FetchedSource(source, self._fetcher(source.scheme), held, self._workspace)
        if source.kind != "bucket":
            return self._on_the_web(source, held)
        from registry.sources.object_stores import object_source  # noqa: PLC0415 - see above

        return object_source(self._stores, source, held)

    def _fetcher(self, scheme: str) -> Command:
        command = self._fetchers.get(scheme)
        if command is None:
            message = f"nothing here fetches {scheme}://; give the sidecar --fetcher {scheme}=COMMAND"
            raise ArtifactError("unsupported_scheme", message)
        return command

    def _on_the_web(self, source: SourceUri, held: HeldCredential | None) -> Source:
        from registry.sources.http import hub_source, web_source  # noqa: PLC0415 - see above

        if source.kind == "hub":
            return hub_source(self._web, self._hub, source, self._named, held)
        if source.kind == "registry":
            from registry.sources.oci import registry_source  # noqa: PLC0415 - see above

            return registry_source(self._web, source, self._named, held)
        return web_source(self._web, source, self._named, held)

    @cached_property
    def _origins(self) -> Origins:
        from registry.sources.origins import Origins  # noqa: PLC0415 - see above

        return Origins(self._paused)

    @cached_property
    def _web(self) -> Web:
        from registry.sources.http import Web  # noqa: PLC0415 - see above

        return self._opened.enter_context(closing(Web(self._limits, self._origins)))

    @cached_property
    def _stores(self) -> Stores:
        from registry.sources.object_stores import Stores  # noqa: PLC0415 - see above

        return self._opened.enter_context(closing(Stores(self._origins)))


def _root(prefix: str) -> Path:
    try:
        return path_of(prefix)
    except ValueError as error:
        remedy = "give file:///absolute/directory"
        raise StoreError(f"--allow-source {without_secrets(prefix)!r}: {error}; {remedy}") from error


def _named(prefix: str) -> SourcePrefix:
    try:
        return parse_prefix(prefix)
    except SourceUriError as error:
        remedy = "write file:///DIRECTORY, s3://BUCKET/PATH or https://HOST/PATH, for example"
        raise StoreError(f"--allow-source {without_secrets(prefix)!r}: {error}; {remedy}") from None


def _hub(url: str) -> WebUrl:
    try:
        parsed = parse_url(url)
    except ValueError as error:
        raise StoreError(f"--hf-endpoint {without_secrets(url)!r}: {error}") from None
    if "?" in parsed.target:
        raise StoreError(f"--hf-endpoint {without_secrets(url)!r}: it has a query; give the base URL of a hub")
    return parsed
