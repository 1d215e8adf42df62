"""An admin service whose answers a test lays down, and a program that uses it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loraplane import Registry
from tests.support.fake_admin import FakeAdmin, connected


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
def address(admin) -> Iterator[str]:
    with connected(admin) as address:
        yield address


@pytest.fixture
def registry(address) -> Iterator[Registry]:
    with Registry(address, timeout_seconds=120) as registry:
        yield registry
