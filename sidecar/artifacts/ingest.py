"""Ingests an artifact: fetch, verify, check, prepare, report, rename."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import structlog

from registry.lora.config import MAX_CONFIG_BYTES
from registry.lora.digest import CONFIG_FILE, WEIGHTS_FILE, FileEntry, manifest_digest
from registry.runtime import tracing
from registry.runtime.failpoints import Point, hit
from registry.runtime.local_files import is_shortage, sync_directory
from registry.sources.base import ArtifactError, Source, Stop, fetch_unproven
from sidecar.artifacts.disk import CHECK_BYTES, Quota, Reservation, SizeIndex
from sidecar.artifacts.examination import Examination
from sidecar.artifacts.examiner import Examiner
from sidecar.artifacts.files import SharedSync, fresh_folder, write_all
from sidecar.artifacts.layout import StoreLayout, open_like
from sidecar.artifacts.preparation import prepare
from sidecar.artifacts.proof import ProofOutcome, Proofs, hash_file, missing_files
from sidecar.artifacts.reports import ArtifactReport, Reports, make_report, staged_by
from sidecar.artifacts.requests import StageRequest, mismatch
from sidecar.artifacts.signing.signatures import Signatures
from sidecar.artifacts.types import Staged

_log = structlog.get_logger()
# Large enough that handing it to a thread costs nothing; two of them are in memory at a time.
PIECE_BYTES = 1 << 20
Piece = list[bytes]


class Writing:
    """One open file. Hashing and writing let other threads run, so that receiving goes on beside them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def take(self, chunks: Iterable[bytes]) -> str:
        """Writes all of it. Returns its sha256 in hex digits.

        Raises:
            OSError: it could not be written.
            Exception: whatever `chunks` raises; what came before may have been written.
        """
        pieces = _pieces(chunks)
        piece = next(pieces, [])
        following = next(pieces, None)
        if following is None:  # nothing to do beside it
            self._write(piece)
            return self._digest.hexdigest()
        with ThreadPoolExecutor(1, thread_name_prefix="writing") as thread:
            pending: Future[None] = thread.submit(self._write, piece)
            while following is not None:
                pending.result()
                pending = thread.submit(self._write, following)
                following = next(pieces, None)
            pending.result()
        return self._digest.hexdigest()

    def _write(self, piece: Piece) -> None:
        # In one go: after each call of the system this thread waits for its turn, and longer than the call takes.
        content = b"".join(piece)
        self._digest.update(content)
        write_all(self._descriptor, content)
        self.size_bytes += len(content)


def _pieces(chunks: Iterable[bytes]) -> Iterator[Piece]:
    """The chunks as they come, so many together that they make a piece."""
    piece, held_bytes = list[bytes](), 0
    for chunk in chunks:
        piece.append(chunk)
        held_bytes += len(chunk)
        if held_bytes >= PIECE_BYTES:
            yield piece
            piece, held_bytes = [], 0
    if piece:
        yield piece


# A file has so long to arrive, whatever its size: less than its staging, so that there is time for the rest.
FETCH_SECONDS = 1500.0
SLOWEST_BYTES_PER_SECOND = 64 << 10
PACE_SECONDS = 60.0


