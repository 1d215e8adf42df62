"""From the files and arguments that a user gives to changes."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from registry.cli.change_set import Change
from registry.cli.failure import CliError, failure_of, usage
from registry.cli.manifest import Placed, check_unique, manifest_of, read_manifests
from registry.cli.wire import Plain, adapter_of
from registry.errors import InvalidArgument
from registry.v1 import registry_pb2 as pb

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:")


def upserts(files: Sequence[str]) -> list[Change]:
    """One change for each document, which makes the adapter what the document says."""
    return [_upsert(placed) for placed in _manifests(files)]


def upsert_of(content: Plain, place: str) -> Change:
    """One change from what arguments say, checked as a document is."""
    try:
        return _upsert(manifest_of(content, place))
    except InvalidArgument as error:
        raise CliError(failure_of(error)) from error


def _upsert(placed: Placed) -> Change:
    wire = pb.AdapterChange(upsert=adapter_of(placed.manifest))
    return Change(placed.manifest.metadata.pool, wire, placed.place)


def deletions(files: Sequence[str]) -> list[Change]:
    """One change for each document, which deletes its adapter."""
    return [
        Change(placed.manifest.metadata.pool, pb.AdapterChange(delete=placed.manifest.metadata.name), placed.place)
        for placed in _manifests(files)
    ]


def _manifests(files: Sequence[str]) -> list[Placed]:
    if not files:
        raise usage("no manifest was given; name a file, or - for standard input, with -f")
    try:
        found = [placed for file in files for placed in read_manifests(_text(file), file)]
        check_unique(found)
    except InvalidArgument as error:
        raise CliError(failure_of(error)) from error
    return found


def _text(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise usage(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise usage(f"cannot read {file}: it is not text in UTF-8") from error


def source_uri(source: str) -> str:
    """A URI as it is; a path of this machine as a file: URI, since replicas know no working directory of ours.

    Raises:
        CliError: there is none. An empty path would stand for the working directory.
    """
    if not source:
        raise usage("--source is empty; give a URI or a folder")
    return source if _SCHEME.match(source) else Path(source).absolute().as_uri()
