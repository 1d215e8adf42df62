"""The members of the modelled cluster: what each answers, and what each tells its watchers and when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from google.protobuf.message import Message

from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.ops import Event, RangeResult
from registry.etcd3.stream import progress_is_safe
from tests.support.sim import wire
from tests.support.sim.store import EtcdStore, Refusal, Revision

NO_LEADER = Refusal("UNAVAILABLE", "etcdserver: no leader")
CLUSTER_ID = 77


@dataclass(frozen=True)
class Habits:
    """What differs from one modelled cluster to another.

    Attributes:
        version: of all members; old ones tell progress before the events.
        page_limit: most keys in one page; 0: as many as are asked for.
        fragment_events: most events in one message of a watch; 0: all.
        max_lag_seconds: how far the slowest member is behind.
    """

    version: str = "3.5.30"
    page_limit: int = 0
    fragment_events: int = 0
    max_lag_seconds: float = 0.002


@dataclass
class Cluster:
    """One store behind several members."""

    store: EtcdStore
    rng: random.Random
    habits: Habits = Habits()
    raft_term: int = 2
    cluster_id: int = CLUSTER_ID
    members: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store.on_commit.append(self._committed)

    def _committed(self, revision: int, _events: tuple[Event, ...]) -> None:
        for member in self.members:
            lag = self.rng.uniform(0.0, self.habits.max_lag_seconds) + member.lag_seconds
            asyncio.get_running_loop().call_later(lag, member.learn, revision, member.restarts)

    def restart(self, *, cluster_id: int | None = None) -> None:
        """All members end and start at what the store holds now; what is on its way to them is lost."""
        self.cluster_id = cluster_id or self.cluster_id
        self.raft_term += 1
        for member in self.members:
            member.restart()

    def has_quorum(self) -> bool:
        """Whether most members see each other."""
        return sum(member.is_isolated for member in self.members) * 2 < len(self.members)


class Member:
    """One server. `applied` is how much of the store it knows; its watchers are told no more."""

    def __init__(self, name: str, number: int, cluster: Cluster) -> None:
        self.name = name
        self.lag_seconds = 0.0
        self.is_isolated = False
        self.restarts = 0
        self.applied = cluster.store.revision
        self.watches: list[Watch] = []
        self._number = number
        self._cluster = cluster
        self._late = 0
        cluster.members.append(self)

    @property
    def store(self) -> EtcdStore:
        return self._cluster.store

    @property
    def habits(self) -> Habits:
        return self._cluster.habits

    def header(self, revision: int) -> rpc.ResponseHeader:
        """As etcd puts before each reply."""
        return rpc.ResponseHeader(
            cluster_id=self._cluster.cluster_id,
            member_id=self._number,
            revision=revision,
            raft_term=self._cluster.raft_term,
        )

    def learn(self, revision: int, restarts: int) -> None:
        """Is told by the others, unless it was restarted meanwhile."""
        if restarts == self.restarts:
            self.apply(revision)

    def apply(self, revision: int) -> None:
        """Learns of the store up to a revision, unless it is cut off."""
        if self.is_isolated:
            self._late = max(self._late, revision)
            return
        if revision > self.applied:
            self.applied = revision
            for watch in list(self.watches):
                watch.wake()

    def restart(self) -> None:
        """Ends and starts it."""
        self.restarts += 1
        for watch in list(self.watches):
            watch.close()
        self.applied, self._late = self.store.revision, 0

    def isolate(self) -> None:
        """Cuts it off from the others. Its watchers are told after an election's time that there is no leader."""
        self.is_isolated = True
        asyncio.get_running_loop().call_later(4.0, self._give_up_watches)

    def rejoin(self) -> None:
        """Ends its isolation."""
        self.is_isolated = False
        self._cluster.raft_term += 1
        self.apply(self.store.revision)

    def _give_up_watches(self) -> None:
        if self.is_isolated:
            for watch in list(self.watches):
                watch.cancel("etcdserver: no leader")

    def serve(self, path: str, request: Message, now: float) -> Message:
        """Answers one call, linearizable.

        Raises:
            Refusal: as etcd refuses it.
        """
        if path.endswith("/Status"):
            return rpc.StatusResponse(header=self.header(self.applied), version=self.habits.version, leader=1)
        if self.is_isolated or not self._cluster.has_quorum():
            raise NO_LEADER
        reply = self._serve(request, now)
        self.apply(self.store.revision)
        return reply

    def _serve(self, request: Message, now: float) -> Message:
        store = self.store
        match request:
            case rpc.RangeRequest():
                return wire.range_response(self._read(request), self.header(store.revision))
            case rpc.TxnRequest():
                result = store.txn(wire.txn(request))
                return wire.txn_response(result, self.header(result.revision))
            case rpc.DeleteRangeRequest():
                gone = [wire.key_value(kv) for kv in store.delete_range(wire.delete_op(request))]
                told = gone if request.prev_kv else []
                return rpc.DeleteRangeResponse(header=self.header(store.revision), deleted=len(gone), prev_kvs=told)
            case rpc.CompactionRequest():
                store.compact(request.revision)
                return rpc.CompactionResponse(header=self.header(store.revision))
            case _:
                return self._serve_lease(request, now)

    def _read(self, request: rpc.RangeRequest) -> RangeResult:
        cap = self.habits.page_limit
        if cap and request.limit:
            request.limit = min(request.limit, cap)
        return self.store.read(wire.range_op(request))

    def _serve_lease(self, request: Message, now: float) -> Message:
        header = self.header(self.store.revision)
        match request:
            case rpc.LeaseGrantRequest():
                return rpc.LeaseGrantResponse(header=header, ID=self.store.grant(request.TTL, now), TTL=request.TTL)
            case rpc.LeaseRevokeRequest():
                self.store.revoke(request.ID)
                return rpc.LeaseRevokeResponse(header=self.header(self.store.revision))
            case rpc.LeaseKeepAliveRequest():
                ttl = self.store.keep_alive(request.ID, now)
                return rpc.LeaseKeepAliveResponse(header=header, ID=request.ID, TTL=ttl)
            case _:
                raise Refusal("UNIMPLEMENTED", f"{type(request).__name__} is not modelled")

    def batch_seconds(self) -> float:
        """How long events wait for others to travel with."""
        return self._cluster.rng.choice((0.0, 0.0005, 0.01))

    def split(self, revisions: int) -> int:
        """How many of so many revisions travel in the next message."""
        return self._cluster.rng.randint(1, revisions)


