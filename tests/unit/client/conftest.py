"""An admin service whose answers a test lays down."""

from __future__ import annotations

import pytest

from tests.support.fake_admin import FakeAdmin


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()
