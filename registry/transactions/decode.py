"""Read set of a change, and its values decoded: present, damaged, absent. Pure.

A future schema is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Generic, TypeVar, assert_never

from registry.etcd3.ops import KeyValue, OpResult, Range, RangeResult, SortTarget, prefix_end
from registry.model.errors import FailedPrecondition, NotFound, Reason
from registry.model.keys import Keys, is_adapter_key, last_part
from registry.model.names import name_key
from registry.model.records import MAX_GENERATION, AdapterRecord, PoolSpec, RetiredRecord, TenantRecord
from registry.model.stored import Stored, read_json


def newest_in(prefix: bytes) -> Range:
    """Reads the key below a prefix that was put last."""
    return Range(prefix, prefix_end(prefix), limit=1, descending_by=SortTarget.MOD)


def any_in(prefix: bytes) -> Range:
    """Reads one key below a prefix, without its value."""
    return Range(prefix, prefix_end(prefix), limit=1, keys_only=True)


def some_in(prefix: bytes, count: int) -> Range:
    """Reads at most so many keys below a prefix, without their values."""
    return Range(prefix, prefix_end(prefix), limit=count, keys_only=True)


def all_keys_in(prefix: bytes) -> Range:
    """Reads all keys below a prefix, without their values."""
    return Range(prefix, prefix_end(prefix), keys_only=True)


def everything_in(prefix: bytes) -> Range:
    """Reads all keys below a prefix, which must be few."""
    return Range(prefix, prefix_end(prefix))


@dataclass(frozen=True, slots=True)
class ReadSet:
    """State read from etcd. Everything in it was so at `revision` or later.

    A view may also be a guess (revision 0): then only what a transaction's compares verify may be made of it.

    Attributes:
        reads: what was read, and what is to be read again if it no longer holds.
        found: the first key that each reading found, by the key or prefix that was read.
        ranges: all keys that each reading of a range found, by its prefix.
    """

    revision: int
    reads: tuple[Range, ...]
    found: Mapping[bytes, KeyValue]
    ranges: Mapping[bytes, tuple[KeyValue, ...]] = field(default_factory=dict)

    def key(self, key: bytes) -> KeyValue | None:
        """The value of one key."""
        return self.found.get(key)

    def all_below(self, prefix: bytes) -> tuple[KeyValue, ...]:
        """Result of `everything_in`, `all_keys_in` or `some_in` below a prefix."""
        return self.ranges.get(prefix, ())

    def below(self, prefix: bytes) -> KeyValue | None:
        """Result of `newest_in` or `any_in` below a prefix."""
        return self.found.get(prefix)


def read_set_of(reads: tuple[Range, ...], revision: int, responses: Iterable[OpResult]) -> ReadSet:
    """Results of a transaction's ranges, in their order."""
    found, ranges = {}, {}
    for read, response in zip(reads, responses, strict=True):
        if isinstance(response, RangeResult) and response.kvs:
            found[read.key] = response.kvs[0]
            if read.range_end:
                ranges[read.key] = response.kvs
    return ReadSet(revision, reads, found, ranges)


RecordT = TypeVar("RecordT", bound=Stored)
MAX_QUOTED_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Present(Generic[RecordT]):
    """A record that can be read, at its own `revision`."""

    record: RecordT
    revision: int


@dataclass(frozen=True, slots=True)
class Damaged:
    """A value that cannot be read. `generation` is the one that it stands for, as far as that can be known."""

    value: bytes
    revision: int
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Absent:
    """No value. `last_generation` is the newest in history, 0 if there is none."""

    last_generation: int = 0
    revision: int = 0


def read_adapter(pool: str, kv: KeyValue) -> AdapterRecord:
    """Reads an adapter's record.

    Raises:
        FailedPrecondition: it cannot be read, or stands under a key that is not its own.
    """
    record = AdapterRecord.parse(kv.value)
    is_its_own = is_adapter_key(kv.key, pool) and name_key(record.name) == last_part(kv.key)
    if record.pool != pool or not is_its_own:
        raise _misplaced(record.name)
    return record


def read_pool(kv: KeyValue) -> PoolSpec:
    """Reads a pool's record; raises as `read_adapter`."""
    record = _parsed_pool(kv.value)
    if record.name != last_part(kv.key):
        raise _misplaced(record.name)
    return record


def engine_hosts_of(kv: KeyValue | None) -> tuple[str, ...] | None:
    """Hosts that a pool allows engines' URLs to name; empty: anything; None: its record cannot be read."""
    try:
        return tuple(read_pool(kv).limits.engine_hosts) if kv is not None else ()
    except FailedPrecondition:
        return None


@lru_cache(maxsize=64)
def _parsed_pool(value: bytes) -> PoolSpec:
    """There are few pools, each change reads one, and one with a base model's modules takes long to read."""
    return PoolSpec.parse(value)


def read_tenant(kv: KeyValue) -> TenantRecord:
    """Reads a tenant's record; raises as `read_adapter`."""
    record = TenantRecord.parse(kv.value)
    if record.name != last_part(kv.key):
        raise _misplaced(record.name)
    return record


def _misplaced(name: str) -> FailedPrecondition:
    return FailedPrecondition(Reason.UNREADABLE_RECORD, f"the record of {name!r} stands under another key than its own")


def stored_adapter(view: ReadSet, keys: Keys, pool: str, name: str) -> Present[AdapterRecord] | Damaged | Absent:
    """The state of an adapter.

    Raises:
        FailedPrecondition: its record is from a future schema.
    """
    kv = view.key(keys.adapter(pool, name))
    newest = newest_of(view, keys.history_of(pool, name))
    last = generation_of_key(newest)
    if kv is None:
        return Absent(last + _lost_generations(newest))
    try:
        return Present(read_adapter(pool, kv), kv.mod_revision)
    except FailedPrecondition as error:
        _pass_future(error, kv)
    return Damaged(kv.value, kv.mod_revision, max(_claimed_generation(kv.value), last + 1))


