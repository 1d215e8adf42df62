"""Reads an adapter's two files from a tar archive, with a bound on everything.

Nothing is extracted: of each member only the header is looked at, and the content of the two known files is handed
on. Their headers are read with the standard library; its own loop over members is not used, since it keeps extended
headers of any size in memory.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from registry.lora.digest import FILES, OTHER_FILES, instead_of_weights
from registry.lora.signing.statement import SIGNATURE_FILE
from registry.sources.base import BUNDLE_BYTES, ArtifactError, Receive, other_format

BLOCK_BYTES = 512
MAX_HEADERS = 10_000
MAX_EXTENSION_BYTES = 64 << 10
# Of all extended headers together: those of real archives have some hundred bytes a member.
MAX_EXTENSIONS_BYTES = 2 << 20
_MAX_LENGTH_DIGITS = 8
_PAX = frozenset({tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE})
_IGNORED = frozenset({tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK})


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """One member: its name as the archive has it, and how many bytes of content follow."""

    name: str
    size_bytes: int
    is_file: bool


class ArchiveReader:
    """Exact reads from a stream of chunks, of at most `max_bytes` altogether."""

    def __init__(self, chunks: Iterator[bytes], max_bytes: int) -> None:
        self._chunks = chunks
        self._left_bytes = max_bytes
        self._buffer = memoryview(b"")
        self.headers = 0
        self.extensions_bytes = 0

    def chunks(self, size_bytes: int) -> Iterator[bytes]:
        """The next so many bytes, as they come.

        Raises:
            ArtifactError: ``source_incomplete`` if they are not there, ``too_large``.
        """
        if size_bytes > self._left_bytes + len(self._buffer):
            raise _too_large()
        while size_bytes:
            if not self._buffer:
                self._fill()
            piece, self._buffer = self._buffer[:size_bytes], self._buffer[size_bytes:]
            size_bytes -= len(piece)
            yield bytes(piece)

    def exactly(self, size_bytes: int) -> bytes:
        """The next so many bytes, which must be few."""
        return b"".join(self.chunks(size_bytes))

    def skip(self, size_bytes: int) -> None:
        for _ in self.chunks(size_bytes):
            pass

    def _fill(self) -> None:
        chunk = next(self._chunks, None)
        if chunk is None:
            message = "the archive ends in the middle; it is tried again, in case it is still being written"
            raise ArtifactError("source_incomplete", message)
        self._left_bytes -= len(chunk)
        if self._left_bytes < 0:
            raise _too_large()
        self._buffer = memoryview(chunk)


def _too_large() -> ArtifactError:
    message = "the archive unpacks to more than is taken; pack the two files of the adapter alone"
    return ArtifactError("too_large", message)


def next_member(reader: ArchiveReader) -> ArchiveMember | None:
    """The next member, None at the end. Its content has not been read yet.

    Raises:
        ArtifactError: ``bad_archive``, or what the reader raises.
    """
    extended: dict[str, str] = {}
    while (header := _next_header(reader)) is not None:
        if header.type in _PAX:
            extended |= _pax(_extension(reader, header))
        elif header.type == tarfile.GNUTYPE_LONGNAME:
            extended["path"] = _extension(reader, header).rstrip(b"\0").decode(errors="replace")
        elif header.type in _IGNORED:
            _extension(reader, header)
        else:
            return _member(header, extended)
    return None


def _next_header(reader: ArchiveReader) -> tarfile.TarInfo | None:
    reader.headers += 1
    if reader.headers > MAX_HEADERS:
        raise bad_archive(f"it has more than {MAX_HEADERS} members")
    block = reader.exactly(BLOCK_BYTES)
    if not any(block):
        return None
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "replace")
    except tarfile.HeaderError:
        raise bad_archive("it is no tar archive, or damaged") from None
    if header.size < 0:
        raise bad_archive("a member has a negative size")
    return header


def _extension(reader: ArchiveReader, header: tarfile.TarInfo) -> bytes:
    if header.size > MAX_EXTENSION_BYTES:
        raise bad_archive(f"an extended header has {header.size} bytes, at most {MAX_EXTENSION_BYTES} are read")
    reader.extensions_bytes += header.size
    if reader.extensions_bytes > MAX_EXTENSIONS_BYTES:
        raise bad_archive(f"its extended headers have more than {MAX_EXTENSIONS_BYTES} bytes")
    content = reader.exactly(header.size)
    reader.skip(-header.size % BLOCK_BYTES)
    return content


def _pax(content: bytes) -> dict[str, str]:
    """Records of the form ``LENGTH KEY=VALUE\\n``, where the length is that of the whole record."""
    records: dict[str, str] = {}
    at = 0
    while at < len(content):
        space = content.find(b" ", at, at + _MAX_LENGTH_DIGITS + 1)
        length = content[at : max(at, space)]
        size = int(length) if length.isdigit() else 0
        key, _, value = content[space + 1 : at + size].partition(b"=")
        if not size or not value.endswith(b"\n") or at + size > len(content):
            raise bad_archive("an extended header cannot be read")
        records[key.decode(errors="replace")] = value[:-1].decode(errors="replace")
        at += size
    return records


def _member(header: tarfile.TarInfo, extended: dict[str, str]) -> ArchiveMember:
    if header.type == tarfile.GNUTYPE_SPARSE or any(key.startswith("GNU.sparse") for key in extended):
        raise bad_archive("it has a sparse member; make it anew without --sparse")
    size = extended.get("size", str(header.size))
    if not size.isascii() or not size.isdigit() or len(size) > 15:
        raise bad_archive("a member's size cannot be read")
    # As the format has it: links, devices and directories have no content, whatever their size says.
    has_content = header.isreg() or header.type not in tarfile.SUPPORTED_TYPES
    return ArchiveMember(extended.get("path", header.name), int(size) if has_content else 0, header.isreg())


def bad_archive(found: str) -> ArtifactError:
    """An archive that is not read any further."""
    message = f"the archive is refused: {found}; make it with `tar -C DIRECTORY -czf adapter.tar.gz .`"
    return ArtifactError("bad_archive", message)


CHUNK_BYTES = 1 << 20
# Of the whole archive unpacked: the largest adapter that is taken, and as much again for what lies beside it.
MAX_UNPACKED_BYTES = 32 << 30
_GZIP = 16 + zlib.MAX_WBITS


def receive_archive(
    chunks: Iterator[bytes], receive: Receive, *, is_gzipped: bool, max_bytes: int = MAX_UNPACKED_BYTES
) -> None:
    """Hands over the adapter in an archive: both files at its top, or both in one directory there. First one counts.

    Raises:
        ArtifactError: ``bad_archive``, ``source_incomplete``, ``weights_not_safetensors``, ``too_large``, or what
            `chunks` or `receive` raise.
    """
    reader = ArchiveReader(_gunzip(chunks) if is_gzipped else chunks, max_bytes)
    files, others = GatheredFiles(), set[str]()
    while files.missing:
        member = next_member(reader)
        if member is None:
            raise _absent(files.missing, others)
        parent, name = place_of(member)
        if name in files.missing and files.takes(parent, name):
            receive(name, member.size_bytes, reader.chunks(member.size_bytes))
        else:
            others.add(name)
            reader.skip(member.size_bytes)
        reader.skip(-member.size_bytes % BLOCK_BYTES)


class GatheredFiles:
    """The files of an adapter as they come, from one archive or from several: all of one folder."""

    def __init__(self) -> None:
        """None has come."""
        self.missing = set(FILES)
        self._folder: str | None = None

    def takes(self, parent: str, name: str) -> bool:
        """True if this is one of them, which then has come. Raises ArtifactError: it has come before."""
        if name not in FILES or self._folder not in {None, parent}:
            return False
        if name not in self.missing:
            raise bad_archive(f"it has {name} twice, and which is meant nobody can say")
        self._folder = parent
        self.missing.remove(name)
        return True


def gather_from(
    chunks: Iterator[bytes], files: GatheredFiles, receive: Receive, *, is_gzipped: bool, below: Sequence[str] = ()
) -> None:
    """Hands over those files of an adapter that are in an archive, which is read to its end. Raises as above.

    `below`: see `place_of`.
    """
    reader = ArchiveReader(_gunzip(chunks) if is_gzipped else chunks, MAX_UNPACKED_BYTES)
    while (member := next_member(reader)) is not None:
        parent, name = place_of(member, FILES, below)
        if files.takes(parent, name):
            receive(name, member.size_bytes, reader.chunks(member.size_bytes))
        else:
            reader.skip(member.size_bytes)
        reader.skip(-member.size_bytes % BLOCK_BYTES)
    for _ in chunks:  # what comes behind the end belongs to it too
        pass


# Folders of an archive in which one may stand: more are nobody's.
MAX_BUNDLES = 4


def bundle_in_archive(chunks: Iterator[bytes], *, is_gzipped: bool, below: Sequence[str] = ()) -> bytes | None:
    """The bundle beside the files that `receive_archive` would hand over; None: there is none.

    `below`: see `place_of`.

    Raises:
        ArtifactError: ``bad_archive``, ``source_incomplete``, ``too_large``, or what `chunks` raise.
    """
    reader = ArchiveReader(_gunzip(chunks) if is_gzipped else chunks, MAX_UNPACKED_BYTES)
    folder, bundles = None, dict[str, bytes]()
    while folder is None or folder not in bundles:
        member = next_member(reader)
        if member is None:
            break
        parent, name = place_of(member, {*FILES, SIGNATURE_FILE}, below)
        left_bytes = member.size_bytes + -member.size_bytes % BLOCK_BYTES
        if name == SIGNATURE_FILE and parent not in bundles:
            if len(bundles) == MAX_BUNDLES:
                raise bad_archive(f"it has more than {MAX_BUNDLES} files {SIGNATURE_FILE}")
            bundles[parent] = reader.exactly(min(member.size_bytes, BUNDLE_BYTES))
            left_bytes -= len(bundles[parent])
        elif name in FILES and folder is None:
            folder = parent
        reader.skip(left_bytes)
    return bundles.get(folder or "")


_NAMES = frozenset({*FILES, *OTHER_FILES})


def parts_of(path: str) -> list[str]:
    """The names of which a path consists."""
    return [part for part in path.split("/") if part not in {"", "."}]


def leads_out(path: str) -> bool:
    """True for a path that begins at the root, or goes up."""
    return path.startswith("/") or ".." in path.split("/")


def place_of(member: ArchiveMember, names: Collection[str] = _NAMES, below: Sequence[str] = ()) -> tuple[str, str]:
    """The directory and the name of a member that may be ours; both empty for what lies deeper.

    `below`: names of the folder that was packed, if the archive's members have its path before their own.
    """
    parts = parts_of(member.name)
    if leads_out(member.name):
        raise bad_archive(f"it has the member {member.name[:200]!r}, whose name leads out of it")
    deep = len(parts) - (len(below) if parts[: len(below)] == [*below] and len(parts) > len(below) else 0)
    if not 1 <= deep <= 2 or parts[-1] not in names:
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


def _absent(missing: set[str], others: set[str]) -> ArtifactError:
    if (other := instead_of_weights({*FILES} - missing | others)) is not None:
        return other_format("the archive", other)
    message = f"the archive has no {min(missing)} at its top or in its one directory; it is tried again"
    return ArtifactError("source_incomplete", message)
