"""Changes from manifests in files, in folders and on standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from registry.cli.change.manifest import Placed, check_unique, manifest_of, read_manifests
from registry.cli.change.sets import Change
from registry.cli.failure import CliError, failure_of, usage
from registry.model.errors import InvalidArgument
from registry.model.messages import Plain
from registry.v1 import registry_pb2 as pb

# Of one file: the manifests of a hundred thousand adapters.
_MAX_FILE_CHARACTERS = 64 << 20
_ENDINGS = (".yaml", ".yml", ".json")


def upserts(files: Sequence[str], *, recursive: bool = False) -> list[Change]:
    """One change for each document, which makes the adapter what the document says.

    A folder stands for the manifests in it, with `recursive` also for those in its folders.
    """
    return [_upsert(placed) for placed in _manifests(files, recursive=recursive)]


def upsert_of(content: Plain, place: str) -> Change:
    """One change from what arguments say, checked as a document is."""
    try:
        return _upsert(manifest_of(content, place))
    except InvalidArgument as error:
        raise CliError(failure_of(error)) from error


def _upsert(placed: Placed) -> Change:
    wire = pb.AdapterChange(upsert=placed.manifest.message())
    return Change(placed.manifest.metadata.pool, wire, placed.place)


def deletions(files: Sequence[str], *, recursive: bool = False) -> list[Change]:
    """One change for each document, which deletes its adapter. Folders: see `upserts`."""
    return [
        Change(placed.manifest.metadata.pool, pb.AdapterChange(delete=placed.manifest.metadata.name), placed.place)
        for placed in _manifests(files, recursive=recursive)
    ]


def _manifests(files: Sequence[str], *, recursive: bool) -> list[Placed]:
    if not files:
        raise usage("no manifest was given; name a file, or - for standard input, with -f")
    every = [inside for file in files for inside in _files(file, recursive=recursive)]
    try:
        found = [placed for file in every for placed in read_manifests(read_text(file), file)]
        check_unique(found)
    except InvalidArgument as error:
        raise CliError(failure_of(error)) from error
    return found


def _files(name: str, *, recursive: bool) -> list[str]:
    """The file itself; of a folder, the manifests in it by their names, but for what is hidden."""
    if name == "-" or not Path(name).is_dir():
        return [name]
    found: list[str] = []
    for folder, inner, files in os.walk(name, onerror=_unreadable):
        inner[:] = sorted(one for one in inner if recursive and not one.startswith("."))
        found += [str(Path(folder, one)) for one in sorted(files) if one.endswith(_ENDINGS) and not one.startswith(".")]
    if not found:
        deeper = "" if recursive else "; -R reads the folders in it too"
        raise usage(f"{name} is a folder without a manifest ({', '.join(_ENDINGS)}){deeper}")
    return found


def _unreadable(error: OSError) -> None:
    raise usage(f"--file: cannot read {error.filename}: {error.strerror}; name what can be read") from error


def read_text(file: str, flag: str = "--file") -> str:
    """The text of a file, or of standard input. Raises CliError: it cannot be read, is no text, or is too long."""
    try:
        with nullcontext(sys.stdin) if file == "-" else Path(file).open(encoding="utf-8") as opened:
            text = opened.read(_MAX_FILE_CHARACTERS + 1)
        text.encode()  # where the locale is C, Python takes bytes of standard input that are no UTF-8
    except OSError as error:
        remedy = "name a file or a folder that can be read, or - for standard input"
        raise usage(f"{flag}: cannot read {file}: {error.strerror}; {remedy}") from error
    except UnicodeError as error:
        raise usage(f"cannot read {file}: it is not text in UTF-8") from error
    if len(text) > _MAX_FILE_CHARACTERS:
        raise usage(f"{flag}: {file} has more than {_MAX_FILE_CHARACTERS} characters; give its manifests in several")
    return text
