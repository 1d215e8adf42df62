"""Records as the admin service would write them, for tests of what reads them."""

from __future__ import annotations

from typing import Any

from registry.etcd3.ops import Event, KeyValue
from registry.model.keys import Keys
from registry.model.names import tenant_of
from registry.model.records import AdapterRecord, AdapterSpec, SourceSpec

POOL = "p"
KEYS = Keys()


def digest(text: str) -> str:
    """A digest of the right form that stands for `text`."""
    return "sha256:" + text.encode().hex().rjust(64, "0")[-64:]


def record(name: str, generation: int = 1, *, source: str = "v1", pinned: bool = True, **spec: Any) -> AdapterRecord:
    """A record of an adapter whose artifact is named by `source`."""
    where = SourceSpec(uri=f"file:///a/{source}", digest=digest(source) if pinned else None)
    return written(name, AdapterSpec(source=where, **spec), generation)


def written(name: str, spec: AdapterSpec, generation: int = 1, request_id: str = "") -> AdapterRecord:
    """A record with that spec."""
    return AdapterRecord(
        name=name,
        pool=POOL,
        tenant=tenant_of(name),
        generation=generation,
        spec=spec,
        updated_at="2026-01-01T00:00:00.000Z",
        updated_by="test",
        request_id=request_id or f"req-{name}-{generation}",
    )


def kv(name: str, revision: int, value: bytes | None = None, **kwargs: Any) -> KeyValue:
    """An adapter's key with a record, or with `value`."""
    return KeyValue(KEYS.adapter(POOL, name), value or record(name, **kwargs).to_bytes(), 1, revision, 1)


def put(name: str, revision: int, value: bytes | None = None, **kwargs: Any) -> Event:
    """The event of writing a record, or `value`."""
    written = kv(name, revision, value, **kwargs)
    return Event(written.key, revision, written)


def deletion(name: str, revision: int) -> Event:
    """The event of deleting a record."""
    return Event(KEYS.adapter(POOL, name), revision, None)
