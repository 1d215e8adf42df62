"""Periodic maintenance of a store: scrub, garbage collection, sizes."""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import structlog

from registry.lora.findings import AdapterWarning
from registry.model.source_uri import SCHEMES, without_secrets
from registry.model.status import ReportedStore
from registry.runtime.failpoints import Point, hit
from registry.sources.base import ArtifactError, Source, Stop
from registry.sources.file import path_of
from sidecar.artifacts.disk import Quota, SizeIndex
from sidecar.artifacts.files import locked, locked_at_once
from sidecar.artifacts.gc import GarbageCollector
from sidecar.artifacts.ingest import Ingest
from sidecar.artifacts.layout import StoreLayout, is_whole, make_folders
from sidecar.artifacts.leases import ArtifactLeases, LeasesUnreadable, everybodys_leases, may_be_read
from sidecar.artifacts.preparation import Bases
from sidecar.artifacts.proof import BACKGROUND_BYTES_PER_SECOND, ProofOutcome
from sidecar.artifacts.requests import StageRequest, stage_request_of
from sidecar.artifacts.stored import KnownArtifacts
from sidecar.artifacts.types import ArtifactRef, Staged

_log = structlog.get_logger()
BYTES_PER_SECOND = 10 << 20
# Each artifact is read once in this time, by one of the host's sidecars.
PERIOD_SECONDS = 24 * 3600.0
# If all was looked at of late, the next search for what was not is after this time.
IDLE_SECONDS = 60.0
# Each folder is looked at so often, and so many at once.
SOURCE_PERIOD_SECONDS = 60.0
MOST_SOURCES = 64
# Of what lies on the network one source is asked in this time, each in this time at most, for the first time at some
# moment of this one, and again after this one until it said so often that it is gone. One that is gone is asked as
# soon again as at the first time, so that it is taken back.
ASK_GAP_SECONDS = 120.0
ASK_PERIOD_SECONDS = 6 * 3600.0
ASK_FIRST_SECONDS = 3600.0
ASK_AGAIN_SECONDS = 600.0
ASK_TIMES = 2


