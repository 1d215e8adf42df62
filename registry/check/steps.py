"""A history of etcd, step by step. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from registry.etcd3.ops import Event, KeyValue


@dataclass(frozen=True, slots=True)
class Base:
    """What stood at a revision, where the history before it is no longer kept."""

    revision: int
    kvs: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class Revision:
    """All events of one revision."""

    revision: int
    events: tuple[Event, ...]


Step = Base | Revision
