"""Guard against mass removals (guarantee R15): says whether a list is followed.

A deletion that arrives as an event is somebody's will. A record that is merely missing from a list may also be missing
because the store was restored, replaced, or is looked at in the wrong place. So a list that lacks very much, and every
list of a store that is behind what was followed, is held until an operator confirms it or it mends itself.

A list is held or followed whole. Following only its additions would make a state that the registry never had, at no
revision (guarantee R2), and what a suspect store adds is as doubtful as what it lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from registry.etcd3.ops import Event, KeyValue
from registry.model.keys import last_part

# So many may go at once, or this share of all, whichever is more.
FREE_REMOVALS = 10
FREE_SHARE_PERCENT = 30


@dataclass(frozen=True, slots=True)
class StoreId:
    """Identity of a store: etcd's cluster (0: unknown), the registry's epoch or empty."""

    cluster_id: int = 0
    epoch: str = ""

    def is_other(self, now: StoreId) -> bool:
        """True if `now` is another store than this. What is not known of this one cannot differ."""
        return self.cluster_id not in (0, now.cluster_id) or self.epoch not in ("", now.epoch)


@dataclass(frozen=True, slots=True)
class FollowedState:
    """Followed state: its store, the revision reached, and its number of records."""

    revision: int
    store: StoreId
    records: int


class ListCandidate:
    """A list, and what its store changed since, that may come to be followed.

    Attributes:
        listed_revision: at which it was read.
        revision: up to which changes are folded in.
        kvs: name key to record.
        lost: keys that are followed and that the list lacked; a deletion seen as an event is none of them.
    """

    def __init__(self, revision: int, store: StoreId, kvs: Iterable[KeyValue], followed: Collection[str]) -> None:
        self.listed_revision = self.revision = revision
        self.store = store
        self.kvs = {last_part(kv.key): kv for kv in kvs}
        self.lost = {key for key in followed if key not in self.kvs}

    def apply(self, revision: int, events: Iterable[Event]) -> None:
        """Folds all events of one revision in."""
        for event in events:
            key = last_part(event.key)
            if event.kv is None:
                self.kvs.pop(key, None)
            else:
                self.kvs[key] = event.kv
                self.lost.discard(key)
        self.advance(revision)

    def advance(self, revision: int) -> None:
        """Notes that nothing else changed up to `revision`."""
        self.revision = max(revision, self.revision)


@dataclass(frozen=True, slots=True)
class Follow:
    """The list is followed; `confirmed`: only because an operator said so."""

    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """The list is not followed, and what runs stays as it is. `reason` is a constant, `message` says what to do."""

    reason: str
    message: str


def check(followed: FollowedState, candidate: ListCandidate, *, confirmed_revision: int, pool: str) -> Follow | Held:
    """True if the candidate may be followed.

    `confirmed_revision` is the revision up to which an operator vouches for lists of this pool; 0: none.
    """
    hold = _objection(followed, candidate)
    if hold is None:
        return Follow()
    if candidate.listed_revision <= confirmed_revision:
        return Follow(confirmed=True)
    remedy = f"to follow it: loraplane pool confirm-removals {pool} --revision {candidate.listed_revision}"
    return Held(hold.reason, f"{hold.message}; nothing is changed here. If that is right, {remedy}")


def _objection(followed: FollowedState, candidate: ListCandidate) -> Held | None:
    lost, at = len(candidate.lost), f"etcd's list at revision {candidate.listed_revision}"
    if candidate.revision < followed.revision:
        return Held(
            "store_went_back",
            f"{at} is below {followed.revision}, which was followed already, and lacks {lost} of {followed.records} "
            "adapters: the store was restored or replaced",
        )
    if followed.records and not candidate.kvs and followed.store.is_other(candidate.store):
        return Held("other_store", f"{at} is of another store, and empty, where {followed.records} adapters were")
    if lost > free_removals(followed.records):
        message = f"{at} lacks {lost} of {followed.records} adapters, and nobody was seen to delete them"
        return Held("mass_removal", message)
    return None


def free_removals(records: int) -> int:
    """Number of these records that a list may lack without being held."""
    return max(FREE_REMOVALS, records * FREE_SHARE_PERCENT // 100)
