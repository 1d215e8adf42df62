"""Examines an adapter in a directory: its digest and its check."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import BinaryIO

from registry.lora.base import BaseModules
from registry.lora.check import AdapterVerdict, examine
from registry.lora.config import MAX_CONFIG_BYTES, AdapterConfig, read_config
from registry.lora.coverage.findings import without_effect
from registry.lora.digest import (
    CONFIG_FILE,
    FILES,
    OTHER_FILES,
    WEIGHTS_FILE,
    FileEntry,
    instead_of_weights,
    manifest_digest,
)
from registry.lora.findings import Finding, UnfitAdapter
from registry.lora.json_files import not_an_adapter
from registry.lora.policy import AdapterLimits, Policy
from registry.lora.safetensors import LENGTH_BYTES, Header, all_zeros, header_length, not_finite, read_header
from registry.lora.tensor_names import entry_of

# Opens one of an adapter's files by its name.
OpenFile = Callable[[str], BufferedReader | BytesIO]
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Opened:
    """Contents of an adapter's files, and where the first tensor's bytes are in the weights."""

    config: AdapterConfig
    header: Header
    start: int


@dataclass(frozen=True, slots=True)
class Examined:
    """An adapter that was looked at in full; its verdict has no findings."""

    opened: Opened
    verdict: AdapterVerdict


def read_header_of(file: BinaryIO, name: str) -> tuple[Header, int]:
    """The header of an open safetensors file, and where its tensors' bytes start.

    Raises:
        UnfitAdapter: it is none.
        OSError: it cannot be read.
    """
    size_bytes = file.seek(0, 2)
    file.seek(0)
    length = header_length(file.read(LENGTH_BYTES), size_bytes, name)
    return read_header(file.read(length), size_bytes, name), LENGTH_BYTES + length


def examine_directory(directory: Path, base: BaseModules | None, limits: AdapterLimits, policy: Policy) -> Examined:
    """Looks at everything, the numbers included.

    Raises:
        UnfitAdapter: it cannot be served; `findings` says why, all of it.
        OSError: a file cannot be read.
    """
    return examine_files(_files_of(directory), base, limits, policy)


def examine_files(open_file: OpenFile, base: BaseModules | None, limits: AdapterLimits, policy: Policy) -> Examined:
    """As `examine_directory`, wherever the files are."""
    config = read_config(_config_bytes(open_file))
    with open_file(WEIGHTS_FILE) as file:
        header, start = read_header_of(file, WEIGHTS_FILE)
        verdict = examine(config, header.tensors, base, limits, policy)
        findings = [*verdict.findings, *not_finite(file, start, header.tensors)]
        if findings:
            raise UnfitAdapter(findings)
        dropped = set(verdict.changes.dropped)
        served = [one for one in header.tensors if one.name not in dropped]
        idle = without_effect(map(entry_of, served), all_zeros(file, start, served))
    return Examined(Opened(config, header, start), replace(verdict, warnings=(*verdict.warnings, *idle)))


def open_directory(directory: Path) -> Opened:
    """Reads the configuration and the header of the weights, which is quick whatever their size.

    Raises:
        UnfitAdapter: one of them is none.
        OSError: a file cannot be read.
    """
    open_file = _files_of(directory)
    config = read_config(_config_bytes(open_file))
    with open_file(WEIGHTS_FILE) as file:
        header, start = read_header_of(file, WEIGHTS_FILE)
    return Opened(config, header, start)


def open_config(directory: Path) -> AdapterConfig:
    """Reads the configuration alone. Raises as `open_directory`."""
    return read_config(_config_bytes(_files_of(directory)))


def _files_of(directory: Path) -> OpenFile:
    return lambda name: (directory / name).open("rb")


def _config_bytes(open_file: OpenFile) -> bytes:
    with open_file(CONFIG_FILE) as file:
        content = file.read(MAX_CONFIG_BYTES + 1)
    if len(content) > MAX_CONFIG_BYTES:
        raise not_an_adapter(CONFIG_FILE, f"more than {MAX_CONFIG_BYTES} bytes", "a configuration")
    return content


def check_files(directory: Path) -> None:
    """Raises UnfitAdapter unless both files are there, as regular files."""
    findings = [finding for name in FILES if (finding := _absence(directory, name)) is not None]
    if findings:
        raise UnfitAdapter(findings)


def _absence(directory: Path, name: str) -> Finding | None:
    if (directory / name).is_file():
        return None
    if (directory / name).exists():
        return Finding("not_an_adapter", name, "something that is no regular file", "a file", "put a copy there")
    other = instead_of_weights([one for one in OTHER_FILES if (directory / one).exists()])
    if name == WEIGHTS_FILE and other is not None:
        found = OTHER_FILES[other]
        return Finding(found.reason, other, found.what, name, found.remedy)
    remedy = f"name the directory that holds {' and '.join(FILES)}"
    return Finding("source_incomplete", name, f"no such file in {directory}", "one", remedy, permanent=False)


def digest_of(directory: Path) -> str:
    """The manifest digest of a directory's files as they are now.

    Raises:
        OSError: one cannot be read.
    """
    return manifest_digest(entries_of(directory))


def entries_of(directory: Path) -> list[FileEntry]:
    """A directory's files as a manifest lists them. Raises OSError: one cannot be read."""
    return [_entry(directory / name) for name in FILES]


def _entry(path: Path) -> FileEntry:
    digest, size_bytes = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size_bytes += len(chunk)
    return FileEntry(path.name, size_bytes, digest.hexdigest())
