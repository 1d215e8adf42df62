"""The real admin service on a real etcd, with a pool, and the client for programs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from loraplane import AsyncRegistry
from tests.support.admin import Admin, admin_with_pool


@pytest.fixture
async def admin(etcd) -> AsyncIterator[Admin]:
    async with admin_with_pool(etcd.endpoints, etcd.prefix) as admin:
        yield admin


@pytest.fixture
async def registry(admin) -> AsyncIterator[AsyncRegistry]:
    async with AsyncRegistry(admin.address, timeout_seconds=60) as registry:
        yield registry
