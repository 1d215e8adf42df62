"""What stands in a store already, and what is believed of it before and after it is hashed; with its parts played."""

from __future__ import annotations

from typing import Any

import pytest

from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts import stored
from sidecar.artifacts.proof import ProofOutcome
from sidecar.artifacts.requests import StageRequest, stage_request_of
from sidecar.artifacts.stored import StoredArtifacts
from sidecar.artifacts.types import ArtifactRef, Staged
from tests.unit.artifacts.conftest import BROKEN, raising

DIGEST = "sha256:" + "1" * 64
ORDER = stage_request_of(ArtifactRef("file:///a", DIGEST), None)
ID = ORDER.artifact(DIGEST)
UNSIGNED = ArtifactError("signature_missing", "it has none")


class Parts:
    """All that the directories of a store are judged by, as a test sets it."""

    def __init__(self, root: Any, monkeypatch) -> None:
        self.root, self.did = root, list[Any]()
        self.report: Any = "report"
        self.size_bytes, self.is_quick, self.are_required, self.is_known, self.touched = 100, True, False, False, False
        self.outcome, self.adopts, self.is_signed, self.makes_way = ProofOutcome.PROVEN, True, True, True
        self.artifacts = StoredArtifacts(*[self] * 6, root / "lease")  # type: ignore[arg-type]
        monkeypatch.setattr(stored, "is_quick_to_look", lambda *_: self.is_quick)
        monkeypatch.setattr(stored, "staged_by", lambda _, order, report: self._staged(order, rank=8))
        monkeypatch.setattr(stored, "look", lambda _, order, digest: self._staged(order, rank=4))

    def _staged(self, order: StageRequest, rank: int) -> Staged:
        return Staged(order.artifact(DIGEST), "/path", DIGEST, rank)

    def adapter(self, artifact: str) -> Any:
        return self.root / artifact

    def identity(self, _: str) -> Any:
        there = ((0, 0, 4096, 0), (0, 0, 40, 0), (0, 0, self.size_bytes - 40, 0))
        return there if (self.root / ID).is_dir() else None

    def __contains__(self, _: str) -> bool:
        return self.is_known

    def is_intact(self, _: str) -> bool:
        return self.is_known and not self.touched

    def read(self, _: str) -> Any:
        return self.report

    def check(self, *_: object) -> None:
        self.did.append("signature")
        if not self.is_signed:
            raise UNSIGNED

    def prove(self, artifact: str, source: str, _: Stop) -> ProofOutcome:
        assert (artifact, source) == (ID, DIGEST)
        self.did.append("prove")
        return self.outcome

    def prove_by(self, report: Any, artifact: str, source: str, _: Stop) -> ProofOutcome:
        assert report is self.report
        return self.prove(artifact, source, _)

    def adopt(self, *_: object) -> bool:
        self.did.append("adopt")
        return self.adopts

    def make_way(self, artifact: str, *, but: Any) -> bool:
        assert (artifact, but) == (ID, self.root / "lease"), "our own lease is a new one"
        self.did.append("make way")
        return self.makes_way

    def find(self, *, is_new: bool = True) -> Any:
        return self.artifacts.find(ORDER, DIGEST, Stop(), is_new=is_new)


@pytest.fixture
def parts(tmp_path, monkeypatch) -> Parts:
    (tmp_path / ID).mkdir()
    return Parts(tmp_path, monkeypatch)


def test_what_is_not_there_is_not_seen_and_no_signature_is_asked_for(parts):
    """R7, R21."""
    (parts.root / ID).rmdir()
    assert [parts.artifacts.peek(ORDER, DIGEST), parts.artifacts.see(ORDER, DIGEST), parts.find()] == [None] * 3
    assert parts.did == []
    assert not parts.artifacts.has(ORDER, DIGEST, Stop(), is_new=True)


@pytest.mark.parametrize("are_required", [False, True])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    ("report", "is_quick", "rank"), [("report", True, 8), ("report", False, 8), (None, True, 4), (None, False, None)]
)
def test_a_peek_is_by_the_report_or_by_files_that_are_quickly_read(
    parts, report, is_quick, rank, is_known, are_required
):
    """R19, R21: it is told whether it was proven; unproven nothing is where signatures are asked for."""
    parts.report, parts.is_quick, parts.is_known, parts.are_required = report, is_quick, is_known, are_required
    found = parts.artifacts.peek(ORDER, DIGEST)
    is_told = is_known or not are_required
    assert (found and (found.rank, found.is_proven)) == ((rank, is_known) if rank and is_told else None)
    assert parts.did == ["signature"]


