"""A real etcd for a measurement, and records in bulk."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from registry.etcd3.client import Client
from registry.etcd3.ops import Delete, Put, Txn
from registry.model.keys import Keys
from registry.model.names import tenant_of
from registry.model.records import AdapterRecord, AdapterSpec, Load, PoolLimits, PoolSpec, SourceSpec
from tests.support.etcd import make_cluster, running_etcd
from tests.support.fleet import BASE, POOL

PUTS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Store:
    """An etcd of one member with a client; `folder` is for whatever else the measurement puts on disk."""

    folder: Path
    endpoint: str
    client: Client

    async def put(self, *puts: Put) -> int:
        """Writes in as few transactions as etcd takes; returns the last one's revision."""
        revision = 0
        for part in in_parts(puts, PUTS_AT_ONCE):
            revision = (await self.client.txn(Txn((), tuple(part)), timeout_seconds=30)).revision
        return revision

    async def delete(self, keys: Keys, names: Iterable[str]) -> int:
        """Deletes adapters in one transaction; returns its revision."""
        return (await self.client.txn(Txn((), tuple(Delete(keys.adapter(POOL, name)) for name in names)))).revision

    async def put_pool(self, keys: Keys, limits: PoolLimits | None = None) -> None:
        """Makes the pool."""
        pool = PoolSpec(name=POOL, base_models=[BASE], limits=limits or PoolLimits())
        await self.put(Put(keys.pool(POOL), pool.to_bytes()))


@asynccontextmanager
async def etcd(folder: Path, *, fsync: bool) -> AsyncIterator[Store]:
    """Starts etcd. Without `fsync` the disk makes no floor higher, so that our own share shows more."""
    own = running_etcd(make_cluster(folder / "etcd", syncs=fsync))
    async with own as cluster, aclosing(Client(cluster.options())) as client:
        yield Store(folder, cluster.endpoints[0], client)


def record(name: str, source: SourceSpec, *, load: Load = "eager", generation: int = 1) -> AdapterRecord:
    """A record of the size that real ones have."""
    labels = {"team": "search", "trained-by": "nightly"}
    return AdapterRecord(
        name=name,
        pool=POOL,
        tenant=tenant_of(name),
        generation=generation,
        spec=AdapterSpec(source=source, load=load, labels=labels),
        updated_at="2026-01-01T00:00:00.000Z",
        updated_by="training-pipeline@example",
        request_id=f"req-{name.replace('/', '-')}-{generation}",
    )


def put_of(keys: Keys, adapter: AdapterRecord) -> Put:
    """What writes a record."""
    return Put(keys.adapter(POOL, adapter.name), adapter.to_bytes())


def catalogue(keys: Keys, count: int, *, eager: int = 0) -> Iterator[Put]:
    """So many records of adapters whose files are elsewhere; but for the first `eager` all are lazy."""
    for number in range(count):
        name = f"tenant-{number % 100}/adapter-{number:06}"
        digest = "sha256:" + hashlib.sha256(name.encode()).hexdigest()
        source = SourceSpec(uri=f"s3://example-adapters/{name}/v1/", digest=digest)
        yield put_of(keys, record(name, source, load="eager" if number < eager else "lazy"))


def in_parts(items: Iterable[Put], size: int) -> Iterator[list[Put]]:
    """The items in lists of at most `size`."""
    part: list[Put] = []
    for item in items:
        part.append(item)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part
