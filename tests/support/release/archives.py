"""Archives with equal bytes whenever and wherever they are made: all files of one time, and of nobody."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path


def packed(files: Mapping[str, bytes], epoch: int) -> bytes:
    """A compressed archive of these files, in their order; `epoch` is in seconds."""
    made = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=made, mode="wb", filename="", mtime=epoch) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in files.items():
            archive.addfile(_told(name, len(content), epoch), io.BytesIO(content))
    return made.getvalue()


def pack_folder(folder: Path, into: Path, epoch: int) -> None:
    """Writes all files of a folder, in order, into an archive that is not compressed."""
    with tarfile.open(into, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            with path.open("rb") as file:
                archive.addfile(_told(str(path.relative_to(folder)), path.stat().st_size, epoch), file)


def _told(name: str, size_bytes: int, epoch: int) -> tarfile.TarInfo:
    told = tarfile.TarInfo(name)
    told.size, told.mtime, told.mode = size_bytes, epoch, 0o644
    return told
