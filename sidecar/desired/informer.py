"""Informer: folds etcd's records of one pool into the desired state. Pure.

Everything costs in proportion to the change, not to the number of records: a fleet of sidecars pays it for each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from immutables import Map, MapMutation

from registry.etcd3.ops import Event, KeyValue
from registry.model.errors import RegistryError
from registry.model.keys import last_part
from registry.model.names import check_adapter_name, name_key
from registry.model.records import AdapterRecord, AdapterSpec, AskedRetry
from sidecar.artifacts.types import ArtifactRef
from sidecar.desired.last_good import NOTHING_GOOD, GoodRecord, LastGood, ServedMemory
from sidecar.desired.packing import AnyRecord, RawRecord, packed
from sidecar.desired.placement import (
    NO_TALLY,
    Order,
    OrderKey,
    PlacementSpec,
    Tally,
    placement_spec_of,
    ref_of,
    reorder,
)


def record_hash(key: str, revision: int, value: bytes) -> int:
    """One record's part of `DesiredState.state_hash`."""
    digest = hashlib.sha256(b"%s\0%d\0%s" % (key.encode(), revision, value)).digest()
    return int.from_bytes(digest, "big")


_HASH_SPACE = 1 << 256
# So many of the keys that changed last are kept.
_RECENT = 64


@dataclass(frozen=True, slots=True)
class DesiredAdapter:
    """An AdapterRecord as serving needs it; `revision` is etcd's, `key` the name key.

    `terms` None: all replicas serve it, and the same of it. `retry` None: nobody asked for another try. `last_good`:
    what this replica served last, as far as it does not serve this generation. `former`: the generations before, of
    which it is not known whether the engine got them. `kept`: earlier generations that are served beside this one, and
    what they are made of, the newest first. `made`: the generation that it was made with, where it was followed
    from then on; 0: files of a generation may be of one that had the name before. `ttl_from_use_seconds`: 0: none.
    """

    key: str
    name: str
    generation: int
    revision: int
    ref: ArtifactRef
    priority: int
    request_id: str
    updated_at: str
    terms: PlacementSpec | None = None
    retry: AskedRetry | None = None
    last_good: DesiredAdapter | None = None
    former: tuple[DesiredAdapter, ...] = ()
    kept: tuple[tuple[int, ArtifactRef], ...] = ()
    made: int = 0
    ttl_from_use_seconds: int = 0

    @property
    def rank(self) -> OrderKey:
        """Its place in the order."""
        return -self.priority, self.key

    @property
    def versions(self) -> Iterator[tuple[int, ArtifactRef]]:
        """Each generation that some replica is to serve, and what it is made of; the newest first."""
        yield self.generation, self.ref
        if self.terms is not None and self.terms.stable is not None:
            yield self.terms.stable.generation, self.terms.stable.ref

    @property
    def fallbacks(self) -> tuple[DesiredAdapter, ...]:
        """Versions to serve instead of this one, in this order: that of non-canaries, the last good."""
        stable, good = self.terms.stable if self.terms is not None else None, self.last_good
        of_others = None if stable is None else self.earlier(stable.generation, stable.ref)
        found = {one.key: one for one in (good, of_others) if one is not None and one.generation < self.generation}
        return tuple(reversed(found.values()))

    @property
    def beside(self) -> tuple[DesiredAdapter, ...]:
        """The earlier generations that are served beside this one, the newest first."""
        return tuple(self.earlier(number, ref) for number, ref in self.kept if number < self.generation)

    def under(self, key: str) -> DesiredAdapter | None:
        """This, or the earlier generation to serve instead or beside it, by what its failures are remembered under."""
        return next((one for one in (self, *self.fallbacks, *self.beside) if one.key == key), None)

    def earlier(self, generation: int, ref: ArtifactRef) -> DesiredAdapter:
        """An earlier generation of it. What fails of that is remembered under a key that no adapter has."""
        key = f"{self.key}@{generation}"
        return replace(self, key=key, generation=generation, ref=ref, terms=None, last_good=None, former=(), kept=())


@dataclass(frozen=True, slots=True)
class LazyAdapter:
    """An adapter that is loaded when it is asked for. There may be very many: all else is in its raw record."""

    name: str
    generation: int
    ttl_from_use_seconds: int = 0


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record that cannot be followed (guarantee R14). The adapter's last good generation stays desired."""

    key: str
    revision: int
    reason: str
    message: str


_Change = tuple[str, bytes | None, int]  # name key, value (None: deleted), revision
Verdict = DesiredAdapter | LazyAdapter | RefusedRecord


