"""Adapters that a command of this host fetches: ``--fetcher SCHEME=COMMAND``.

The command gets the source's URI and an empty folder as its last arguments, without a shell, and puts the adapter's
files into the folder. A secret comes to it in an open file, whose number is in a variable of its environment: arguments
and variables can be read by others of the host. What it leaves is read as a directory of this host is, so that no link
is followed, and all checks are those of any source.

It is ended with its process group when it runs too long, writes too much, or is wanted no more. What it left running by
then is ended too: files that somebody still writes to are not an adapter. A process that made a session of its own is
out of reach; all that it can still do is to change files that were read already.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from types import MappingProxyType
from typing import IO, cast

from registry.lora.text import printable
from registry.model.source_uri import FETCHED_EXAMPLE, SourcePrefix, SourceUri, is_fetched
from registry.sources.base import ArtifactError, Receive, Source, Stop, StoreError
from registry.sources.credentials import HeldCredential
from registry.sources.credentials_file import Secret
from registry.sources.file import FileSource

CREDENTIALS_VARIABLE = "LORAPLANE_CREDENTIALS_FD"
Command = tuple[str, ...]
# Gives an empty folder that is gone at the end.
Workspace = Callable[[], AbstractContextManager[Path]]
_LOOK_SECONDS = 0.1
# Processes that end just after the command that began them have left nothing behind.
_GRACE_SECONDS = 1.0
_MAX_READ_BYTES = 64 << 10
# Of what it wrote so much is kept, more than a secret may be long, and so much is shown.
_KEPT_BYTES = 128 << 10
_SHOWN_LENGTH = 400


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Bounds of one run of a command.

    Attributes:
        seconds: until it has ended.
        output_bytes: on its standard output and standard error together.
        folder_bytes: in its folder: the largest adapter that is taken, and something beside it.
        files: in its folder, with all below it.
    """

    seconds: float = 1500.0
    output_bytes: int = 1 << 20
    folder_bytes: int = (16 << 30) + (256 << 20)
    files: int = 10_000


def parse_fetchers(values: Sequence[str]) -> Mapping[str, Command]:
    """The commands by their schemes, of ``SCHEME=COMMAND [ARGUMENT …]``.

    Raises:
        StoreError: a value has another form, a scheme is given twice, or a program is not there.
    """
    found: dict[str, Command] = {}
    for value in values:
        scheme, equals, line = value.partition("=")
        if not equals or not is_fetched(scheme):
            remedy = f"write SCHEME=COMMAND with a scheme that has a hyphen, as {FETCHED_EXAMPLE}=/usr/bin/fetch-wandb"
            raise StoreError(f"--fetcher {value[:200]!r}: {remedy}")
        if scheme in found:
            raise StoreError(f"--fetcher {value[:200]!r}: {scheme}:// has a command already; give one for each scheme")
        found[scheme] = _command(scheme, line)
    return MappingProxyType(found)


