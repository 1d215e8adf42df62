"""Reads the two files of an adapter from a tar archive that passes by, and writes nothing by the archive's names.

Nothing is extracted: of each member only the header is looked at, and the content of the two known files is handed
on. Their headers are read with the standard library; its own loop over members is not used, since it keeps extended
headers of any size in memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from registry.lora.manifest import FILES, WEIGHTS_FILE
from registry.sources.archive_headers import BLOCK_BYTES, Member, Reader, bad_archive, next_member
from registry.sources.errors import ArtifactError
from registry.sources.source import Receive

CHUNK_BYTES = 1 << 20
# Of the whole archive unpacked: the largest adapter that is taken, and as much again for what lies beside it.
MAX_UNPACKED_BYTES = 32 << 30
_GZIP = 16 + zlib.MAX_WBITS
_OTHER_WEIGHTS = frozenset({"adapter_model.bin", "adapter_model.pt"})


def receive_archive(
    chunks: Iterator[bytes], receive: Receive, *, is_gzipped: bool, max_bytes: int = MAX_UNPACKED_BYTES
) -> None:
    """Hands over the adapter in an archive: both files at its top, or both in one directory there. First one counts.

    Raises:
        ArtifactError: ``bad_archive``, ``source_incomplete``, ``weights_not_safetensors``, ``too_large``, or what
            `chunks` or `receive` raise.
    """
    reader = Reader(_gunzip(chunks) if is_gzipped else chunks, max_bytes)
    missing, folder, other = set(FILES), None, ""
    while missing:
        member = next_member(reader)
        if member is None:
            raise _absent(missing, other)
        parent, name = _place(member)
        if name in missing and folder in {None, parent}:
            folder = parent
            missing.remove(name)
            receive(name, member.size_bytes, reader.chunks(member.size_bytes))
        else:
            other = name if name in _OTHER_WEIGHTS else other
            reader.skip(member.size_bytes)
        reader.skip(-member.size_bytes % BLOCK_BYTES)


def _place(member: Member) -> tuple[str, str]:
    """The directory and the name of a member that may be ours; both empty for what lies deeper."""
    parts = [part for part in member.name.split("/") if part not in {"", "."}]
    if member.name.startswith("/") or ".." in parts:
        raise bad_archive(f"it has the member {member.name[:200]!r}, whose name leads out of it")
    if not 1 <= len(parts) <= 2 or parts[-1] not in _OTHER_WEIGHTS.union(FILES):
        return "", ""
    if not member.is_file:
        raise bad_archive(f"its member {member.name[:200]!r} is not a regular file")
    return "/".join(parts[:-1]), parts[-1]


def _gunzip(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Unpacks in pieces of bounded size; an archive may be several gzip streams in a row."""
    unpacker = zlib.decompressobj(_GZIP)
    for chunk in chunks:
        rest = chunk
        while rest:
            try:
                piece = unpacker.decompress(rest, CHUNK_BYTES)
            except zlib.error:
                raise bad_archive("it is not a gzip stream, or damaged") from None
            if piece:
                yield piece
            rest = unpacker.unconsumed_tail
            if unpacker.eof:
                rest = unpacker.unused_data
                unpacker = zlib.decompressobj(_GZIP)


def _absent(missing: set[str], other: str) -> ArtifactError:
    if other and WEIGHTS_FILE in missing:
        message = f"the archive has {other}, which can hold code; expected safetensors: convert it"
        return ArtifactError("weights_not_safetensors", message, permanent=True)
    message = f"the archive has no {min(missing)} at its top or in its one directory; it is tried again"
    return ArtifactError("source_incomplete", message, permanent=False)
