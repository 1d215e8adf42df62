"""Proof that an artifact is what its record names, by its bytes and signature.

Each process hashes what it has not written itself before an engine is given it, once. From then on the inodes, sizes
and times of change of its files tell whether somebody has touched them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

import structlog

from registry.lora.digest import FILES, FileEntry, manifest_digest
from registry.runtime.local_files import Content, FollowedFile, is_shortage
from registry.sources.allowed import AllowedSources, RemoteOptions
from registry.sources.base import Source, Stop
from sidecar.artifacts.files import fetching_folder
from sidecar.artifacts.layout import StoreLayout
from sidecar.artifacts.reports import ArtifactReport, Reports
from sidecar.artifacts.signing.kept_bundles import KeptBundles
from sidecar.artifacts.signing.signatures import Signatures
from sidecar.artifacts.types import ArtifactRef

_log = structlog.get_logger()
_CHUNK_BYTES = 1 << 20
# While nobody waits for it.
BACKGROUND_BYTES_PER_SECOND = 100 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Of the directory and of each file: device, inode, size, and the time of the last change, which nobody can set.
Identity = tuple[tuple[int, int, int, int], ...]


class ProofOutcome(Enum):
    """Result of hashing an artifact."""

    PROVEN = "its bytes are those that a sidecar of this store wrote for its source"
    SOURCE = "its bytes are those of its source, and nothing proves that they need not be changed for the base"
    UNKNOWN = "its bytes are not those of its source, and nothing proves that they were made of it"
    DAMAGED = "its bytes are not those that a sidecar of this store wrote"
    MISSING = "a file of it is not there"
    CHANGED = "somebody changed it while it was read"


class Proofs:
    """Proofs of one process about one store. Safe for threads, each call is one step among them."""

    def __init__(self, layout: StoreLayout, reports: Reports) -> None:
        """Nothing is proven yet."""
        self._layout = layout
        self._reports = reports
        self._proven: dict[str, Identity] = {}

    def __contains__(self, artifact: str) -> bool:
        """True if it was proven, as far as is known without a look."""
        return artifact in self._proven

    def is_intact(self, artifact: str) -> bool:
        """True if it was proven and nobody has touched it since."""
        proven = self._proven.get(artifact)
        return proven is not None and proven == self.identity(artifact)

    def trouble(self, artifact: str) -> str:
        """Changes since this process last saw it; empty: none that show without reading it."""
        found, proven = self.identity(artifact), self._proven.get(artifact)
        if found is None:
            return "was removed, all of it or a file"
        return "" if proven in {None, found} else "was changed"

    def note(self, artifact: str) -> None:
        """This process has just written it, or proven it by other means. Raises OSError."""
        found = self.identity(artifact)
        if found is not None:
            self._proven[artifact] = found

    def forget(self, artifacts: Collection[str]) -> None:
        """Drops the proofs of these, so that they are proven anew."""
        for artifact in artifacts:
            self._proven.pop(artifact, None)

    def identity(self, artifact: str) -> Identity | None:
        """Tells it from whatever else may come to stand there; None: it is not as we leave an artifact."""
        directory = str(self._layout.adapter(artifact))
        try:
            found = [os.lstat(path) for path in (directory, *(f"{directory}/{name}" for name in FILES))]
        except OSError:
            return None
        if not stat.S_ISDIR(found[0].st_mode) or not all(stat.S_ISREG(file.st_mode) for file in found[1:]):
            return None
        return tuple((one.st_dev, one.st_ino, one.st_size, one.st_ctime_ns) for one in found)

    def prove(self, artifact: str, source: str | None, stop: Stop, *, bytes_per_second: float = 0.0) -> ProofOutcome:
        """Hashes it. The caller holds its lock or a lease, so that no sidecar changes what stands there.

        Args:
            artifact: its id.
            source: the digest of the source that it is to be of; None: that of its report, if that is authentic.
            stop: ends it.
            bytes_per_second: how fast at most; 0: as fast as it goes.

        Raises:
            ArtifactError: ``staging_stopped``.
            OSError: its report cannot be read, or there is no descriptor to look at it.
        """
        report = self._reports.read(artifact)
        if report is None and source is None:
            return ProofOutcome.UNKNOWN
        return self.prove_by(report, artifact, source, stop, bytes_per_second=bytes_per_second)

    def prove_by(
        self,
        report: ArtifactReport | None,
        artifact: str,
        source: str | None,
        stop: Stop,
        *,
        bytes_per_second: float = 0.0,
    ) -> ProofOutcome:
        """The same by a report that was just read. Raises ArtifactError, OSError."""
        if missing_files(self._layout.adapter(artifact)):
            self.forget({artifact})
            return ProofOutcome.MISSING
        before = self.identity(artifact)
        found = hash_directory(self._layout.adapter(artifact), stop, bytes_per_second)
        outcome = _outcome(found, source, report)
        if before is None and outcome is not ProofOutcome.UNKNOWN:
            outcome = ProofOutcome.DAMAGED  # however right its bytes are, it is not as we leave an artifact
        if before != self.identity(artifact) or not os.path.lexists(self._layout.adapter(artifact)):
            outcome = ProofOutcome.CHANGED
        self.forget({artifact})
        if before is not None and outcome is ProofOutcome.PROVEN:
            self._proven[artifact] = before
        elif outcome is not ProofOutcome.SOURCE:
            expected = report.prepared if report else source
            _log.error("artifact_damaged", artifact=artifact, found=found, expected=expected, why=outcome.value)
        return outcome


def missing_files(directory: Path) -> list[str]:
    """Names of an artifact's files that are not there. Of what is no directory nothing is."""
    if directory.is_symlink() or not directory.is_dir():
        return []
    return [name for name in FILES if not os.path.lexists(directory / name)]


