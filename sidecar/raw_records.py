"""Records as they stand in etcd, whole or packed. Pure.

A sidecar keeps every record's bytes, for its snapshot, and looks at most of them once. Records are alike, so that one
packed against a typical one takes a fifth of the memory.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from typing import ClassVar

# What most records have in common. It is never written anywhere, so it may change with any release.
_TYPICAL = (
    b'"s3://gs://az://file:///hf://https://main/adapter/v1/","digest":null},"load":"eager","labels":{"team":"'
    b'{"schema":1,"name":"","pool":"","tenant":"default","generation":1,"spec":{"source":{"uri":"","digest":"sha256:"},'
    b'"base_model":null,"load":"lazy","priority":0,"placement":{"replicas":"all","selector":{}},"prepare":{"remap":"auto",'
    b'"vision":"reject","dora":"reject"},"credentials":null,"labels":{},"strategy":null},'
    b'"updated_at":"2026-01-01T00:00:00.000Z","updated_by":"anonymous","request_id":"auto-","rollout":null}'
)
# A window of 1 KiB and little state: a record is short, and setting up more would take longer than the packing.
_WINDOW_BITS, _STATE_LEVEL, _LEVEL = -10, 2, 1


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record as it stands in etcd; `good` is the last value that could be followed, if that is another."""

    value: bytes
    revision: int
    good: tuple[bytes, int] | None = None


@dataclass(frozen=True, slots=True)
class PackedRecord:
    """A `RawRecord` that can be followed, in less memory; `value` takes a few microseconds."""

    packed: bytes
    revision: int
    good: ClassVar[None] = None

    @property
    def value(self) -> bytes:
        return zlib.decompressobj(_WINDOW_BITS, _TYPICAL).decompress(self.packed)


AnyRecord = RawRecord | PackedRecord


def packed(record: AnyRecord) -> AnyRecord:
    """The same record in less memory; itself where that would be no gain, or it has two values."""
    if isinstance(record, PackedRecord) or record.good is not None:
        return record
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS, _STATE_LEVEL, zlib.Z_DEFAULT_STRATEGY, _TYPICAL)
    less = packer.compress(record.value) + packer.flush()
    return PackedRecord(less, record.revision) if len(less) < len(record.value) else record


def record_hash(key: str, revision: int, value: bytes) -> int:
    """One record's part of `DesiredState.state_hash`."""
    digest = hashlib.sha256(b"%s\0%d\0%s" % (key.encode(), revision, value)).digest()
    return int.from_bytes(digest, "big")
