"""Validates a caller's plain values into changes.

Names are those that the hook of the admin service let through.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from registry.lora.base import fingerprint_of_patterns
from registry.lora.text import first_unfit, printable
from registry.model.errors import FailedPrecondition, InvalidArgument, Reason
from registry.model.names import check_adapter_name, check_request_id, check_segment, name_key, tenant_of
from registry.model.records import AdapterRecord, AdapterSpec, PoolLimits, PoolSpec, RetiredRecord
from registry.model.stored import Part, fields_at
from registry.transactions.canaries import check_strategy
from registry.transactions.changes import ApplyAdapters, CreatePool, Remove, RestoreHistory, UpdatePool, Upsert
from registry.transactions.steps import HISTORY_KEPT
from registry.transactions.supported import check_supported

PartT = TypeVar("PartT", bound=Part)
KeptT = TypeVar("KeptT", bound=AdapterRecord)
Fingerprinter = Callable[[Mapping[str, tuple[int, int]]], str]
# What history keeps, and as much again that is left of gaps; more values would only be thrown away.
MAX_GENERATIONS = 64
MAX_TOLD_CHARACTERS = 1024
_TIME = re.compile(
    r"[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9](\.[0-9]{1,9})?(Z|[+-][0-2][0-9]:[0-5][0-9])",
    re.ASCII,
)
_ETAG = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


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
    made = _validated(AdapterSpec, spec, field=f"{field}.upsert.spec")
    check_supported(made, field=f"{field}.upsert.spec")
    check_strategy(made, field=f"{field}.upsert.spec")
    return Upsert(name, made, make_etag(etag, field=f"{field}.etag"))


def make_update(
    name: str, spec: Mapping[str, object], mask: Sequence[str], etag: str, *, field: str, retry: bool = False
) -> Upsert:
    """A change of those fields of a spec that `mask` names, of a `retry` also of none; `field` as in `make_upsert`.

    Whether they go with each other is seen once it is known what they are put beside.

    Raises:
        InvalidArgument: a field cannot have such a value, or there is no such field.
    """
    unknown = sorted(set(mask) - set(AdapterSpec.model_fields))
    if unknown or not (mask or retry):
        raise InvalidArgument(
            Reason.INVALID_FIELD,
            f"{', '.join(unknown)[:200] or 'nothing'} is no field that can be replaced; name some of "
            f"{', '.join(AdapterSpec.model_fields)}",
            field=f"{field}.update_mask",
        )
    given = {one: spec[one] for one in mask}
    made = _validated(AdapterSpec, {"source": {"uri": "file:///-"}, **given}, field=f"{field}.update.spec")
    return Upsert(name, made, make_etag(etag, field=f"{field}.etag"), tuple(sorted(set(mask))))


def make_apply(
    pool: str, changes: Sequence[Upsert | Remove], *, retry: bool = False, retry_replica: str = ""
) -> ApplyAdapters:
    """A change set. Raises InvalidArgument if it is empty, names an adapter twice, or a replica without a retry."""
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
    if retry_replica:
        check_segment(retry_replica, field="retry_replica")
        if not retry:
            raise InvalidArgument(Reason.INVALID_FIELD, "it goes with retry: true only", field="retry_replica")
    return ApplyAdapters(pool, tuple(changes), retry, retry_replica)


def make_generation(number: int, *, zero: str, field: str) -> int:
    """A generation's number; 0 means what `zero` says. Raises InvalidArgument."""
    if number < 0:
        raise InvalidArgument(Reason.INVALID_FIELD, f"generations start at 1; 0 means {zero}", field=field)
    return number


def make_create_pool(
    values: Mapping[str, object], fingerprint_of: Fingerprinter = fingerprint_of_patterns
) -> CreatePool:
    """A new pool with these fields of a `PoolSpec`. Raises InvalidArgument."""
    made = _pool(values, fingerprint_of)
    return CreatePool(made.name, tuple(made.base_models), made.limits, made.base, made.engine, made.engine_names)


