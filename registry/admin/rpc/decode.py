"""Decodes requests into changes, and bounds their bytes before.

A field that is wrong raises InvalidArgument with the field's path. A message of 4 MiB can hold so many small fields
that parsing it holds the event loop for seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from registry.model.errors import InvalidArgument, Reason
from registry.model.messages import base_dict, limits_dict, spec_dict
from registry.model.stored import MAX_RECORD_BYTES
from registry.runtime.engine_drivers import NoDriver, check_kind
from registry.transactions import validate
from registry.transactions.adapters import too_many_changes
from registry.transactions.changes import (
    AbortRollout,
    ApplyAdapters,
    ConfirmRemovals,
    CreatePool,
    DeletePool,
    DrainReplica,
    PromoteRollout,
    Remove,
    RepairTenant,
    RestoreHistory,
    RollbackAdapter,
    SetTenant,
    UpdatePool,
    Upsert,
)
from registry.transactions.context import TxnLimits
from registry.transactions.validate import make_etag, make_existing_etag, make_generation
from registry.v1 import registry_pb2 as pb


def apply_adapters(request: pb.ApplyAdaptersRequest) -> ApplyAdapters:
    """The change set of a request."""
    changes = [_change(one, index, retry=request.retry) for index, one in enumerate(request.changes)]
    return validate.make_apply(request.pool, changes, retry=request.retry, retry_replica=request.retry_replica)


def _change(change: pb.AdapterChange, index: int, *, retry: bool) -> Upsert | Remove:
    field = f"changes[{index}]"
    match change.WhichOneof("change"):
        case "upsert":
            return validate.make_upsert(change.upsert.name, spec_dict(change.upsert.spec), change.etag, field=field)
        case "update":
            spec, mask = spec_dict(change.update.spec), change.update_mask.paths
            return validate.make_update(change.update.name, spec, mask, change.etag, field=field, retry=retry)
        case "delete":
            return Remove(change.delete, make_existing_etag(change.etag, field=f"{field}.etag"))
        case _:
            raise InvalidArgument(Reason.INVALID_FIELD, "a change is an upsert, an update or a delete", field=field)


def rollback_adapter(request: pb.RollbackAdapterRequest) -> RollbackAdapter:
    """The rollback that a request asks for."""
    generation = make_generation(request.to_generation, zero="the one before", field="to_generation")
    etag = make_etag(request.etag, field="etag")
    return RollbackAdapter(request.pool, request.name, generation, etag, request.restored)


def promote_rollout(request: pb.PromoteRolloutRequest) -> PromoteRollout:
    """The promotion that a request asks for."""
    return PromoteRollout(request.pool, request.name, *_canary(request))


def abort_rollout(request: pb.AbortRolloutRequest) -> AbortRollout:
    """The abortion that a request asks for."""
    return AbortRollout(request.pool, request.name, *_canary(request))


def _canary(request: pb.PromoteRolloutRequest | pb.AbortRolloutRequest) -> tuple[int, int | None]:
    """Generation and etag of what only canaries serve."""
    generation = make_generation(request.generation, zero="the present one", field="generation")
    return generation, make_existing_etag(request.etag, field="etag")


def create_pool(request: pb.CreatePoolRequest, fingerprint_of: validate.Fingerprinter) -> CreatePool:
    """The pool that a request creates."""
    if request.pool.etag:
        raise InvalidArgument(Reason.INVALID_FIELD, "a pool that does not exist has no etag", field="pool.etag")
    return validate.make_create_pool(_pool(request), fingerprint_of)


def update_pool(request: pb.UpdatePoolRequest, fingerprint_of: validate.Fingerprinter) -> UpdatePool:
    """The pool's new values."""
    mask = list(request.update_mask.paths) if request.HasField("update_mask") else None
    return validate.make_update_pool(_pool(request, mask), request.pool.etag, mask, fingerprint_of)


def confirm_removals(request: pb.ConfirmRemovalsRequest) -> ConfirmRemovals:
    """The confirmation that a request gives."""
    if request.revision < 1:
        message = "give the revision that the replica names"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field="revision")
    return ConfirmRemovals(request.name, request.revision, make_existing_etag(request.etag, field="etag"))


def delete_pool(request: pb.DeletePoolRequest) -> DeletePool:
    """The deletion that a request asks for."""
    return DeletePool(request.name, make_existing_etag(request.etag, field="etag"))


def set_tenant(request: pb.SetTenantRequest) -> SetTenant:
    """The quota that a request sets; 0: none. Tenants have lower-case names."""
    tenant = request.tenant
    return SetTenant(tenant.name.lower(), tenant.max_adapters or None, make_etag(tenant.etag, field="tenant.etag"))


def drain_replica(request: pb.DrainReplicaRequest) -> DrainReplica:
    """The order that a request gives."""
    return DrainReplica(request.pool, request.name, not request.undrain)


def repair_tenant(request: pb.RepairTenantRequest) -> RepairTenant:
    """The repair that a request asks for."""
    return RepairTenant(request.name.lower())


def restore_history(request: pb.RestoreHistoryRequest) -> RestoreHistory:
    """The history that a request restores."""
    return validate.make_restore_history(request.pool, request.name, request.generations, request.last)