def _command(scheme: str, line: str) -> Command:
    try:
        command = tuple(shlex.split(line))
    except ValueError as error:
        raise StoreError(f"--fetcher {scheme}: the command cannot be split into words: {error}") from None
    program = Path(command[0]) if command else Path()
    if not program.is_absolute() or not program.is_file() or not os.access(program, os.X_OK):
        remedy = "give the absolute path of a program that this user may run"
        raise StoreError(f"--fetcher {scheme}: there is no program {str(program)[:200]!r}; {remedy}")
    return command


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A `Workspace` where no store has one."""
    with TemporaryDirectory(prefix="loraplane-fetch-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@dataclass(frozen=True, slots=True)
class FetchedSource(Source):
    """Source that a command fetches.

    Attributes:
        uri: what it is to fetch.
        command: the program and its first arguments.
        held: the credential of the record.
        workspace: where it may write.
        limits: of each run.
    """

    uri: SourceUri
    command: Command
    held: HeldCredential | None
    workspace: Workspace = temporary_folder
    limits: FetchLimits = FetchLimits()

    def fetch(self, receive: Receive, stop: Stop) -> None:
        """See `Source.fetch`."""
        with self.opened(stop) as files:
            files.fetch(receive, stop)

    def signature(self, stop: Stop) -> bytes | None:
        """See `Source.signature`. All is fetched for it."""
        with self.opened(stop) as files:
            return files.signature(stop)

    def version(self, stop: Stop) -> str:
        """See `Source.version`: a command does not tell."""
        stop.check()
        return ""

    @contextmanager
    def opened(self, stop: Stop) -> Iterator[FileSource]:
        """See `Source.opened`: what one run left."""
        told = str(SourcePrefix(self.uri.scheme, self.uri.authority, self.uri.path))
        secret = self.held.secret() if self.held is not None else None
        with self.workspace() as folder:
            with _readable(secret) as descriptor:
                run = _Run((*self.command, told, str(folder)), folder, self.uri.scheme, secret, self.limits)
                run.finish(descriptor, stop)
            yield FileSource(told, folder, ())


@contextmanager
def _readable(secret: Secret | None) -> Iterator[int | None]:
    """A descriptor from which a secret can be read, and which is in no folder; None: there is none."""
    if secret is None:
        yield None
        return
    descriptor = os.memfd_create("credential")
    try:
        os.write(descriptor, secret.text.encode())
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


class _Run:
    """One run of a command."""

    def __init__(
        self, arguments: Command, folder: Path, scheme: str, secret: Secret | None, limits: FetchLimits
    ) -> None:
        self._arguments = arguments
        self._folder = folder
        self._scheme = scheme
        self._secret = secret
        self._limits = limits
        self._said = b""
        self._said_bytes = 0

    def finish(self, credentials: int | None, stop: Stop) -> None:
        """Starts it and waits for its end.

        Raises:
            ArtifactError: ``fetcher_failed``, ``source_timeout``, ``too_large``, or the staging was stopped.
        """
        process = self._started(credentials)
        output = cast("IO[bytes]", process.stdout)
        try:
            self._watch(process.pid, output, stop)
            left = _left_behind(process.pid, stop)
        finally:
            _end(process)
            output.close()
        if status := process.returncode:
            how = f"ended with {status}" if status > 0 else f"was ended by signal {-status}"
            raise self._failed(f"{how}; the log of this host has its last words. It is tried again")
        if left:
            raise self._failed(f"left {left} processes behind, which were ended; let it wait for all that it starts")

    def _started(self, credentials: int | None) -> subprocess.Popen[bytes]:
        passed = () if credentials is None else (credentials,)
        variables = {} if credentials is None else {CREDENTIALS_VARIABLE: str(credentials)}
        kept = {name: value for name, value in os.environ.items() if name != CREDENTIALS_VARIABLE}
        try:
            return subprocess.Popen(  # noqa: S603 - the operator's own program, from the sidecar's configuration
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=kept | variables,
                pass_fds=passed,
                start_new_session=True,
                bufsize=0,
            )
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "its arguments cannot be passed"
            raise self._failed(f"cannot be started: {why}; see --fetcher") from None

    def _watch(self, pid: int, output: IO[bytes], stop: Stop) -> None:
        """Returns when the command itself has ended. It is not waited for yet, so that its number stays its own."""
        os.set_blocking(output.fileno(), False)
        until, poll = monotonic() + self._limits.seconds, select.poll()
        poll.register(output, select.POLLIN)
        while True:
            has_ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            if poll.poll(0 if has_ended else _LOOK_SECONDS * 1000):
                self._read(output)
            self._check_folder()
            if has_ended:
                return
            stop.check(_LOOK_SECONDS)
            if monotonic() > until:
                message = f"the fetcher of {self._scheme}:// was not done within {self._limits.seconds:g} s"
                raise ArtifactError("source_timeout", f"{message}; it is tried again", detail=self._last_words())

    def _read(self, output: IO[bytes]) -> None:
        """Reads what is there now."""
        while chunk := output.read(_MAX_READ_BYTES):
            self._said_bytes += len(chunk)
            self._said = (self._said + chunk)[-_KEPT_BYTES:]
            if self._said_bytes > self._limits.output_bytes:
                raise self._failed(f"wrote more than {self._limits.output_bytes} bytes of output; let it say less")

    def _check_folder(self) -> None:
        size_bytes = 0
        for files, entry in enumerate(_all_below(self._folder), 1):
            with suppress(FileNotFoundError):
                size_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
            if size_bytes > self._limits.folder_bytes or files > self._limits.files:
                most = f"{self._limits.folder_bytes} bytes or {self._limits.files} files"
                message = (
                    f"the fetcher of {self._scheme}:// fetched more than {most}; let it fetch the adapter's two alone"
                )
                raise ArtifactError("too_large", message, detail=self._last_words())

    def _failed(self, found: str) -> ArtifactError:
        return ArtifactError("fetcher_failed", f"the fetcher of {self._scheme}:// {found}", detail=self._last_words())

    def _last_words(self) -> str:
        """The end of its output, for this host's own log, without the secret that it was given."""
        said = self._said.decode(errors="replace")
        for one in sorted(_parts(self._secret), key=len, reverse=True):
            said = said.replace(one, "***")
        return printable(" ".join(said.split()))[-_SHOWN_LENGTH:]


def _parts(secret: Secret | None) -> set[str]:
    """All that nobody may read of a secret."""
    return {one for one in (secret.text, *secret.fields().values()) if one} if secret is not None else set()


def _all_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """All entries below a folder in which somebody is at work; no link is followed."""
    folders = [] if folder.is_symlink() else [str(folder)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)


def _left_behind(pid: int, stop: Stop) -> int:
    """Number of other processes of an ended command's session that do not end by themselves now."""
    until = monotonic() + _GRACE_SECONDS
    while (left := _session_of(pid)) and monotonic() < until:
        stop.check(_LOOK_SECONDS)
    return len(left)


def _session_of(pid: int) -> list[int]:
    """Live processes of the session that a process leads, without itself."""
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names alone, of thousands
        with suppress(OSError, ValueError, IndexError):
            # After the name, which may hold anything: state, parent, group, session.
            state, _, _, session = Path(f"/proc/{int(entry)}/stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == pid != int(entry) and state not in "ZX":
                found.append(int(entry))
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a command with all of its session; nobody has waited for it, so that these numbers are still theirs."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for one in _session_of(process.pid):
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    process.wait()
