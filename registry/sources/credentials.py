"""Which credential a source may use: the one that its record names, if the host's configuration bound it to there.

A record is written by others, so a name alone proves nothing: without the binding, whoever may write a record could
have another tenant's token sent to a server of his own.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

from registry.model.source_uri import SourcePrefix, SourceUri
from registry.sources.credentials_fetch import fetch_secret
from registry.sources.credentials_file import Entry, StoreOptions
from registry.sources.errors import ArtifactError
from registry.sources.secrets import Secret, SecretError


class Held:
    """A credential during one staging. Its secret is fetched when it is first needed, and once more if refused."""

    def __init__(self, name: str, entry: Entry) -> None:
        self.name = name
        self._entry = entry
        self._secret: Secret | None = None
        self._fetched = 0
        self._mutex = Lock()

    @property
    def prefixes(self) -> tuple[SourcePrefix, ...]:
        """Where it may be sent."""
        return self._entry.prefixes

    @property
    def store(self) -> StoreOptions:
        return self._entry.store

    def secret(self) -> Secret | None:
        """The secret; None where nothing is to be sent.

        Raises:
            ArtifactError: ``credential_unavailable``.
        """
        with self._mutex:
            if self._fetched == 0:
                self._fetch()
            return self._secret

    def renew(self) -> bool:
        """Fetches the secret again, since a source refused it; False if that was done before or there is none.

        Raises:
            ArtifactError: ``credential_unavailable``.
        """
        with self._mutex:
            if self._fetched != 1 or self._secret is None:
                return False
            self._fetch()
            return True

    def authorization(self) -> str | None:
        """The value of the header; None where nothing is to be sent.

        Raises:
            ArtifactError: ``credential_unavailable``.
        """
        secret = self.secret()
        try:
            return secret.authorization() if secret else None
        except SecretError as error:
            raise self.unavailable(str(error)) from None

    def unavailable(self, why: str) -> ArtifactError:
        """The error that says why the secret cannot be used; `why` is nothing secret."""
        message = f"the credential {self.name!r} cannot be used: {why}; see --credentials"
        return ArtifactError("credential_unavailable", message, permanent=False)

    def _fetch(self) -> None:
        self._fetched += 1
        try:
            self._secret = fetch_secret(self._entry)
        except SecretError as error:
            raise self.unavailable(str(error)) from None


class Credentials:
    """The credentials of a host."""

    def __init__(self, entries: Mapping[str, Entry] | None = None) -> None:
        self._entries = dict(entries or {})

    def hold(self, name: str | None, source: SourceUri) -> Held | None:
        """The credential that a record names, for one staging; None if it names none.

        Raises:
            ArtifactError: ``unknown_credential`` or ``credential_not_bound``.
        """
        if name is None:
            return None
        entry = self._entries.get(name)
        if entry is None:
            message = f"no credential {name!r} is known here; add it to the file of --credentials and restart"
            raise ArtifactError("unknown_credential", message, permanent=True)
        if not any(prefix.covers(source.scheme, source.authority, source.path) for prefix in entry.prefixes):
            message = (
                f"the credential {name!r} is not bound to {source.scheme}://{source.authority}; "
                "add a prefix to it in the file of --credentials, if that place may see it"
            )
            raise ArtifactError("credential_not_bound", message, permanent=True)
        return Held(name, entry)
