"""What is read of a pool at one revision, while etcd forgets revisions."""

from __future__ import annotations

import pytest

from registry.etcd3.client import Client
from registry.etcd3.ops import Put, Range, RangeResult, Txn
from registry.model.errors import FailedPrecondition
from registry.rollout.pool import PoolSnapshot
from registry.rollout.pool_reader import read_pool
from registry.runtime.clock import Deadline
from tests.support.etcd import compact
from tests.support.made_up_replicas import SaidReplicas


class _Compacting:
    """A client whose every first reading is followed by a compaction, so many times."""

    def __init__(self, client: Client, times: int) -> None:
        self._client = client
        self.times = times

    async def range(self, read: Range, *, timeout_seconds: float) -> RangeResult:
        found = await self._client.range(read, timeout_seconds=timeout_seconds)
        if not read.revision and self.times:
            self.times -= 1
            moved = await self._client.txn(Txn((), (Put(read.key + b"!", b""),)))
            await compact(self._client, moved.revision)
        return found


async def test_a_compaction_in_the_middle_of_a_look(ledger, admin):
    replicas = SaidReplicas(ledger.client, ledger.keys)
    await replicas.alive("r1", "r2")
    for times, kind in ((2, None), (3, FailedPrecondition)):
        client = _Compacting(ledger.client, times)
        looking = read_pool(client, ledger.keys, "acme/a", PoolSnapshot("p"), Deadline.of(60))
        if kind is None:
            assert set((await looking)[1].replicas) == {"r1", "r2"}
        else:
            with pytest.raises(kind):
                await looking
        assert not client.times
