"""State of an engine's only slot, as it was last ordered. Pure.

It is about one process of the engine, and void with the next.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from registry.model.stored import read_json

_SCHEMA = 1
# Numbers count seconds from here on, so that those of years fit into the 31 bits that some releases of vLLM have.
EPOCH_SECONDS = 1_577_836_800
_MAX_NUMBER = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Nothing:
    """It was told of nothing, or has said that it has nothing."""


@dataclass(frozen=True, slots=True)
class Clearing:
    """It is to have nothing, and may not have heard it; `name` is what it had."""

    name: str


@dataclass(frozen=True, slots=True)
class Active:
    """It is to answer every request with this; `number` is of this load alone."""

    number: int
    name: str
    path: str

    @property
    def label(self) -> str:
        """A name that no other weights have in the engine, whose caches may know them by it."""
        return f"{self.name}#{self.number}"


Content = Nothing | Clearing | Active


@dataclass(frozen=True, slots=True)
class SingleSlot:
    """What one process was told last. `last_number`: the highest that was given away."""

    incarnation: str = ""
    last_number: int = 0
    content: Content = Nothing()

    def of(self, incarnation: str) -> SingleSlot:
        """The same of a process: another one was told nothing."""
        return self if incarnation == self.incarnation else SingleSlot(incarnation, self.last_number)

    def next_active(self, name: str, path: str, now_seconds: float) -> Active:
        """An adapter by a number higher than any before; the clock tells it from those of a lost record."""
        return Active(max(self.last_number + 1, int(now_seconds) - EPOCH_SECONDS), name, path)

    def with_content(self, content: Content) -> SingleSlot:
        """With something else. Numbers that were given away stay so."""
        number = content.number if isinstance(content, Active) else 0
        return replace(self, last_number=max(self.last_number, number), content=content)

    def to_bytes(self) -> bytes:
        """As it is kept in a file."""
        kept = {"kind": type(self.content).__name__.lower(), **asdict(self.content)}
        value = {"schema": _SCHEMA, "incarnation": self.incarnation, "last_number": self.last_number, "content": kept}
        return json.dumps(value).encode()


UNTOUCHED = SingleSlot()


def read_slot(value: bytes) -> SingleSlot:
    """What `SingleSlot.to_bytes` made; what is damaged says nothing."""
    try:
        fields = read_json(value)
    except ValueError:
        return UNTOUCHED
    match fields:
        case {"schema": 1, "incarnation": str(incarnation), "last_number": int(last), "content": dict(kept)} if (
            0 <= last <= _MAX_NUMBER
        ):
            return SingleSlot(incarnation, last, _content(kept))
        case _:
            return UNTOUCHED


def _content(kept: dict[str, object]) -> Content:
    match kept:
        case {"kind": "active", "number": int(number), "name": str(name), "path": str(path)} if (
            0 <= number <= _MAX_NUMBER
        ):
            return Active(number, name, path)
        case {"kind": "clearing", "name": str(name)}:
            return Clearing(name)
        case _:
            return Nothing()
