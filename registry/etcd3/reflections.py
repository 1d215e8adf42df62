"""What a reflector tells: the whole state at one revision, then every change of it, revision by revision. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from registry.etcd3.ops import Event, KeyValue


class ListCause(Enum):
    """Why the whole state was read."""

    FIRST = "first"  # there was nothing to resume from
    COMPACTED = "compacted"  # the revision to resume from is no longer kept
    WENT_BACK = "went_back"  # the store lost revisions that were seen already, or it is another cluster
    COMPARISON = "comparison"  # the slow periodic look that backs the watch up


@dataclass(frozen=True, slots=True)
class Listed:
    """All keys at `revision`. Keys that are not among them do not exist at that revision."""

    revision: int
    kvs: tuple[KeyValue, ...]
    cluster_id: int
    cause: ListCause
    raft_term: int = 0


@dataclass(frozen=True, slots=True)
class Changed:
    """All changes of exactly one revision, in etcd's order. Revisions rise from one to the next."""

    revision: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Progressed:
    """Up to `revision` there was nothing else."""

    revision: int


@dataclass(frozen=True, slots=True)
class Connected:
    """A watch is established and the store is the one that was seen before."""

    endpoint: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The watch broke, or could not be made; it is tried again. `denied`: because of who we are or may do."""

    message: str
    denied: bool = False


Reflection = Listed | Changed | Progressed | Connected | Disconnected


@dataclass(frozen=True, slots=True)
class Resume:
    """A state that the caller has already. 0 stands for an unknown cluster or term."""

    revision: int
    cluster_id: int
    raft_term: int = 0
