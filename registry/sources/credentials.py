"""Credentials of sources, bound to where they may be used.

A record is written by others, so a name alone proves nothing: without the binding, whoever may write a record could
have another tenant's token sent to a server of his own. A secret is fetched from where the configuration says, into
memory alone.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, assert_never

from registry.model.source_uri import SourcePrefix, SourceUri
from registry.sources.base import ArtifactError
from registry.sources.credentials_file import (
    MAX_SECRET_BYTES,
    Entry,
    EnvSecret,
    ExchangedSecret,
    ExecSecret,
    FileSecret,
    NoSecret,
    Secret,
    SecretError,
    StoreOptions,
)

if TYPE_CHECKING:
    import httpx

_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"


def fetch_secret(entry: Entry) -> Secret | None:
    """The secret as it is now; None where nothing is to be sent.

    Raises:
        SecretError: it cannot be had.
    """
    match entry:
        case NoSecret():
            return None
        case FileSecret():
            return _checked(_read(entry.path), "the file")
        case EnvSecret():
            return _checked(os.environ.get(entry.variable, "").encode(errors="surrogateescape"), "the variable")
        case ExecSecret():
            return _checked(_printed(entry), "what the program printed")
        case ExchangedSecret():
            return _checked(_exchanged(entry), "the token endpoint's answer")
    assert_never(entry)


def _checked(content: bytes, where: str) -> Secret:
    if len(content) > MAX_SECRET_BYTES:
        raise SecretError(f"{where} has more than {MAX_SECRET_BYTES} bytes")
    try:
        text = content.decode().strip()
    except UnicodeDecodeError:
        raise SecretError(f"{where} is not UTF-8") from None
    if not text:
        raise SecretError(f"{where} is empty or not there")
    return Secret(text)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise SecretError(f"the file {path} cannot be read: {error.strerror}") from None


def _printed(entry: ExecSecret) -> bytes:
    try:
        ran = subprocess.run(  # noqa: S603 - the operator's own program, from the sidecar's configuration
            entry.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # may hold a secret
            timeout=entry.timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SecretError(f"the program did not end within {entry.timeout_seconds:g} s") from None
    except (OSError, ValueError):
        raise SecretError("the program cannot be started") from None
    if ran.returncode != 0:
        raise SecretError(f"the program ended with {ran.returncode}")
    return ran.stdout


def _exchanged(entry: ExchangedSecret) -> bytes:
    import httpx  # noqa: PLC0415 - megabytes that only those who exchange tokens need

    form = {
        "grant_type": _GRANT,
        "subject_token": _checked(_read(entry.subject_token_file), "the subject token's file").text,
        "subject_token_type": entry.subject_token_type,
        "audience": entry.audience,
        "scope": entry.scope,
    }
    try:
        # Not through a proxy, and not to where a redirect would send the subject token.
        with httpx.Client(trust_env=False, verify=httpx.create_ssl_context(), timeout=entry.timeout_seconds) as client:
            sent = {name: value for name, value in form.items() if value is not None}
            with client.stream("POST", entry.url, data=sent) as answer:
                return _token(answer)
    except httpx.HTTPError:
        raise SecretError("the token endpoint cannot be reached") from None
    except OSError as error:  # httpx has its own of what happens on the way
        raise SecretError(f"the authorities that SSL_CERT_FILE names cannot be read: {error.strerror}") from None


def _token(answer: httpx.Response) -> bytes:
    if answer.status_code != 200:
        raise SecretError(f"the token endpoint answered {answer.status_code}")
    content = b""
    for chunk in answer.iter_bytes():
        content += chunk
        if len(content) > MAX_SECRET_BYTES:
            break
    token = Secret(content.decode(errors="replace")).fields().get("accesstoken", "")
    return token.encode()


class HeldCredential:
    """A credential during one staging. Its secret is fetched when it is first needed, and once more if refused."""

    def __init__(self, name: str, entry: Entry) -> None:
        self.name = name
        self._entry = entry
        self._secret: Secret | None = None
        self._fetched = 0
        self._mutex = Lock()

    @property
    def prefixes(self) -> tuple[SourcePrefix, ...]:
        """Prefixes of URIs below which it may be sent."""
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
        return ArtifactError("credential_unavailable", message)

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

    def use(self, entries: Mapping[str, Entry]) -> None:
        """Knows these from now on; a staging that holds one of the others keeps it. Safe for threads."""
        self._entries = dict(entries)

    def hold(self, name: str | None, source: SourceUri) -> HeldCredential | None:
        """The credential that a record names, for one staging; None if it names none.

        Raises:
            ArtifactError: ``unknown_credential`` or ``credential_not_bound``.
        """
        if name is None:
            return None
        entry = self._entries.get(name)
        if entry is None:
            message = f"no credential {name!r} is known here; add it to the file of --credentials, which is read again"
            raise ArtifactError("unknown_credential", message)
        if not any(prefix.covers(source.scheme, source.authority, source.path) for prefix in entry.prefixes):
            message = (
                f"the credential {name!r} is not bound to {source.scheme}://{source.authority}; "
                "add a prefix to it in the file of --credentials, if that place may see it"
            )
            raise ArtifactError("credential_not_bound", message)
        return HeldCredential(name, entry)
