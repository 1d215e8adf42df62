"""Live replicas of the pool, followed while some adapter's place depends on them.

Presences are watched. Whether a status stands under the lease of one, and how much that says that its engine holds, is
read once for each lease and each capacity: statuses change all the time, and nobody could follow those of all others. A
sidecar writes its presence and its first status at once, so what is read when a presence comes is there. Until it was
read, a replica counts as it did before.

Whoever lost its own lease has lost the way to etcd, and so may all others have: that their presences are gone then says
nothing of them. So a replica believes in nobody's absence before its own presence has stood for a while. And while it
is in doubt whether a store may be followed at all (guarantee R15), nothing that it says of replicas is believed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import structlog

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.etcd3.ops import KeyValue, Range, prefix_end
from registry.etcd3.reflector import Reflector
from registry.etcd3.stream import Changed, Connected, Disconnected, Listed, Progressed
from registry.model.errors import RegistryError
from registry.model.keys import Keys, last_part
from registry.model.placement import Member, counted, member_of
from registry.model.replica_state import held_by_engine, parse_status, status_of
from registry.model.status import Presence
from registry.runtime.clock import Clock
from registry.runtime.process import Repeats
from sidecar.desired.mailbox import heard_within
from sidecar.desired.placement import Members
from sidecar.desired.pool_cache import PoolCache
from sidecar.desired.snapshot import MembersChanged

_log = structlog.get_logger()
# After a lost lease a presence is there again within 2 s, as a rule.
BELIEVE_SECONDS = 3.0
# Between two looks at who does not report, or could not be read; the first grows to the second while nothing is news.
ASK_SECONDS, ASK_SELDOM_SECONDS = 1.0, 60.0
# Reads at a time: a replica asks soon whoever is there, and etcd has little to do at once.
ASKED_AT_A_TIME = 16


@dataclass(frozen=True, slots=True)
class Proof:
    """What was read of a presence with this lease and capacity; `held` as in `registry.model.placement.member_of`."""

    lease: int
    capacity: int | None
    reports: bool
    held: int | None


class Attendance:
    """Presences as they stand in etcd, each with what was read of its status.

    Attributes:
        members: by name, as they were last proven. One that is not proven as it stands now is as it was before.
    """

    def __init__(self, refused: Repeats) -> None:
        self._refused = refused
        self._present: dict[str, tuple[KeyValue, Presence]] = {}
        self._proofs: dict[str, Proof] = {}
        self.members: dict[str, Member] = {}

    def call(self, presences: Iterable[KeyValue]) -> None:
        """Takes in all presences that there are."""
        here = {last_part(kv.key): kv for kv in presences}
        for name in dict.fromkeys((*self._present, *here)):
            self.note(name, here.get(name))

    def note(self, name: str, kv: KeyValue | None) -> None:
        """Takes in a presence; None: it is gone. Of one that cannot be read nobody can tell what it is."""
        presence = None if kv is None else self._parse(kv)
        proof = self._proofs.get(name)
        if proof is not None and (presence is None or not proof.reports):
            del self._proofs[name]
        if kv is None or presence is None:
            self._present.pop(name, None)
            self.members.pop(name, None)
            return
        self._present[name] = kv, presence
        self._take(name)

    def presence(self, name: str) -> KeyValue | None:
        """The presence as it was noted."""
        found = self._present.get(name)
        return found[0] if found else None

    def prove(self, name: str, kv: KeyValue | None, status: KeyValue | None) -> None:
        """Takes in a presence and a status as they were read; None: there was none."""
        presence = None if kv is None else self._parse(kv)
        if kv is None or presence is None:
            return
        reading = parse_status(status_of(kv, status))
        self._proofs[name] = Proof(kv.lease, presence.capacity, reading is not None, held_by_engine(reading))
        if name in self._present:
            self._take(name)

    @property
    def unproven(self) -> list[str]:
        """Those of whom nothing was read as they stand now."""
        return [name for name in self._present if self._proof(name) is None]

    @property
    def silent(self) -> list[str]:
        """Those who do not report."""
        return [name for name in self._present if (proof := self._proof(name)) is not None and not proof.reports]

    def _parse(self, kv: KeyValue) -> Presence | None:
        """A presence; None: nobody can tell what it is."""
        try:
            return Presence.parse(kv.value)
        except RegistryError as error:
            replica = last_part(kv.key)
            if times := self._refused.count((replica, error.reason)):
                told = {"replica": replica, "reason": error.reason, "error": error.message}
                _log.warning("presence_refused", **told, times=times)
            return None

    def _proof(self, name: str) -> Proof | None:
        (kv, presence), proof = self._present[name], self._proofs.get(name)
        is_of_it = proof is not None and (proof.lease, proof.capacity) == (kv.lease, presence.capacity)
        return proof if is_of_it else None

    def _take(self, name: str) -> None:
        proof, (_, presence) = self._proof(name), self._present[name]
        if proof is not None:
            self.members[name] = member_of(name, presence, reports=proof.reports, held=proof.held)


class Membership:
    """View of one replica on the live replicas of its pool.

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
        """Who leaves is left out, also this replica itself: of that its presence is proof enough; and who is silent."""
        staying = {one.replica: one for one in counted(one for one in members.values() if not one.leaving)}
        if staying != self.members:
            self.members = staying


