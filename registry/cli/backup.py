"""Backups of desired state: the file, and the plan of its restoration. Pure.

A backup is JSON lines: a header, one line for each value as it was stored, and a line with their checksum.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import TypeVar

from registry.cli.failure import refused
from registry.lora.text import printable
from registry.model.errors import FailedPrecondition, Reason
from registry.model.names import name_key
from registry.model.records import MAX_RESTORED_STEP, AdapterRecord, AdapterSpec, PoolSpec, RetiredRecord, TenantRecord
from registry.model.stored import Part, Stored, read_json
from registry.v1 import registry_pb2 as pb

FORMAT = "loraplane-backup/1"
# Of a rollout that only canaries have, what all others serve is restored.
_STABLE = ("source", "base_model", "prepare", "credentials", "expect")
Name = tuple[str, str]
RecordT = TypeVar("RecordT", bound=Stored)


def backup_text(records: Iterable[pb.StoredRecord], revision: int, created_at: str) -> bytes:
    """The file that holds these values."""
    lines = [_line({"format": FORMAT, "revision": revision, "created_at": created_at})]
    lines += [_line({"key": one.key, **_told(one.value)}) for one in records]
    body = b"".join(lines)
    return body + _line({"records": len(lines) - 1, "sha256": hashlib.sha256(body).hexdigest()})


def _line(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode() + b"\n"


def _told(value: bytes) -> dict[str, str]:
    """A value as text; what is none, as base64."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def records_of(text: bytes, file: str) -> tuple[int, list[pb.StoredRecord]]:
    """The revision of a backup, and its values.

    Raises:
        CliError: it is none, or not whole.
    """
    body, _, last = text.rstrip(b"\n").rpartition(b"\n")
    try:
        header, end = read_json(body.partition(b"\n")[0]), read_json(last)
        known, checksum, count = header["format"], end["sha256"], end["records"]
        lines = [read_json(line) for line in body.splitlines()[1:]]
        if known != FORMAT:
            raise refused(Reason.UNSUPPORTED, f"is of the form {known!r}; this release reads {FORMAT}", field=file)
        if checksum != hashlib.sha256(body + b"\n").hexdigest() or count != len(lines):
            raise refused(Reason.UNREADABLE_RECORD, "is damaged: its checksum differs; use another backup", field=file)
        return index(header["revision"]), [_record(line) for line in lines]
    except (ValueError, KeyError, TypeError) as error:
        message = "is no whole backup: its checksum at the end is missing, or it is none at all; use another one"
        raise refused(Reason.UNREADABLE_RECORD, message, field=file) from error


def _record(line: Mapping[str, str]) -> pb.StoredRecord:
    value = str.encode(line["value"]) if "value" in line else base64.b64decode(line["base64"], validate=True)
    return pb.StoredRecord(key=line["key"], value=value)


@dataclass(slots=True)
class StoredState:
    """Desired state at one revision. Keys of what cannot be read are in `unreadable`; `etags` are by key.

    `misplaced`: of these, what stands under another key than its own, with the field that says so.
    """

    pools: dict[str, PoolSpec] = field(default_factory=dict)
    tenants: dict[str, TenantRecord] = field(default_factory=dict)
    adapters: dict[Name, AdapterRecord] = field(default_factory=dict)
    history: dict[Name, list[bytes]] = field(default_factory=dict)
    values: dict[str, bytes] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    misplaced: dict[str, str] = field(default_factory=dict)

    def take(self, one: pb.StoredRecord) -> None:
        """Takes one value in."""
        kind, *rest = one.key.split("/")
        if one.key in self.etags:
            self._note_misplaced(one.key, "key")
            return
        self.etags[one.key] = one.etag
        self.values[one.key] = one.value
        try:
            match kind, rest:
                case "pools", [pool]:
                    self.pools[pool] = _own(PoolSpec.parse(one.value), name=pool)
                case "tenants", [tenant]:
                    self.tenants[tenant] = _own(TenantRecord.parse(one.value), name=tenant)
                case "adapters", [pool, key]:
                    self.adapters[pool, key] = _own(AdapterRecord.parse(one.value), pool=pool, name=key)
                case "history", [pool, key, generation]:
                    _own(RetiredRecord.parse(one.value), pool=pool, name=key, generation=generation)
                    self.history.setdefault((pool, key), []).append(one.value)
                case _:
                    self.unreadable.append(one.key)
        except FailedPrecondition:
            self.unreadable.append(one.key)
        except _Misplaced as error:
            self._note_misplaced(one.key, str(error))

    def _note_misplaced(self, key: str, field_name: str) -> None:
        self.misplaced[key] = field_name
        self.unreadable.append(key)


