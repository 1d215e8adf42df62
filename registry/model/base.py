"""How stored values are read and written: JSON with a schema number, unknown fields kept."""

from __future__ import annotations

import json
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from registry.errors import FailedPrecondition, Reason

SCHEMA = 1
MAX_RECORD_BYTES = 64 * 1024
MAX_STATUS_BYTES = 256 * 1024
MAX_TRANSACTION_BYTES = 1_400_000  # a little below etcd's --max-request-bytes


class Part(BaseModel):
    """Part of a stored value. Fields that this release does not know survive a rewrite."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)


class Stored(Part):
    """A whole value in etcd."""

    max_bytes: ClassVar[int] = MAX_RECORD_BYTES
    schema_version: int = Field(default=SCHEMA, alias="schema", ge=1)

    model_config = ConfigDict(populate_by_name=True)

    def to_bytes(self) -> bytes:
        """The value as compact JSON."""
        return self.model_dump_json(by_alias=True).encode()

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
        claimed = json.loads(value)["schema"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return SCHEMA
    return claimed if isinstance(claimed, int) else SCHEMA


def first_error(error: ValidationError) -> str:
    """The first complaint of pydantic in one line, without the value that it is about."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