def make_update_pool(
    values: Mapping[str, object],
    etag: str = "",
    mask: Sequence[str] | None = None,
    fingerprint_of: Fingerprinter = fingerprint_of_patterns,
) -> UpdatePool:
    """A pool's new values; `mask`: those that are replaced, None: see `UpdatePool`. Raises InvalidArgument."""
    fields = _fields(mask) if mask is not None else None
    is_named = fields is None or "base_models" in fields
    made = _pool(values if is_named else {**values, "base_models": ["-"]}, fingerprint_of)
    return UpdatePool(
        made.name,
        tuple(made.base_models) if is_named else (),
        made.limits,
        make_existing_etag(etag, field="pool.etag"),
        made.base,
        fields,
        made.engine if "engine" in values else None,
        made.engine_names if "engine_names" in values else None,
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


def make_restore_history(pool: str, name: str, generations: Sequence[bytes], last: bytes) -> RestoreHistory:
    """A restored history. Each of its records fulfils what a change that makes it has to.

    Raises:
        InvalidArgument: there are too many, or a value is no record of that adapter.
    """
    if len(generations) > MAX_GENERATIONS:
        message = f"history keeps {HISTORY_KEPT} generations; give the newest, and at most {MAX_GENERATIONS}"
        raise InvalidArgument(Reason.TOO_LARGE, message, field="generations")
    found = [_restored(RetiredRecord, pool, name, one, f"generations[{at}]") for at, one in enumerate(generations)]
    _check_once(found, field="generations")
    present = _restored(AdapterRecord, pool, name, last, "last") if last else None
    if present is not None:
        _check_once([*found, present], field="last.generation")
    return RestoreHistory(pool, name, tuple(found), present)


def _check_once(records: Sequence[AdapterRecord], *, field: str) -> None:
    if len({one.generation for one in records}) < len(records):
        raise InvalidArgument(Reason.INVALID_FIELD, "a generation stands twice; leave one out", field=field)


def _restored(kind: type[KeptT], pool: str, name: str, value: bytes, field: str) -> KeptT:
    record = _read(kind, value, field)
    if (record.pool, name_key(record.name)) != (pool, name_key(name)):
        where = printable(f"{record.pool}/{record.name}"[:300])
        raise InvalidArgument(Reason.INVALID_FIELD, f"it is a record of {where}", field=field)
    check_adapter_name(record.name, field=f"{field}.name")
    _check_fit(record, field=field)
    _check_told(record, field=field)
    check_supported(record.spec, field=f"{field}.spec")  # more canaries than places may be there of an abortion
    if record.rollout is not None:
        check_supported(record.rollout.stable_spec, field=f"{field}.rollout.stable_spec")
        if record.rollout.stable_generation >= record.generation:
            message = f"what others serve than canaries came before generation {record.generation}"
            raise InvalidArgument(Reason.INVALID_FIELD, message, field=f"{field}.rollout.stable_generation")
    return record


def _read(kind: type[KeptT], value: bytes, field: str) -> KeptT:
    try:
        return kind.parse(value)
    except FailedPrecondition as error:
        if isinstance(error.__cause__, ValidationError):
            raise _refused(kind, error.__cause__, field) from error
        raise InvalidArgument(error.reason, error.message, field=field) from error


def _check_told(record: AdapterRecord, *, field: str) -> None:
    """Refuses, in fields that the admin service itself writes, what it would not write there."""
    if record.tenant != tenant_of(record.name):
        message = f"the tenant of {record.name!r} is {tenant_of(record.name)!r}"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field=f"{field}.tenant")
    _check_times({"updated_at": record.updated_at, "expires_at": record.expires_at}, field=field)
    told = {"updated_by": record.updated_by, "rollout.halted": record.rollout.halted if record.rollout else ""}
    for name, text in told.items():
        if len(text) > MAX_TOLD_CHARACTERS:
            message = f"write at most {MAX_TOLD_CHARACTERS} characters"
            raise InvalidArgument(Reason.INVALID_FIELD, message, field=f"{field}.{name}")
    requests = {"request_id": record.request_id, "retry.request_id": record.retry.request_id if record.retry else ""}
    if isinstance(record, RetiredRecord):
        requests["retired_by_request"] = record.retired_by_request
    for name, request_id in requests.items():
        if request_id:  # there was none before releases gave each change one
            check_request_id(request_id, field=f"{field}.{name}")


def _check_times(times: Mapping[str, str | None], *, field: str) -> None:
    for name, time in times.items():
        if time is not None and not _TIME.fullmatch(time):
            message = "write a time such as 2026-01-31T12:00:00Z"
            raise InvalidArgument(Reason.INVALID_FIELD, message, field=f"{field}.{name}")


def _pool(values: Mapping[str, object], fingerprint_of: Fingerprinter) -> PoolSpec:
    spec = _validated(PoolSpec, values, field="pool")
    if len({model.lower() for model in spec.base_models}) < len(spec.base_models):
        raise InvalidArgument(Reason.INVALID_FIELD, "name each base model once", field="pool.base_models")
    if spec.base is not None and fingerprint_of(spec.base.modules) != spec.base.fingerprint:
        raise InvalidArgument(
            Reason.INVALID_FIELD,
            "the fingerprint is not that of the modules; let loraplane pool update --from read them",
            field="pool.base.fingerprint",
        )
    return spec


def _validated(kind: type[PartT], values: Mapping[str, object], *, field: str) -> PartT:
    try:
        made = kind.model_validate(values)
    except ValidationError as error:
        raise _refused(kind, error, field) from error
    _check_fit(made, field=field)
    return made


def _check_fit(made: Part, *, field: str) -> None:
    # Not a rule of the stored form: what stands in etcd already goes on being served, and is shown in escapes.
    if not _is_plainly_fit(made) and (unfit := first_unfit(made.model_dump())) is not None:
        message = "write it without control characters, line breaks and marks that turn the direction of text"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field=f"{field}.{unfit}")


def _is_plainly_fit(made: Part) -> bool:
    """True if no text in it can be unfit, by one look at all of them: JSON writes controls with a backslash."""
    try:
        text = made.model_dump_json()
    except PydanticSerializationError:  # half of a character
        return False
    return text.isprintable() and "\\" not in text


def _refused(kind: type[Part], error: ValidationError, field: str) -> InvalidArgument:
    """The first complaint, with the path of the field and what to write instead; never the value itself."""
    first = error.errors()[0]
    parts = [str(part) for part in first["loc"]]
    remedies = [one.description for one in fields_at(kind, parts)]
    while remedies and not remedies[-1]:
        remedies.pop()
    where, remedy = (parts[: len(remedies)], remedies[-1]) if remedies else (parts, None)
    return InvalidArgument(Reason.INVALID_FIELD, remedy or first["msg"], field=".".join([field, *where]))
