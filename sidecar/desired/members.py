"""Live replicas of the pool, followed while some adapter's place depends on them.

Whoever lost its own lease has lost the way to etcd, and so may all others have: that their presences are gone then says
nothing of them. So a replica believes in nobody's absence before its own presence has stood for a while. And while it
is in doubt whether a store may be followed at all (guarantee R15), nothing that it says of replicas is believed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace

import structlog

from registry.etcd3.client import Client
from registry.etcd3.ops import KeyValue, prefix_end
from registry.etcd3.reflector import Changed, Connected, Disconnected, Listed, Progressed, Reflector
from registry.model.errors import RegistryError
from registry.model.keys import Keys, last_part
from registry.model.placement import Member, member_of
from registry.model.status import Presence
from registry.runtime.clock import Clock
from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Mailbox
from sidecar.desired.placement import Members
from sidecar.desired.snapshot import MembersChanged

# After a lost lease a presence is there again within 2 s, as a rule.
BELIEVE_SECONDS = 3.0


class Membership:
    """What one replica takes for the live replicas of its pool.

    Attributes:
        members: by name, itself among them unless it leaves; None: not known yet.
        due: monotonic seconds at which to `look` again; None: when something changes.
    """

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._listed: Mapping[str, Member] = {}
        self._present_since: float | None = None
        self.members: Mapping[str, Member] | None = None
        self.due: float | None = None

    def restore(self, members: Mapping[str, Member]) -> None:
        """Starts from those that were known before a restart, unless there were none."""
        self.members = members or None

    def call(self, listed: Mapping[str, Member], now: float, *, is_doubtful: bool = False) -> None:
        """Takes in whose presences stand in etcd."""
        self._listed = listed
        self.look(now, is_doubtful=is_doubtful)

    def look(self, now: float, *, is_doubtful: bool = False) -> None:
        """Takes in that time has passed; `is_doubtful`: whether the store may be followed is not known now."""
        self.due = None
        if self._replica not in self._listed:
            self._present_since = None
            return
        if self._present_since is None:
            self._present_since = now
        if is_doubtful:
            return
        sure_at = self._present_since + BELIEVE_SECONDS
        if now >= sure_at:
            self._settle(self._listed)
            return
        self.due = sure_at
        if self.members is not None:
            self._settle({**self.members, **self._listed})

    def _settle(self, members: Mapping[str, Member]) -> None:
        """Who leaves is left out, also this replica itself: of that its presence is proof enough."""
        staying = {name: one for name, one in members.items() if not one.leaving}
        if staying != self.members:
            self.members = staying


_log = structlog.get_logger()


class MembersWatcher:
    """Keeps `Snapshot.members` at the live replicas; without etcd at those that were known last (guarantee R13)."""

    def __init__(
        self, client: Client, keys: Keys, pool: str, replica: str, mailbox: Mailbox, journal: Journal, clock: Clock
    ) -> None:
        self._client = client
        self._prefix = keys.replicas(pool)
        self._replica = replica
        self._mailbox = mailbox
        self._journal = journal
        self._clock = clock
        self._roll = Membership(replica)
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
        self._put_in_force(self._roll.members)

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
        snapshot = self._mailbox.snapshot
        return bool(snapshot.held) or not snapshot.connected

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            if not self._is_wanted:
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
                self._roll.look(self._clock.monotonic(), is_doubtful=self._is_doubtful)
                self._take()
            following.cancel()
        self._roll = Membership(self._replica)
        self._put_in_force(None)

    async def _until(self, due: float | None) -> None:
        """Returns at news, or when something is due."""
        try:
            async with asyncio.timeout_at(due):
                await self._news.wait()
        except TimeoutError:
            return

    async def _follow(self) -> None:
        reflector = Reflector(self._client, self._prefix, prefix_end(self._prefix), resume=None, rng=self._clock.rng)
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
                self._roll.call(dict(self._listed), self._clock.monotonic(), is_doubtful=self._is_doubtful)
                self._news.set()

    def _note(self, replica: str, kv: KeyValue | None) -> None:
        member = None if kv is None else _member(kv)
        if member is None:
            self._listed.pop(replica, None)
        else:
            self._listed[replica] = member

    def _take(self) -> None:
        """Takes over what the roll says, on disk before anybody acts upon it."""
        members = self._roll.members
        if members is self._mailbox.snapshot.members or members is None:
            return
        come = tuple(one for name, one in members.items() if self._kept.get(name) != one)
        self._journal.append(MembersChanged(come, tuple(name for name in self._kept if name not in members)))
        _log.info("members_changed", members=len(members), come=len(come))
        self._kept = members
        self._put_in_force(members)

    def _put_in_force(self, members: Members | None) -> None:
        self._mailbox.post(replace(self._mailbox.snapshot, members=members))


def _named(members: Iterable[Member]) -> dict[str, Member]:
    return {one.replica: one for one in members}


def _member(kv: KeyValue) -> Member | None:
    """A replica by its presence; None: nobody can tell what it is."""
    try:
        presence = Presence.parse(kv.value)
    except RegistryError as error:
        _log.warning("presence_refused", replica=last_part(kv.key), reason=error.reason, error=error.message)
        return None
    return member_of(last_part(kv.key), presence)
