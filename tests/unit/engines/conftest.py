"""What all tests of engines need."""

from __future__ import annotations

import pytest

from tests.support.adapters import write_adapter


@pytest.fixture(autouse=True)
def patience(monkeypatch) -> None:
    """A server of the test's own is waited for, however late the machine lets it accept a connection."""
    monkeypatch.setattr("sidecar.engines.transport.CONNECT_SECONDS", 60.0)


@pytest.fixture
def a(tmp_path) -> str:
    return str(write_adapter(tmp_path / "a", seed=1).directory)


@pytest.fixture
def b(tmp_path) -> str:
    return str(write_adapter(tmp_path / "b", seed=2).directory)
