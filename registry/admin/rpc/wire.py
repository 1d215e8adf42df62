"""Bounds on a request's bytes, checked before they become messages.

A message of 4 MiB can hold so many small fields that parsing it holds the event loop for seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from registry.model.errors import InvalidArgument, Reason
from registry.model.stored import MAX_RECORD_BYTES
from registry.transactions.adapters import too_many_changes
from registry.transactions.context import TxnLimits
from registry.v1 import registry_pb2 as pb

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
