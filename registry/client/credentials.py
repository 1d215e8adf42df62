"""Bearer tokens that clients show, from a file or from a program that prints them.

Nothing of a token stands in a message: neither what a file holds nor what a program prints.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from registry.model.errors import Reason, Unauthenticated

HELPER_SECONDS, MOST_HELPER_SECONDS = 2.0, 60.0
HELPER_VARIABLE = "LORAPLANE_TOKEN_SECONDS"
EARLY_SECONDS = 30.0
_END_SECONDS = 1.0
MAX_TOKEN_BYTES = 16 << 10
_MAX_PRINTED_BYTES = 64 << 10
_TOKEN = re.compile(r"[\x21-\x7e]+")
_API_VERSION = "client.authentication.k8s.io/v1"
_ASKED = {"apiVersion": _API_VERSION, "kind": "ExecCredential", "spec": {"interactive": False}}


@dataclass(frozen=True, slots=True)
class TokenFile:
    """File with a bearer token. It is read anew for each call, so it may be replaced at any time."""

    path: str | os.PathLike[str]

    def __str__(self) -> str:
        return f"the token file {os.fspath(self.path)}"


@dataclass(frozen=True, slots=True)
class TokenCommand:
    """Program that prints a token, in the form that kubectl's exec credential plugins have.

    It prints an object of JSON, `ExecCredential` of `client.authentication.k8s.io/v1`, whose `status` has `token` and,
    where the token ends, `expirationTimestamp`. The token is kept until 30 s before its end.

    Attributes:
        argv: the program and its arguments; no shell reads them.
        seconds: time that it has, at each run.
    """

    argv: Sequence[str]
    seconds: float = HELPER_SECONDS

    def __str__(self) -> str:
        return f"the token command {self.argv[0] if self.argv else ''!r}"


TokenSource = TokenFile | TokenCommand


@dataclass(frozen=True, slots=True)
class ShownToken:
    """Token of one call. `is_kept`: it is of an earlier call, so that another may be there by now."""

    text: str = field(repr=False)
    is_kept: bool = False

    @property
    def header(self) -> tuple[str, str]:
        """The metadata of the call."""
        return "authorization", f"Bearer {self.text}"


class BearerToken:
    """Token of one connection.

    Args:
        source: where the token comes from.
        wall: seconds since 1970.
    """

    def __init__(self, source: TokenSource, wall: Callable[[], float] = time.time) -> None:
        self._source = source
        self._wall = wall
        self._asking = asyncio.Lock()
        self._kept: _Printed | None = None

    async def shown(self) -> ShownToken:
        """The token of one call.

        Raises:
            Unauthenticated: there is no token to be had; the message says why, and nothing of what was read.
        """
        match self._source:
            case TokenFile():
                return ShownToken(await asyncio.to_thread(_read, self._source))
            case TokenCommand():
                return await self._printed(self._source)

    def forget(self, refused: ShownToken) -> None:
        """Makes the next call take a new token, unless one before it has: several may be refused with the same."""
        if self._kept is not None and self._kept.token == refused.text:
            self._kept = None

    async def _printed(self, source: TokenCommand) -> ShownToken:
        async with self._asking:  # calls that begin together run the program once
            is_kept = self._kept is not None and self._kept.keep_until > self._wall()
            if self._kept is None or not is_kept:
                self._kept = _parsed(source, await _output(source))
            return ShownToken(self._kept.token, is_kept)


@dataclass(frozen=True, slots=True)
class _Printed:
    """A program's token; `keep_until` in seconds since 1970."""

    token: str
    keep_until: float


def _read(source: TokenFile) -> str:
    from registry.runtime.local_files import read_followed  # noqa: PLC0415 - most connections have no token

    try:
        content = read_followed(Path(source.path), max_bytes=MAX_TOKEN_BYTES)
    except OSError as error:
        raise _no_token(source, f"cannot be read: {error.strerror}") from error
    return _checked(source, content.decode(errors="replace").strip())


async def _output(source: TokenCommand) -> bytes:
    try:
        process = await asyncio.create_subprocess_exec(
            *source.argv,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,
            env={**os.environ, "KUBERNETES_EXEC_INFO": json.dumps(_ASKED)},
        )
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no name of a program"
        raise _no_token(source, f"cannot be run: {why}") from error
    try:
        async with asyncio.timeout(source.seconds):
            printed = await _printed_by(process)
            status = await process.wait() if len(printed) <= _MAX_PRINTED_BYTES else 0
    except TimeoutError as error:
        remedy = f"if it needs longer, say so: {HELPER_VARIABLE}=10, or TokenCommand(…, seconds=10)"
        raise _no_token(source, f"was not done within {source.seconds:g} s; {remedy}") from error
    finally:
        if process.returncode is None:
            await _end(process)
    if status:
        raise _no_token(source, f"ended with {status}; run it by hand to see why")
    return printed


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends a program with all that it began; asyncio knows of no end while it has output that nobody reads."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_SECONDS):
            while process.stdout is not None and await process.stdout.read(_MAX_PRINTED_BYTES):
                pass
            await process.wait()


async def _printed_by(process: asyncio.subprocess.Process) -> bytes:
    """Output of a program until it ends, or one byte too much of it."""
    assert process.stdout is not None  # noqa: S101 - as it was asked for
    try:
        return await process.stdout.readexactly(_MAX_PRINTED_BYTES + 1)
    except asyncio.IncompleteReadError as end:
        return end.partial


def _parsed(source: TokenCommand, printed: bytes) -> _Printed:
    try:
        value = json.loads(printed)
        is_of_kind = (value["apiVersion"], value["kind"]) == (_API_VERSION, "ExecCredential")
        token, ends = value["status"]["token"], value["status"].get("expirationTimestamp")
        keep_until = float("inf") if ends is None else _seconds(ends) - EARLY_SECONDS
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_of_kind, token, keep_until = False, "", 0.0
    if not is_of_kind or not isinstance(token, str):
        # Without a cause: that of a parser quotes what it read.
        raise _no_token(source, f"has to print an ExecCredential of {_API_VERSION} with status.token") from None
    return _Printed(_checked(source, token), keep_until)


def _seconds(text: str) -> float:
    """Seconds since 1970. Raises ValueError: it is no time with a zone."""
    time_of = datetime.fromisoformat(text)
    if time_of.tzinfo is None:
        raise ValueError("it has no zone")
    return time_of.timestamp()


def _checked(source: TokenSource, token: str) -> str:
    if not _TOKEN.fullmatch(token) or len(token) > MAX_TOKEN_BYTES:
        raise _no_token(source, "has no token: it has to be one word of ASCII")
    return token


def _no_token(source: TokenSource, why: str) -> Unauthenticated:
    return Unauthenticated(Reason.UNAUTHENTICATED, f"{source} {why}")