def _pool(request: pb.CreatePoolRequest | pb.UpdatePoolRequest, mask: Sequence[str] | None = None) -> dict[str, object]:
    """Fields of a pool as a request gives them."""
    pool = request.pool
    if pool.engine and (mask is None or "engine" in mask) and not request.restored:
        try:
            check_kind(pool.engine)
        except NoDriver as error:
            raise InvalidArgument(Reason.INVALID_FIELD, str(error), field="pool.engine") from error
    base = base_dict(pool.base) if pool.HasField("base") else None
    told: dict[str, object] = {
        "name": pool.name,
        "base_models": list(pool.base_models),
        "limits": limits_dict(pool.limits),
    }
    given = {"base": base, "engine": pool.engine, "engine_names": pool.engine_names}
    return told | {name: value for name, value in given.items() if value}


# So few bytes are parsed in a few milliseconds, whatever they are.
SMALL_BYTES = 16 * 1024
# A pool's base model has at most 4,096 modules of four fields each.
MAX_FIELDS = 20_000
_FIELDS_OF_A_CHANGE = 250
# A whole record has no more. It is refused here, since what is made of it and told of it would be many times its size.
MAX_VALUE_BYTES = MAX_RECORD_BYTES
_CHANGES = pb.ApplyAdaptersRequest.CHANGES_FIELD_NUMBER
_CHANGE: Descriptor = pb.DESCRIPTOR.message_types_by_name["AdapterChange"]
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

M = TypeVar("M", bound=Message)


def parser_of(message: Descriptor, limits: TxnLimits) -> Callable[[bytes], Message]:
    """Parser of a request. It raises InvalidArgument where they are none, or hold too much."""
    made: type[Message] = GetMessageClass(message)
    most = max(MAX_FIELDS, _FIELDS_OF_A_CHANGE * limits.max_ops // 2)

    def parse(raw: bytes) -> Message:
        try:
            if len(raw) > SMALL_BYTES:
                if message is pb.ApplyAdaptersRequest.DESCRIPTOR:
                    check_changes(raw, limits)
                check_fields(raw, message, most)
            return made.FromString(raw)
        except (DecodeError, IndexError) as error:
            raise InvalidArgument(Reason.INVALID_FIELD, f"these bytes are no {message.name}") from error

    return parse


def check_changes(raw: bytes, limits: TxnLimits) -> None:
    """Refuses a change set of more changes than could ever fit, after a look at no more of them.

    Raises:
        InvalidArgument: with the number that fits.
        IndexError: the bytes are no message.
        google.protobuf.message.DecodeError: a change is none.
    """
    changes: list[bytes] = []
    for number, content in _fields(raw):
        if number != _CHANGES or content is None:
            continue
        if 2 * len(changes) > limits.max_ops:
            raise too_many_changes([_name_in(one) for one in changes], f"more than {len(changes)}", limits)
        check_fields(content, _CHANGE, MAX_FIELDS, f"changes[{len(changes)}]")
        changes.append(content)


def _name_in(raw: bytes) -> str:
    change = pb.AdapterChange.FromString(raw)
    return change.upsert.name or change.update.name or change.delete


def check_fields(raw: bytes, message: Descriptor, most: int, path: str = "") -> None:
    """Refuses a message of more fields than `most`, at whatever depth, after a look at no more of them.

    And one in which a single value is larger than any may be: of that not even a text is made.

    Raises:
        InvalidArgument: it has more; `path` is where the message stands.
        IndexError: the bytes are no message, as far as that is seen here.
    """
    if len(raw) <= min(most, MAX_VALUE_BYTES):
        return  # a field has one byte at least that is no other field's
    left = [(raw, message, path)]
    count = 0
    while left:
        content, kind, path = left.pop()
        seen: Counter[int] = Counter()
        for number, inner in _fields(content):
            count += 1
            if count > most:
                raise InvalidArgument(Reason.TOO_LARGE, f"the request has more than {most} fields; make it smaller")
            if inner is None:
                continue
            field, index = kind.fields_by_number.get(number), seen[number]
            seen[number] += 1
            if field is not None and field.message_type is not None:
                left.append((inner, field.message_type, _path(path, kind, number, index)))
            elif len(inner) > MAX_VALUE_BYTES:
                told = f"a value of {len(inner)} bytes is more than the {MAX_VALUE_BYTES} that any may have"
                where = _path(path, kind, number, index)
                raise InvalidArgument(Reason.TOO_LARGE, f"{told}; make it smaller", field=where or None)


def _path(path: str, kind: Descriptor, number: int, index: int) -> str:
    """Where a field of a message at `path` stands, as its caller wrote it; of one that nobody knows, its message."""
    field = kind.fields_by_number.get(number)
    if field is None or kind.GetOptions().map_entry:
        return path
    name = f"{path}.{field.name}" if path else field.name
    is_list = field.is_repeated and not (field.message_type and field.message_type.GetOptions().map_entry)
    return f"{name}[{index}]" if is_list else name


def _fields(raw: bytes) -> Iterator[tuple[int, bytes | None]]:
    """Number and content of each field; None: it is a number. Raises IndexError where the bytes end too early."""
    at, end = 0, len(raw)
    while at < end:
        tag, at = _varint(raw, at)
        kind = tag & 7
        content = None
        if kind == _BYTES:
            size, at = _varint(raw, at)
            content = raw[at : at + size]
            at += size
        elif kind == _VARINT:
            _, at = _varint(raw, at)
        else:
            at += {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
        yield tag >> 3, content
    if at > end:
        raise IndexError("a field ends behind the message")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = raw[at] & 0x7F
    shift = 7
    while raw[at] & 0x80:
        if shift > 63:
            raise IndexError("a number has more than 64 bits")
        at += 1
        value |= (raw[at] & 0x7F) << shift
        shift += 7
    return value, at + 1
