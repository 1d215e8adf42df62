"""What was read before a change is planned, and how it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from registry.etcd3.ops import KeyValue, OpResult, Range, RangeResult, SortTarget, prefix_end


def newest_in(prefix: bytes) -> Range:
    """Reads the key below a prefix that was put last."""
    return Range(prefix, prefix_end(prefix), limit=1, descending_by=SortTarget.MOD)


def any_in(prefix: bytes) -> Range:
    """Reads one key below a prefix, without its value."""
    return Range(prefix, prefix_end(prefix), limit=1, keys_only=True)


@dataclass(frozen=True, slots=True)
class View:
    """What stood in etcd. Everything in it was so at `revision` or later.

    A view may also be a guess (revision 0): then only what a transaction's compares verify may be made of it.

    Attributes:
        reads: what was read, and what is to be read again if it no longer holds.
        found: the first key that each reading found, by the key or prefix that was read.
    """

    revision: int
    reads: tuple[Range, ...]
    found: Mapping[bytes, KeyValue]

    def key(self, key: bytes) -> KeyValue | None:
        """The value of one key."""
        return self.found.get(key)

    def below(self, prefix: bytes) -> KeyValue | None:
        """What `newest_in` or `any_in` found below a prefix."""
        return self.found.get(prefix)


def view_of(reads: tuple[Range, ...], revision: int, responses: Iterable[OpResult]) -> View:
    """What a transaction's ranges found, in their order."""
    found = {}
    for read, response in zip(reads, responses, strict=True):
        if isinstance(response, RangeResult) and response.kvs:
            found[read.key] = response.kvs[0]
    return View(revision, reads, found)