class Pace:
    """The speed at which one file has to come, so that it is not given up only when the time of its staging is over.

    Only the time counts in which we waited for the source, so that a slow disk of ours is no fault of it.
    """

    def __init__(self, name: str, size_bytes: int, clock: Callable[[], float] = perf_counter) -> None:
        """`size_bytes` is what the source promised, `clock` counts seconds."""
        self._name = name
        self._size_bytes = size_bytes
        self._clock = clock
        seconds = min(FETCH_SECONDS, PACE_SECONDS + size_bytes / SLOWEST_BYTES_PER_SECOND)
        self.bytes_per_second = size_bytes / seconds

    def keep(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The chunks as they come.

        Raises:
            ArtifactError: ``source_timeout``, soon after it can be told that they come too slowly.
        """
        waited_seconds, arrived_bytes, asked = 0.0, 0, self._clock()
        for chunk in chunks:
            waited_seconds += self._clock() - asked
            arrived_bytes += len(chunk)
            if waited_seconds >= PACE_SECONDS and arrived_bytes < waited_seconds * self.bytes_per_second:
                raise self._too_slow(arrived_bytes / waited_seconds)
            yield chunk
            asked = self._clock()

    def _too_slow(self, found: float) -> ArtifactError:
        message = (
            f"{self._name} of {self._size_bytes} bytes comes at {found:.0f} bytes a second, expected at least "
            f"{self.bytes_per_second:.0f}; it is tried again, put it where it can be read faster"
        )
        return ArtifactError("source_timeout", message)


MAX_WEIGHTS_BYTES = 16 << 30
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Incoming:
    """Files that arrive in `directory`. `entries` are those that are there to the last byte."""

    def __init__(self, directory: Path, reservation: Reservation, stop: Stop) -> None:
        self.directory = directory
        self._reservation = reservation
        self.entries: list[FileEntry] = []
        self._begun: set[str] = set()
        self._caps = {CONFIG_FILE: MAX_CONFIG_BYTES, WEIGHTS_FILE: MAX_WEIGHTS_BYTES}
        self._stop = stop

    def take(self, name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        """Writes one file, read-only and synced; what came of it before is gone. The source has promised its size.

        Raises:
            ArtifactError: ``source_incomplete``, ``too_large``, ``disk_full``, ``store_full``, or what the source
                raises.
            OSError: the store failed.
        """
        self._check_size(name, size_bytes)
        self._drop(name)
        self._reservation.admit(size_bytes, name)
        descriptor = os.open(f"{self.directory}/{name}", _NEW_FILE, 0o644)
        self._begun.add(name)
        try:
            os.fchmod(descriptor, 0o444)
            writing = Writing(descriptor)
            sha256 = writing.take(self._watched(name, size_bytes, chunks))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.entries.append(FileEntry(name, writing.size_bytes, sha256))

    def _watched(self, name: str, size_bytes: int, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The chunks as they arrive, while this staging may go on and there is room for the rest."""
        arrived_bytes = 0
        for chunk in Pace(name, size_bytes).keep(chunks):
            self._stop.check()
            yield chunk
            arrived_bytes += len(chunk)
            hit(Point.RECEIVING)
            if arrived_bytes % CHECK_BYTES < len(chunk):
                self._reservation.check_disk(max(0, size_bytes - arrived_bytes), name)

    def _drop(self, name: str) -> None:
        if name not in self._begun:
            return
        (self.directory / name).unlink(missing_ok=True)
        self.entries = [entry for entry in self.entries if entry.path != name]

    def _check_size(self, name: str, size_bytes: int) -> None:
        if size_bytes == 0:
            message = f"{name} is empty; it is tried again, in case it is still being written"
            raise ArtifactError("source_incomplete", message)
        if size_bytes > self._caps[name]:
            message = f"{name} has {size_bytes} bytes, at most {self._caps[name]} are taken; publish less"
            raise ArtifactError("too_large", message)


@dataclass(frozen=True, slots=True)
class Ingested:
    """Files that came from a source: their manifest digest, and what was read of them."""

    digest: str
    examination: Examination


@dataclass(frozen=True, slots=True)
class Ingest:
    """Brings artifacts into one store. Used in worker threads."""

    layout: StoreLayout
    index: SizeIndex
    quota: Quota
    signatures: Signatures
    reports: Reports
    proofs: Proofs
    examiner: Examiner
    names: SharedSync

    @contextmanager
    def incoming(self, key: str, stop: Stop) -> Iterator[Incoming]:
        """A fresh directory for `key`, whose lock the caller holds; gone at the end unless it was placed."""
        with self.quota.reservation() as reservation, fresh_folder(self.layout, key) as directory:
            # Whatever our umask is: the engine may run as another user.
            open_like(directory, self.layout.adapters)
            yield Incoming(directory, reservation, stop)

    def receive(
        self, source: Source, arriving: Incoming, order: StageRequest, expected: str | None, stop: Stop
    ) -> Ingested:
        """Fetches, and looks who vouches for it before anything of it is read.

        Raises:
            ArtifactError: it cannot be had, is another one than expected, or may not be served.
            OSError: the store failed.
        """
        self.examiner.warm()
        with source.opened(stop) as opened:
            bundle = self.signatures.ask(opened, order.ref, stop)
            if expected is None:
                fetch_unproven(opened, arriving.take, stop)
            else:
                opened.fetch(arriving.take, stop)
        hit(Point.RECEIVED)
        found = manifest_digest(arriving.entries)
        if expected not in {None, found}:
            raise mismatch(order.ref, found, str(expected))
        self.signatures.take(order.ref, found, arriving.entries, bundle)
        with tracing.part("checked"):
            examination = self.examiner.examine(arriving.directory, order.base, order.policy, stop)
        hit(Point.VERIFIED)
        return Ingested(found, examination)

    def place(self, arriving: Incoming, order: StageRequest, arrived: Ingested, stop: Stop) -> Staged:
        """Prepares it and puts it in its place, its report first. The caller holds the artifact's lock.

        Raises:
            ArtifactError: ``staging_stopped``.
            OSError: the store failed.
        """
        report, prepared = self._prepare(arriving, order, arrived, stop)
        size_bytes = sum(entry.size for entry in prepared)
        self.reports.write(report)
        hit(Point.REPORTED)
        sync_directory(arriving.directory)  # all that is in it survives a power cut, if its name does
        with self.index.adding(report.id, size_bytes):
            arriving.directory.rename(self.layout.adapter(report.id))
        self.proofs.note(report.id)  # it was hashed as it was written
        self.names.sync()  # from here on it survives a power cut
        hit(Point.PLACED)
        return staged_by(self.layout, order, report)

    def vouch(self, arriving: Incoming, order: StageRequest, arrived: Ingested, stop: Stop) -> bool:
        """True if what stands there is what comes of the source; if so it gets a report that says it.

        Files that are missing there are put back: an engine ends that has to read them.
        The caller holds the artifact's lock.

        Raises:
            ArtifactError: ``staging_stopped``.
            OSError: the store failed.
        """
        report, prepared = self._prepare(arriving, order, arrived, stop)
        if missing := missing_files(self.layout.adapter(report.id)):
            self._put_back(missing, arriving.directory, report, prepared, stop)
        return self._certify(report, stop)

    def _put_back(
        self, missing: list[str], arrived: Path, report: ArtifactReport, prepared: list[FileEntry], stop: Stop
    ) -> None:
        """Moves these into their place, unless what is beside them is not of the same artifact to the last byte."""
        directory, had = self.layout.adapter(report.id), self.reports.read(report.id)
        if had is not None and had.prepared != report.prepared:
            return
        try:
            there = [hash_file(directory / one.path, stop) for one in prepared if one.path not in missing]
        except OSError as error:  # as a link that leads elsewhere
            if is_shortage(error):
                raise
            return
        if not all(one in prepared for one in there):
            return
        for name in missing:
            (arrived / name).rename(directory / name)
        sync_directory(directory)
        _log.warning("artifact_put_back", artifact=report.id, files=missing)

    def adopt(self, order: StageRequest, digest: str, stop: Stop) -> bool:
        """The same where what stands there is the source, as it would be taken if it came now.

        Raises:
            ArtifactError: ``staging_stopped``.
            OSError: the store failed.
        """
        directory = self.layout.adapter(order.artifact(digest))
        try:
            examination = self.examiner.examine(directory, order.base, order.policy, stop)
        except ArtifactError:
            stop.check()
            return False
        return examination.is_as_it_came and self._certify(make_report(order, digest, examination, digest), stop)

    def _certify(self, report: ArtifactReport, stop: Stop) -> bool:
        """Says what has to stand there, and whether it does."""
        self.reports.write(report)
        return self.proofs.prove(report.id, report.source, stop) is ProofOutcome.PROVEN

    def _prepare(
        self, arriving: Incoming, order: StageRequest, arrived: Ingested, stop: Stop
    ) -> tuple[ArtifactReport, list[FileEntry]]:
        """The report of what then stands in `arriving`, and its files."""
        prepared = prepare(arriving.directory, arrived.examination, arriving.entries, stop)
        hit(Point.PREPARED)
        report = make_report(order, arrived.digest, arrived.examination, manifest_digest(prepared))
        return report, prepared
