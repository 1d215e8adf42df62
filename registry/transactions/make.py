"""From plain values, as a caller wrote them, to changes that are valid in themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from pydantic import ValidationError

from registry.errors import FailedPrecondition, InvalidArgument, Reason
from registry.lora.base import expand, fingerprint
from registry.model.base import Part
from registry.model.names import check_adapter_name, check_segment, name_key
from registry.model.records import AdapterRecord, AdapterSpec, PoolLimits, PoolSpec, Removed
from registry.transactions.canaries import check_strategy
from registry.transactions.changes import (
    AbortRollout,
    ApplyAdapters,
    ConfirmRemovals,
    CreatePool,
    DeletePool,
    PromoteRollout,
    Remove,
    RollbackAdapter,
    SetTenant,
    SettleRemoval,
    UpdatePool,
    Upsert,
)
from registry.transactions.supported import check_supported

PartT = TypeVar("PartT", bound=Part)
NO_ENGINES: Mapping[str, str] = {}
_ETAG = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_REMEDIES = {
    "source": "an adapter needs a source with a uri, e.g. file:///adapters/sql",
    "source.uri": "write scheme://path of at most 2048 characters without spaces, e.g. file:///adapters/sql",
    "source.digest": 'write "sha256:" and 64 lower-case hex digits, or leave it out',
    "source.signature": "write what loraplane sign prints, or leave it out",
    "load": "use eager or lazy",
    "priority": "use a whole number from -1000 to 1000",
    "placement.replicas": "use all, or a whole number from 1 to 10000",
    "placement.selector": "use at most 64 labels that replicas have, as in labels",
    "strategy": "a strategy needs canary.replicas; beside it may stand promote, max_failures and soak_seconds",
    "strategy.canary.replicas": 'use a whole number from 1 to 10000, or a share from "1%" to "100%"',
    "strategy.promote": "use auto or manual",
    "strategy.max_failures": "use a whole number from 0 to 10000",
    "strategy.soak_seconds": "use a whole number of seconds from 0 to 604800, which is a week",
    "prepare.remap": "use auto or off",
    "prepare.vision": "use reject, drop or keep",
    "prepare.dora": "use reject or strip",
    "labels": "use at most 64 labels, keys of 1 to 63 letters, digits and . _ / -, values of at most 256 characters",
    "base_models": "give 1 to 32 names of 1 to 512 characters",
    "limits.max_rank": "use a whole number from 1 to 512, or 0 for no limit",
    "limits.target_modules": "name at most 256 modules, e.g. q_proj",
    "base": "let loraplane pool create --from DIR read the base model's modules",
    "engine": "use vllm, sglang, pegainfer, dynamo or axolotl",
    "engine_names": "use plain or versioned",
    "limits.max_adapters": "use a whole number from 1 to 1000000, or 0 for no limit",
}


def make_etag(text: str, *, field: str) -> int | None:
    """The revision that an etag stands for; None: no condition. Raises InvalidArgument."""
    if not text:
        return None
    if not _ETAG.fullmatch(text):
        raise InvalidArgument(
            Reason.INVALID_FIELD, "an etag is the number that was read with the record; read it again", field=field
        )
    return int(text)


def make_existing_etag(text: str, *, field: str) -> int | None:
    """As `make_etag`, for what only makes sense on something that exists."""
    etag = make_etag(text, field=field)
    if etag == 0:
        raise InvalidArgument(Reason.INVALID_FIELD, 'etag "0" says that there is no such record', field=field)
    return etag


def make_upsert(name: str, spec: Mapping[str, object], etag: str, *, field: str) -> Upsert:
    """An upsert; `field` is the path of the change, e.g. ``changes[2]``. Raises InvalidArgument."""
    check_adapter_name(name, field=f"{field}.upsert.name")
    made = _validated(AdapterSpec, spec, field=f"{field}.upsert.spec")
    check_supported(made, field=f"{field}.upsert.spec")
    check_strategy(made, field=f"{field}.upsert.spec")
    return Upsert(name, made, make_etag(etag, field=f"{field}.etag"))


def make_remove(name: str, etag: str, *, field: str) -> Remove:
    """A deletion; `field` as in `make_upsert`. Raises InvalidArgument."""
    check_adapter_name(name, field=f"{field}.delete")
    return Remove(name, make_existing_etag(etag, field=f"{field}.etag"))


def make_apply(pool: str, changes: Sequence[Upsert | Remove]) -> ApplyAdapters:
    """A change set. Raises InvalidArgument if it is empty or names an adapter twice."""
    check_segment(pool, field="pool")
    if not changes:
        raise InvalidArgument(Reason.INVALID_FIELD, "a change set needs at least one change", field="changes")
    seen: dict[str, int] = {}
    for index, change in enumerate(changes):
        first = seen.setdefault(name_key(change.name), index)
        if first != index:
            raise InvalidArgument(
                Reason.DUPLICATE_NAME,
                f"{change.name!r} is also in changes[{first}]; name each adapter once (case does not count)",
                field=f"changes[{index}]",
            )
    return ApplyAdapters(pool, tuple(changes))


def make_rollback(pool: str, name: str, to_generation: int, etag: str) -> RollbackAdapter:
    """A rollback. Raises InvalidArgument."""
    check_segment(pool, field="pool")
    check_adapter_name(name)
    if to_generation < 0:
        raise InvalidArgument(
            Reason.INVALID_FIELD, "generations start at 1; 0 means the one before", field="to_generation"
        )
    return RollbackAdapter(pool, name, to_generation, make_etag(etag, field="etag"))


RolloutT = TypeVar("RolloutT", PromoteRollout, AbortRollout)


def make_rollout_change(kind: type[RolloutT], pool: str, name: str, generation: int, etag: str) -> RolloutT:
    """The end of a rollout, of either kind. Raises InvalidArgument."""
    check_segment(pool, field="pool")
    check_adapter_name(name)
    if generation < 0:
        raise InvalidArgument(
            Reason.INVALID_FIELD, "generations start at 1; 0 means the present one", field="generation"
        )
    return kind(pool, name, generation, make_existing_etag(etag, field="etag"))


def make_create_pool(
    name: str,
    base_models: Sequence[str],
    limits: Mapping[str, object],
    base: Mapping[str, object] | None = None,
    engines: Mapping[str, str] = NO_ENGINES,
) -> CreatePool:
    """A new pool; `engines` holds ``engine`` and ``engine_names`` where they are given. Raises InvalidArgument."""
    made = _pool(name, base_models, limits, base, engines)
    return CreatePool(name, tuple(made.base_models), made.limits, made.base, made.engine, made.engine_names)


def make_update_pool(
    name: str,
    base_models: Sequence[str],
    limits: Mapping[str, object],
    etag: str,
    base: Mapping[str, object] | None = None,
    mask: Sequence[str] | None = None,
    engines: Mapping[str, str] = NO_ENGINES,
) -> UpdatePool:
    """A pool's new values; `mask`: those that are replaced, None: see `UpdatePool`. Raises InvalidArgument."""
    fields = _fields(mask) if mask is not None else None
    is_named = fields is None or "base_models" in fields
    made = _pool(name, base_models if is_named else ["-"], limits, base, engines)
    return UpdatePool(
        name,
        tuple(made.base_models) if is_named else (),
        made.limits,
        make_existing_etag(etag, field="pool.etag"),
        made.base,
        fields,
        made.engine if "engine" in engines else None,
        made.engine_names if "engine_names" in engines else None,
    )


