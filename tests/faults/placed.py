"""Residency held against what engines list: no answer leaves out whoever serves (R24)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import grpc
import httpx

from registry.etcd3.client import Client
from registry.etcd3.ops import Range
from registry.model.keys import Keys
from registry.model.stored import read_json
from registry.v1 import registry_pb2 as pb
from tests.faults.pods import Listings, Pods, Spell
from tests.faults.recorded import History
from tests.support.fleet import POOL

# Of an answer that was given before an engine or a sidecar began anew, nothing is held against what it does since.
CALM_SECONDS = 10.0


@dataclass
class Places:
    """An answer of residency: the replicas that it names by adapter, with how they stand to it and why."""

    revision: int = 0
    states: dict[str, dict[str, tuple[int, str]]] = field(default_factory=dict)

    def take(self, message: pb.WatchResidencyResponse) -> None:
        """One response of the stream."""
        if message.snapshot:
            self.states = {}
        self.revision = max(self.revision, message.revision)
        for adapter in message.adapters:
            self.states[adapter.name] = {one.replica: (one.state, one.reason) for one in adapter.replicas}
        gone = set(message.gone)
        self.states = {name: one for name, one in self.states.items() if name.lower() not in gone}

    def serving(self, name: str) -> set[str]:
        """Who serves it, as far as it is told."""
        standing = self.states.get(name, {}).items()
        return {replica for replica, (state, _) in standing if state == pb.RolloutReplica.SERVING}

    def unknown(self, name: str) -> set[str]:
        """Of whom it is told that nothing is known: they cannot be asked now, or their sidecar has just begun."""
        standing = self.states.get(name, {}).items()
        return {one for one, (state, why) in standing if state == pb.RolloutReplica.UNKNOWN or why == "no_status"}

    def told(self, name: str) -> str:
        """For people, by the ends of the replicas' names."""
        standing = self.states.get(name, {}).items()
        states = (f"{one[-5:]} {pb.RolloutReplica.State.Name(state)} {why}".strip() for one, (state, why) in standing)
        return ", ".join(states) or "nobody"

    def copied(self) -> Places:
        return Places(self.revision, {name: dict(one) for name, one in self.states.items()})


async def ask(stub: object, timeout_seconds: float = 10.0) -> Places | None:
    """A whole answer; None: that admin service gives none now."""
    places = Places()
    call = stub.WatchResidency(pb.WatchResidencyRequest(pool=POOL), timeout=timeout_seconds)  # type: ignore[attr-defined]
    try:
        async for message in call:
            places.take(message)
            if not message.more:
                return places
    except grpc.RpcError:
        return None
    finally:
        call.cancel()
    return None


def _key(name: str) -> str:
    """As etcd's key of its record ends."""
    return name.lower().replace("/", "%2F")


@dataclass
class Records:
    """Which adapters stood at which revision, and under which leases replicas live, by the checker's own watch."""

    history: History
    client: Client
    keys: Keys
    leases: dict[str, int] = field(default_factory=dict)
    _begun: dict[str, float] = field(default_factory=dict)
    _read: int = 0
    _stands: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    _lives: dict[str, float] = field(default_factory=dict)

    def catch_up(self) -> None:
        """Takes in what came since."""
        prefix, presences = self.keys.adapters(POOL), self.keys.replicas(POOL)
        for step in self.history.steps[self._read :]:
            for event in step.events:
                if event.key.startswith(prefix):
                    key = event.key.removeprefix(prefix).decode()
                    name = read_json(event.kv.value)["name"] if event.kv else ""
                    story = self._stands.setdefault(key, [])
                    if not story or not story[-1][1]:
                        self._lives[key] = time.monotonic()
                    story.append((step.revision, name))
                elif event.key.startswith(presences):
                    self._note(event.key.removeprefix(presences).decode(), event.kv.lease if event.kv else 0)
        self._read = len(self.history.steps)

    def _note(self, replica: str, lease: int) -> None:
        if self.leases.get(replica) != lease:
            self.leases[replica], self._begun[replica] = lease, time.monotonic()

    def is_calm(self, replica: str) -> bool:
        """Whether its sidecar has lived for so long that no answer is of the time before, however late it was read."""
        return time.monotonic() - self._begun.get(replica, 0.0) > CALM_SECONDS

    async def hold(self, name: str, replica: str, lease: int, since: int) -> bool:
        """Whether adapter and replica are those still, as etcd itself says: our watch may be late."""
        keys = self.keys.replica(POOL, replica), self.keys.adapter(POOL, name)
        presence, record = [(await self.client.range(Range(key))).kvs for key in keys]
        return bool(presence and record) and (presence[0].lease, record[0].create_revision) == (lease, since)

    def is_old(self, name: str) -> bool:
        """Whether it has stood for so long that what engines have is of this life of the name, not of one before."""
        return self.stands(name) and time.monotonic() - self._lives[_key(name)] > CALM_SECONDS

    def stands(self, name: str) -> bool:
        """Whether there is a record of it now, as far as was heard."""
        story = self._stands.get(_key(name), [])
        return bool(story) and bool(story[-1][1])

    def since(self, name: str, revision: int) -> int:
        """Since when the adapter stands that stood at a revision; 0: none stood."""
        story = [one for one in self._stands.get(_key(name), []) if one[0] <= revision]
        began = 0
        for at, stood in story:
            began = (began or at) if stood else 0
        return began


