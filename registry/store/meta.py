"""The record of the store itself: written once, and respected ever after."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

from registry.errors import FailedPrecondition
from registry.etcd3.client import Client
from registry.etcd3.ops import Put, Range, RangeResult, Txn, absent
from registry.keys import Keys
from registry.model.records import Meta


async def ensure_meta(client: Client, keys: Keys) -> Meta:
    """The store's own record, made now if there is none.

    Raises:
        FailedPrecondition: it is from a future schema or cannot be read, so nothing may be written.
        EtcdError: etcd does not answer.
    """
    key = keys.meta()
    # Read first: a full etcd refuses every transaction that could put, and is still good for reading.
    known = (await client.range(Range(key))).kvs
    if known:
        return _parse(known[0].value, key)
    created_at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    made = Meta(epoch=secrets.token_hex(16), created_at=created_at)
    result = await client.txn(Txn((absent(key),), (Put(key, made.to_bytes()),), (Range(key),)))
    match result.responses:
        case (RangeResult(kvs=(kv,)),):
            return _parse(kv.value, key)
        case _:
            return made


def _parse(value: bytes, key: bytes) -> Meta:
    try:
        return Meta.parse(value)
    except FailedPrecondition as error:
        message = f"the record at {key.decode()} forbids writing: {error.message}"
        raise FailedPrecondition(error.reason, message, metadata={"key": key.decode()}) from error
