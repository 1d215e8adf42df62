"""A pool that a test lays down in etcd's values."""

from __future__ import annotations

import pytest

from tests.support.residency_world import World


@pytest.fixture
def world() -> World:
    return World()
