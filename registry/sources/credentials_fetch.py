"""Fetches a secret from where the configuration says it is; into memory, and into no message."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from registry.sources.credentials_file import (
    Entry,
    EnvSecret,
    ExchangedSecret,
    ExecSecret,
    FileSecret,
    NoSecret,
)
from registry.sources.secrets import MAX_SECRET_BYTES, Secret, SecretError

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
