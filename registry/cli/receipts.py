"""Receipts of removals, in files: begun before anything is deleted, and kept whenever something may have been."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from registry.cli.failure import usage
from registry.cli.wire import adapter_dict
from registry.model.base import SCHEMA
from registry.v1 import registry_pb2 as pb


def begin(path: Path, stood: pb.Adapter) -> None:
    """Writes into a new file what a receipt needs and what nobody can tell once the record is gone: how it stood.

    Raises:
        CliError: there is such a file already, or it cannot be written.
    """
    values = {name: value for name, value in adapter_dict(stood).items() if name != "etag"}
    record = json.dumps({"schema": SCHEMA, **values}, separators=(",", ":"), ensure_ascii=False)
    try:
        with path.open("x") as file:
            _write(file, pb.Removal(pool=stood.pool, name=stood.name, record=record))
    except OSError as error:
        raise usage(f"cannot write the receipt {path}: {error.strerror}; choose another file with --receipt") from error


def is_begun(path: Path, pool: str, name: str) -> bool:
    """Whether the file is what an earlier try to remove this adapter left, not knowing what became of it."""
    if not path.exists():
        return False
    found = _parsed(path)
    return not found.revision and (found.pool, found.name) == (pool, name)


def complete(path: Path, removal: pb.Removal) -> None:
    """Replaces what was begun by the receipt.

    Raises:
        CliError: it cannot be written; the error holds it.
    """
    whole = path.with_name(path.name + ".new")
    try:
        with whole.open("w") as file:
            _write(file, removal)
        whole.replace(path)
    except OSError as error:
        shown = json.dumps(MessageToDict(removal, preserving_proto_field_name=True))
        message = f"it is deleted, but the receipt {path} cannot be written: {error.strerror}; keep this: {shown}"
        raise usage(message) from error


def read(path: Path) -> pb.Removal:
    """A receipt, to be settled.

    Raises:
        CliError: it cannot be read, or is none.
    """
    removal = _parsed(path)
    if not removal.revision:
        raise usage(
            f"{path} was begun before a removal of which nobody knows the outcome: repeat break-glass delete with "
            "--receipt and the same --request-id, or write the revision that loraplane-check verify names into it"
        )
    return removal


def _write(file: IO[str], removal: pb.Removal) -> None:
    json.dump(MessageToDict(removal, preserving_proto_field_name=True), file, indent=2)
    file.flush()
    os.fsync(file.fileno())


def _parsed(path: Path) -> pb.Removal:
    try:
        return ParseDict(json.loads(path.read_text()), pb.Removal())
    except OSError as error:
        raise usage(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, ParseError) as error:
        raise usage(f"{path} is no receipt of break-glass delete: {error}") from error
