"""What was read before a change is planned, and how it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from registry.etcd3.ops import KeyValue, OpResult, Range, RangeResult, SortTarget, prefix_end


def newest_in(prefix: bytes) -> Range:
    """Reads the key below a prefix that was put last."""
    return Range(prefix, prefix_end(prefix), limit=1, descending_by=SortTarget.MOD)


def any_in(prefix: bytes) -> Range:
    """Reads one key below a prefix, without its value."""
    return Range(prefix, prefix_end(prefix), limit=1, keys_only=True)


def some_in(prefix: bytes, count: int) -> Range:
    """Reads at most so many keys below a prefix, without their values."""
    return Range(prefix, prefix_end(prefix), limit=count, keys_only=True)


def everything_in(prefix: bytes) -> Range:
    """Reads all keys below a prefix, which must be few."""
    return Range(prefix, prefix_end(prefix))


@dataclass(frozen=True, slots=True)
class View:
    """What stood in etcd. Everything in it was so at `revision` or later.

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
        """What `everything_in` or `some_in` found below a prefix."""
        return self.ranges.get(prefix, ())

    def below(self, prefix: bytes) -> KeyValue | None:
        """What `newest_in` or `any_in` found below a prefix."""
        return self.found.get(prefix)


def view_of(reads: tuple[Range, ...], revision: int, responses: Iterable[OpResult]) -> View:
    """What a transaction's ranges found, in their order."""
    found, ranges = {}, {}
    for read, response in zip(reads, responses, strict=True):
        if isinstance(response, RangeResult) and response.kvs:
            found[read.key] = response.kvs[0]
            if read.range_end:
                ranges[read.key] = response.kvs
    return View(revision, reads, found, ranges)
