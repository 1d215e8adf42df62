"""Stored values: JSON with a schema number, unknown fields kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError

from registry.model.errors import FailedPrecondition, Reason

SCHEMA = 1
MAX_RECORD_BYTES = 64 * 1024
MAX_STATUS_BYTES = 256 * 1024
MAX_TRANSACTION_BYTES = 1_400_000  # a little below etcd's --max-request-bytes
# As far as etcd's revisions and the numbers of the admin API go. A float holds each of them, if not to the last digit.
Number = Annotated[int, Field(ge=0, le=(1 << 63) - 1)]
_MAX_SCHEMA = (1 << 31) - 1


def read_json(text: str | bytes) -> Any:  # noqa: ANN401 - whatever it is that somebody wrote
    """JSON that somebody else wrote.

    Raises:
        ValueError: it is none, or nested too deeply to be read.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


class Part(BaseModel):
    """Part of a stored value. Fields that this release does not know survive a rewrite."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Itself, since it is frozen. Pydantic copies a default that is a model anew for each value that lacks it."""
        return self


class Stored(Part):
    """A whole value in etcd."""

    max_bytes: ClassVar[int] = MAX_RECORD_BYTES
    schema_version: int = Field(default=SCHEMA, alias="schema", ge=1, le=_MAX_SCHEMA)

    model_config = ConfigDict(populate_by_name=True)

    def to_bytes(self) -> bytes:
        """The value as compact JSON; half of a character, which JSON can hold and UTF-8 cannot, becomes a "?"."""
        try:
            return self.model_dump_json(by_alias=True).encode()
        except PydanticSerializationError:
            value = self.model_dump(by_alias=True)
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")

    @classmethod
    def parse(cls, value: bytes) -> Self:
        """Reads a value from etcd.

        Raises:
            FailedPrecondition: it is too large, from a later schema, or not of this form.
        """
        if len(value) > cls.max_bytes:
            raise FailedPrecondition(
                Reason.UNREADABLE_RECORD, f"{len(value)} bytes are more than the {cls.max_bytes} that a value may have"
            )
        try:
            stored = cls.model_validate_json(value)
        except ValidationError as error:
            _check_schema(_claimed_schema(value))
            raise FailedPrecondition(Reason.UNREADABLE_RECORD, first_error(error)) from error
        _check_schema(stored.schema_version)
        return stored


def _check_schema(schema: int) -> None:
    if schema > SCHEMA:
        raise FailedPrecondition(
            Reason.FUTURE_SCHEMA, f"schema {schema} is later than {SCHEMA}, the newest known here; upgrade"
        )


def _claimed_schema(value: bytes) -> int:
    """The schema that an otherwise unreadable value claims to have: a later one may have another form."""
    try:
        claimed = read_json(value)["schema"]
    except (ValueError, TypeError, KeyError):
        return SCHEMA
    return min(claimed, _MAX_SCHEMA) if isinstance(claimed, int) else SCHEMA


def first_error(error: ValidationError) -> str:
    """The first complaint of pydantic in one line, without the value that it is about."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def fields_at(kind: type[BaseModel], path: Sequence[int | str]) -> Iterator[FieldInfo]:
    """The fields along the path of a complaint, the outermost first; that of a list also for each number in it."""
    inner: type[BaseModel] | None = kind
    field: FieldInfo | None = None
    for part in path:
        if inner is not None and field is not None and str(part).isdecimal():
            yield field  # one of several
            continue
        fields = inner.model_fields.items() if inner else ()
        field = next((one for name, one in fields if part == (one.alias or name)), None)
        if field is None:
            return
        yield field
        inner = model_in(field.annotation)


def model_in(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401 - whatever a field may be
    """The model that a field holds, also where it may hold nothing or several; None: it holds values."""
    choices = (annotation, *get_args(annotation))
    return next((one for one in choices if isinstance(one, type) and issubclass(one, BaseModel)), None)
