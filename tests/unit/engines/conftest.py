"""What all tests of engines need."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def patience(monkeypatch) -> None:
    """A server of the test's own is waited for, however late the machine lets it accept a connection."""
    monkeypatch.setattr("sidecar.engines.transport.CONNECT_SECONDS", 60.0)