def _fields(mask: Sequence[str]) -> frozenset[str]:
    limits = [f"limits.{name}" for name in PoolLimits.model_fields]
    unknown = sorted(set(mask) - {"base_models", "limits", "base", "engine", "engine_names", *limits})
    if unknown or not mask:
        raise InvalidArgument(
            Reason.INVALID_FIELD,
            f"{', '.join(unknown)[:200] or 'nothing'} is no field that can be replaced; name base_models, limits, "
            f"{', '.join(limits)}, base, engine or engine_names",
            field="update_mask",
        )
    named = [path for path in mask if path != "limits"] + (limits if "limits" in mask else [])
    return frozenset(path.removeprefix("limits.") for path in named)


def make_confirm_removals(name: str, revision: int, etag: str) -> ConfirmRemovals:
    """The confirmation of removals. Raises InvalidArgument."""
    check_segment(name, field="name")
    if revision < 1:
        raise InvalidArgument(Reason.INVALID_FIELD, "give the revision that the replica names", field="revision")
    return ConfirmRemovals(name, revision, make_existing_etag(etag, field="etag"))


def make_settle_removal(pool: str, name: str, record: bytes, removed: Mapping[str, object]) -> SettleRemoval:
    """The settlement of a removal, as its receipt says it. Raises InvalidArgument."""
    check_segment(pool, field="removal.pool")
    check_adapter_name(name, field="removal.name")
    try:
        parsed = AdapterRecord.parse(record)
    except FailedPrecondition as error:
        raise InvalidArgument(Reason.INVALID_FIELD, error.message, field="removal.record") from error
    if (parsed.pool, parsed.name) != (pool, name):
        message = "the record is of another adapter than the receipt; give the receipt as it was written"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field="removal.record")
    return SettleRemoval(parsed, _validated(Removed, removed, field="removal"))


def make_delete_pool(name: str, etag: str) -> DeletePool:
    """A pool's deletion. Raises InvalidArgument."""
    check_segment(name, field="name")
    return DeletePool(name, make_existing_etag(etag, field="etag"))


def make_set_tenant(name: str, max_adapters: int, etag: str) -> SetTenant:
    """A tenant's quota; 0: none. Tenants have lower-case names. Raises InvalidArgument."""
    check_segment(name, field="tenant.name")
    return SetTenant(name.lower(), max_adapters or None, make_etag(etag, field="tenant.etag"))


def _pool(
    name: str,
    base_models: Sequence[str],
    limits: Mapping[str, object],
    base: Mapping[str, object] | None,
    engines: Mapping[str, str],
) -> PoolSpec:
    check_segment(name, field="pool.name")
    values = {"name": name, "base_models": list(base_models), "limits": limits, "base": base, **engines}
    spec = _validated(PoolSpec, values, field="pool")
    if len({model.lower() for model in spec.base_models}) < len(spec.base_models):
        raise InvalidArgument(Reason.INVALID_FIELD, "name each base model once", field="pool.base_models")
    if spec.base is not None and fingerprint(expand(spec.base.modules)) != spec.base.fingerprint:
        raise InvalidArgument(
            Reason.INVALID_FIELD,
            "the fingerprint is not that of the modules; let loraplane pool update --from read them",
            field="pool.base.fingerprint",
        )
    return spec


def _validated(kind: type[PartT], values: Mapping[str, object], *, field: str) -> PartT:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise _refused(error, field) from error


def _refused(error: ValidationError, field: str) -> InvalidArgument:
    """The first complaint, with the path of the field and what to write instead; never the value itself."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    parts = [str(part) for part in first["loc"]]
    paths = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    where = next((path for path in paths if path in _REMEDIES), paths[0])
    return InvalidArgument(Reason.INVALID_FIELD, _REMEDIES.get(where, first["msg"]), field=f"{field}.{where}")
