"""In which order an artifact is taken in, and what stands in the store at each step."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from registry.runtime.failpoints import Point, handling
from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts.examiner import Examiner
from sidecar.artifacts.files import SharedSync
from sidecar.artifacts.ingest import Ingest, Ingested
from sidecar.artifacts.proof import ProofOutcome
from sidecar.artifacts.requests import stage_request_of
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef
from tests.support.adapters import write_adapter
from tests.unit.artifacts.conftest import CONFIG, EXAMINATION, WEIGHTS, contents, pinned, raising, refusal

SOURCE = "sha256:" + "1" * 64
ORDER = stage_request_of(ArtifactRef("file:///a", SOURCE), None)


async def test_an_artifact_gets_its_name_behind_its_report_and_is_told_once_that_is_on_the_disk(
    store, sources, monkeypatch
):
    """R12, R19, R21, fault 17: a child is started while it comes; other sidecars know of its size before its name."""
    root, passed, warm, sync = store._layout.root, list[object](), Examiner.warm, SharedSync.sync

    def note(step: object) -> None:
        passed.append((step, len(contents(root / "reports")), len(contents(root / "adapters"))))

    monkeypatch.setattr(Examiner, "warm", lambda one: note("warm") or warm(one))
    monkeypatch.setattr(SharedSync, "sync", lambda one: note("names") or sync(one))
    with handling(lambda point: None if point is Point.RECEIVING else note(point)):
        staged = await store.ensure(pinned(write_adapter(sources / "a")))
    assert passed == [
        *((one, 0, 0) for one in (Point.LEASED, Point.LOCKED, "warm", Point.RECEIVED, Point.VERIFIED, Point.PREPARED)),
        *((Point.REPORTED, 1, 0), ("names", 1, 1), (Point.PLACED, 1, 1)),
    ]
    assert store._layout.lock("changes").stat().st_size == 2
    assert store.is_intact(staged.path), "it was hashed as it was written"
    monkeypatch.setattr(SharedSync, "sync", raising(OSError(5, "bad sector")))
    assert (await refusal(store, pinned(write_adapter(sources / "b", seed=1)))).reason == "store_io"


async def test_files_are_on_the_disk_whole_before_anything_says_so(store, sources, monkeypatch):
    """R21, fault 17: a power cut would leave a name with less behind it."""
    adapter, sync, synced = write_adapter(sources / "a"), os.fsync, dict[str, int]()

    def note(descriptor: int) -> None:
        synced[Path(f"/proc/self/fd/{descriptor}").readlink().name] = os.fstat(descriptor).st_size
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    await store.ensure(pinned(adapter))
    assert {name: synced[name] for name in (CONFIG, WEIGHTS)} == {
        name: (adapter.directory / name).stat().st_size for name in (CONFIG, WEIGHTS)
    }


async def test_other_files_than_expected_are_not_read(store, sources):
    """R4 digest-true."""
    adapter, points = write_adapter(sources / "a"), list[Point]()
    write_adapter(sources / "a", seed=1)
    with handling(points.append):
        assert (await refusal(store, pinned(adapter))).reason == "digest_mismatch"
    assert points[-1] is Point.RECEIVED


def played(store: LocalStore, **parts: object) -> Ingest:
    """The ingest of a store, with an examiner and proofs that answer so."""
    made = SimpleNamespace(**parts)
    return replace(store._obtainer.ingest, examiner=made, proofs=made)  # type: ignore[arg-type]


@pytest.mark.parametrize("outcome", list(ProofOutcome))
def test_a_source_that_stands_there_is_adopted_if_it_would_be_taken_as_it_is(store, outcome):
    """R13, R21, R22: and what else stands there is vouched for if it is what comes of its source."""
    changed = EXAMINATION.model_copy(update={"new_config": b"{}"})
    for examination, is_as_it_came in ((changed, False), (EXAMINATION, True)):
        one = played(store, examine=lambda *_, found=examination: found, prove=lambda *_: outcome)
        assert one.adopt(ORDER, SOURCE, Stop()) is (is_as_it_came and outcome is ProofOutcome.PROVEN)
        report = store._reports.read(ORDER.artifact(SOURCE))
        assert (report.prepared if report else None) == (SOURCE if is_as_it_came else None)
    with one.incoming("key", Stop()) as arriving:
        arrived = Ingested(SOURCE, EXAMINATION)
        assert one.vouch(arriving, ORDER, arrived, Stop()) is (outcome is ProofOutcome.PROVEN)


def test_what_cannot_be_served_is_not_adopted_and_who_is_stopped_says_nothing_of_it(store):
    """R21, R12: what is our own fault, or the disk's, is told."""
    unfit, stopped = played(store, examine=raising(ArtifactError("not_finite", ""))), Stop()
    assert not unfit.adopt(ORDER, SOURCE, Stop())
    stopped.set()
    with pytest.raises(ArtifactError) as told:
        unfit.adopt(ORDER, SOURCE, stopped)
    assert told.value.reason == "staging_stopped"
    for error in (OSError(5, "bad sector"), ZeroDivisionError()):
        with pytest.raises(type(error)):
            played(store, examine=raising(error)).adopt(ORDER, SOURCE, Stop())
    assert not contents(store._layout.root / "reports")
