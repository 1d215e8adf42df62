"""What stands in etcd about a pool's replicas and about the room that its adapters take, each value read once. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from registry.errors import RegistryError
from registry.etcd3.ops import Event, KeyValue
from registry.keys import last_part
from registry.model.assignment import Selector, room_taken
from registry.model.placement import Member
from registry.model.records import AdapterRecord
from registry.model.status import Presence
from registry.store.judgement import Said, said

# As nearly all records have it; the last of them means that a record has two specs.
_EAGER, _EVERYWHERE = b'"load":"eager"', b'"placement":{"replicas":"all","selector":{}}'
_TWO_SPECS = b'"stable_spec"'
_ANYWHERE: Selector = frozenset()


@dataclass(frozen=True, slots=True)
class Stranger(Member):
    """A replica that lives, though nobody can tell what its presence says.

    Sidecars do not reckon with it when they find who serves what is placed by number, nor who the canaries are. It may
    serve what all do all the same, as one of a later release does.
    """


def member_of(kv: KeyValue) -> Member:
    """A live replica as its presence says; a `Stranger`, without labels, if it cannot be read."""
    replica = last_part(kv.key)
    try:
        presence = Presence.parse(kv.value)
    except RegistryError:
        return Stranger(replica, {})
    return Member(replica, presence.labels, presence.capacity)


def known(members: Iterable[Member]) -> tuple[Member, ...]:
    """Those that sidecars reckon with."""
    return tuple(one for one in members if not isinstance(one, Stranger))


class Rooms:
    """How many of a pool's adapters take room on each replica that matches, by selector.

    `seen_revision`: of the newest record that was taken in.
    """

    def __init__(self) -> None:
        self.counts: Counter[Selector] = Counter()
        self.seen_revision = 0
        self._taken: dict[bytes, Selector | None] = {}

    def listed(self, kvs: Iterable[KeyValue]) -> None:
        """Takes a whole list."""
        self._taken.clear()
        self.counts.clear()
        for kv in kvs:
            self._put(kv.key, _room_of(kv))
            self.seen_revision = max(self.seen_revision, kv.mod_revision)

    def changed(self, events: Iterable[Event]) -> None:
        """Takes all changes of one revision."""
        for event in events:
            self._put(event.key, _room_of(event.kv) if event.kv is not None else None)
            self.seen_revision = event.mod_revision

    def _put(self, key: bytes, room: Selector | None) -> None:
        before = self._taken.pop(key, None)
        if before is not None:
            self.counts[before] -= 1
            self.counts += Counter()  # drops what came to 0
        if room is not None:
            self._taken[key] = room
            self.counts[room] += 1


def _room_of(kv: KeyValue) -> Selector | None:
    """What an adapter takes; of a record that cannot be read nothing."""
    if _EVERYWHERE in kv.value and _EAGER in kv.value and _TWO_SPECS not in kv.value:
        return _ANYWHERE
    try:
        return room_taken(AdapterRecord.parse(kv.value).spec)
    except RegistryError:
        return None


@dataclass(frozen=True, slots=True)
class Facts:
    """What stands in etcd: the adapter's record, and by replica who lives and what it reports.

    `rooms` None: it was not looked at, since no adapter that is asked about is placed by number.
    """

    record: KeyValue | None
    members: Mapping[str, Member]
    statuses: Mapping[str, Said]
    rooms: Rooms | None = None


def facts_of(ranges: Sequence[Sequence[KeyValue]], rooms: Rooms | None = None) -> Facts:
    """Facts from the values of the adapter's key, of all presences and of all statuses, in this order."""
    records, presences, statuses = ranges
    members = {last_part(kv.key): member_of(kv) for kv in presences}
    return Facts(next(iter(records), None), members, {last_part(kv.key): said(kv) for kv in statuses}, rooms)
