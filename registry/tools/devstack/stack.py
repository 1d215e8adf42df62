"""Processes of a local stack: started, ended, killed, looked at."""

from __future__ import annotations

import signal
import ssl
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

from registry.tools.devstack.engine_environment import EngineNotFound
from registry.tools.devstack.processes import EtcdNotFound, Process, find_marked, recall, remember, spawn, wait_until
from registry.tools.devstack.secure import AuthorityName
from registry.tools.devstack.stack_file import StackError, StackLayout, pid_file
from registry.tools.devstack.stack_parts import Command, Folder, Role, StackPart, command_of, parts

# vLLM takes 13 s alone on a quiet machine; several start at once here.
READY_SECONDS = 300.0
STOP_SECONDS = 20.0
_MARK = "LORAPLANE_DEV_PART"


@dataclass(frozen=True, slots=True)
class PartStatus:
    """State of a part."""

    part: StackPart
    pid: int | None
    ready: bool
    log: Path


class Stack:
    """The stack in one folder.

    Args:
        folder: where it keeps everything.
        layout: engine, replicas and ports.
    """

    def __init__(self, folder: Folder, layout: StackLayout) -> None:
        self.folder = folder
        self.layout = layout
        self.parts = parts(layout)

    @property
    def _authority(self) -> Path:
        return self.folder.secrets.authority(AuthorityName.SERVICES)

    def part(self, name: str) -> StackPart:
        """The part of this name."""
        return next(part for part in self.parts if part.name == name)

    def process(self, name: str) -> Process | None:
        """The process of a part if it runs."""
        process = self._last(name)
        return process if process is not None and process.is_running() else None

    def _last(self, name: str) -> Process | None:
        """The process that a part had last; it may be dead and have left processes of its own behind.

        Whoever started it may have been ended before he could write it down: then its mark is what it is known by.
        """
        written = recall(pid_file(self.folder.root, name))
        if written is not None and written.is_running():
            return written
        return find_marked(_MARK, self._mark(name)) or written

    def _mark(self, name: str) -> str:
        return f"{self.folder.root}:{name}"

    def start(self, name: str) -> None:
        """Starts a part unless it runs. Does not wait until it is ready.

        Raises:
            StackError: its program is not on this machine.
        """
        if self.process(name) is None:
            self.kill(name)
            command = self.command(name)
            environment = {**command.environment, _MARK: self._mark(name)}
            process = spawn(command.arguments, environment, self.folder.log(name))
            remember(pid_file(self.folder.root, name), process)

    def command(self, name: str) -> Command:
        """Command that starts a part.

        Raises:
            StackError: its program is not on this machine.
        """
        try:
            return command_of(self.part(name), self.folder, self.layout)
        except (EngineNotFound, EtcdNotFound) as error:
            raise StackError(str(error)) from error

    def kill(self, name: str) -> None:
        """kill -9 to a part, and to what it left behind."""
        process = self._last(name)
        if process is not None:
            process.kill()

    def stop(self, names: Iterable[str]) -> None:
        """Ends parts as an operator would, all at once."""
        processes = {name: process for name in names if (process := self._last(name)) is not None}
        for process in processes.values():
            process.signal(signal.SIGTERM)
        for name, process in processes.items():
            process.stop(STOP_SECONDS)
            pid_file(self.folder.root, name).unlink(missing_ok=True)

    def wait_ready(self, names: Iterable[str], timeout_seconds: float = READY_SECONDS) -> None:
        """Waits until parts are ready.

        Raises:
            StackError: one ended, or was not ready in time; the message names its log and shows its end.
        """
        for name in names:
            if not wait_until(lambda name=name: self._settled(name), timeout_seconds):  # type: ignore[misc]
                raise StackError(f"{name} is not ready in time; {last_words(self.folder.log(name))}")

    def _settled(self, name: str) -> bool:
        if self.process(name) is None:
            raise StackError(f"{name} ended; {last_words(self.folder.log(name))}")
        return is_ready(self.part(name), self._authority)

    def status(self) -> list[PartStatus]:
        """State of each part."""
        return [self._status(part) for part in self.parts]

    def _status(self, part: StackPart) -> PartStatus:
        process = self.process(part.name)
        ready = process is not None and is_ready(part, self._authority)
        return PartStatus(part, process.pid if process else None, ready, self.folder.log(part.name))

    def names(self, *roles: Role) -> list[str]:
        """Names of the parts of these roles."""
        return [part.name for part in self.parts if part.role in roles]


def is_ready(part: StackPart, authority: Path | None = None) -> bool:
    """True if the part says so; `authority`: behind the certificates of https addresses."""
    url = urlsplit(part.ready_url)
    try:
        with closing(_connection(url.scheme, url.netloc, authority)) as connection:
            connection.request("GET", url.path)
            return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False


def _connection(scheme: str, address: str, authority: Path | None) -> HTTPConnection:
    """A connection that is not made yet. Raises OSError: the authority's certificate cannot be read."""
    if scheme == "http":
        return HTTPConnection(address, timeout=5)
    trusted = ssl.create_default_context(cafile=authority)
    return HTTPSConnection(address, timeout=5, context=trusted)


# Of a log, in which its last line is looked for.
_END_BYTES = 64 << 10


def last_words(log: Path) -> str:
    """The last line of a log, and where the log is."""
    content = b""
    if log.exists():
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _END_BYTES))
            content = file.read(_END_BYTES)
    lines = content.decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "it wrote nothing")
    return f"its log {log} ends with: {last[-300:]}"
