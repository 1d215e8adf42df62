"""Folders that are signed: their files by sha256, and the bundle. Pure."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from registry.lora.signing.bundle import MAX_BUNDLE_BYTES, read_bundle
from registry.lora.signing.statement import GIT_PATHS, MAX_FILES, SIGNATURE_FILE, SignedFiles, read_statement

IGNORED = (*GIT_PATHS, SIGNATURE_FILE)


class UnsignableFolder(ValueError):
    """A folder has what cannot be signed; the message names it, and what to do."""


def folder_sha256(folder: Path) -> dict[str, str]:
    """The sha256 of each file below a folder by its path there, but of the bundle and of git's files.

    Raises:
        UnsignableFolder: there is a link, or there are too many files.
        OSError: a file cannot be read.
    """
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if name.parts[0] in IGNORED:
            continue
        if path.is_symlink():
            raise UnsignableFolder(f"{path} is a link, and where it leads may change; put a copy there (cp -L)")
        if path.is_file():
            found[name.as_posix()] = _sha256_of(path)
        if len(found) > MAX_FILES:
            raise UnsignableFolder(f"{folder} has more than {MAX_FILES} files; sign a folder with the adapter alone")
    return found


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bundle_in(folder: Path) -> bytes | None:
    """The bundle beside an adapter's files; None: there is none. Raises OSError."""
    with suppress(FileNotFoundError), (folder / SIGNATURE_FILE).open("rb") as file:
        return file.read(MAX_BUNDLE_BYTES + 1)
    return None


def statement_in(content: bytes) -> SignedFiles:
    """Statement of a bundle, whoever signed it. Raises BadBundle."""
    return read_statement(read_bundle(content).payload)