class MembersWatcher:
    """Keeps `Snapshot.members` at the live replicas; without etcd at those that were known last (guarantee R13)."""

    def __init__(self, client: Client, keys: Keys, replica: str, cache: PoolCache, clock: Clock) -> None:
        self._client = client
        self._keys = keys
        self._replica = replica
        self._cache = cache
        self._clock = clock
        self._roll = Membership(replica)
        self._refused = Repeats(clock.monotonic)
        self._attendance = Attendance(self._refused)
        self._heard = asyncio.Event()
        self._is_wanted = False
        self._news = asyncio.Event()

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
        snapshot = self._cache.mailbox.snapshot
        return bool(snapshot.held) or not snapshot.connected

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._is_wanted:
                await self._follow_while_wanted()

    async def _follow_while_wanted(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._roll.restore(self._cache.mailbox.snapshot.members or {})
            self._attendance = Attendance(self._refused)
            self._heard.clear()
            following = tasks.create_task(self._follow(), name="members")
            calling = tasks.create_task(self._call(), name="roll call")
            while self._is_wanted:
                await self._until(self._roll.due)
                self._news.clear()
                self._roll.look(self._clock.monotonic(), is_doubtful=self._is_doubtful)
                self._take()
            following.cancel()
            calling.cancel()
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
        prefix = self._keys.replicas(self._cache.pool)
        reflector = Reflector(self._client, prefix, prefix_end(prefix), resume=None, rng=self._clock.rng)
        async with aclosing(reflector.stream()) as reflections:
            async for reflection in reflections:
                match reflection:
                    case Listed(kvs=kvs):
                        self._attendance.call(kvs)
                    case Changed(events=events):
                        for event in events:
                            self._attendance.note(last_part(event.key), event.kv)
                    case Disconnected(message):
                        _log.warning("members_not_followed", error=message)
                        continue
                    case Progressed() | Connected():
                        continue
                self._heard.set()

    async def _call(self) -> None:
        """Calls the roll whenever somebody comes, goes or changes, once it is known who of the first list reports."""
        attendance, pause_seconds, is_begun = self._attendance, ASK_SECONDS, False
        while True:
            pause = pause_seconds if attendance.unproven or attendance.silent else None
            is_news = await heard_within(pause, self._heard)
            self._heard.clear()
            # Those who were found to be silent hold nobody up, however many they are.
            silent = attendance.silent
            some = self._clock.rng.sample(silent, min(len(silent), ASKED_AT_A_TIME))
            for names in (attendance.unproven, some):
                is_read = await self._ask_all(names)
                is_begun = is_begun or (is_read and names is not some)
                if is_begun:
                    self._roll.call(dict(attendance.members), self._clock.monotonic(), is_doubtful=self._is_doubtful)
                    self._news.set()
            is_open = is_news or bool(attendance.unproven)
            pause_seconds = ASK_SECONDS if is_open else min(2 * pause_seconds, ASK_SELDOM_SECONDS)

    async def _ask_all(self, names: Sequence[str]) -> bool:
        """True if it was read of each whether it reports."""
        for start in range(0, len(names), ASKED_AT_A_TIME):
            asked = map(self._ask, names[start : start + ASKED_AT_A_TIME])
            # Not a group of tasks: cancelled just as one of them fails, it would raise that failure alone.
            failed = [one for one in await asyncio.gather(*asked, return_exceptions=True) if one is not None]
            for error in failed:
                if not isinstance(error, EtcdError):
                    raise error
            if failed:
                _log.warning("members_not_followed", error=str(failed[0]), replicas=len(failed))
                return False
        return True

    async def _ask(self, name: str) -> None:
        """Reads whether a replica reports. Raises EtcdError.

        A status under another lease than that of the presence as it was noted may belong to a newer one.
        """
        presence = self._attendance.presence(name)
        status = await self._read(self._keys.status(self._cache.pool, name))
        if status is not None and status_of(presence, status) is None:
            presence = await self._read(self._keys.replica(self._cache.pool, name))
        self._attendance.prove(name, presence, status)

    async def _read(self, key: bytes) -> KeyValue | None:
        # Not by a transaction, which a full etcd refuses.
        return next(iter((await self._client.range(Range(key))).kvs), None)

    def _take(self) -> None:
        """Takes over what the roll says, on disk before anybody acts upon it."""
        members, before = self._roll.members, self._cache.members
        if members is self._cache.mailbox.snapshot.members or members is None:
            return
        come = tuple(one for name, one in members.items() if before.get(name) != one)
        self._cache.journal.append(MembersChanged(come, tuple(name for name in before if name not in members)))
        _log.info("members_changed", members=len(members), come=len(come))
        self._cache.members = members
        self._put_in_force(members)

    def _put_in_force(self, members: Members | None) -> None:
        self._cache.mailbox.post(replace(self._cache.mailbox.snapshot, members=members))
