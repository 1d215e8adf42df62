"""In which order an artifact is taken in; with parts that are played."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from registry.lora.policy import Policy
from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts import ingest
from sidecar.artifacts.ingest import Incoming, Ingest, Ingested
from sidecar.artifacts.layout import StoreLayout, open_layout
from sidecar.artifacts.proof import ProofOutcome
from sidecar.artifacts.requests import StageRequest
from sidecar.artifacts.types import ArtifactRef, Staged

SOURCE = "sha256:" + "1" * 64
REFUSED = ArtifactError("signature_missing", "nobody vouches for it")


def order_of(digest: str | None = SOURCE) -> StageRequest:
    return StageRequest(ArtifactRef("file:///a", digest), Policy(), None)


class Parts:
    """All that an ingest works with; what each was asked is in `did`, and errors befall those that are named so."""

    def __init__(self, root: Path, monkeypatch) -> None:
        self.layout: StoreLayout = open_layout(root, "r1")
        self.did: list[Any] = []
        self.errors: dict[str, Exception] = {}
        self.outcome: ProofOutcome | None = ProofOutcome.PROVEN
        self.report: Any = SimpleNamespace(id=order_of().artifact(SOURCE), source=SOURCE)
        self.is_as_it_came = True
        monkeypatch.setattr(ingest, "make_report", lambda *what: self.report)
        monkeypatch.setattr(ingest, "prepare", lambda *_: self._do("prepare") or [])
        monkeypatch.setattr(ingest, "manifest_digest", lambda _: "prepared")
        monkeypatch.setattr(
            ingest, "staged_by", lambda _, order, __: self._do("told by report") or Staged("id", "report", SOURCE, 8)
        )

    def _do(self, what: str) -> None:
        self.did.append(what)
        if what in self.errors:
            raise self.errors[what]

    # What signatures, reports, proofs, examiner and collector are asked.
    def check(self, _ref: object, digest: str) -> None:
        self._do(f"signature of {digest[:8]}")

    def ask(self, *_: object) -> bytes:
        self._do("bundle")
        return b"bundle"

    def take(self, _ref: object, digest: str, _entries: object, content: bytes) -> None:
        assert content == b"bundle"
        self.check(None, digest)

    def write(self, _report: object) -> None:
        self._do("report")

    def note(self, _artifact: str) -> None:
        self._do("proven as written")

    def prove(self, _artifact: str, source: str, _stop: Stop) -> ProofOutcome | None:
        self._do(f"hashed for {source[:8]}")
        return self.outcome

    def warm(self) -> None:
        self._do("warm")

    def examine(self, _directory: Path, _base: object, _policy: object, _stop: Stop) -> Any:
        self._do("examine")
        return SimpleNamespace(is_as_it_came=self.is_as_it_came)

    @contextmanager
    def adding(self, _artifact: str, _size_bytes: int):
        self._do("announced")
        yield
        self._do("counted")

    def sync(self) -> None:
        self._do("names")

    def ingest(self) -> Ingest:
        return Ingest(self.layout, self, None, self, self, self, self, self)  # type: ignore[arg-type]


@pytest.fixture
def parts(tmp_path, monkeypatch) -> Parts:
    return Parts(tmp_path / "store", monkeypatch)


class Arriving(Incoming):
    """Files that have arrived, as a test says."""

    def __init__(self, parts: Parts, digest: str = SOURCE) -> None:
        super().__init__(Path("/arriving"), 1, None, Stop())  # type: ignore[arg-type]
        self._parts, self._found = parts, digest

    def digest(self) -> str:
        return self._found

    def place(self, final: Path, naming: Any) -> None:
        with naming:
            self._parts._do(f"named {final.name[:8]}")


class Source:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def opened(self, _stop: Stop) -> AbstractContextManager[Source]:
        return nullcontext(self)

    def fetch(self, _receive: object, _stop: Stop) -> None:
        self.parts._do("fetched")


def receive(parts: Parts, expected: str | None, found: str = SOURCE) -> Ingested:
    return parts.ingest().receive(Source(parts), Arriving(parts, found), order_of(expected), expected, Stop())  # type: ignore[arg-type]


@pytest.mark.parametrize("expected", [SOURCE, None])
def test_nothing_is_read_of_what_nobody_vouches_for(parts, expected):
    """R21, X2: the digest is compared, and the signature proven, before it is examined; a bundle before the weights."""
    assert receive(parts, expected).digest == SOURCE
    assert parts.did == ["warm", "bundle", "fetched", "signature of sha256:1", "examine"]
    parts.did.clear()
    parts.errors["signature of sha256:1"] = REFUSED
    with pytest.raises(ArtifactError, match="nobody vouches"):
        receive(parts, expected)
    assert "examine" not in parts.did
    parts.did.clear()
    parts.errors["bundle"] = REFUSED
    with pytest.raises(ArtifactError, match="nobody vouches"):
        receive(parts, expected)
    assert parts.did == ["warm", "bundle"]


def test_other_files_than_expected_are_not_read(parts):
    """R4 digest-true."""
    with pytest.raises(ArtifactError) as refused:
        receive(parts, SOURCE, found="sha256:" + "2" * 64)
    assert (refused.value.reason, parts.did) == ("digest_mismatch", ["warm", "bundle", "fetched"])


def test_an_artifact_gets_its_name_behind_its_report_and_is_told_once_that_is_on_the_disk(parts):
    """R12, R21, fault 17."""
    arrived = Ingested(SOURCE, SimpleNamespace())  # type: ignore[arg-type]
    staged = parts.ingest().place(Arriving(parts), order_of(), arrived, Stop())
    assert staged.path == "report"
    assert parts.did == [
        *("prepare", "report", "announced", "named sha256-" + parts.report.id[:1], "counted"),
        *("proven as written", "names", "told by report"),
    ]
    parts.did.clear()
    parts.errors["names"] = OSError(5, "bad sector")
    with pytest.raises(OSError, match="bad sector"):
        parts.ingest().place(Arriving(parts), order_of(), arrived, Stop())
    assert "told by report" not in parts.did


@pytest.mark.parametrize("outcome", list(ProofOutcome))
def test_what_stands_there_is_vouched_for_only_if_it_is_what_comes_of_its_source(parts, outcome):
    """R21."""
    parts.outcome = outcome
    arrived = Ingested(SOURCE, SimpleNamespace())  # type: ignore[arg-type]
    is_proven = parts.ingest().vouch(Arriving(parts), order_of(), arrived, Stop())
    assert is_proven is (outcome is ProofOutcome.PROVEN)
    assert parts.did == ["prepare", "report", "hashed for sha256:1"]


@pytest.mark.parametrize(
    ("is_as_it_came", "outcome", "is_adopted"),
    [(True, ProofOutcome.PROVEN, True), (True, ProofOutcome.DAMAGED, False), (False, ProofOutcome.PROVEN, False)],
)
def test_a_source_that_stands_there_is_adopted_if_it_would_be_taken_as_it_is(parts, is_as_it_came, outcome, is_adopted):
    """R13, R22."""
    parts.is_as_it_came, parts.outcome = is_as_it_came, outcome
    assert parts.ingest().adopt(order_of(), SOURCE, Stop()) is is_adopted
    assert parts.did == (["examine", "report", "hashed for sha256:1"] if is_as_it_came else ["examine"])


def test_what_cannot_be_served_is_not_adopted_and_who_is_stopped_says_nothing_of_it(parts):
    """R21, R12: what is our own fault, or the disk's, is told."""
    parts.errors["examine"] = ArtifactError("not_finite", "")
    assert not parts.ingest().adopt(order_of(), SOURCE, Stop())
    stopped = Stop()
    stopped.set()
    with pytest.raises(ArtifactError) as told:
        parts.ingest().adopt(order_of(), SOURCE, stopped)
    assert told.value.reason == "staging_stopped"
    for error in (OSError(5, "bad sector"), ZeroDivisionError()):
        parts.errors["examine"] = error
        with pytest.raises(type(error)):
            parts.ingest().adopt(order_of(), SOURCE, Stop())
    assert "report" not in parts.did
