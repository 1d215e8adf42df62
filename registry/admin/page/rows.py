"""Rows of the page: adapters and replicas of a pool's view, as JSON values. Pure.

They follow from what residency, the command line's tables and routers follow from, so that they cannot disagree.
Replicas that stand alike to an adapter are one group, and adapters whose groups are of the same replicas share the list
of their names: of a thousand adapters on a hundred replicas it stands once.

A row is the same for whoever sees its adapter. So it is derived once for all readers of a view, and what adapters that
stand alike have in common once for these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast
from weakref import ReferenceType, ref

from registry.admin.rpc.encode_residency import Document, counted_adapter
from registry.model.errors import RegistryError
from registry.model.messages import adapter_message
from registry.model.names import is_engine_allowed, name_of_key
from registry.model.replica_state import ParsedStatus
from registry.model.status import Presence, ReplicaStatus, host_of, presence_of
from registry.residency.derive import DerivedResidence, DerivedResidency, counted_of, residency_of
from registry.residency.health import AdapterRow, counts, reasons, state, state_there
from registry.residency.view import AdapterView, PoolView
from registry.rollout.expected import AbsentReplica
from registry.rollout.status import DISABLED
from registry.transactions.decode import read_adapter
from registry.v1 import registry_pb2 as pb

# Of what may be long: a label, a note, a URL. Records that others wrote may have any.
MAX_TEXT = 300
MAX_LABELS = 20
# So many rows are remembered, of all pools; each has about 2 KB. And so many kinds of adapters that stand alike.
_ROWS, _KINDS = 10_000, 32


@dataclass(slots=True)
class AdapterRows:
    """Rows of some adapters.

    Attributes:
        rows: one for each that can be read.
        sets: lists of replicas, to which the groups of rows point.
        gone: names of those that are not there any more, or cannot be read.
    """

    rows: list[Document] = field(default_factory=list)
    sets: list[tuple[str, ...]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    _numbers: dict[tuple[str, ...], int] = field(default_factory=dict)

    def number(self, names: tuple[str, ...]) -> int:
        """The number of a list of replicas; a new one is added."""
        if names not in self._numbers:
            self._numbers[names] = len(self.sets)
            self.sets.append(names)
        return self._numbers[names]


def cut(text: str) -> str:
    """A text of at most `MAX_TEXT` characters."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    return {cut(key): cut(labels[key]) for key in sorted(labels)[:MAX_LABELS]}


@dataclass(frozen=True, slots=True)
class _Standing:
    """Fields and groups that the rows of adapters which stand alike share.

    Attributes:
        state: of an adapter that is enabled, and whose rollout is not halted.
        numbers: fields of a row.
        groups: each with the names of its replicas.
    """

    state: str
    numbers: Document
    groups: Sequence[tuple[Document, tuple[str, ...]]]


_NOWHERE = _Standing("", {"serving": 0, "replicas": 0, "of": 0, "reasons": {}, "note": DISABLED}, ())


@dataclass(frozen=True, slots=True)
class _KeptRow:
    """A row, and its groups."""

    fields: Document
    groups: Sequence[tuple[Document, tuple[str, ...]]]


def adapter_rows(view: PoolView, keys: Iterable[str], *, with_groups: bool = True) -> AdapterRows:
    """Rows of the adapters of these name keys; `with_groups`: with their replicas by how they stand."""
    found, looked = AdapterRows(), ref(view)
    for key in keys:
        row = _row(looked, key)
        if row is None:
            found.gone.append(name_of_key(key))
        elif with_groups:
            groups = [told | {"in": found.number(names)} for told, names in row.groups]
            found.rows.append(row.fields | {"groups": groups})
        else:
            found.rows.append(row.fields)
    return found


# A view that nobody holds any more is not kept by its rows.
@lru_cache(maxsize=_ROWS)
def _row(looked: ReferenceType[PoolView], key: str) -> _KeptRow | None:
    """The row of an adapter, of a view that the caller holds; None: it cannot be read."""
    view = cast("PoolView", looked())
    entry = view.records.get(key)
    if entry is None:
        return None
    try:
        record = adapter_message(read_adapter(view.snapshot.pool, entry.kv), entry.kv.mod_revision)
    except RegistryError:
        return None
    if entry.adapter is None:
        standing = _NOWHERE
    else:
        like = view.alike(entry.adapter)
        standing = _standing_of(view, entry.adapter) if like is None else _shared_standing(looked, like.key)
    return _KeptRow(_fields(record, standing), standing.groups)


