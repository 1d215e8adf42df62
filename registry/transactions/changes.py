"""Changes that can be asked for.

Values are valid in themselves; `registry.transactions.validate` makes them so.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, assert_never

from pydantic import Field, PlainSerializer, TypeAdapter

from registry.model.names import tenant_of
from registry.model.records import (
    AdapterRecord,
    AdapterSpec,
    BaseShapes,
    EngineKind,
    EngineNames,
    PoolLimits,
    RetiredRecord,
)


@dataclass(frozen=True, slots=True)
class Upsert:
    """Create an adapter, or replace its spec or a part of that.

    `etag` 0: only if it does not exist; None: no condition. `fields`: those of the spec that are replaced, in order;
    the rest stays as it is. None: all of them.
    """

    name: str
    spec: AdapterSpec
    etag: int | None = None
    fields: tuple[str, ...] | None = None

    def keeps(self, field: str) -> bool:
        """True if that field of a spec that there is stays as it is."""
        return self.fields is not None and field not in self.fields


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete an adapter."""

    name: str
    etag: int | None = None


@dataclass(frozen=True, slots=True)
class ApplyAdapters:
    """One atomic set of changes to one pool; no name twice.

    `retry`: upserts that change nothing are written anew, so that what failed is tried at once: on `retry_replica`,
    or if that is empty on all.
    """

    pool: str
    changes: tuple[Upsert | Remove, ...]
    retry: bool = False
    retry_replica: str = ""


@dataclass(frozen=True, slots=True)
class RollbackAdapter:
    """A new generation with the spec of an earlier one; `to_generation` 0: what all but canaries served before.

    `restored`: also of one that was put into history from a backup.
    """

    pool: str
    name: str
    to_generation: int = 0
    etag: int | None = None
    restored: bool = False


@dataclass(frozen=True, slots=True)
class _EndRollout:
    """`generation` 0: whichever only canaries serve."""

    pool: str
    name: str
    generation: int = 0
    etag: int | None = None


class PromoteRollout(_EndRollout):
    """Give the generation that only canaries serve to all replicas."""

    __slots__ = ()


class AbortRollout(_EndRollout):
    """A new generation that is what all but the canaries serve."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class HaltRollout:
    """Write down that a rollout goes no further by itself; `why` is a sentence. Only the admin service asks for it."""

    pool: str
    name: str
    generation: int
    etag: int
    why: str


@dataclass(frozen=True, slots=True)
class ExpireAdapter:
    """Delete an adapter whose time to live is over. Only the admin service asks for it."""

    pool: str
    name: str
    etag: int


@dataclass(frozen=True, slots=True)
class ScaleAdapter:
    """Write down another number of replicas; `why` is a sentence. Only the admin service asks for it."""

    pool: str
    name: str
    etag: int
    replicas: int
    why: str


@dataclass(frozen=True, slots=True)
class CreatePool:
    """A new pool."""

    name: str
    base_models: tuple[str, ...]
    limits: PoolLimits
    base: BaseShapes | None = None
    engine: EngineKind = "vllm"
    engine_names: EngineNames = "plain"


@dataclass(frozen=True, slots=True)
class UpdatePool:
    """Replace what `fields` names of a pool: a field by its name, or one of its limits by its own name.

    `fields` None: ``base_models``, ``max_rank`` and ``max_adapters``, which every client knows, and of the rest what is
    set here: a client that does not know a field must not clear it. `engine` and `engine_names` None: the defaults,
    where they are replaced.
    """

    name: str
    base_models: tuple[str, ...]
    limits: PoolLimits
    etag: int | None = None
    base: BaseShapes | None = None
    fields: Annotated[frozenset[str], PlainSerializer(sorted)] | None = None
    engine: EngineKind | None = None
    engine_names: EngineNames | None = None

    def replaces(self, field: str) -> bool:
        """True if that field gets the value that stands here."""
        if self.fields is not None:
            return field in self.fields
        known_to_all = field in {"base_models", "max_rank", "max_adapters"}
        is_own = field in {"base", "engine", "engine_names"}
        return known_to_all or bool(getattr(self if is_own else self.limits, field))


@dataclass(frozen=True, slots=True)
class ConfirmRemovals:
    """Vouch for lists of a pool up to a revision, so that sidecars follow one that they hold."""

    name: str
    revision: int
    etag: int | None = None


@dataclass(frozen=True, slots=True)
class DeletePool:
    """Delete a pool that has no adapters."""

    name: str
    etag: int | None = None


@dataclass(frozen=True, slots=True)
class SetTenant:
    """Set a tenant's quota; None: no quota."""

    name: str
    max_adapters: int | None
    etag: int | None = None


@dataclass(frozen=True, slots=True)
class RepairTenant:
    """Set a tenant's counter to its adapters' number, and keep lost records in history.

    Attributes:
        name: of the tenant.
        lost: records that were deleted past the admin service. It finds them itself, so that the payload has none.
    """

    name: str
    lost: Annotated[tuple[AdapterRecord, ...], Field(exclude=True)] = ()


@dataclass(frozen=True, slots=True)
class RestoreHistory:
    """Put generations into the history of an adapter that does not exist.

    Attributes:
        generations: as history had them.
        last: the one that was the present one then; None: none was.
    """

    pool: str
    name: str
    generations: tuple[RetiredRecord, ...]
    last: AdapterRecord | None


@dataclass(frozen=True, slots=True)
class DrainReplica:
    """Order a live replica to drain; `drain` False: to serve again."""

    pool: str
    name: str
    drain: bool


RolloutChange = PromoteRollout | AbortRollout | HaltRollout
Change = (
    ApplyAdapters
    | RollbackAdapter
    | RolloutChange
    | ExpireAdapter
    | ScaleAdapter
    | CreatePool
    | UpdatePool
    | ConfirmRemovals
    | DeletePool
    | SetTenant
    | RepairTenant
    | RestoreHistory
    | DrainReplica
)

_ANY_CHANGE: TypeAdapter[Change] = TypeAdapter(Change)


def payload_digest(change: Change) -> str:
    """sha256 over what is asked, without request id and dry run.

    Defaults are left out, so that a field that a later release adds does not make an old request another one.
    """
    payload = _ANY_CHANGE.dump_json(change, exclude_defaults=True)
    return "sha256:" + hashlib.sha256(f"{type(change).__name__}\0".encode() + payload).hexdigest()


def tenants_of(change: Change) -> tuple[str, ...]:
    """Tenants whose counter or quota the change may touch, sorted."""
    match change:
        case ApplyAdapters():
            return tuple(sorted({tenant_of(one.name) for one in change.changes}))
        case RollbackAdapter() | RestoreHistory() | ExpireAdapter():
            return (tenant_of(change.name),)
        case SetTenant() | RepairTenant():
            return (change.name,)
        case PromoteRollout() | AbortRollout() | HaltRollout() | ScaleAdapter():
            return ()
        case CreatePool() | UpdatePool() | ConfirmRemovals() | DeletePool() | DrainReplica():
            return ()
    assert_never(change)
