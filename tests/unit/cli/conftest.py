"""The CLI in this process against an admin service whose answers the test lays down."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from registry.cli.client import AdminClient
from registry.cli.main import run
from registry.client.address import Tls
from tests.corpus.drafts import LLAMA
from tests.support.fake_admin import FakeAdmin, connected
from tests.support.ran import Ran

Cli = Callable[..., Ran]


class Time:
    """A clock that goes on when something waits, and with what is heard."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def late(self, answer: object) -> Callable[[object], object]:
        """An answer that comes an hour later."""
        return lambda _request: next(self.later((3600.0, answer))(None))

    def later(self, *items: tuple[float, object]) -> Callable[[object], Iterator[object]]:
        """A stream whose items come after so many seconds each."""

        def stream(_request: object) -> Iterator[object]:
            for seconds, item in items:
                self.now += seconds
                yield item

        return stream


class Terminal(io.StringIO):
    """Somebody who sits there."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _somebody_listens(monkeypatch) -> None:
    """The service that the test lays down is within this process: no port of its own would take a connection."""
    monkeypatch.setattr("registry.cli.client._connection_trouble", AsyncMock(return_value=""))


@pytest.fixture(autouse=True)
def no_contexts(monkeypatch) -> None:
    """Those of whoever runs the tests are none of theirs: here is no file, and none can be written."""
    monkeypatch.setenv("XDG_CONFIG_HOME", os.devnull)


@pytest.fixture(autouse=True)
def patience(monkeypatch) -> None:
    """Commands give up on nothing that comes, however late, unless a test says so."""
    monkeypatch.setenv("LORAPLANE_TIMEOUT", "120")
    monkeypatch.setattr("registry.client.transport.TRY_SECONDS", 120.0)


@pytest.fixture
def clock(monkeypatch) -> Time:
    """What the CLI takes for the time while it repeats a call. What a single call may take is real."""
    clock = Time()
    monkeypatch.setattr("registry.client.transport.time", clock)
    return clock


@pytest.fixture
def time(monkeypatch) -> Time:
    """What the CLI takes for the time while it follows rollouts, or watches."""
    clock = Time()
    for module in ("rollout", "views.report", "watching"):
        monkeypatch.setattr(f"registry.cli.{module}.time", clock)
    return clock


@pytest.fixture
def rounds(monkeypatch) -> Time:
    """Ends a watch of events or of the audit at its third pause."""
    clock = Time()

    def pause(seconds: float) -> None:
        clock.sleep(seconds)
        if len(clock.pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("registry.cli.commands.events.time.sleep", pause)
    return clock


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
def address(admin) -> Iterator[str]:
    with connected(admin) as address:
        yield address


@pytest.fixture
def client(address) -> Iterator[AdminClient]:
    """A connection of the CLI."""
    with AdminClient(address, Tls(), timeout_seconds=120.0) as client:
        yield client


@pytest.fixture
def cli(address, capsys, monkeypatch, tmp_path) -> Cli:
    """Runs `loraplane` in an empty directory; other hosts are not asked unless a test says so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LORAPLANE_LOOK_SECONDS", "0")

    def call(*arguments: str) -> Ran:
        code = run(["--admin", address, *arguments])
        captured = capsys.readouterr()
        return Ran(int(code), captured.out, captured.err)

    return call


@pytest.fixture
def adapter(tmp_path) -> Path:
    """The folder of an adapter that is right."""
    return LLAMA.draft().write(tmp_path / "adapter")


@pytest.fixture
def manifest(tmp_path) -> Callable[..., str]:
    """Writes a manifest with one document for each name, which may be ``pool:name``; gives its path."""

    def write(*names: str, file: str = "adapters.yaml", **spec: object) -> str:
        documents = [_document(*_pool_and_name(name), spec) for name in names]
        path = Path(tmp_path) / file
        path.write_text("---\n".join(documents))
        return str(path)

    return write


def _pool_and_name(name: str) -> tuple[str, str]:
    pool, colon, rest = name.partition(":")
    return (pool, rest) if colon else ("dev", name)


def _document(pool: str, name: str, spec: dict[str, object]) -> str:
    whole = {"source": {"uri": f"file:///adapters/{name}"}, **spec}
    return (
        f"apiVersion: loraplane/v1\nkind: Adapter\nmetadata: {{name: {name}, pool: {pool}}}\n"
        f"spec: {json.dumps(whole)}\n"
    )