@dataclass(frozen=True, slots=True)
class DesiredState:
    """A whole snapshot of a pool's adapters at one revision.

    Attributes:
        revision: etcd's revision up to which everything is folded in.
        adapters: name key to what is desired, of the eager ones, without those that were never readable.
        lazy: the same of the lazy ones.
        refused: name key to why the newest record is not followed.
        order: (-priority, name key) of the eager adapters, sorted: the first are served first.
        state_hash: sum over all records of sha256(key, revision, value), modulo 2**256 (guarantee R2).
        tally: of the eager adapters.
        changes: how many keys changed in all the states before and in this one.
        recent: the last of these keys, as many as are kept.
    """

    revision: int = 0
    adapters: Map[str, DesiredAdapter] = field(default_factory=Map)
    lazy: Map[str, LazyAdapter] = field(default_factory=Map)
    refused: Map[str, RefusedRecord] = field(default_factory=Map)
    order: Order = ()
    state_hash: int = 0
    tally: Tally = NO_TALLY
    changes: int = field(default=0, compare=False)
    recent: tuple[str, ...] = field(default=(), compare=False)

    @property
    def count(self) -> int:
        """Number of adapters in the pool, eager and lazy."""
        return len(self.adapters) + len(self.lazy)

    def of(self, key: str) -> DesiredAdapter | LazyAdapter | None:
        """Desired adapter under a name key."""
        return self.adapters.get(key) or self.lazy.get(key)

    def changed_since(self, changes: int) -> Iterable[str] | None:
        """The keys that changed since a state with so many changes; None: that is too long ago."""
        count = self.changes - changes
        return self.recent[len(self.recent) - count :] if 0 <= count <= len(self.recent) else None


def parse_adapter(pool: str, key: str, value: bytes, revision: int) -> DesiredAdapter | LazyAdapter | None:
    """Reads an AdapterRecord as far as a state needs it, see `parse_whole`; None: it is disabled."""
    record = _checked(pool, key, value)
    if not record.spec.enabled:
        return None
    if record.spec.load == "lazy":
        return LazyAdapter(record.name, record.generation, _ttl_from_use_seconds(record.spec))
    return _whole(record, pool, key, revision)


def parse_whole(pool: str, key: str, value: bytes, revision: int) -> DesiredAdapter:
    """Reads all that is needed to serve an adapter, also of a lazy one.

    Raises:
        RegistryError: the record cannot be followed; `reason` and `message` say why.
        ValueError: it stands under a key that is not its own.
    """
    return _whole(_checked(pool, key, value), pool, key, revision)


def _checked(pool: str, key: str, value: bytes) -> AdapterRecord:
    record = AdapterRecord.parse(value)
    check_adapter_name(record.name)
    if name_key(record.name) != key or record.pool != pool:
        raise ValueError(f"the record is of {record.name!r} in pool {record.pool!r}, which is not what its key says")
    return record


def _ttl_from_use_seconds(spec: AdapterSpec) -> int:
    return spec.ttl_seconds or 0 if spec.ttl_from == "use" else 0


def _whole(record: AdapterRecord, pool: str, key: str, revision: int) -> DesiredAdapter:
    spec = record.spec
    return DesiredAdapter(
        key=key,
        name=key if record.name == key else record.name,
        generation=record.generation,
        revision=revision,
        ref=ref_of(pool, key, record.generation, spec),
        priority=spec.priority,
        request_id=record.request_id,
        updated_at=record.updated_at,
        terms=placement_spec_of(pool, key, record),
        retry=record.retry,
        ttl_from_use_seconds=_ttl_from_use_seconds(spec),
        kept=tuple((one.generation, ref_of(pool, key, one.generation, one.spec)) for one in record.kept),
    )


