"""A fleet that is in trouble, and a browser that looks at it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from registry.etcd3.client import Client
from registry.etcd3.ops import Put, Range, Txn
from registry.model.keys import Keys
from registry.model.placement import Member, members_digest
from registry.model.records import AdapterRecord
from registry.model.status import Failed, Lazy, ReportedEvent, ReportedLimits, ReportedStore, Served
from registry.runtime.clock import rfc3339
from registry.v1 import registry_pb2 as pb
from tests.support.admin import Admin, admin_with_pool, change_set, put
from tests.support.browser import Browser, started_browser
from tests.support.residency_world import Replicas, engine_status

POOL = "p"
GIB = 1 << 30
NAMES = [f"replica-{number}" for number in range(1, 9)]
LABELS = {name: {"zone": "ab"[number % 2]} for number, name in enumerate(NAMES)}
# Digest of those among whom canaries are chosen: the last one leaves.
STAYING = members_digest([Member(name, LABELS[name]) for name in NAMES[:-1]])


@dataclass
class TroubledFleet:
    """Eight replicas, of which two fail one adapter, one is not ready, and one leaves."""

    admin: Admin
    replicas: Replicas
    client: Client
    keys: Keys
    revision: int = 0
    said: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def apply(self, *changes: pb.AdapterChange) -> None:
        self.revision = (await self.admin.stub.ApplyAdapters(change_set(*changes, pool=POOL))).revision

    async def halt(self, name: str, why: str) -> None:
        """Halts a rollout, as the controller writes it once canaries refuse it."""
        key = self.keys.adapter(POOL, name)
        [kv] = (await self.client.range(Range(key))).kvs
        record = AdapterRecord.parse(kv.value)
        assert record.rollout is not None
        halted = record.model_copy(update={"rollout": record.rollout.model_copy(update={"halted": why})})
        await self.client.txn(Txn((), (Put(key, halted.to_bytes()),)))

    async def says(self, *names: str, **fields: Any) -> None:
        """What these report from now on, beside what they always do."""
        engine = engine_status(version="0.26.1", limits=ReportedLimits(max_cpu_loras=32))
        store = ReportedStore(room_bytes=180 * GIB, in_use_bytes=12 * GIB, largest_bytes=GIB, bound="disk")
        for name in names:
            usual = {"served": Served(count=9, hash="h"), "lazy": Lazy(), "store": store, "members": STAYING}
            self.said[name] = {**usual, "updated_at": rfc3339(datetime.now(UTC)), **fields}
            at = engine.model_copy(update={"url": f"http://{name}:8000"})
            await self.replicas.says(name, self.revision, engine=at, **self.said[name])


@pytest.fixture
async def troubled(etcd, etcd_client) -> AsyncIterator[TroubledFleet]:
    async with admin_with_pool(etcd.endpoints, etcd.prefix) as admin:
        keys = Keys(etcd.prefix)
        fleet = TroubledFleet(admin, Replicas(etcd_client, keys), etcd_client, keys)
        await fleet.apply(*(put(f"team-{n % 3}/support-{n}", labels={"team": f"t{n % 3}"}) for n in range(9)))
        await fleet.apply(put("legal", labels={"team": "law", "note": "<img src=x onerror=alert(1)>"}))
        started = rfc3339(datetime.now(UTC) - timedelta(hours=9))
        for name in NAMES:
            leaving = name == NAMES[-1]
            await fleet.replicas.alive(name, labels=LABELS[name], leaving=leaving, started_at=started)
        await fleet.says(*NAMES)
        failed = Failed(
            name="legal", generation=1, reason="rank_too_high", message="rank 64 > 16", attempts=1, retry_at=None
        )
        events = [
            ReportedEvent(at=started, event="engine_restarted", message="another process of the engine than before"),
            ReportedEvent(
                at=started, event="refused", name="legal", generation=1, reason="rank_too_high", message="no"
            ),
        ]
        await fleet.says("replica-3", "replica-5", failed=[failed], failed_count=1, events=events)
        await fleet.says("replica-6", ready=False, note="the engine does not answer", held="12 of 13 would go")
        yield fleet


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One for all tests, since it takes longer to start than most of these."""
    with started_browser() as one:
        yield one


@pytest.fixture
async def page(browser: Browser) -> Browser:
    """A page that knows nothing of any before it."""
    await browser.do("renew", viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    await browser.do("complaints")
    return browser
