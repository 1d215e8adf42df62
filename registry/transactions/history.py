"""How a record that is replaced or deleted goes into history."""

from __future__ import annotations

from registry.etcd3.ops import Delete, Op, Put
from registry.model.base import MAX_RECORD_BYTES
from registry.model.records import AdapterRecord, RetiredRecord
from registry.transactions.context import Context

HISTORY_KEPT = 10


def retire_record(record: AdapterRecord, context: Context, *, deleted: bool) -> tuple[Op, ...]:
    """Puts a record into history, and takes the one that is too old out of it."""
    values = record.model_dump(by_alias=True)
    retired = {"retired_by_request": context.caller.request_id, "deleted": deleted}
    value = RetiredRecord.model_validate(values | retired).to_bytes()
    return retire_value(record.pool, record.name, record.generation, value, context)


def retire_value(pool: str, name: str, generation: int, value: bytes, context: Context) -> tuple[Op, ...]:
    """As `retire_record`, for a value that cannot be read: it is kept as it is, if perhaps cut off."""
    keys = context.keys
    put = Put(keys.history(pool, name, generation), value[:MAX_RECORD_BYTES])
    if generation <= HISTORY_KEPT:
        return (put,)
    return put, Delete(keys.history(pool, name, generation - HISTORY_KEPT))
