"""A store that was written by an admin service, and the lines that were followed of it, on virtual time."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from registry.etcd3.ops import Delete, KeyValue, Put, Txn
from registry.model.audit import DenialRecord
from registry.runtime.clock import rfc3339
from registry.store.writer import audit_id
from registry.tools.audit.compare import compare
from registry.tools.audit.follow import AuditFollower
from registry.tools.audit.lines import decode_line
from registry.tools.audit.main import read_audited
from registry.tools.audit.output import LineFile
from registry.tools.verify.history import Violation
from registry.v1 import registry_pb2 as pb
from tests.support.admin import change_set, drop, put
from tests.support.played_admin import Served
from tests.support.played_etcd import PlayedEtcd, Scene, as_test, play
from tests.support.records import KEYS

RETENTION = timedelta(days=30), timedelta(days=7)


@dataclass
class Audited:
    """A store and a file of its audit."""

    served: Served
    file: Path

    async def fill(self) -> None:
        """Changes of each kind, and a refusal."""
        call = self.served.call
        await self.served.make_pool("p")
        await call("ApplyAdapters", change_set(put("acme/a"), put("acme/b")))
        await call("ApplyAdapters", change_set(put("acme/a", priority=1)))
        await call("SetTenant", pb.SetTenantRequest(tenant=pb.Tenant(name="acme", max_adapters=9)))
        await call("ApplyAdapters", change_set(put("acme/a", priority=2), drop("acme/b")))
        await call("ApplyAdapters", change_set(put("other/c")))
        await self.deny()

    async def deny(self, ago: timedelta = timedelta()) -> bytes:
        """Writes the record of a refusal of a while ago."""
        now = datetime.now(UTC)
        told = dict.fromkeys(("principal", "credential", "fingerprint", "peer", "user_agent", "method"), "x")
        record = DenialRecord(at=rfc3339(now - ago), reason="UNAUTHENTICATED", message="no", **told)
        key = KEYS.denied(audit_id(now))
        await self.put(key, record.to_bytes())
        return key

    async def put(self, key: bytes, value: bytes | dict[str, Any]) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        await self.served.client.txn(Txn((), (Put(key, content),)))

    async def delete(self, *keys: bytes) -> None:
        for key in keys:
            await self.served.client.txn(Txn((), (Delete(key),)))

    def kvs(self, prefix: bytes) -> list[KeyValue]:
        """What stands below a prefix, in the order in which it was written."""
        found = [kv for key, kv in self.served.etcd.store.kvs.items() if key.startswith(prefix)]
        return sorted(found, key=lambda kv: kv.mod_revision)

    def audits(self) -> list[KeyValue]:
        return [kv for kv in self.kvs(KEYS.audits()) if not kv.key.startswith(KEYS.denied())]

    async def follow(self, seconds: float = 5.0, after: int = 0) -> None:
        """Follows for a while, and ends in order."""
        sink = LineFile(self.file, after)
        task = asyncio.ensure_future(AuditFollower(self.served.client, KEYS, sink, random.Random(0)).run())
        await asyncio.wait([task], timeout=seconds)
        task.cancel()
        await asyncio.wait([task])
        sink.close()
        if not task.cancelled():
            task.result()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    def rewrite(self, lines: list[Any]) -> None:
        self.file.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))

    async def verify(self, *, days: float = 0, minutes: float = 5, after: int = 0) -> list[Violation]:
        """Findings, so many days from now."""
        now = datetime.now(UTC) + timedelta(days=days, minutes=minutes)
        store, of_history = await read_audited(self.served.client, KEYS, now, RETENTION, 1.0)
        lines = [decode_line(text) for text in self.file.read_text().splitlines()]
        return [*compare(lines, after, store), *of_history]


def _play(scene: Scene) -> None:
    async def work(etcd: PlayedEtcd) -> None:
        with TemporaryDirectory() as folder:
            world = Audited(Served(etcd), Path(folder) / "audit.jsonl")
            await world.fill()
            await world.follow()
            await scene(world)

    play(work)


def audited(scene: Scene) -> Callable[..., None]:
    """Makes a test of a scene with a store that was filled and followed."""
    return as_test(_play, scene, 1)