# By replica its processes, and what they listed both before an answer and after it.
Steady = dict[str, tuple[Spell, set[str]]]
# The processes that were named, the lease of the sidecar, and since when the adapter stood.
Standing = tuple[Spell, int, int]


def listed_twice(before: Listings, after: Listings) -> dict[str, AbstractSet[str]]:
    """By replica the names that its engine listed both times, whichever process it was."""
    return {one: before[one][1].keys() & after[one][1].keys() for one in before.keys() & after.keys()}


@dataclass
class Watcher:
    """One reader's memory: who was named for what, and by which processes it was served then.

    `by_number`: adapters that are placed on so many replicas; once so many others serve one, a replica lets go of it.
    """

    source: str
    records: Records
    pods: Pods
    by_number: Mapping[str, int]
    found: list[str] = field(default_factory=list)
    held: int = 0
    _named: dict[tuple[str, str], Standing] = field(default_factory=dict)
    _begun: dict[str, tuple[Spell, float]] = field(default_factory=dict)

    async def hold(self, before: Listings, places: Places, after: Listings) -> None:
        """Holds an answer against what engines listed before it was asked for and after it came."""
        self.records.catch_up()
        steady = self.steady(before, after)
        for (name, replica), (_, lease, since) in self.missing(steady, listed_twice(before, after), places).items():
            if await self.records.hold(name, replica, lease, since):
                told = f"it lists it, and the answer names {places.told(name)}"
                self.found.append(f"{self.source} at revision {places.revision}: {name} at {replica}: {told}")
        self._note(steady, places)

    def missing(
        self, steady: Steady, lists: Mapping[str, AbstractSet[str]], places: Places
    ) -> dict[tuple[str, str], Standing]:
        """Adapters and replicas that an answer leaves out, and when these were named before.

        `lists`: what each engine listed both before the answer and after it, whoever it was.
        """
        missing = {}
        for (name, replica), then in self._named.items():
            spell, listed = steady.get(replica, ((0, 0), set()))
            now = (spell, self.records.leases.get(replica, 0), self.records.since(name, places.revision))
            if name not in listed or then != now or not self.records.is_old(name):
                continue
            self.held += 1
            named = places.serving(name) | places.unknown(name)
            others = [one for one in named if one not in lists or name in lists[one] or not self.is_calm(one)]
            enough = self.by_number.get(name)
            if replica not in named and (enough is None or len(others) < enough):
                missing[name, replica] = then
        return missing

    def is_calm(self, replica: str) -> bool:
        """Whether its processes have lived for long: of a new one it may not be known yet that it has nothing."""
        began = self._begun.get(replica, (None, time.monotonic()))[1]
        return self.records.is_calm(replica) and time.monotonic() - began > CALM_SECONDS

    def _note(self, steady: Steady, places: Places) -> None:
        """Notes who is named and lists it. What an engine no longer has it may get again at any request (lazy)."""
        gone = [(name, one) for name, one in self._named if one in steady and name not in steady[one][1]]
        for pair in gone:
            del self._named[pair]
        for name in places.states:
            for replica in places.serving(name) & steady.keys():
                spell, listed = steady[replica]
                if name in listed:
                    since = self.records.since(name, places.revision)
                    self._named[name, replica] = spell, self.records.leases.get(replica, 0), since

    def steady(self, before: Listings, after: Listings) -> Steady:
        """What the same processes listed both times, of those that began long before the answer."""
        now, steady = time.monotonic(), Steady()
        for replica in before.keys() & after.keys():
            (spell, old), (other, new) = before[replica], after[replica]
            known, since = self._begun.get(replica, (None, 0.0))
            if known != spell:
                self._begun[replica] = spell, now
            elif spell == other and now - since > CALM_SECONDS and self.records.is_calm(replica):
                steady[replica] = spell, old.keys() & new.keys()
        return steady


class Follower:
    """A router: it follows one admin service after another, and keeps what it was told last.

    What it is told it holds at once against what engines listed last; only where somebody is left out it looks anew, so
    that it never falls behind.
    """

    def __init__(self, stubs: list[object], watcher: Watcher, client: httpx.AsyncClient) -> None:
        self._stubs, self._watcher, self._client = stubs, watcher, client
        self.places = Places()
        self.before: Listings = {}
        self.last: Listings = {}

    async def run(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(self._look())
            await self._follow(stop)
            looking.cancel()

    async def _look(self) -> None:
        while True:
            self.before, self.last = self.last, await self._watcher.pods.listings(self._client)
            await asyncio.sleep(0.2)

    async def _follow(self, stop: asyncio.Event) -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            call = self._stubs[turn % len(self._stubs)].WatchResidency(pb.WatchResidencyRequest(pool=POOL), timeout=120)  # type: ignore[attr-defined]
            try:
                async for message in call:
                    await self._take(message)
            except grpc.RpcError:
                await asyncio.sleep(0.2)
            finally:
                call.cancel()

    async def _take(self, message: pb.WatchResidencyResponse) -> None:
        places = self.places.copied()
        places.take(message)
        self.places = places
        if message.more:
            return
        before, after = self.before, self.last
        self._watcher.records.catch_up()
        if self._watcher.missing(self._watcher.steady(before, after), listed_twice(before, after), places):
            before, after = after, await self._watcher.pods.listings(self._client)
        await self._watcher.hold(before, places, after)
