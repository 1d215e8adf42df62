"""Last good generations of adapters whose newest is not served. Pure.

A generation that is refused or cannot be had takes nothing away (guarantee R13): an engine that goes on has the former
one still, and one that restarts gets it again. So it is remembered which generation of an adapter this replica served
last, with the record that tells what it is made of. There is at most one for each adapter, and none once the newest is
served. It is kept with the snapshot: a change of a record, and the word that a generation is served, come one after the
other in the same journal, so that a kill between the two leaves what was so before.

It is of one life of a name: it goes with the record's deletion, and where the record is of a later creation. It goes
too where the adapter is placed on others, which may serve several generations meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GoodRecord:
    """A record as it stood in etcd at `revision`, and the generation in it that was served.

    That is the record's own, or the one that its rollout leaves to all who are no canaries.
    """

    value: bytes
    revision: int
    generation: int


@dataclass(frozen=True, slots=True)
class LastGood:
    """All that is remembered, by name key.

    Attributes:
        served: of which adapters this replica served the generation that is followed.
        records: of others, what it served last.
    """

    served: frozenset[str] = frozenset()
    records: Mapping[str, GoodRecord] = field(default_factory=dict)


NOTHING_GOOD = LastGood()
# Each is needed for as long as it takes to look at the engine once: of an adapter as many as are published meanwhile.
MAX_FORMER = 256
MAX_FORMER_EACH = 8


class ServedMemory:
    """Versions that a replica served last. One informer owns it."""

    def __init__(self, known: LastGood = NOTHING_GOOD) -> None:
        self._served = set(known.served)
        self._records = dict(known.records)
        self._former: dict[str, tuple[GoodRecord, ...]] = {}

    @property
    def whole(self) -> LastGood:
        """All of it, as it is now."""
        return LastGood(frozenset(self._served), dict(self._records))

    @property
    def keys(self) -> frozenset[str]:
        """Of which adapters anything is remembered."""
        return frozenset(self._served | self._records.keys())

    def good(self, key: str) -> GoodRecord | None:
        """Version served last of an adapter that is not served as followed."""
        return self._records.get(key)

    def former(self, key: str) -> tuple[GoodRecord, ...]:
        """Versions followed before that the engine may have got unseen; the oldest first.

        An engine that answers late is looked at when the record has been replaced more than once.
        """
        return self._former.get(key, ())

    def forget(self, key: str) -> bool:
        """Forgets an adapter; True if something was remembered."""
        was_known = key in self._served or key in self._records
        self._served.discard(key)
        self._records.pop(key, None)
        self._former.pop(key, None)
        return was_known

    def leave(self, key: str, former: GoodRecord) -> str | None:
        """Another generation is followed from now on than the former one, which counts if it was served.

        Returns the adapter whose former one is forgotten for it; None: there is none.
        """
        before = self._former.pop(key, ())
        if key in self._served:
            self._served.discard(key)
            self._records[key] = former
            return None
        self._former[key] = (*before, former)[-MAX_FORMER_EACH:]
        if len(self._former) <= MAX_FORMER:
            return None
        oldest = next(iter(self._former))
        del self._former[oldest]
        return oldest

    def serve(self, key: str, followed: GoodRecord, generation: int, stable: int | None) -> bool:
        """A generation is served, as of the record that is followed, or `stable` of its rollout; True if that is news.

        It may also be of a record before, which was replaced before anybody saw it served, or what is remembered.
        """
        if generation == followed.generation:
            is_news = key not in self._served
            self._served.add(key)
            self._records.pop(key, None)
            self._former.pop(key, None)
            return is_news
        known, formers = self._records.get(key), self._former.get(key, ())
        if known is not None and known.generation == generation:
            return False
        former = next((one for one in formers if one.generation == generation), None)
        if former is not None:
            self._records[key] = former
            # An engine gets none of before any more.
            self._former[key] = tuple(one for one in formers if one.generation > generation)
        elif generation == stable:
            self._served.discard(key)
            self._records[key] = GoodRecord(followed.value, followed.revision, generation)
        else:
            return False
        return True

    def adopt(self, key: str, good: GoodRecord) -> None:
        """Takes what others serve, if this replica served nothing of it."""
        if key not in self._served:
            self._records.setdefault(key, good)
