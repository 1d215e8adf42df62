"""Protocol of one watch stream: responses in, reflections out. Pure.

- The mark is the last revision that is known in full. Only events of the stream, or its own progress, move it.
- A stream starts at the mark, not behind it: a start in the future gets no answer to a progress request, and a start
just behind the mark could miss a deletion that a compaction swallowed. What is not above the mark is dropped.
- All events of a revision leave together. etcd sends whole revisions; of a fragment of a message the last revision
waits for the next fragment.
- `canceled` is looked at before `created`, since both can be set.
- Progress counts only on servers where it cannot overtake events.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import groupby

from registry.etcd3 import codec
from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.classify import classify_cancel
from registry.etcd3.errors import OtherCluster
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
    """The watch broke, or could not be made; it is tried again.

    `denied`: because of who we are or may do. `refuses_progress`: by what cannot be trusted to bring every event.
    """

    message: str
    denied: bool = False
    refuses_progress: bool = False


Reflection = Listed | Changed | Progressed | Connected | Disconnected


@dataclass(frozen=True, slots=True)
class Resume:
    """A state that the caller has already. 0 stands for an unknown cluster or term."""

    revision: int
    cluster_id: int
    raft_term: int = 0


_PROGRESS_FIXED = {(3, 4): 25, (3, 5): 8}


def progress_is_safe(version: str) -> bool:
    """True if progress of a server of this version never overtakes its events: from 3.4.25 and 3.5.8 on."""
    try:
        major, minor, patch = (int(part) for part in version.partition("-")[0].split("."))
    except ValueError:
        return False
    return (major, minor) > (3, 3) and patch >= _PROGRESS_FIXED.get((major, minor), 0)


@dataclass(slots=True)
class Mark:
    """Revision up to which a store is known, and which store it is. 0 stands for an unknown cluster or term."""

    revision: int
    cluster_id: int
    raft_term: int

    def went_back(self, now: Mark) -> bool:
        """True if `now`, from a linearizable read, is another store, or this one before the mark."""
        return (
            now.revision < self.revision or now.raft_term < self.raft_term or self.cluster_id not in (0, now.cluster_id)
        )


class WatchProtocol:
    """One stream with one watch on it; moves `mark`."""

    def __init__(self, mark: Mark, *, endpoint: str, server_version: str) -> None:
        self._mark = mark
        self._endpoint = endpoint
        self._trusts_progress = progress_is_safe(server_version)
        self._begun: list[Event] = []

    def create_request(self, key: bytes, range_end: bytes, *, in_fragments: bool) -> rpc.WatchRequest:
        """The first message of the stream. In fragments etcd takes longer over what was missed, however much it is."""
        create = rpc.WatchCreateRequest(
            key=key,
            range_end=range_end,
            start_revision=max(1, self._mark.revision),
            progress_notify=True,
            fragment=in_fragments,
        )
        return rpc.WatchRequest(create_request=create)

    def receive(self, response: rpc.WatchResponse) -> list[Changed | Progressed]:
        """Reflections that a response brings. None, if it brings nothing new.

        Raises:
            Compacted: the mark is no longer kept; the state must be listed.
            PermissionDenied, Unauthenticated, NoLeader, OtherCluster, WatchCanceled: the stream is of no more use.
        """
        if response.canceled:
            raise classify_cancel(response.cancel_reason, response.compact_revision, endpoint=self._endpoint)
        self._same_cluster(response.header)
        if response.created:
            return []
        if response.events:
            return self._take_events(response)
        return self._take_progress(response.header.revision)

    def _same_cluster(self, header: rpc.ResponseHeader) -> None:
        if self._mark.cluster_id and header.cluster_id != self._mark.cluster_id:
            raise OtherCluster(f"{self._endpoint}: this member belongs to another cluster")

    def _take_events(self, response: rpc.WatchResponse) -> list[Changed | Progressed]:
        events = [*self._begun, *map(codec.event, response.events)]
        begun = events[-1].mod_revision if response.fragment else None
        self._begun = [one for one in events if one.mod_revision == begun]
        changes: list[Changed | Progressed] = []
        for revision, group in groupby(events, key=_revision):
            if revision > self._mark.revision and revision != begun:
                self._mark.revision = revision
                changes.append(Changed(revision, tuple(group)))
        return changes

    def _take_progress(self, revision: int) -> list[Changed | Progressed]:
        if not self._trusts_progress or self._begun or revision <= self._mark.revision:
            return []
        self._mark.revision = revision
        return [Progressed(revision)]


def _revision(event: Event) -> int:
    return event.mod_revision
