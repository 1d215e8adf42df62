"""What stands in a store already, and what is believed of it before and after it is hashed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts import stored
from sidecar.artifacts.gc import GarbageCollector
from sidecar.artifacts.ingest import Ingest
from sidecar.artifacts.proof import ProofOutcome, Proofs
from sidecar.artifacts.signing.signatures import Signatures
from sidecar.artifacts.store import LocalStore
from tests.support.adapters import WrittenAdapter, write_adapter
from tests.unit.artifacts.conftest import BROKEN, WEIGHTS, flip, pinned, raising


class Standing:
    """An artifact that another replica staged, as a process finds it that has hashed nothing."""

    def __init__(self, open_store: Callable[..., LocalStore], adapter: WrittenAdapter, monkeypatch) -> None:
        self.staged = asyncio.run(open_store("r2").ensure(pinned(adapter)))
        self.store = open_store()
        self.order, self.digest = self.store._order(pinned(adapter)), adapter.digest
        self.artifacts = self.store._obtainer.stored
        self.did: list[str] = []
        for owner, name in ((Signatures, "check"), (Proofs, "prove_by"), (Ingest, "adopt")):
            self._note(monkeypatch, owner, name, getattr(owner, name))
        self._note(monkeypatch, GarbageCollector, "make_way", self._make_way)
        self.makes_way = True

    def _note(self, monkeypatch, owner: type, name: str, whole: Callable[..., Any]) -> None:
        monkeypatch.setattr(owner, name, lambda *what, **more: self.did.append(name) or whole(*what, **more))

    def _make_way(self, _: object, artifact: str, *, but: Path) -> bool:
        assert (artifact, but) == (self.staged.id, self.store._leases.file), "our own lease is a new one"
        return self.makes_way

    def lose_report(self) -> None:
        self.store._layout.report(self.staged.id).unlink()

    def peek(self) -> Any:
        return self.artifacts.peek(self.order, self.digest)

    def see(self) -> Any:
        return self.artifacts.see(self.order, self.digest)

    def find(self, *, is_new: bool = True) -> Any:
        return self.artifacts.find(self.order, self.digest, Stop(), is_new=is_new)

    def has(self, *, is_new: bool = True) -> bool:
        return self.artifacts.has(self.order, self.digest, Stop(), is_new=is_new)


@pytest.fixture
def one(open_store, sources, monkeypatch) -> Standing:
    return Standing(open_store, write_adapter(sources / "a"), monkeypatch)


def test_what_is_not_there_is_not_seen_and_no_signature_is_asked_for(one):
    """R7, R21."""
    shutil.rmtree(one.staged.path)
    assert ([one.peek(), one.see(), one.find()], one.has(), one.did) == ([None] * 3, False, [])


@pytest.mark.parametrize("are_required", [False, True])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    ("has_report", "is_quick", "is_read"),
    [(True, True, True), (True, False, True), (False, True, True), (False, False, False)],
)
def test_a_peek_is_by_the_report_or_by_files_that_are_quickly_read(
    one, monkeypatch, has_report, is_quick, is_read, is_known, are_required
):
    """R19, R21: it is told whether it was proven; unproven nothing is where signatures are asked for."""
    monkeypatch.setattr(Signatures, "are_required", are_required)
    monkeypatch.setattr(stored, "is_quick_to_look", lambda *_: is_quick)
    if is_known:
        one.store._known.proofs.note(one.staged.id)
    if has_report:
        monkeypatch.setattr(stored, "look", raising(AssertionError("the report says it")))
    else:
        one.lose_report()
    is_told = is_read and (is_known or not are_required)
    assert one.peek() == (replace(one.staged, is_proven=is_known) if is_told else None)
    assert one.did == ["check"]


@pytest.mark.parametrize("how", ["small", "large", "flipped", "without a report"])
def test_only_what_is_small_and_has_a_report_is_hashed_in_the_event_loop(one, monkeypatch, how):
    """R19, R21: all else is for a worker, unless it is proven already."""
    assert stored.MAX_AT_ONCE_BYTES == 256 << 10
    size_bytes = sum(file.stat().st_size for file in Path(one.staged.path).iterdir())
    monkeypatch.setattr(stored, "MAX_AT_ONCE_BYTES", size_bytes - (how == "large"))
    if how == "flipped":
        flip(one.staged.path)
    if how == "without a report":
        one.lose_report()
    assert one.see() == (one.staged if how == "small" else None)
    assert ("prove_by" in one.did) is (how in {"small", "flipped"})
    one.did.clear()
    one.store._known.proofs.note(one.staged.id)
    assert (one.see(), one.did) == (one.staged, ["check"])


@pytest.mark.parametrize("has_report", [True, False])
def test_what_was_proven_and_is_untouched_is_not_hashed_again(one, has_report):
    """R21: what was touched is."""
    if not has_report:
        one.lose_report()
    one.store._known.proofs.note(one.staged.id)
    assert (one.find(), one.did) == (one.staged, ["check"])
    (Path(one.staged.path) / WEIGHTS).chmod(0o400)
    assert one.find() == one.staged
    assert one.did[:3] == ["check", "check", "prove_by"]


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
    one, monkeypatch, outcome, adopts, found, is_new, makes_way
):
    """R4, R7, R21: our own does not, whose lease is new."""
    monkeypatch.setattr(Proofs, "prove", lambda *_: outcome)
    monkeypatch.setattr(Ingest, "adopt", lambda *_: one.did.append("adopt") or adopts)
    one.makes_way = makes_way
    is_found = found == "it"
    expected = one.staged if is_found else None if is_new and makes_way else found
    assert one.find(is_new=is_new) == expected
    assert ("make_way" in one.did) is (is_new and not is_found)
    assert ("adopt" in one.did) is (outcome is ProofOutcome.SOURCE)
    assert one.has(is_new=is_new) is (expected is not None)


def test_what_may_not_be_served_is_refused_before_it_is_hashed_and_is_there_all_the_same(one, monkeypatch):
    """R21, R8: it need not be fetched; what is wrong with it is said to whoever wants it. A fault of ours is told."""
    unreadable, ours = BROKEN
    monkeypatch.setattr(Signatures, "check", raising(ArtifactError("signature_missing", "it has none")))
    for look in (one.find, one.peek, one.see):
        with pytest.raises(ArtifactError, match="it has none"):
            look()
    assert (one.has(), one.did) == (True, [])
    monkeypatch.setattr(Signatures, "check", raising(unreadable))
    assert one.has()
    monkeypatch.setattr(Signatures, "check", raising(ours))
    with pytest.raises(ZeroDivisionError):
        one.has()