@lru_cache(maxsize=_KINDS)
def _shared_standing(looked: ReferenceType[PoolView], key: str) -> _Standing:
    view = cast("PoolView", looked())
    return _standing_of(view, cast("AdapterView", view.adapter(key)))


def _standing_of(view: PoolView, adapter: AdapterView) -> _Standing:
    where = residency_of(view, adapter)
    found = counted_adapter(counted_of(view, adapter, where))
    share = counts(found)
    numbers = {
        "serving": share.serving,
        "replicas": share.wanted,
        "of": found.pool_replicas,
        "reasons": {cut(reason): count for reason, count in reasons(found).items()},
        "note": cut(found.note),
    }
    return _Standing(state_there(found), numbers, _groups(where))


def _fields(record: pb.Adapter, standing: _Standing) -> Document:
    return standing.numbers | {
        "name": record.name,
        "generation": record.generation,
        "load": record.spec.load,
        "state": state(AdapterRow(record)) or standing.state,
        "halted": cut(record.rollout.halted),
        "stable": record.rollout.stable_generation,
        "labels": _labels(record.spec.labels),
    }


def _groups(found: DerivedResidency) -> Sequence[tuple[Document, tuple[str, ...]]]:
    """Its replicas, by how they stand; a generation is that of the row where nothing is said of it."""
    groups: dict[tuple[object, ...], list[str]] = defaultdict(list)
    first: dict[tuple[object, ...], DerivedResidence] = {}
    for one in found.replicas:
        by = one.state, one.reason, one.generation, one.wanted, one.loaded
        groups[by].append(one.replica)
        first.setdefault(by, one)
    return [(_group(first[by], found.generation), tuple(names)) for by, names in groups.items()]


def _group(one: DerivedResidence, newest: int) -> Document:
    told: Document = {"state": one.state.name.lower()}
    if one.reason:
        told["reason"] = cut(one.reason)
    if one.generation != newest:
        told["generation"] = one.generation
    if not one.loaded and told["state"] == "serving":
        told["loaded"] = False
    if one.wanted is not None:
        wanted = one.wanted
        told["wanted"] = [wanted.generation, wanted.state.name.lower(), cut(wanted.reason)]
    return told


def replica_row(view: PoolView, name: str, *, is_whole: bool) -> Document:
    """A live replica; `is_whole`: its sentences too, which may name anybody's adapters."""
    replica = view.everybody[name]
    status = replica.reading.status if isinstance(replica.reading, ParsedStatus) else None
    presence = presence_of(replica.presence.value)
    told = _presence_told(view, name, presence) if presence else {"labels": {}, "leaving": False}
    return {"name": name} | told | (_status_told(status, is_whole=is_whole) if status else {"ready": False})


def _presence_told(view: PoolView, name: str, presence: Presence) -> Document:
    return {
        "labels": _labels(presence.labels),
        "leaving": presence.leaving,
        "url": "" if name in view.withheld else cut(view.everybody[name].router_url),
        "withheld": name in view.withheld,
        "version": cut(presence.version),
        "started_at": cut(presence.started_at),
        "host": cut(host_of(presence.owner)),
    }


def _status_told(status: ReplicaStatus, *, is_whole: bool) -> Document:
    engine, store = status.engine, status.store
    told: Document = {
        "ready": status.ready and not status.stale,
        "stale": status.stale,
        "engine": cut(f"{engine.kind} {engine.version}".strip()),
        "served": status.answered,
        "pending": len(status.pending) if status.pending_count is None else status.pending_count,
        "failed": len(status.failed) if status.failed_count is None else status.failed_count,
        "room": engine.limits.max_cpu_loras,
        "updated_at": cut(status.updated_at),
        "store": store.model_dump() if store else None,
    }
    if is_whole:
        told |= {"note": cut(status.note), "held": cut(status.held), "degraded": cut(status.degraded)}
    return told


def absent_rows(view: PoolView) -> list[Document]:
    """Replicas that are expected and do not live, as far as their names are known."""
    return [_absent_row(view, one) for one in view.snapshot.lacking.named]


def _absent_row(view: PoolView, one: AbsentReplica) -> Document:
    """A row of one that is gone, with all that it told last but a URL that the pool does not allow."""
    known, hosts = one.known, view.engine_hosts
    is_allowed = hosts == () or is_engine_allowed(known.engine_url, hosts or ())
    return {
        "name": one.name,
        "labels": _labels(one.labels),
        "last_seen": one.last_seen,
        "url": cut(known.engine_url) if is_allowed else "",
        "host": cut(known.host),
        "engine": cut(known.engine),
        "version": cut(known.version),
        "revision": known.observed_revision,
    }
