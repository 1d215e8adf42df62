"""Contexts: admin services by name, with credentials, pool and protection.

They stand in a file of the user's own, which nobody else may write: it says whom programs talk to. `loraplane config`
writes it.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from registry.client.address import Tls
from registry.client.credentials import (
    HELPER_SECONDS,
    HELPER_VARIABLE,
    MOST_HELPER_SECONDS,
    TokenCommand,
    TokenFile,
    TokenSource,
)
from registry.model.errors import FailedPrecondition, InvalidArgument, Reason
from registry.runtime.own_paths import NotOwn, check_own

_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class AdminContext:
    """An admin service as a context names it. Empty texts: not said. `protected`: what removes is asked about."""

    admin: str
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    token_file: str = ""
    token_command: str = ""
    pool: str = ""
    protected: bool = False


@dataclass(frozen=True, slots=True)
class SavedContexts:
    """All contexts by their names. `current` is used where none is named; empty: none is."""

    current: str = ""
    contexts: Mapping[str, AdminContext] = field(default_factory=dict)

    def named(self, name: str) -> AdminContext:
        """The context of that name.

        Raises:
            InvalidArgument: there is none.
        """
        if name not in self.contexts:
            known = f"known: {', '.join(sorted(self.contexts))}" if self.contexts else "there is none yet"
            message = f"there is no context {name!r} ({known}); make one with: loraplane config set-context"
            raise InvalidArgument(Reason.USAGE, message)
        return self.contexts[name]


def context_path() -> Path:
    """LORAPLANE_CONFIG, or else config.json of loraplane below the user's folder for configuration."""
    if named := os.environ.get("LORAPLANE_CONFIG"):
        return Path(named)
    folder = os.environ.get("XDG_CONFIG_HOME") or str(Path("~/.config").expanduser())
    return Path(folder, "loraplane", "config.json")


def read_contexts(path: Path) -> SavedContexts:
    """The file as it is; without contexts where there is none.

    Raises:
        FailedPrecondition: it is not ours alone.
        InvalidArgument: it cannot be read, or is not of this form.
    """
    if not os.path.lexists(path):
        return SavedContexts()
    try:
        for one in (path.parent, path):
            check_own(one)
    except NotOwn as error:
        raise FailedPrecondition(Reason.STACK_NOT_TRUSTED, f"{error}; it says whom commands talk to") from error
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(_MAX_BYTES))
        contexts = {str(name): _context(one) for name, one in value["contexts"].items()}
        return SavedContexts(str(value["current"]), contexts)
    except OSError as error:
        raise InvalidArgument(Reason.USAGE, f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        message = f"{path} has not the form of loraplane config; mend or remove it ({error!r})"
        raise InvalidArgument(Reason.USAGE, message) from error


def _context(value: Mapping[str, object]) -> AdminContext:
    """A context. What is unknown is refused: protection that was mistyped must not be passed over."""
    one = AdminContext(**value)  # type: ignore[arg-type] # the types are looked at below
    wrong = [each.name for each in fields(one) if type(getattr(one, each.name)).__name__ != each.type]
    if wrong:
        raise ValueError(f"{wrong[0]} has another type")
    return one


@dataclass(frozen=True, slots=True)
class Connection:
    """Address of an admin service, and how we show who we are. None: without TLS, or without a token."""

    address: str
    tls: Tls | None
    token: TokenSource | None


def connection_of(address: str, tls: Tls | None, token: TokenSource | None) -> Connection:
    """The connection that a program means: what it names, else LORAPLANE_ADMIN, else a context, as `loraplane` does.

    With LORAPLANE_ADMIN go the variables of TLS and tokens; a context is that of LORAPLANE_CONTEXT or the current one.

    Raises:
        InvalidArgument: nothing names an admin service, both variables do, or contexts cannot be read.
        FailedPrecondition: others may write the file of contexts.
    """
    if address:
        return Connection(address, tls, token)
    named, context = os.environ.get("LORAPLANE_ADMIN", ""), os.environ.get("LORAPLANE_CONTEXT", "")
    if named and context:
        message = "LORAPLANE_ADMIN and LORAPLANE_CONTEXT both name an admin service; unset one, or give the address"
        raise InvalidArgument(Reason.USAGE, message, field="address")
    if named:
        given = {name: os.environ.get(f"LORAPLANE_{name.upper()}", "") for name in _CREDENTIALS}
        one = _context({"admin": named, **given})
    else:
        saved = read_contexts(context_path())
        if not (name := context or saved.current):
            message = "name the admin service: HOST:PORT, LORAPLANE_ADMIN, or loraplane config set-context"
            raise InvalidArgument(Reason.USAGE, message, field="address")
        one = saved.named(name)
    files = Tls(*(Path(text) if text else None for text in (one.tls_ca, one.tls_cert, one.tls_key)))
    return Connection(one.admin, tls or files or None, token or token_of(one.token_file, one.token_command))


_CREDENTIALS = ("tls_ca", "tls_cert", "tls_key", "token_file", "token_command")


def token_of(file: str, command: str) -> TokenSource | None:
    """Source of the token: a file, or a command line; None: neither is named.

    A command has as long as LORAPLANE_TOKEN_SECONDS says, since that is a matter of the host that runs it.

    Raises:
        InvalidArgument: both are named, or the command line is none, or the variable is.
    """
    if file and command:
        message = "a file with a token (--token-file) and a command that prints one (--token-command); name one"
        raise InvalidArgument(Reason.USAGE, message)
    if not command:
        return TokenFile(Path(file)) if file else None
    try:
        return TokenCommand(shlex.split(command), _helper_seconds())
    except ValueError as error:
        raise InvalidArgument(Reason.USAGE, f"--token-command: {error}; quote it as for a shell") from error


def _helper_seconds() -> float:
    """Raises InvalidArgument: the variable names no time that is taken."""
    text = os.environ.get(HELPER_VARIABLE) or str(HELPER_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MOST_HELPER_SECONDS:
        message = f"{HELPER_VARIABLE}={text[:40]}: write seconds, more than 0 and at most {MOST_HELPER_SECONDS:g}"
        raise InvalidArgument(Reason.USAGE, message)
    return seconds