class Watch:
    """One watch stream on a member, with one watch on it."""

    def __init__(self, member: Member, send: Callable[[rpc.WatchResponse], None]) -> None:
        self._member = member
        self._send = send
        self._next = 0
        self._key, self._end = b"", b""
        self._is_due = False
        self._is_open = False
        self._has_caught_up = False
        self._noted: list[list[Event]] = []

    def receive(self, request: rpc.WatchRequest) -> None:
        """Takes a message of the client."""
        if request.HasField("create_request"):
            self._create(request.create_request)
        elif request.HasField("progress_request"):
            self._tell_progress()

    def close(self) -> None:
        """Ends it; nothing more is sent."""
        self._is_open = False
        if self in self._member.watches:
            self._member.watches.remove(self)

    def cancel(self, reason: str, compact_revision: int = 0) -> None:
        """Tells the client that the watch is over."""
        self.close()
        header = self._member.header(self._member.applied)
        self._send(
            rpc.WatchResponse(header=header, canceled=True, cancel_reason=reason, compact_revision=compact_revision)
        )

    def wake(self) -> None:
        """The member knows more than before. To a watch that has caught up that is noted at once."""
        if not self._is_open:
            return
        if self._has_caught_up:
            self._note(self._member.store.since(self._next, compacted=0))
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(self._member.batch_seconds(), self._pump)

    def _create(self, request: rpc.WatchCreateRequest) -> None:
        member = self._member
        if member.is_isolated:
            self.cancel("etcdserver: no leader")
            return
        self._key, self._end = request.key, request.range_end
        self._next = request.start_revision or member.applied + 1
        self._is_open = True
        member.watches.append(self)
        self._send(rpc.WatchResponse(header=member.header(member.applied), created=True))
        self.wake()

    def _pump(self) -> None:
        """Sends what is noted, some revisions to a message; a watch that is behind catches up with what is kept."""
        self._is_due = False
        if not self._is_open:
            return
        store = self._member.store
        if not self._has_caught_up:
            if self._next < store.compacted:
                self.cancel("etcdserver: mvcc: required revision has been compacted", store.compacted)
                return
            self._note(store.since(self._next, store.compacted))
            self._has_caught_up = True
        while self._noted:
            count = self._member.split(len(self._noted))
            self._send_events([event for events in self._noted[:count] for event in events])
            self._noted = self._noted[count:]

    def _note(self, revisions: Iterable[Revision]) -> None:
        for number, events in revisions:
            if number <= self._member.applied and (mine := self._matching(events)):
                self._noted.append(mine)
        self._next = max(self._next, self._member.applied + 1)

    def _matching(self, events: tuple[Event, ...]) -> list[Event]:
        if not self._end:
            return [event for event in events if event.key == self._key]
        return [event for event in events if self._key <= event.key < self._end]

    def _send_events(self, events: list[Event]) -> None:
        size = self._member.habits.fragment_events or len(events)
        for start in range(0, len(events), size):
            part = [wire.event(event) for event in events[start : start + size]]
            is_more = start + size < len(events)
            header = self._member.header(self._member.applied)
            self._send(rpc.WatchResponse(header=header, events=part, fragment=is_more))

    def _tell_progress(self) -> None:
        member = self._member
        if not self._is_open:
            return
        if progress_is_safe(member.habits.version):
            if self._has_caught_up and not self._noted:
                self._send(rpc.WatchResponse(header=member.header(self._next - 1)))
        else:  # may overtake what is still to be sent
            self._send(rpc.WatchResponse(header=member.header(member.applied)))