@pytest.mark.parametrize(
    ("report", "size_bytes", "outcome", "is_hashed", "is_seen"),
    [
        ("report", 256 << 10, ProofOutcome.PROVEN, True, True),
        ("report", (256 << 10) + 1, ProofOutcome.PROVEN, False, False),
        ("report", 100, ProofOutcome.SOURCE, True, False),
        ("report", 100, ProofOutcome.DAMAGED, True, False),
        (None, 100, ProofOutcome.PROVEN, False, False),
    ],
)
def test_only_what_is_small_and_has_a_report_is_hashed_in_the_event_loop(
    parts, report, size_bytes, outcome, is_hashed, is_seen
):
    """R19, R21: all else is for a worker, unless it is proven already."""
    parts.report, parts.size_bytes, parts.outcome = report, size_bytes, outcome
    found = parts.artifacts.see(ORDER, DIGEST)
    assert ("prove" in parts.did) is is_hashed
    assert (found is not None and found.is_proven) is is_seen
    assert (found is None) is not is_seen
    parts.is_known, parts.size_bytes = True, 1 << 30
    assert parts.artifacts.see(ORDER, DIGEST).is_proven
    assert parts.did.count("prove") == is_hashed


@pytest.mark.parametrize(("report", "rank"), [("report", 8), (None, 4)])
def test_what_was_proven_and_is_untouched_is_not_hashed_again(parts, report, rank):
    """R21: what was touched is."""
    parts.report, parts.is_known = report, True
    assert parts.find().rank == rank
    assert parts.did == ["signature"]
    parts.touched = True
    assert parts.find().rank == rank
    assert parts.did == ["signature", "signature", "prove"]


@pytest.mark.parametrize(
    ("outcome", "adopts", "found"),
    [
        (ProofOutcome.PROVEN, False, "it"),
        (ProofOutcome.SOURCE, True, "it"),
        (ProofOutcome.SOURCE, False, ProofOutcome.UNKNOWN),
        (ProofOutcome.UNKNOWN, True, ProofOutcome.UNKNOWN),
        (ProofOutcome.DAMAGED, True, ProofOutcome.DAMAGED),
        (ProofOutcome.CHANGED, True, ProofOutcome.CHANGED),
    ],
)
@pytest.mark.parametrize(("is_new", "makes_way"), [(True, True), (True, False), (False, True)])
def test_what_is_not_what_it_has_to_be_makes_way_where_no_engine_reads_it(
    parts, outcome, adopts, found, is_new, makes_way
):
    """R4, R7, R21: our own does not, whose lease is new."""
    parts.outcome, parts.adopts, parts.makes_way = outcome, adopts, makes_way
    is_found = found == "it"
    expected = parts._staged(ORDER, rank=8) if is_found else None if is_new and makes_way else found
    assert parts.find(is_new=is_new) == expected
    assert ("make way" in parts.did) is (is_new and not is_found)
    assert ("adopt" in parts.did) is (outcome is ProofOutcome.SOURCE)
    assert parts.artifacts.has(ORDER, DIGEST, Stop(), is_new=is_new) is (expected is not None)


def test_what_may_not_be_served_is_refused_before_it_is_hashed_and_is_there_all_the_same(parts):
    """R21, R8: it need not be fetched; what is wrong with it is said to whoever wants it. A fault of ours is told."""
    parts.is_signed = False
    for look in (parts.find, lambda: parts.artifacts.peek(ORDER, DIGEST), lambda: parts.artifacts.see(ORDER, DIGEST)):
        with pytest.raises(ArtifactError, match="it has none"):
            look()
    assert parts.did == ["signature"] * 3
    assert parts.artifacts.has(ORDER, DIGEST, Stop(), is_new=True)
    unreadable, ours = BROKEN
    parts.check = raising(unreadable)  # type: ignore[method-assign]
    assert parts.artifacts.has(ORDER, DIGEST, Stop(), is_new=True)
    parts.check = raising(ours)  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        parts.artifacts.has(ORDER, DIGEST, Stop(), is_new=True)