class Scrub:
    """Reads artifacts again, one at a time. What is damaged is removed, or marked if an engine may be reading it."""

    def __init__(
        self, layout: StoreLayout, collector: GarbageCollector, known: KnownArtifacts, ingest: Ingest, bases: Bases
    ) -> None:
        """Reads nothing yet. `bases`: that artifacts are prepared for."""
        self._layout = layout
        self._collector = collector
        self._known = known
        self._ingest = ingest
        self._bases = bases
        self._next_at = 0.0

    def step(self, stop: Stop) -> None:
        """Proves what is served; sets aside what is damaged and free now; reads one more artifact, if it is time.

        Raises:
            ArtifactError: ``staging_stopped``.
            OSError: the store cannot be read.
        """
        self.prove_seen(stop)
        for artifact in self._known.damage.present():
            self._set_aside(artifact)
        now = time.monotonic()
        if now < self._next_at:
            return
        oldest = self._oldest()
        if oldest is None:
            self._next_at = now + IDLE_SECONDS
        else:
            self._look_at(oldest, stop)

    def prove_seen(self, stop: Stop) -> None:
        """Proves what the engine served before this process started, and nobody waits for.

        Raises:
            ArtifactError: ``staging_stopped``.
            OSError: the store failed.
        """
        known = self._known
        for (ref, _), staged in known.seen.unproven():
            order = stage_request_of(ref, self._bases.current, known.damage.ids)
            if staged.id in known.proofs or order.artifact(staged.digest) != staged.id:
                continue
            try:
                outcome = known.proofs.prove(
                    staged.id, staged.digest, stop, bytes_per_second=BACKGROUND_BYTES_PER_SECOND
                )
            except OSError:
                known.distrust({staged.id})  # the others are not to wait until its report can be read
                raise
            if outcome is ProofOutcome.DAMAGED:
                self.found(staged.id)
            elif outcome is not ProofOutcome.PROVEN and not self._is_adopted(order, staged.digest, outcome, stop):
                known.doubt(staged.id)

    def _is_adopted(self, order: StageRequest, digest: str, outcome: ProofOutcome, stop: Stop) -> bool:
        with locked_at_once(self._layout.lock(order.artifact(digest))) as is_locked:
            return is_locked and outcome is ProofOutcome.SOURCE and self._ingest.adopt(order, digest, stop)

    def hear(self) -> int:
        """Takes up what other sidecars found damaged; gives how many of all are in the store. Raises OSError."""
        if new := self._known.damage.refresh():
            self._known.distrust(new)
        return len(self._known.damage.present())

    def found(self, artifact: str) -> None:
        """It is damaged: removed if no engine may be reading it, else marked for all sidecars. Raises OSError."""
        if not self._set_aside(artifact):
            self._known.damage.mark(artifact)
        self._known.distrust({artifact})

    def _oldest(self) -> str | None:
        """The artifact looked at the longest time ago, by the time of its report; None: all were of late.

        Without a report nothing is known of what was written.
        """
        artifacts, now = self._layout.staged_ids() - self._known.damage.ids, time.time()
        # A clock that was set back must not keep anything from being read.
        ages = {one: abs(now - at) for one in artifacts if (at := _modified(self._layout.report(one))) is not None}
        oldest = max(ages, key=ages.__getitem__, default=None)
        return oldest if oldest and ages[oldest] >= PERIOD_SECONDS else None

    def _look_at(self, artifact: str, stop: Stop) -> None:
        """Compares one artifact with its report. Raises ArtifactError, OSError: see `step`."""
        try:
            outcome = self._known.proofs.prove(artifact, None, stop, bytes_per_second=BYTES_PER_SECOND)
        except OSError:
            self._note_look(artifact)  # the others are not to wait until its report can be read
            raise
        if outcome is ProofOutcome.DAMAGED:
            self.found(artifact)
        elif outcome is not ProofOutcome.CHANGED:  # it may have been removed and fetched meanwhile
            # Without a report that can be believed it is proven by its source, before an engine is given it. What is
            # missing is put back by whoever wants it.
            self._note_look(artifact)

    def _note_look(self, artifact: str) -> None:
        """Has the others read before it is read again."""
        with suppress(OSError):
            os.utime(self._layout.report(artifact))

    def _set_aside(self, artifact: str) -> bool:
        """Removes what is damaged unless it is leased; whoever wants it next fetches it again."""
        with locked_at_once(self._layout.lock(artifact)) as is_locked:
            if not is_locked or may_be_read(artifact, self._layout.leases):
                return False
            self._collector.take_out(artifact)
        _log.warning("artifact_set_aside", artifact=artifact)
        return True


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


class ReadFiles:
    """Watches the files that this replica's engine may be reading, by what a stat shows.

    Attributes:
        troubles: by the path of an artifact, what somebody did to it. It is fetched again for that; an engine that
            answers from memory meanwhile would end if it had to read it.
    """

    def __init__(self, layout: StoreLayout, known: KnownArtifacts) -> None:
        """`known` learns of artifacts that were touched since the last look."""
        self._layout = layout
        self._known = known
        self.troubles: Mapping[str, str] = {}
        # What was at its place at some look: only that can be removed.
        self._had: set[str] = set()

    def look(self, artifacts: Collection[str]) -> Mapping[str, str]:
        """Looks at these; gives the troubles."""
        found = {artifact: why for artifact in artifacts if (why := self._trouble(artifact))}
        self._had.intersection_update(artifacts)
        if news := [artifact for artifact in found if self._path(artifact) not in self.troubles]:
            self._known.look_anew(news)
        self.troubles = {self._path(artifact): why for artifact, why in found.items()}
        return self.troubles

    def _trouble(self, artifact: str) -> str:
        """Trouble of an artifact; of one that was changed it stays until the artifact is proven again."""
        had = "" if artifact in self._known.proofs else self.troubles.get(self._path(artifact), "")
        why = self._known.proofs.trouble(artifact)
        if not why:
            self._had.add(artifact)
        return "" if why and not had and self._is_arriving(artifact) else why or had

    def _is_arriving(self, artifact: str) -> bool:
        """True while it is fetched for the first time: it is leased and locked, and has not been there."""
        if artifact in self._had or artifact in self._known.proofs:
            return False
        with locked_at_once(self._layout.lock(artifact)) as is_locked:
            return not is_locked

    def _path(self, artifact: str) -> str:
        return str(self._layout.adapter(artifact))