class Informer:
    """Folds lists and events into a `DesiredState`.

    What was folded in a while ago is to be packed, by and by, with `pack`.

    Attributes:
        pool: name of the pool.
        raw: every record as it stands in etcd, by name key.
        state: all of it.
        memory: what this replica served of it.
    """

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self.raw: dict[str, AnyRecord] = {}
        self.state = DesiredState()
        self._unpacked: set[str] = set()
        self.memory = ServedMemory()

    def record(self, key: str) -> AnyRecord | None:
        """The record under a name key as it stands in etcd."""
        return self.raw.get(key)

    def restore(self, revision: int, raw: Mapping[str, AnyRecord], last_good: LastGood = NOTHING_GOOD) -> None:
        """Starts from what a snapshot holds."""
        self.raw, self._unpacked = {}, set()
        self.memory = ServedMemory(last_good)
        self.state = DesiredState()
        self._fold(revision, ((key, *record.good) for key, record in raw.items() if record.good is not None))
        self._fold(revision, ((key, record.value, record.revision) for key, record in raw.items()))

    def replace(self, revision: int, kvs: Iterable[KeyValue]) -> list[str]:
        """Takes a whole list by difference, so that deletions made meanwhile are found. Returns changed keys.

        The state is then at `revision`, also if that is below the former one: whether it may be,
        `sidecar.desired.removal_guard` says.
        """
        listed = {last_part(kv.key): kv for kv in kvs}
        changes: list[_Change] = [(key, None, revision) for key in self.raw if key not in listed]
        news = {key: kv for key, kv in listed.items() if not self._has(key, kv)}
        # What was changed when it was followed, and was not seen, was changed in another store.
        is_other_store = any(kv.mod_revision <= self.state.revision for kv in news.values())
        for key, kv in news.items():
            known = self.raw.get(key)
            if known is not None and (is_other_store or known.revision < kv.create_revision):
                changes.append((key, None, revision))  # it was made anew meanwhile, or its generations are others
            changes.append((key, kv.value, kv.mod_revision))
        self._fold(revision, changes)
        self.state = replace(self.state, revision=revision)
        return list(dict.fromkeys(key for key, *_ in changes))

    def _has(self, key: str, kv: KeyValue) -> bool:
        """True if that record was followed. Of two stores, records that differ may have one revision."""
        known = self.raw.get(key)
        return known is not None and known.revision == kv.mod_revision and known.value == kv.value

    def apply(self, revision: int, events: Iterable[Event]) -> list[str]:
        """Takes all events of one revision. Returns changed keys."""
        changes = [(last_part(e.key), e.kv.value if e.kv else None, e.mod_revision) for e in events]
        self._fold(revision, changes, is_each=True)
        return [key for key, *_ in changes]

    def advance(self, revision: int) -> None:
        """Notes that nothing of this pool changed up to `revision`."""
        self.state = replace(self.state, revision=max(revision, self.state.revision))

    def note_served(self, generations: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
        """Notes which generations this replica serves, by name key; 0: it is no longer to serve it. Returns the news.

        What was served before is forgotten with that.
        """
        news = tuple(one for one in generations if self._take_served(*one))
        self._renew(key for key, _ in news)
        return news

    def adopt(self, key: str, good: GoodRecord) -> None:
        """Takes what others serve for the last good generation of an adapter of which this replica served nothing."""
        self.memory.adopt(key, good)
        self._renew([key])

    def with_last_good(self, key: str, adapter: DesiredAdapter) -> DesiredAdapter:
        """The adapter under a name key, with what this replica served of it before."""
        good, former = self.memory.good(key), self.memory.former(key)
        if good is None and not former:
            return adapter
        last_good = None if good is None else _good_version(self.pool, key, adapter, good)
        earlier = (_good_version(self.pool, key, adapter, one) for one in former)
        return replace(adapter, last_good=last_good, former=tuple(one for one in earlier if one is not None))

    def _take_served(self, key: str, generation: int) -> bool:
        """Notes one; True if it is news."""
        followed = self.state.of(key)
        if followed is None or not generation:
            return self.memory.forget(key)
        stable = followed.terms.stable if isinstance(followed, DesiredAdapter) and followed.terms else None
        record = GoodRecord(*_followed(self.raw[key]), followed.generation)
        return self.memory.serve(key, record, generation, stable.generation if stable else None)

    def _renew(self, keys: Iterable[str]) -> None:
        """Puts what is remembered of these into the state."""
        adapters = self.state.adapters
        before = {key: adapters[key] for key in keys if key in adapters}
        bare = {key: replace(one, last_good=None, former=()) for key, one in before.items()}
        renewed = {key: self.with_last_good(key, one) for key, one in bare.items()}
        changed = {key: one for key, one in renewed.items() if one != before[key]}
        if changed:
            recent = (*self.state.recent, *changed)[-_RECENT:]
            changes = self.state.changes + len(changed)
            self.state = replace(self.state, adapters=adapters.update(changed), changes=changes, recent=recent)

    def pack(self, count: int) -> bool:
        """Packs so many of the records that came since; True if there are more."""
        for _ in range(min(count, len(self._unpacked))):
            key = self._unpacked.pop()
            self.raw[key] = packed(self.raw[key])
        return bool(self._unpacked)

    def _fold(self, revision: int, changes: Iterable[_Change], *, is_each: bool = False) -> None:
        """Takes changes; `is_each`: none before them was missed."""
        state = self.state
        draft = _Draft(state.adapters.mutate(), state.lazy.mutate(), state.refused.mutate())
        total = state.state_hash
        before: dict[str, DesiredAdapter | None] = {}
        forgotten: list[str | None] = []
        for key, value, at in changes:
            before.setdefault(key, draft.adapters.get(key))
            verdict = None if value is None else self._judge(key, value, at)
            is_refused, former = isinstance(verdict, RefusedRecord), draft.adapters.get(key)
            if is_each and isinstance(verdict, DesiredAdapter):
                verdict = replace(verdict, made=former.made if former else 0 if key in self.raw else verdict.generation)
            forgotten.append(self._keep_good(key, former or draft.lazy.get(key), verdict))
            total += self._note(key, value, at, was_refused=key in draft.refused, is_refused=is_refused)
            draft.settle(key, self.with_last_good(key, verdict) if isinstance(verdict, DesiredAdapter) else verdict)
        folded = draft.adapters.finish()
        moves = [(old, folded.get(key)) for key, old in before.items()]
        gone, come = [old for old, _ in moves if old is not None], [new for _, new in moves if new is not None]
        self.state = DesiredState(
            revision=max(revision, state.revision),
            adapters=folded,
            lazy=draft.lazy.finish(),
            refused=draft.refused.finish(),
            order=_reorder(state.order, moves),
            state_hash=total % _HASH_SPACE,
            tally=state.tally.after([one.terms for one in gone], [one.terms for one in come]),
            changes=state.changes + len(before),
            recent=(*state.recent, *before)[-_RECENT:],
        )
        self._renew(key for key in forgotten if key is not None)

    def _keep_good(self, key: str, former: DesiredAdapter | LazyAdapter | None, verdict: Verdict | None) -> str | None:
        """Remembers what was followed so far if another generation is from now on; see `ServedMemory.leave`."""
        if verdict is None:
            self.memory.forget(key)
        elif former is not None and not isinstance(verdict, RefusedRecord):
            if former.generation != verdict.generation:
                return self.memory.leave(key, GoodRecord(*_followed(self.raw[key]), former.generation))
            if _is_of_another_history(former, verdict):
                self.memory.forget(key)
        return None

    def _judge(self, key: str, value: bytes, revision: int) -> Verdict | None:
        """The verdict on a record; None: nobody is to serve it."""
        try:
            return parse_adapter(self.pool, key, value, revision)
        except RegistryError as error:
            return RefusedRecord(key, revision, error.reason.lower(), error.message)
        except ValueError as error:
            return RefusedRecord(key, revision, "key_mismatch", str(error))

    def _note(self, key: str, value: bytes | None, revision: int, *, was_refused: bool, is_refused: bool) -> int:
        """Keeps the raw record, and the last good one beside a refused one; returns the change of the state hash."""
        old = self.raw.pop(key, None)
        change = -record_hash(key, old.revision, old.value) if old else 0
        if value is None:
            self._unpacked.discard(key)
            return change
        good = None
        if is_refused and old is not None:
            good = old.good if was_refused else (old.value, old.revision)
        self.raw[key] = RawRecord(value, revision, good)
        self._unpacked.add(key)
        return change + record_hash(key, revision, value)


def _is_of_another_history(former: DesiredAdapter | LazyAdapter, now: DesiredAdapter | LazyAdapter) -> bool:
    """True if one generation is made of something else now: a restored store uses numbers again."""
    return isinstance(former, DesiredAdapter) and isinstance(now, DesiredAdapter) and former.ref != now.ref


def _followed(record: AnyRecord) -> tuple[bytes, int]:
    """The value that is followed, and its revision."""
    return record.good or (record.value, record.revision)


def _good_version(pool: str, key: str, adapter: DesiredAdapter, good: GoodRecord) -> DesiredAdapter | None:
    """The last good generation of an adapter; None: it was called otherwise, or its record cannot be read any more."""
    try:
        found = parse_whole(pool, key, good.value, good.revision)
    except (RegistryError, ValueError):
        return None
    ref = dict(found.versions).get(good.generation) if found.name == adapter.name else None
    return None if ref is None else adapter.earlier(good.generation, ref)


@dataclass(frozen=True, slots=True)
class _Draft:
    """The maps of a state while changes are folded in."""

    adapters: MapMutation[str, DesiredAdapter]
    lazy: MapMutation[str, LazyAdapter]
    refused: MapMutation[str, RefusedRecord]

    def settle(self, key: str, verdict: Verdict | None) -> None:
        """A refused record leaves the last good one in place; a deletion removes both."""
        self.refused.pop(key, None)
        if isinstance(verdict, RefusedRecord):
            self.refused[key] = verdict
            return
        self.adapters.pop(key, None)
        self.lazy.pop(key, None)
        if isinstance(verdict, DesiredAdapter):
            self.adapters[key] = verdict
        elif verdict is not None:
            self.lazy[key] = verdict


def _reorder(order: Order, moves: Iterable[tuple[DesiredAdapter | None, DesiredAdapter | None]]) -> Order:
    ranks = [(old.rank if old else None, new.rank if new else None) for old, new in moves]
    gone = [old for old, new in ranks if old is not None and old != new]
    return reorder(order, gone, [new for old, new in ranks if new is not None and old != new])
