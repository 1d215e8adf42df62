"""What records were when we last saw them: a guess that saves a read, verified by each transaction's compares."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from registry.etcd3.ops import Delete, KeyValue, Put, Range, Txn
from registry.transactions.view import View

_ENTRIES = 5000
_LARGEST_VALUE_BYTES = 8 * 1024


class Hints:
    """The last known values of keys below some prefixes; the least recently used are forgotten."""

    def __init__(self, prefixes: Iterable[bytes]) -> None:
        self._prefixes = tuple(prefixes)
        self._known: OrderedDict[bytes, KeyValue] = OrderedDict()

    def guess(self, reads: tuple[Range, ...]) -> View:
        """A view in which everything unknown is absent."""
        found = {read.key: kv for read in reads if (kv := self._known.get(read.key))}
        for key in found:
            self._known.move_to_end(key)
        return View(0, reads, found)

    def saw(self, view: View) -> None:
        """Learns what a reading found."""
        for read in view.reads:
            if not read.range_end:
                self._learn(read.key, view.key(read.key))

    def wrote(self, txn: Txn, revision: int) -> None:
        """Learns what a transaction of ours did."""
        for op in txn.success:
            match op:
                case Put():
                    self._learn(op.key, KeyValue(op.key, op.value, 0, revision, 0))
                case Delete(range_end=b""):
                    self._learn(op.key, None)
                case _:
                    pass

    def _learn(self, key: bytes, kv: KeyValue | None) -> None:
        self._known.pop(key, None)
        if kv is None or not key.startswith(self._prefixes) or len(kv.value) > _LARGEST_VALUE_BYTES:
            return
        self._known[key] = kv
        if len(self._known) > _ENTRIES:
            self._known.popitem(last=False)
