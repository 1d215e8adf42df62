"""What a watch of a pool's adapters tells, once each, also where it had to begin anew. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from registry.v1 import registry_pb2 as pb


@dataclass(frozen=True, slots=True)
class Put:
    """An item is new or changed."""

    item: Any


@dataclass(frozen=True, slots=True)
class Gone:
    """The item of this name is no more."""

    name: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What stands under this name cannot be read."""

    name: str


Told = Put | Gone | Unreadable
_NO_ETAG = ""


class Feed:
    """What was told of a pool's adapters, or of one of them.

    Attributes:
        start: the revision to watch from; 0: the present state first.
    """

    def __init__(self, name: str | None) -> None:
        self.start = 0
        self._name = name.lower() if name is not None else None
        self._etags: dict[str, str] = {}
        self._listed: set[str] | None = None

    def begin(self) -> None:
        """A new stream begins: what was listed of a state that never came to its end is not all of it."""
        self._listed = None

    def take(self, response: pb.WatchAdaptersResponse) -> Iterator[Told]:
        """What a response tells that was not told yet."""
        if response.snapshot and self._listed is None:
            self._listed = set()
        for event in response.events:
            yield from self._event(event)
        if response.more:
            return
        if response.snapshot and self._listed is not None:
            yield from [self._gone(key) for key in sorted(self._etags.keys() - self._listed)]
            self._listed = None
        self.start = response.revision + 1

    def _event(self, event: pb.AdapterEvent) -> Iterator[Told]:
        match event.WhichOneof("event"):
            case "put":
                yield from self._stands(event.put.name, event.put.etag, Put(event.put))
            case "unreadable":
                yield from self._stands(event.unreadable, _NO_ETAG, Unreadable(event.unreadable))
            case "deleted" if event.deleted in self._etags:
                yield self._gone(event.deleted)
            case _:
                pass

    def _stands(self, name: str, etag: str, told: Told) -> Iterator[Told]:
        key = name.lower()
        if self._name not in {None, key}:
            return
        if self._listed is not None:
            self._listed.add(key)
        if self._etags.get(key) != etag:
            self._etags[key] = etag
            yield told

    def _gone(self, key: str) -> Gone:
        del self._etags[key]
        return Gone(key)
