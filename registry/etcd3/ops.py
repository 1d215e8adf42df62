"""etcd's operations as immutable values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as it stands at some revision."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one key. `kv` is None for a deletion."""

    key: bytes
    mod_revision: int
    kv: KeyValue | None


class Target(IntEnum):
    """Property of a key that a `Compare` looks at."""

    VERSION = 0
    CREATE = 1
    MOD = 2
    VALUE = 3
    LEASE = 4


class Relation(IntEnum):
    """Relation of the key's value to the given one in a `Compare`."""

    EQUAL = 0
    GREATER = 1
    LESS = 2
    NOT_EQUAL = 3


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a transaction. Build it with `mod_is`, `absent`, `none_in`, `none_between` or `unwritten_since`.

    With a `range_end` it must hold for each key of the range; an empty range compares like an absent key.
    """

    key: bytes
    target: Target
    relation: Relation
    value: int | bytes
    range_end: bytes = b""


def mod_is(key: bytes, revision: int) -> Compare:
    """Holds while the key's last change is `revision`; 0 means that the key is absent."""
    return Compare(key, Target.MOD, Relation.EQUAL, revision)


def absent(key: bytes) -> Compare:
    """Holds while there is no such key."""
    return Compare(key, Target.CREATE, Relation.EQUAL, 0)


def none_in(prefix: bytes) -> Compare:
    """Holds while no key starts with `prefix`."""
    return Compare(prefix, Target.CREATE, Relation.EQUAL, 0, prefix_end(prefix))


def none_between(start: bytes, end: bytes) -> Compare:
    """Holds while there is no key from `start` up to, not including, `end`."""
    return Compare(start, Target.CREATE, Relation.EQUAL, 0, end)


def unwritten_since(prefix: bytes, revision: int) -> Compare:
    """Holds while no key that starts with `prefix` has been put after `revision`."""
    return Compare(prefix, Target.MOD, Relation.LESS, revision + 1, prefix_end(prefix))


class SortTarget(Enum):
    """By what a `Range` sorts."""

    KEY = 0
    MOD = 3


@dataclass(frozen=True, slots=True)
class Range:
    """Read keys from `key` up to, not including, `range_end` (empty: just `key`).

    `revision` 0 reads the newest. Inside a transaction it must be 0: members may diverge otherwise.
    """

    key: bytes
    range_end: bytes = b""
    limit: int = 0
    revision: int = 0
    keys_only: bool = False
    count_only: bool = False
    descending_by: SortTarget | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key; `lease` 0 means for ever."""

    key: bytes
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a key, or the keys from `key` up to, not including, `range_end`."""

    key: bytes
    range_end: bytes = b""


Op = Range | Put | Delete


@dataclass(frozen=True, slots=True)
class Txn:
    """If all compares hold: `success`, else `failure`; atomically, in one revision."""

    compare: tuple[Compare, ...]
    success: tuple[Op, ...]
    failure: tuple[Op, ...] = ()


@dataclass(frozen=True, slots=True)
class RangeResult:
    """Reply to a `Range`. `count` is the number of keys in the range, not only of those returned."""

    revision: int
    kvs: tuple[KeyValue, ...]
    more: bool
    count: int


@dataclass(frozen=True, slots=True)
class PutResult:
    """Reply to a `Put` in a transaction."""


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """Reply to a `Delete`: how many keys it removed."""

    deleted: int


OpResult = RangeResult | PutResult | DeleteResult


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Reply to a `Txn`: `revision` is the store's after it."""

    succeeded: bool
    revision: int
    responses: tuple[OpResult, ...]


def prefix_end(prefix: bytes) -> bytes:
    """First key after all keys that start with `prefix`, for use as a `range_end`.

    Raises:
        ValueError: the prefix is empty or all 0xff, so that there is no such key.
    """
    for i in reversed(range(len(prefix))):
        if prefix[i] < 0xFF:
            return prefix[:i] + bytes([prefix[i] + 1])
    raise ValueError("a prefix must hold a byte below 0xff")


class Permission(IntEnum):
    """Kind of a permission, with etcd's own numbers."""

    READ = 0
    WRITE = 1
    READWRITE = 2


@dataclass(frozen=True, slots=True, order=True)
class KeyPermission:
    """Permission of a role for keys; `range_end` empty: for the one key; one zero byte: for all keys from it on."""

    key: bytes
    range_end: bytes
    permission: Permission

    def __str__(self) -> str:
        keys = self.key.decode(errors="backslashreplace") + ("*" if self.range_end else "")
        return f"{self.permission.name.lower()} {keys}"


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """Users of etcd with their roles, and roles with their permissions."""

    users: Mapping[str, frozenset[str]] = field(default_factory=dict)
    roles: Mapping[str, frozenset[KeyPermission]] = field(default_factory=dict)