@dataclass(slots=True)
class _Asked:
    """Knowledge of a source that is asked over the network: when it is due, and how often it said that it is gone."""

    due_at: float
    gone: int = 0


class RotatedSources:
    """Sources that are gone while the store has their files, as where a trainer rotates its checkpoints.

    This host needs them no more, and another one does: a new replica, or one that lost its disk, could not serve the
    generation, and nobody could roll back to it. Only an explicit answer counts: a mount that may not be read, a
    credential that is refused, a server that is away or overloaded say nothing, and leave what was known.

    Folders are looked at once a minute, by two stats each. What lies on the network is asked for the beginning of two
    files, one source in `ASK_GAP_SECONDS` for all of a replica, each once in `ASK_PERIOD_SECONDS` at most: so a hundred
    replicas ask a bucket that they share for less than one source a second, however many adapters there are. Of two
    replicas none knows what the other asked. That it is gone is believed when it is said twice.
    """

    def __init__(
        self,
        seen: Callable[[], Iterable[ArtifactRef]],
        source: Callable[[ArtifactRef], Source],
        now: Callable[[], float] = time.monotonic,
        between: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """Asks nobody yet.

        Args:
            seen: gives what stands in the store.
            source: opens one. Raises ArtifactError: it may not be read.
            now: seconds of a clock that never goes back.
            between: a number by chance, so that replicas that start together do not ask together.
        """
        self._seen, self._source = seen, source
        self._now, self._between = now, between
        self._folders: dict[ArtifactRef, float] = {}
        self._asked: dict[ArtifactRef, _Asked] = {}
        self._ask_at = now()
        self._gone: Mapping[ArtifactRef, AdapterWarning] = {}

    def look(self, stop: Stop) -> None:
        """Looks at the folders that are due, and asks for one other source. Used in a worker thread.

        Raises:
            ArtifactError: ``staging_stopped``.
        """
        now, seen = self._now(), set(self._seen())
        self._folders = {ref: self._folders.get(ref, now) for ref in seen if _is_folder(ref.uri)}
        self._asked = {ref: self._asked.get(ref) or self._first(now) for ref in seen if _is_asked(ref.uri)}
        gone = {ref: warning for ref, warning in self._gone.items() if ref in seen}
        due = sorted((ref for ref, at in self._folders.items() if at <= now), key=self._folders.__getitem__)
        for ref in due[:MOST_SOURCES]:
            _note(gone, ref, is_gone=self._is_gone(ref, stop) is True)
            self._folders[ref] = now + SOURCE_PERIOD_SECONDS
        self._gone = gone
        oldest = min(self._asked, key=lambda ref: self._asked[ref].due_at, default=None)
        if oldest is not None and max(self._ask_at, self._asked[oldest].due_at) <= now:
            self._gone = self._after_asking(oldest, dict(gone), stop)

    def _first(self, now: float) -> _Asked:
        return _Asked(now + self._between(0.0, ASK_FIRST_SECONDS))

    def _after_asking(
        self, ref: ArtifactRef, gone: dict[ArtifactRef, AdapterWarning], stop: Stop
    ) -> Mapping[ArtifactRef, AdapterWarning]:
        asked, now = self._asked[ref], self._now()
        self._ask_at = now + ASK_GAP_SECONDS
        asked.due_at = now + self._between(0.8, 1.0) * ASK_PERIOD_SECONDS
        is_gone = self._is_gone(ref, stop)
        if is_gone is not None:
            asked.gone = asked.gone + 1 if is_gone else 0
            _note(gone, ref, is_gone=asked.gone >= ASK_TIMES)
        if is_gone:
            asked.due_at = now + (ASK_AGAIN_SECONDS if asked.gone < ASK_TIMES else ASK_FIRST_SECONDS)
        return gone

    def _is_gone(self, ref: ArtifactRef, stop: Stop) -> bool | None:
        """The answer of a source; None: nobody can tell. Raises ArtifactError: ``staging_stopped``."""
        try:
            return self._source(ref).is_gone(stop)
        except ArtifactError:
            stop.check()
            return None

    def marked(self, staged: Mapping[ArtifactRef, Staged]) -> Mapping[ArtifactRef, Staged]:
        """Artifacts with a warning where their sources are gone."""
        gone = {ref: warning for ref, warning in self._gone.items() if ref in staged}
        if not gone:
            return staged
        warned = {ref: replace(staged[ref], warnings=(*staged[ref].warnings, why)) for ref, why in gone.items()}
        return MappingProxyType({**staged, **warned})


def _is_folder(uri: str) -> bool:
    return SCHEMES.get(uri.partition("://")[0]) == "folder"


def _is_asked(uri: str) -> bool:
    """True for what lies on the network. What commands fetch would have to be fetched."""
    return SCHEMES.get(uri.partition("://")[0], "folder") != "folder"


def _note(gone: dict[ArtifactRef, AdapterWarning], ref: ArtifactRef, *, is_gone: bool) -> None:
    gone.pop(ref, None)
    if is_gone:
        place = path_of(ref.uri) if _is_folder(ref.uri) else without_secrets(ref.uri)
        message = (
            f"{place} has not the files any more that it is served from; stores still have them: put them back, or "
            "publish them from a place that stays, before another replica needs them or somebody rolls back to them"
        )
        gone[ref] = AdapterWarning("source_gone", message)


@dataclass(frozen=True, slots=True)
class Holdings:
    """Contents of a store: bytes and number of artifacts, how many this replica leases, how many are damaged.

    `room`: how much more it takes; None: that is not known.
    """

    size_bytes: int
    artifacts: int
    leased: int
    damaged: int
    room: ReportedStore | None = None


@dataclass(frozen=True, slots=True)
class Maintenance:
    """The rounds of one replica's sidecar. Used in a worker thread. `before` is called at the beginning of each."""

    layout: StoreLayout
    leases: ArtifactLeases
    index: SizeIndex
    quota: Quota
    collector: GarbageCollector
    scrubbing: Scrub
    files: ReadFiles
    rotated: RotatedSources
    before: Callable[[], None]

    def look(self, stop: Stop) -> Mapping[str, str]:
        """Puts back folders and leases that somebody removed; gives what was done to files, see `ReadFiles`.

        Raises:
            ArtifactError: ``staging_stopped``, or folders cannot be made.
            OSError: the leases could not be written.
        """
        if not is_whole(self.layout):
            _log.warning("store_folders_removed", store=str(self.layout.root))
            make_folders(self.layout)
        if self.leases.are_lost():
            _log.warning("leases_removed", store=str(self.layout.root))
            self.write_leases(stop)
        return self.files.look(self.leases.all())

    def round(self, stop: Stop) -> Holdings:
        """Reads files of the operator again that changed, writes the leases, sweeps, removes what is over the budget.

        Raises:
            ArtifactError: ``staging_stopped``.
            OSError: the store failed; the next round takes up where this one ended.
        """
        self.before()
        self.write_leases(stop)
        self.collector.tidy(stop)
        self.collector.collect(self.quota.excess_bytes(), stop)
        sizes = self.index.sizes()
        room = self.quota.room(sizes, self._in_use())
        return Holdings(sum(sizes.values()), len(sizes), len(self.leases.all()), self.scrubbing.hear(), room)

    def _in_use(self) -> set[str] | None:
        """Artifacts that engines of the host may be reading; None: that may be anything."""
        try:
            return everybodys_leases(self.layout.leases)
        except LeasesUnreadable:
            return None

    def scrub(self, stop: Stop) -> None:
        """Reads something again, slowly; see `Scrub.step`.

        Raises:
            ArtifactError: ``staging_stopped``.
            OSError: the store failed.
        """
        self.scrubbing.step(stop)

    def look_at_sources(self, stop: Stop) -> None:
        """Looks for sources that are gone; see `RotatedSources`. Raises ArtifactError: ``staging_stopped``."""
        self.rotated.look(stop)

    def write_leases(self, stop: Stop) -> None:
        """Puts on disk what was let go of.

        Raises:
            ArtifactError: ``staging_stopped``.
            OSError: it could not be written; nothing was lost.
        """
        # The lock is for the leftovers of those who were killed here: see `GarbageCollector.tidy`.
        with locked(self.layout.lock(self.leases.key), stop):
            self.leases.write(self.layout.temporary(self.leases.key, uuid.uuid4().hex))
        hit(Point.LEASES_WRITTEN)
