"""Packing of records in memory, by and by.

A sidecar keeps every record's bytes, for its snapshot, and looks at most of them once. Records are alike, so that one
packed against a typical one takes a fifth of the memory.
"""

from __future__ import annotations

import asyncio
import ctypes
import zlib
from dataclasses import dataclass
from typing import ClassVar, Protocol

PACK_AFTER_SECONDS = 1.0
# Well under a millisecond's work.
PACKED_AT_ONCE = 50
# What most records have in common. It is never written anywhere, so it may change with any release.
_TYPICAL = (
    b'"s3://gs://az://file:///hf://https://main/adapter/v1/","digest":null},"load":"eager","labels":{"team":"'
    b'{"schema":1,"name":"","pool":"","tenant":"default","generation":1,"spec":{"source":{"uri":"","digest":"sha256:"},'
    b'"base_model":null,"load":"lazy","priority":0,"placement":{"replicas":"all","selector":{}},"prepare":{"remap":"auto",'
    b'"vision":"reject","dora":"reject","drop":[]},"credentials":null,"labels":{},"strategy":null,"description":null,'
    b'"expect":null,"enabled":true,"ttl_seconds":null,"ttl_from":null,"keep":null},"updated_at":"2026-01-01T00:00:00.000Z",'
    b'"updated_by":"anonymous","request_id":"auto-","rollout":null,"retry":null,"expires_at":null,"kept":[]}'
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


class Packs(Protocol):
    """Keeper of records; in production an informer."""

    def pack(self, count: int) -> bool:
        """Packs so many of the records that came since; True if there are more."""
        ...


class Packing:
    """Packs an informer's records by and by: neither a boot nor a change waits for it."""

    def __init__(self, informer: Packs) -> None:
        self._informer = informer
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Says that records came."""
        self._wake.set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(PACK_AFTER_SECONDS)
            is_many = False
            while self._informer.pack(PACKED_AT_ONCE):
                is_many = True
                await asyncio.sleep(0)
            if is_many:
                give_back()


def give_back() -> None:
    """Returns the pages that the C library keeps free for later; does nothing where it has no such call.

    A list is large for a moment only, and what stays of it here is smaller: without this the difference would stay
    with the process until its end.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
