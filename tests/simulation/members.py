"""The members of the modelled cluster: what each answers, and what each tells its watchers and when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from google.protobuf.message import Message

from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.ops import Event, RangeResult
from tests.simulation import wire
from tests.simulation.store import EtcdStore, Refusal

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


class Watching(Protocol):
    """A watch as its member sees it. `whose`: its client, and the first of its keys."""

    @property
    def whose(self) -> tuple[str, bytes]: ...

    def tear(self) -> None:
        """Breaks it alone."""

    def mute(self) -> Callable[[], None]:
        """Has it say nothing, until what is returned is called."""

    def wake(self) -> None:
        """The member knows more than before."""

    def cancel(self, reason: str) -> None:
        """Ends it, and tells its client."""

    def close(self) -> None:
        """Ends it without a word."""


class Member:
    """One server. `applied` is how much of the store it knows; its watchers are told no more."""

    listens = True

    def __init__(self, name: str, number: int, cluster: Cluster) -> None:
        self.name = name
        self.lag_seconds = 0.0
        self.is_isolated = False
        self.restarts = 0
        self.applied = cluster.store.revision
        self.watches: list[Watching] = []
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
            raise Refusal("UNAVAILABLE", "etcdserver: no leader")
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