class _Misplaced(Exception):
    """A record says something else than its key; the message is the field that does."""


def _own(record: RecordT, **told: str) -> RecordT:
    """The record, if it says in each of these fields what its key says. Raises _Misplaced."""
    for name, of_key in told.items():
        said = str(getattr(record, name))
        if of_key != (name_key(said) if name == "name" and isinstance(record, AdapterRecord) else said):
            raise _Misplaced(name)
    return record


def check_places(state: StoredState, records: Iterable[pb.StoredRecord], file: str) -> None:
    """Refuses a backup that has a record under another key than its own: restored would be what nobody reviewed.

    Raises:
        CliError: with the line and the field.
    """
    for line, one in enumerate(records, start=2):  # the first is the header
        if (wrong := state.misplaced.get(one.key)) is not None:
            key = printable(one.key)
            what = f"two lines have {key}" if wrong == "key" else f"the record under {key} is of another one"
            message = f"{what}; nothing was restored: use a backup as loraplane backup wrote it"
            raise refused(Reason.UNREADABLE_RECORD, message, field=f"{file}: line {line}: {wrong}")


def state_of(records: Iterable[pb.StoredRecord]) -> StoredState:
    """The desired state that values say."""
    state = StoredState()
    for one in records:
        state.take(one)
    return state


@dataclass(frozen=True, slots=True)
class RestoredAdapter:
    """An adapter to write; `etag` is the one that it must still have, "0": it must not exist."""

    pool: str
    name: str
    spec: AdapterSpec
    etag: str


@dataclass(frozen=True, slots=True)
class RestoredQuota:
    """A tenant's quota to set; None: none. `etag`: of the tenant, as the plan found it."""

    tenant: str
    found: int | None
    wanted: int | None
    etag: str

    @property
    def rises(self) -> bool:
        """True if more adapters have room under it."""
        return self.wanted is None or (self.found is not None and self.wanted > self.found)


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """All that a restoration changes. Etags are those of the state that it was made from.

    Attributes:
        create_pools: that do not exist; `update_pools` with their etags, and whether their records can be read now.
        tenants: those with another quota.
        histories: names of adapters that do not exist, whose generations are put into history.
        others: adapters that the backup does not have, with their etags.
        canaries: those to write of which only canaries had the newest generation: what all others served is restored.
        too_high: names whose history is left out, since it begins too far above what is known of them now.
    """

    create_pools: Sequence[PoolSpec]
    update_pools: Sequence[tuple[PoolSpec, str, bool]]
    tenants: Sequence[RestoredQuota]
    histories: Sequence[Name]
    creates: Sequence[RestoredAdapter]
    updates: Sequence[RestoredAdapter]
    same: int
    others: Sequence[tuple[str, str, str]]
    canaries: Sequence[str]
    too_high: Sequence[str]

    def unsaid(self) -> Iterator[str]:
        """Fields of a later release, which the API of this one has no place for, with whose they are."""
        for pool in (*self.create_pools, *(one for one, *_ in self.update_pools)):
            yield from (f"{name} of pool {pool.name}" for name in _unknown(pool))
        for one in (*self.creates, *self.updates):
            yield from (f"{name} of {one.pool}/{one.name}" for name in _unknown(one.spec))


