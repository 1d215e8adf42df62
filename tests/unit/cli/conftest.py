"""The CLI in this process against an admin service whose answers the test lays down."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from registry.cli.main import run
from tests.support.ran import Ran
from tests.unit.cli.fake_admin import FakeAdmin, served

Cli = Callable[..., Ran]


@dataclass
class Clock:
    """Seconds that pass when told."""

    seconds: float = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def late(self, answer: object) -> Callable[[object], object]:
        """In a list of answers: one that comes an hour later."""

        def give(_request: object) -> object:
            self.seconds += 3600.0
            return answer

        return give


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
def clock(monkeypatch) -> Clock:
    """What the CLI takes for the time while it repeats a call. What a single call may take is real."""
    clock = Clock()
    monkeypatch.setattr("registry.client.transport.time", clock)
    return clock


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
def address(admin) -> Iterator[str]:
    with served(admin) as address:
        yield address


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
