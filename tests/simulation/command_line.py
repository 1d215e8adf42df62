"""The command line as a caller: its own code, which knows no event loop, on a thread that has the loop's turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from unittest import mock

import click
from google.protobuf.message import Message

from registry.cli.client import AdminClient
from registry.cli.failure import CliError, CommandFailure, Exit
from registry.cli.session import Session
from registry.cli.views.output import Format, Printer
from registry.client.address import Tls
from registry.client.admin_api import APPLY_ADAPTERS, AdminMethod
from registry.client.background import BackgroundLoop
from registry.v1 import registry_pb2 as pb

T = TypeVar("T")
Work = Callable[[], Awaitable[Any]]
# Few, so that the little there is takes several pages.
PAGE_SIZE = 3
_ASK: ContextVar[Callable[[Work], Any]] = ContextVar("ask")


class _Thread:
    """A thread that runs while the loop stands, and stands while the loop carries out what it asks for."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._asked: SimpleQueue[Work | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[object, BaseException | None]] = SimpleQueue()
        self._error: BaseException | None = None
        threading.Thread(target=copy_context().run, args=(self._run,), daemon=True).start()

    def _run(self) -> None:
        asyncio._set_running_loop(self._loop)
        _ASK.set(self._ask)
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - whoever waits for the thread raises it
            self._error = error
        self._asked.put(None)

    def _ask(self, call: Work) -> object:
        self._asked.put(call)
        value, error = self._answers.get()
        if error is not None:
            raise error
        return value

    async def carried_out(self) -> None:
        """Does what it asks for until its end; see `on_thread`."""
        interrupted: asyncio.CancelledError | None = None
        while (call := self._asked.get()) is not None:
            try:
                self._answers.put((await call(), None))
            except asyncio.CancelledError as error:
                interrupted = error
                self._answers.put((None, KeyboardInterrupt()))
            except Exception as error:  # noqa: BLE001 - it is the thread's
                self._answers.put((None, error))
        if (ended := interrupted or self._error) is not None:
            raise ended


async def on_thread(work: Callable[[], object]) -> None:
    """Runs a command; a cancellation interrupts it, as a key does, and it goes on to its own end.

    Raises:
        BaseException: what it raises.
    """
    await _Thread(work).carried_out()


class PlayedLoop:
    """In place of the loop of another thread: that of the simulation, which waits for the command's thread."""

    def __init__(self) -> None:
        self._ask = _ASK.get()

    def run(self, step: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """See `LoopElsewhere.run`."""
        return cast("T", self._ask(step))

    finish = run


@dataclass
class Sent:
    """What a command sent and heard.

    Attributes:
        revision: of the state that it read; 0: it read none.
        requests: ids of the changes that it asked for.
        settled: how each of them ended, by its id: the answer, or the refusal.
        slow: calls that took longer than they may.
        before_adapters: what somebody else does before it changes the first adapter; None: nothing.
        silent: failures after which nobody knows the outcome, that do not say how to ask for it.
    """

    revision: int = 0
    requests: list[str] = field(default_factory=list)
    settled: dict[str, Message | CommandFailure] = field(default_factory=dict)
    slow: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    before_adapters: Work | None = None


class _NotedClient(AdminClient):
    """A client that notes what it sends and hears."""

    def __init__(self, sent: Sent, address: str, tls: Tls, *, timeout_seconds: float, **named: Any) -> None:
        self._sent, self._timeout_seconds = sent, timeout_seconds
        super().__init__(address, tls, timeout_seconds=timeout_seconds, loop=BackgroundLoop(PlayedLoop()), **named)

    def pages(self, method: AdminMethod[Any, Any], request: Any = None) -> Iterator[Any]:
        for page in super().pages(method, request):
            if isinstance(page, pb.ReadBackupResponse):
                self._sent.revision = page.revision
            yield page

    def unary(self, method: AdminMethod[Any, Any], request: Any) -> Any:
        sent, request_id = self._sent, getattr(request, "request_id", "")
        if method is APPLY_ADAPTERS and (meddle := sent.before_adapters) is not None:
            sent.before_adapters = None
            _ASK.get()(meddle)
        began = _now()
        if request_id:
            sent.requests.append(request_id)
        try:
            told = super().unary(method, request)
        except CliError as error:
            if request_id:
                self._note_failure(request_id, error.failure)
            raise
        else:
            if request_id:
                sent.settled[request_id] = told
            return told
        finally:
            if _now() - began > self._timeout_seconds + 1.0:
                sent.slow.append(f"{method.name} took {_now() - began:.3f} s of {self._timeout_seconds:g}")

    def _note_failure(self, request_id: str, failure: CommandFailure) -> None:
        if failure.exit is not Exit.UNAVAILABLE:
            self._sent.settled[request_id] = failure
        elif failure.request_id != request_id:
            self._sent.silent.append(f"{request_id}: {failure.line()}")


class _Silent(Printer):
    """Prints nothing."""

    def plain(self, value: object) -> None:
        """Nobody reads it."""


@dataclass(frozen=True)
class PlayedSession(Session):
    """The session of one command."""

    sent: Sent = field(default_factory=Sent)

    def client(self, timeout_seconds: float) -> AdminClient:
        """See `Session.client`."""
        return _NotedClient(
            self.sent, self.admin, self.tls, timeout_seconds=timeout_seconds, waits=self.waits, repeats=self.repeats
        )

    def printer(self) -> Printer:
        return _Silent(self.form)


def context_of(session: Session, **params: object) -> click.Context:
    """What a command is given of its command line."""
    return cast("click.Context", SimpleNamespace(find_object=lambda _kind: session, params=params, obj=session))


def session_to(address: str, tls: Tls, sent: Sent) -> PlayedSession:
    """The session of a command that asks that admin service."""
    return PlayedSession(address, Format.JSON, tls, sent=sent)


@contextmanager
def at_the_terminal(log: Callable[[str], None], new_id: Callable[[], str]) -> Iterator[None]:
    """Puts the world in place of threads, terminals and chance."""
    with (
        mock.patch("registry.client.transport.PAGE_SIZE", PAGE_SIZE),
        mock.patch("registry.cli.session.uuid", SimpleNamespace(uuid4=new_id)),
        mock.patch("registry.cli.commands.backup.note", log),
        mock.patch("registry.cli.client._connection_trouble", _taken),  # of TCP, which the world does not play
    ):
        yield


async def _taken(_address: str) -> str:
    return ""


def _now() -> float:
    return asyncio.get_running_loop().time()
