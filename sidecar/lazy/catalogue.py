"""Whole adapters of the lazy records, read when they are wanted: of most nobody asks for anything. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from registry.errors import RegistryError
from sidecar.desired import DesiredAdapter, DesiredState, parse_whole
from sidecar.raw_records import AnyRecord

# Of so many adapters what was read is remembered; those that are loaded are wanted at each round.
MAX_REMEMBERED = 1024


class Catalogue:
    """Reads raw records, never for a state that they are not of."""

    def __init__(self, pool: str, record: Callable[[str], AnyRecord | None]) -> None:
        """`record`: the raw record under a name key as it stands now, which may be newer than a state."""
        self._pool = pool
        self._record = record
        self._read: OrderedDict[str, tuple[bytes, DesiredAdapter]] = OrderedDict()

    def whole(self, state: DesiredState, key: str) -> DesiredAdapter | None:
        """The lazy adapter under a name key as `state` has it; None: it has none, or the record has moved on."""
        lazy, record = state.lazy.get(key), self._record(key)
        if lazy is None or record is None:
            return None
        value, revision = record.good or (record.value, record.revision)
        adapter = self._whole(key, value, revision)
        is_of_state = adapter is not None and (adapter.name, adapter.generation) == (lazy.name, lazy.generation)
        return adapter if is_of_state else None

    def _whole(self, key: str, value: bytes, revision: int) -> DesiredAdapter | None:
        known = self._read.get(key)
        if known is not None and known[0] == value:
            self._read.move_to_end(key)
            return known[1]
        try:
            adapter = parse_whole(self._pool, key, value, revision)
        except (RegistryError, ValueError):
            return None  # it is newer than any state that could be followed
        self._read[key] = value, adapter
        self._read.move_to_end(key)
        if len(self._read) > MAX_REMEMBERED:
            self._read.popitem(last=False)
        return adapter
