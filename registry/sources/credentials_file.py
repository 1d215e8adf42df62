"""The file behind ``--credentials``: names, secrets, and their bindings.

A secret shows itself in no message.
"""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from registry.model.source_uri import SourcePrefix, parse_prefix
from registry.model.stored import first_error, read_json
from registry.sources.base import StoreError
from registry.sources.urls import parse_url

MAX_SECRET_BYTES = 64 << 10
# What may stand in a header; anything else would be quoted in an HTTP library's complaint.
_HEADER_VALUE = re.compile(r"[\x21-\x7e]+")


class SecretError(Exception):
    """A secret is not of the form that is needed; the message says which, and nothing of the secret."""


@dataclass(frozen=True, slots=True)
class Secret:
    """The text of a credential: a token by itself, or a JSON object."""

    text: str = field(repr=False)

    def fields(self) -> dict[str, str]:
        """The strings of the JSON object, ``AccessKeyId`` and ``access_key_id`` alike as ``accesskeyid``.

        A text that is no JSON object is a token.
        """
        try:
            value = read_json(self.text)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            return {"token": self.text}
        return {name.replace("_", "").lower(): one for name, one in value.items() if isinstance(one, str)}

    def authorization(self) -> str:
        """The value of an Authorization header: Bearer, or Basic where there is a user name.

        Raises:
            SecretError: there is neither, or it cannot stand in a header.
        """
        fields = self.fields()
        if "username" in fields and "password" in fields:
            pair = f"{fields['username']}:{fields['password']}".encode()
            return "Basic " + b64encode(pair).decode()
        token = fields.get("token") or fields.get("accesstoken")
        if token is None:
            raise SecretError("it has neither a token nor a username and password")
        return "Bearer " + as_header(token, "token")


def as_header(value: str, shown: str) -> str:
    """A part of a secret that is sent in a header; HTTP clients break in their own ways over what cannot stand there.

    Raises:
        SecretError: it cannot; the message says `shown`, and not the value.
    """
    if not _HEADER_VALUE.fullmatch(value):
        raise SecretError(f"its {shown} is empty, or has characters that cannot stand in a header")
    return value


MAX_FILE_BYTES = 1 << 20


def _prefix(value: object) -> object:
    return parse_prefix(value) if isinstance(value, str) else value


def _token_url(value: str) -> str:
    if not value.startswith(("https://", "http://127.0.0.1:", "http://localhost:")):
        raise ValueError("a secret is sent there: write an https:// URL, or one of this host")
    parse_url(value)
    return value


def _endpoint(value: object) -> object:
    """Checked address: obstore ends the whole process at one that is none."""
    if isinstance(value, str):
        parse_url(value)
    return value


class StoreOptions(BaseModel):
    """Address of an object store, when not at its cloud's usual place. Nothing here is secret."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint: Annotated[str, BeforeValidator(_endpoint), Field(pattern=r"^https?://[^\s@?#]+$")] | None = None
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}$")] | None = None
    account: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}$")] | None = None


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    prefixes: Annotated[tuple[Annotated[SourcePrefix, BeforeValidator(_prefix)], ...], Field(min_length=1)]
    store: StoreOptions = StoreOptions()


class NoSecret(_Entry):
    """Nothing is sent; for the options of a store that anybody may read."""

    kind: Literal["none"]


class FileSecret(_Entry):
    """The content of a file, read for each staging, so that it may be rotated."""

    kind: Literal["file"]
    path: Path


class EnvSecret(_Entry):
    """An environment variable of the sidecar."""

    kind: Literal["env"]
    variable: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class ExecSecret(_Entry):
    """Output of a program. It is run without a shell."""

    kind: Literal["exec"]
    command: Annotated[tuple[str, ...], Field(min_length=1)]
    timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 10.0


class ExchangedSecret(_Entry):
    """A token that a token endpoint gives for the one in a file (RFC 8693), such as a Kubernetes service account's."""

    kind: Literal["token_exchange"]
    url: Annotated[str, BeforeValidator(_token_url)]
    subject_token_file: Path
    subject_token_type: str = "urn:ietf:params:oauth:token-type:jwt"  # noqa: S105 - the name of a type
    audience: str | None = None
    scope: str | None = None
    timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 10.0


Entry = NoSecret | FileSecret | EnvSecret | ExecSecret | ExchangedSecret
_ENTRIES: TypeAdapter[dict[str, Entry]] = TypeAdapter(
    dict[Annotated[str, Field(min_length=1, max_length=96)], Annotated[Entry, Field(discriminator="kind")]]
)


def read_credentials(path: Path) -> dict[str, Entry]:
    """Reads the file, YAML or JSON: ``{NAME: {kind: …, prefixes: [URI-PREFIX, …], …}}``.

    Raises:
        StoreError: it cannot be read or is not of that form; the message quotes nothing of it.
    """
    import yaml  # noqa: PLC0415 - takes longer than all the rest here, and few sidecars have such a file

    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise StoreError(f"--credentials {path}: it has more than {MAX_FILE_BYTES} bytes")
        return _ENTRIES.validate_python(yaml.safe_load(content) or {})
    except OSError as error:
        raise StoreError(f"--credentials {path}: {error.strerror}") from None
    except ValidationError as error:
        raise StoreError(f"--credentials {path}: {first_error(error)}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # a date without a month is a ValueError
        raise StoreError(f"--credentials {path}: it is neither YAML nor JSON{_line(error)}") from None


def _line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f" (line {mark.line + 1})" if mark else ""
