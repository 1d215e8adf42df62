"""The live replicas of the pool: followed while some adapter's place depends on them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing

import structlog

from registry.errors import RegistryError
from registry.etcd3.client import Client
from registry.etcd3.ops import KeyValue, prefix_end
from registry.etcd3.reflector import Changed, Connected, Disconnected, Listed, Progressed, Reflector
from registry.keys import Keys, last_part
from registry.model.placement import Member
from registry.model.status import Presence
from sidecar.chance import Chance
from sidecar.inputs import Inputs
from sidecar.journal import Journal
from sidecar.placings import Members
from sidecar.roll import Roll
from sidecar.snapshot import MembersChanged

_log = structlog.get_logger()


class MembersFeed:
    """Keeps `Inputs.members` at the live replicas; without etcd at those that were known last (guarantee R13)."""

    def __init__(
        self, client: Client, keys: Keys, pool: str, replica: str, inputs: Inputs, journal: Journal, chance: Chance
    ) -> None:
        self._client = client
        self._prefix = keys.replicas(pool)
        self._replica = replica
        self._inputs = inputs
        self._journal = journal
        self._chance = chance
        self._roll = Roll(replica)
        self._listed: dict[str, Member] = {}
        self._kept: Members = {}
        self._is_wanted = False
        self._news = asyncio.Event()

    @property
    def members(self) -> Members:
        """Those that a snapshot has to hold."""
        return self._kept

    def restore(self, members: Members) -> None:
        """Takes up those of a snapshot."""
        self._kept = members
        self._roll.restore(members)
        self._inputs.members = self._roll.members

    def fold(self, entry: MembersChanged) -> None:
        """Takes up an entry of the journal."""
        self.restore({name: one for name, one in self._kept.items() if name not in entry.gone} | _named(entry.come))

    def want(self, *, wanted: bool) -> None:
        """Says whether anybody has to know them."""
        if self._is_wanted != wanted:
            self._is_wanted = wanted
            self._news.set()

    def look_again(self) -> None:
        """Says that the store came into doubt, or is in doubt no more."""
        self._news.set()

    @property
    def _is_doubtful(self) -> bool:
        """True while the adapters of this store are not followed."""
        return bool(self._inputs.held) or not self._inputs.connected

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._is_wanted:
                await self._follow_while_wanted()

    async def _follow_while_wanted(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self._follow(), name="members")
            while self._is_wanted:
                await self._until(self._roll.due)
                self._news.clear()
                self._roll.look(self._chance.monotonic(), is_doubtful=self._is_doubtful)
                self._take()
            following.cancel()
        self._roll, self._inputs.members = Roll(self._replica), None

    async def _until(self, due: float | None) -> None:
        """Returns at news, or when something is due."""
        try:
            async with asyncio.timeout_at(due):
                await self._news.wait()
        except TimeoutError:
            return

    async def _follow(self) -> None:
        reflector = Reflector(self._client, self._prefix, prefix_end(self._prefix), resume=None, rng=self._chance.rng)
        async with aclosing(reflector.stream()) as reflections:
            async for reflection in reflections:
                match reflection:
                    case Listed(kvs=kvs):
                        self._listed = _named(member for kv in kvs if (member := _member(kv)) is not None)
                    case Changed(events=events):
                        for event in events:
                            self._note(last_part(event.key), event.kv)
                    case Disconnected(message):
                        _log.warning("members_not_followed", error=message)
                        continue
                    case Progressed() | Connected():
                        continue
                self._roll.call(dict(self._listed), self._chance.monotonic(), is_doubtful=self._is_doubtful)
                self._news.set()

    def _note(self, replica: str, kv: KeyValue | None) -> None:
        member = None if kv is None else _member(kv)
        if member is None:
            self._listed.pop(replica, None)
        else:
            self._listed[replica] = member

    def _take(self) -> None:
        """Puts the roll in force, on disk before anybody acts upon it."""
        members = self._roll.members
        if members is self._inputs.members or members is None:
            return
        come = tuple(one for name, one in members.items() if self._kept.get(name) != one)
        self._journal.append(MembersChanged(come, tuple(name for name in self._kept if name not in members)))
        _log.info("members_changed", members=len(members), come=len(come))
        self._kept = self._inputs.members = members
        self._inputs.wake()


def _named(members: Iterable[Member]) -> dict[str, Member]:
    return {one.replica: one for one in members}


def _member(kv: KeyValue) -> Member | None:
    """A replica by its presence; None: nobody can tell what it is."""
    try:
        presence = Presence.parse(kv.value)
    except RegistryError as error:
        _log.warning("presence_refused", replica=last_part(kv.key), reason=error.reason, error=error.message)
        return None
    return Member(last_part(kv.key), presence.labels, presence.capacity)
