"""The headers of a tar archive, read from a stream with a bound on everything."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

from registry.sources.errors import ArtifactError

BLOCK_BYTES = 512
MAX_HEADERS = 10_000
MAX_EXTENSION_BYTES = 64 << 10
_PAX = frozenset({tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE})
_IGNORED = frozenset({tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK})


@dataclass(frozen=True, slots=True)
class Member:
    """One member: its name as the archive has it, and how many bytes of content follow."""

    name: str
    size_bytes: int
    is_file: bool


class Reader:
    """Exact reads from a stream of chunks, of at most `max_bytes` altogether."""

    def __init__(self, chunks: Iterator[bytes], max_bytes: int) -> None:
        self._chunks = chunks
        self._left_bytes = max_bytes
        self._buffer = memoryview(b"")
        self.headers = 0

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
            raise ArtifactError("source_incomplete", message, permanent=False)
        self._left_bytes -= len(chunk)
        if self._left_bytes < 0:
            raise _too_large()
        self._buffer = memoryview(chunk)


def _too_large() -> ArtifactError:
    message = "the archive unpacks to more than is taken; pack the two files of the adapter alone"
    return ArtifactError("too_large", message, permanent=True)


def next_member(reader: Reader) -> Member | None:
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


def _next_header(reader: Reader) -> tarfile.TarInfo | None:
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


def _extension(reader: Reader, header: tarfile.TarInfo) -> bytes:
    if header.size > MAX_EXTENSION_BYTES:
        raise bad_archive(f"an extended header has {header.size} bytes, at most {MAX_EXTENSION_BYTES} are read")
    content = reader.exactly(header.size)
    reader.skip(-header.size % BLOCK_BYTES)
    return content


def _pax(content: bytes) -> dict[str, str]:
    """Records of the form ``LENGTH KEY=VALUE\\n``, where the length is that of the whole record."""
    records: dict[str, str] = {}
    while content:
        length, space, _ = content.partition(b" ")
        size = int(length) if space and length.isdigit() and len(length) < 9 else 0
        key, equals, value = content[len(length) + 1 : size].partition(b"=")
        if not equals or not value.endswith(b"\n") or size > len(content):
            raise bad_archive("an extended header cannot be read")
        records[key.decode(errors="replace")] = value[:-1].decode(errors="replace")
        content = content[size:]
    return records


def _member(header: tarfile.TarInfo, extended: dict[str, str]) -> Member:
    if header.type == tarfile.GNUTYPE_SPARSE or any(key.startswith("GNU.sparse") for key in extended):
        raise bad_archive("it has a sparse member; make it anew without --sparse")
    size = extended.get("size", str(header.size))
    if not size.isascii() or not size.isdigit() or len(size) > 15:
        raise bad_archive("a member's size cannot be read")
    # As the format has it: links, devices and directories have no content, whatever their size says.
    has_content = header.isreg() or header.type not in tarfile.SUPPORTED_TYPES
    return Member(extended.get("path", header.name), int(size) if has_content else 0, header.isreg())


def bad_archive(found: str) -> ArtifactError:
    """An archive that is not read any further."""
    message = f"the archive is refused: {found}; make it with `tar -C DIRECTORY -czf adapter.tar.gz .`"
    return ArtifactError("bad_archive", message, permanent=True)