def size_of(identity: Identity) -> int:
    """Bytes of the two files."""
    return sum(size_bytes for _, _, size_bytes, _ in identity[1:])


def _outcome(found: str, source: str | None, report: ArtifactReport | None) -> ProofOutcome:
    if report is not None and source in {None, report.source}:
        return ProofOutcome.PROVEN if found == report.prepared else ProofOutcome.DAMAGED
    return ProofOutcome.SOURCE if found == source else ProofOutcome.UNKNOWN


def hash_directory(directory: Path, stop: Stop, bytes_per_second: float = 0.0) -> str:
    """The manifest digest of an artifact's two files; of what is not just these, what was met.

    Raises:
        ArtifactError: ``staging_stopped``.
        OSError: there is no descriptor to look at it.
    """
    try:
        if strangers := set(os.listdir(directory)) - set(FILES):  # noqa: PTH208 - names are all it takes
            return f"files that are no part of an artifact: {sorted(strangers)[:3]}"
        return manifest_digest(hash_file(directory / name, stop, bytes_per_second) for name in FILES)
    except OSError as error:
        if is_shortage(error):
            raise
        return f"{error.strerror}: {error.filename}"


def hash_file(path: Path, stop: Stop, bytes_per_second: float = 0.0) -> FileEntry:
    """The entry of one file in a manifest.

    Raises:
        ArtifactError: ``staging_stopped``.
        OSError: it cannot be read, or is no regular file.
    """
    digest, size_bytes = hashlib.sha256(), 0
    with os.fdopen(os.open(path, _READ), "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        buffer = memoryview(bytearray(min(status.st_size + 1, _CHUNK_BYTES)))
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while read_bytes := file.readinto(buffer):
            stop.check(read_bytes / bytes_per_second if bytes_per_second else 0.0)
            digest.update(buffer[:read_bytes])
            size_bytes += read_bytes
    return FileEntry(path.name, size_bytes, digest.hexdigest())


_ID = re.compile(r"[0-9a-f]{64}")


class DamagedArtifacts:
    """Artifacts that were found damaged while an engine read them, as all sidecars of a store know them.

    Such an artifact keeps its directory until no engine reads it any more, and is fetched anew as a copy with an id of
    its own, to which engines are swapped. It is known by an empty file of its name, which stays: it says where the copy
    is. Safe for threads.
    """

    def __init__(self, layout: StoreLayout) -> None:
        """Looks for the first time. Raises OSError."""
        self._layout = layout
        self._mutex = Lock()
        self.ids: frozenset[str] = frozenset()
        self.refresh()

    def refresh(self) -> frozenset[str]:
        """Looks for what others have marked; gives what is new. Raises OSError."""
        found = frozenset(filter(_ID.fullmatch, os.listdir(self._layout.damaged)))  # noqa: PTH208 - names are all it takes
        with self._mutex:
            new, self.ids = found - self.ids, found
        return new

    def mark(self, artifact: str) -> None:
        """Tells all sidecars of the store. Raises OSError."""
        (self._layout.damaged / artifact).touch(mode=0o600)
        self.refresh()

    def is_marked(self, artifact: str) -> bool:
        """True if any sidecar of the store has marked it by now."""
        return artifact in self.ids or (self._layout.damaged / artifact).exists()

    def present(self) -> set[str]:
        """Those that are still in the store. Raises OSError."""
        return self._layout.staged_ids() & self.ids


class Trust:
    """Sources and signers that the operator and the pool's record name, with the files of the operator that say so.

    Attributes:
        sources: those that may be read.
        signatures: what is asked of them, and what proves them; no keys, until `Signatures.use`.
    """

    def __init__(self, allow_sources: Sequence[str], remote: RemoteOptions | None, layout: StoreLayout) -> None:
        """Allows what is below these URIs, see `AllowedSources`. Raises StoreError."""
        self.sources = AllowedSources(allow_sources, remote, layout.paused_origins, partial(fetching_folder, layout))
        self.signatures = Signatures(MappingProxyType({}), KeptBundles(layout))
        self._allow_sources = tuple(allow_sources)
        self._fetchers = remote.fetchers if remote is not None else ()
        self._followed: list[FollowedFile[Any]] = []

    def source(self, ref: ArtifactRef) -> Source:
        """The source of a reference. Raises ArtifactError: it may not be read."""
        return self.sources.source(ref.uri, ref.credentials)

    def check_known(self, ref: ArtifactRef) -> None:
        """Lets the source pass of what this replica was given before: then it was looked at where its links lead.

        Raises:
            ArtifactError: it may not be read any more.
        """
        if not self.sources.names(ref.uri):
            self.source(ref)

    def follow(self, path: Path, read: Callable[[Path], Content], use: Callable[[Content], None]) -> None:
        """Hands over what a file says, now and, from a worker thread, whenever that changes; see `FollowedFile`.

        Raises what `read` raises.
        """
        self._followed.append(FollowedFile(path, read, use))

    def refresh(self) -> None:
        """Reads the followed files again that changed."""
        for file in self._followed:
            file.refresh()

    @property
    def not_taken(self) -> Mapping[str, str]:
        """By followed file, why it is not taken as it is now."""
        return {str(file.path): file.trouble for file in self._followed if file.trouble}

    @property
    def digest(self) -> str:
        """Differs once any of it does. What is in files is told by their versions: credentials are in some."""
        files = tuple(file.taken for file in self._followed)
        # Only where there are any, so that it says of all others what earlier releases said.
        fetchers = f" {self._fetchers!r}" if self._fetchers else ""
        return hashlib.sha256(f"{self._allow_sources!r} {files!r}{fetchers}".encode()).hexdigest()