def stored_pool(view: ReadSet, keys: Keys, pool: str) -> Present[PoolSpec] | Damaged | Absent:
    """The state of a pool.

    Raises:
        FailedPrecondition: its record is from a future schema.
    """
    kv = view.key(keys.pool(pool))
    if kv is None:
        return Absent()
    try:
        return Present(read_pool(kv), kv.mod_revision)
    except FailedPrecondition as error:
        _pass_future(error, kv)
    return Damaged(kv.value, kv.mod_revision)


def present_pool(view: ReadSet, keys: Keys, pool: str, *, field: str = "pool") -> Present[PoolSpec]:
    """A pool that must be there and readable, since what is asked depends on it.

    Raises:
        NotFound: there is none.
        FailedPrecondition: it cannot be read.
    """
    kv = view.key(keys.pool(pool))
    if kv is None:
        raise no_pool(pool, field=field)
    return _present(read_pool, kv, "replace it whole, as loraplane pool update --base-model … does")


def no_pool(pool: str, *, field: str) -> NotFound:
    """The refusal of what is about a pool that is not there."""
    message = f"there is no pool {pool!r}; create it, or list the pools there are"
    return NotFound(Reason.POOL_NOT_FOUND, message, field=field)


def no_adapter(pool: str, name: str, *, field: str = "name") -> NotFound:
    """The refusal of what is about an adapter that is not there."""
    return NotFound(Reason.ADAPTER_NOT_FOUND, f"there is no adapter {name!r} in pool {pool!r}", field=field)


def _present(read: Callable[[KeyValue], RecordT], kv: KeyValue, remedy: str) -> Present[RecordT]:
    try:
        return Present(read(kv), kv.mod_revision)
    except FailedPrecondition as error:
        raise named(error, kv, remedy) from error


def present_adapter(view: ReadSet, keys: Keys, pool: str, name: str) -> Present[AdapterRecord]:
    """An adapter that must be there and readable.

    Raises:
        NotFound: there is none.
        FailedPrecondition: it cannot be read.
    """
    kv = view.key(keys.adapter(pool, name))
    if kv is None:
        raise no_adapter(pool, name)
    return _present(partial(read_adapter, pool), kv, "apply or delete the adapter to replace it")


def retired_record(kv: KeyValue) -> RetiredRecord:
    """A generation that history keeps.

    Raises:
        FailedPrecondition: it cannot be read.
    """
    read = _present(lambda kv: RetiredRecord.parse(kv.value), kv, "choose another generation of the adapter's history")
    return read.record


def stored_tenant(view: ReadSet, keys: Keys, tenant: str) -> Present[TenantRecord] | Absent:
    """A tenant's quota and counter.

    Raises:
        FailedPrecondition: the record cannot be read; nothing is allowed on a guess.
    """
    kv = view.key(keys.tenant(tenant))
    if kv is None:
        return Absent()
    form = TenantRecord(name=tenant).to_bytes().decode()
    return _present(read_tenant, kv, f"put {form} there by hand, with the number of its adapters")


def snapshot_of(state: Present[RecordT] | Damaged | Absent) -> dict[str, object] | None:
    """A value as an audit record shows it."""
    match state:
        case Present():
            return shown(state.record)
        case Damaged():
            return {"unreadable": state.value[:MAX_QUOTED_BYTES].decode(errors="backslashreplace")}
        case Absent():
            return None
    assert_never(state)


def shown(record: Stored) -> dict[str, object]:
    """A record as it stands in etcd, as JSON values."""
    values: dict[str, object] = record.model_dump(mode="json", by_alias=True)
    return values


def _pass_future(error: FailedPrecondition, kv: KeyValue) -> None:
    if error.reason is Reason.FUTURE_SCHEMA:
        raise named(error, kv, "") from error


def named(error: FailedPrecondition, kv: KeyValue, remedy: str) -> FailedPrecondition:
    """The error with the key that it is about, and what to do, unless a later release wrote it."""
    key = kv.key.decode(errors="backslashreplace")
    told = error.message if error.reason is Reason.FUTURE_SCHEMA else f"{error.message}; {remedy}"
    return FailedPrecondition(error.reason, f"the record at {key} cannot be read: {told}", metadata={"key": key})


def newest_of(view: ReadSet, history: bytes) -> KeyValue | None:
    """Of what was read of an adapter's history, the newest generation."""
    return max(view.all_below(history), key=generation_of_key, default=None)


def generation_of_key(kv: KeyValue | None) -> int:
    """A generation as its history key says it, since the value below may be damaged; 0 if there is none."""
    part = last_part(kv.key) if kv else ""
    return int(part) if part.isascii() and part.isdecimal() and len(part) < 17 else 0


def _lost_generations(newest: KeyValue | None) -> int:
    """1 if the newest in history was replaced by a record that is gone without a trace, as after a deletion past the
    admin service: its generation must not be given again.
    """
    try:
        return int(newest is not None and not RetiredRecord.parse(newest.value).deleted)
    except FailedPrecondition:
        return 0


def _claimed_generation(value: bytes) -> int:
    """The generation that an unreadable value still tells; 0 if it does not."""
    try:
        document = read_json(value)
    except ValueError:
        return 0
    claimed = document.get("generation") if isinstance(document, Mapping) else None
    return claimed if type(claimed) is int and 0 < claimed < MAX_GENERATION else 0