def _unknown(part: Part) -> Iterator[str]:
    for name, value in part:
        if name in (part.model_extra or {}):
            yield name
        elif isinstance(value, Part):
            yield from (f"{name}.{inner}" for inner in _unknown(value))


def plan_restore(backup: StoredState, now: StoredState) -> RestorePlan:
    """Changes that make `now` what `backup` says."""
    creates: list[RestoredAdapter] = []
    updates: list[RestoredAdapter] = []
    for (pool, key), record in sorted(backup.adapters.items()):
        stored, wanted = f"adapters/{pool}/{key}", _spec(record)
        found = now.adapters.get((pool, key))
        if stored not in now.etags:
            creates.append(RestoredAdapter(pool, record.name, wanted, "0"))
        elif found is None or _differs(found, record):
            updates.append(RestoredAdapter(pool, found.name if found else record.name, wanted, now.etags[stored]))
    lacking = [
        name
        for name in sorted({*backup.adapters, *backup.history})
        if f"adapters/{name[0]}/{name[1]}" not in now.etags and _lacks(name, backup, now)
    ]
    too_high = [name for name in lacking if _is_too_high(name, backup, now)]
    return RestorePlan(
        create_pools=[one for name, one in backup.pools.items() if f"pools/{name}" not in now.etags],
        update_pools=[
            (one, now.etags[f"pools/{name}"], name in now.pools)
            for name, one in backup.pools.items()
            if f"pools/{name}" in now.etags and _pool(one) != _pool(now.pools.get(name))
        ],
        tenants=_quotas(backup, now),
        histories=[name for name in lacking if name not in too_high],
        creates=creates,
        updates=updates,
        same=len(backup.adapters) - len(creates) - len(updates),
        others=[
            (pool, record.name, now.etags[f"adapters/{pool}/{key}"])
            for (pool, key), record in sorted(now.adapters.items())
            if f"adapters/{pool}/{key}" not in backup.etags
        ],
        canaries=[
            f"{one.pool}/{one.name}"
            for one in (*updates, *creates)
            if backup.adapters[one.pool, name_key(one.name)].rollout is not None
        ],
        too_high=[f"{pool}/{key}" for pool, key in too_high],
    )


def _quotas(backup: StoredState, now: StoredState) -> list[RestoredQuota]:
    found = [
        RestoredQuota(name, now.tenants[name].max_adapters if name in now.tenants else None, one.max_adapters, etag)
        for name, one in backup.tenants.items()
        for etag in [now.etags.get(f"tenants/{name}", "0")]
    ]
    return [one for one in found if one.found != one.wanted]


def _lacks(name: Name, backup: StoredState, now: StoredState) -> bool:
    """True if the backup has later generations of that name than history now has."""
    return max(_generations(name, backup)) > max(_generations(name, now))


def _is_too_high(name: Name, backup: StoredState, now: StoredState) -> bool:
    """True if the admin service would not believe the backup, by what history now has."""
    known = max(_generations(name, now))
    later = min(one for one in _generations(name, backup) if one > known)
    return known > 0 and later > known + MAX_RESTORED_STEP


def _generations(name: Name, state: StoredState) -> list[int]:
    """Those of a name, and 0."""
    present = state.adapters.get(name)
    earlier = [RetiredRecord.parse(value).generation for value in state.history.get(name, ())]
    return [0, *earlier, *([present.generation] if present else [])]


def _spec(record: AdapterRecord) -> AdapterSpec:
    if record.rollout is None:
        return record.spec
    stable = record.rollout.stable_spec
    return record.spec.model_copy(update={name: getattr(stable, name) for name in _STABLE})


def _differs(found: AdapterRecord, record: AdapterRecord) -> bool:
    """False if that stands already, also where the same canaries are at it."""
    return (found.spec, found.rollout) != (record.spec, record.rollout)


def _pool(one: PoolSpec | None) -> Stored | None:
    """Pool without its confirmed removals, which belong to that store alone."""
    return one and one.model_copy(update={"removals_confirmed_revision": 0})
