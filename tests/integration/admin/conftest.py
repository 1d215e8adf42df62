"""A running admin service on the session's etcd, and the history of what it wrote."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from registry.admin.rpc import interceptor
from registry.etcd3.client import Client
from registry.etcd3.ops import Range
from registry.model.keys import Keys
from tests.conftest import EtcdForTest
from tests.support.admin import Admin, admin_with_pool
from tests.support.history_check import Fold, History, check_history, read_history


@pytest.fixture
async def admin(etcd) -> AsyncIterator[Admin]:
    """The service with a pool "p", on a prefix of its own."""
    async with admin_with_pool(etcd.endpoints, etcd.prefix) as running:
        yield running


@pytest.fixture(autouse=True)
def unhurried(monkeypatch) -> None:
    """Calls may take a minute: how long they wait for etcd, or for each other, is not what is asked."""
    monkeypatch.setattr(interceptor, "MAX_UNARY_SECONDS", 60.0)
    monkeypatch.setattr(interceptor, "ARRIVAL_SECONDS", 60.0)


@dataclass
class Ledger:
    """What stands, and stood, in etcd below the test's prefix."""

    client: Client
    etcd: EtcdForTest
    start: int

    @property
    def keys(self) -> Keys:
        return Keys(self.etcd.prefix)

    async def revision(self) -> int:
        """The newest revision below the prefix."""
        listing = await self.client.list_prefix(f"{self.etcd.prefix}/".encode())
        return max((kv.mod_revision for kv in listing.kvs), default=0)

    async def history(self) -> History:
        return await read_history(self.client, self.etcd.prefix, self.start)

    async def check(self) -> Fold:
        """Checks W2, W5, W6 and W7 over everything that happened."""
        return check_history(self.keys, await self.history())


@pytest.fixture
async def ledger(etcd, etcd_client) -> Ledger:
    """Ask for it before `admin`, so that it sees everything."""
    now = await etcd_client.range(Range(etcd.key("meta")))
    return Ledger(etcd_client, etcd, now.revision + 1)
