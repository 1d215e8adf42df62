"""What the store of a replica decides of leases, memory, proofs and copies, with its parts played."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Event, get_ident
from types import SimpleNamespace
from typing import Any

import pytest

from registry.lora.base import BaseModules, compress
from registry.model.records import BaseShapes, PoolSpec
from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts import gc, obtain
from sidecar.artifacts.files import locked, locked_at_once
from sidecar.artifacts.leases import read_leases
from sidecar.artifacts.proof import ProofOutcome
from sidecar.artifacts.requests import StageRequest, copy_after
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef, Staged
from tests.unit.artifacts.conftest import raising, recalled

DIGEST = "sha256:" + "1" * 64
REF = ArtifactRef("file:///allowed/a", DIGEST)
FREE = ArtifactRef("file:///allowed/a", None, pin_key="p/a@1")
UNFIT = ArtifactError("not_finite", "a number is none")


class Played:
    """A store whose parts do as a test says, and note it in `did`."""

    def __init__(self, store: LocalStore, monkeypatch) -> None:
        self.store, self.did = store, list[Any]()
        self.id = store._order(REF).artifact(DIGEST)
        self.found: list[Any] = []
        self.peeked: Any = None
        self.errors: dict[Any, Exception] = {}
        self.vouches = self.adopts = True
        self.has_policy = False
        self.outcomes: dict[str, Any] = {}
        self.proven: set[str] = set()
        store._obtainer = replace(store._obtainer, stored=self, ingest=self)
        monkeypatch.setattr(store.maintenance.scrubbing, "_ingest", self)
        for part in ("signatures", "sources"):
            monkeypatch.setattr(store.trust, part, self)
        is_proven = self.proven.__contains__
        for name, part in (
            ("prove", self._prove),
            ("is_intact", is_proven),
            ("__contains__", is_proven),
            ("forget", lambda artifacts: self.did.append(("forgotten", *sorted(artifacts)))),
        ):
            monkeypatch.setattr(type(store._known.proofs), name, lambda _, *how, part=part, **more: part(*how, **more))
        for name, given in (
            ("source", lambda: "source"),
            ("peek", lambda: self.peeked),
            ("see", lambda: self.peeked),
            ("place", self.staged),
            ("vouch", lambda: self.vouches),
            ("adopt", lambda: self.adopts),
            ("check", lambda: None),
            ("close", lambda: None),
        ):
            setattr(self, name, lambda *_, name=name, given=given: self._do(name) or given())

    def names(self, _uri: str) -> bool:
        return False

    def staged(self, artifact: str = "", **changes: object) -> Staged:
        artifact = artifact or self.id
        return replace(Staged(artifact, str(self.store._layout.adapter(artifact)), DIGEST, 8), **changes)

    def _do(self, what: Any) -> None:
        self.did.append(what)
        if what in self.errors:
            raise self.errors[what]

    def put(self) -> None:
        self.store._layout.adapter(self.id).mkdir()

    def find(self, order: StageRequest, digest: str, _stop: Stop, *, is_new: bool) -> Any:
        with locked_at_once(self.store._layout.lock(order.artifact(digest))) as is_free:
            assert not is_free, "it is looked at under its lock"
        assert order.artifact(digest) in self.store._leases, "and leased before"
        self._do(("find", is_new))
        return self.found.pop(0)

    def has(self, *what: Any, is_new: bool) -> bool:
        return self.find(*what, is_new=is_new) is not None

    @contextmanager
    def incoming(self, key: str, _stop: Stop) -> Iterator[str]:
        self._do(("incoming", key[:4]))
        yield "arriving"
        self._do("gone")

    def receive(self, source: str, arriving: str, _order: object, expected: str | None, _stop: Stop) -> Any:
        self._do(("receive", source, arriving, expected))
        return SimpleNamespace(digest=DIGEST)

    def _prove(self, artifact: str, source: str, _stop: Stop, *, bytes_per_second: float) -> Any:
        self._do(("prove", artifact, source, bytes_per_second))
        outcome = self.outcomes.get(artifact, ProofOutcome.PROVEN)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.fixture
def played(open_store, monkeypatch) -> Played:
    return Played(open_store(), monkeypatch)


def stage(played: Played, ref: ArtifactRef = REF) -> Staged:
    return played.store._obtainer._stage(played.store._order(ref), Stop())


async def test_what_a_directory_was_made_of_is_told_if_that_is_what_is_meant(played, monkeypatch):
    """R9, R23: whatever base it was prepared for; a disk that does not answer tells nothing."""
    store, path = played.store, played.staged().path
    sources = {played.id: REF.digest}
    monkeypatch.setattr(store._reports, "source_of", lambda artifact: sources[artifact])
    other = replace(REF, digest="sha256:" + "f" * 64)
    assert await store.made_of([(REF, path), (other, path), (REF, "/elsewhere")]) == {(REF, path): REF.digest}
    sources[played.id] = ""
    assert await store.made_of([(REF, path)]) == {}
    monkeypatch.setattr(store._reports, "source_of", raising(OSError(5, "bad sector")))
    assert await store.made_of([(REF, path)]) == {}


def test_what_is_there_and_proven_is_told_and_remembered(played):
    """R7, R21: leased, under its lock, and with a signature as it is asked for now."""
    played.found = [played.staged()]
    assert stage(played) == played.staged()
    assert played.did == ["source", ("find", True), "check"]
    assert played.store.lookup(REF) == played.staged()
    assert read_leases(played.store._leases.file) == {played.id}
    played.found = [played.staged()]
    stage(played)
    assert played.did[-2:] == [("find", False), "check"]


@pytest.mark.parametrize(
    ("found", "done"),
    [
        ([None], ["place", "gone"]),
        ([ProofOutcome.UNKNOWN, "it"], ["vouch", ("find", False), "gone"]),
    ],
    ids=["not there", "nothing proves it"],
)
def test_what_is_not_there_is_fetched_and_what_nothing_proves_is_compared_with_its_source(played, found, done):
    """R4, R7, R21: expected by its digest. What stands there stays; if it is what comes of the source, it is told."""
    played.found = [played.staged() if one == "it" else one for one in found]
    assert stage(played) == played.staged()
    asked = [("incoming", played.id[:4]), ("receive", "source", "arriving", DIGEST)]
    assert played.did == ["source", ("find", True), *asked, *done, "check"]


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("found", [ProofOutcome.UNKNOWN, ProofOutcome.DAMAGED, ProofOutcome.CHANGED])
def test_what_is_not_what_it_has_to_be_is_marked_and_fetched_as_a_copy(played, monkeypatch, found, is_read):
    """R4, R7, R21: all sidecars of the store know; the lease of what our engine does not read is given up."""
    played.vouches = False
    forget, marked = played.store._known.seen.forget, list[bool]()

    def forgetting(artifacts: Any) -> None:
        marked.append(played.store._known.damage.is_marked(played.id))
        forget(artifacts)

    monkeypatch.setattr(played.store._known.seen, "forget", forgetting)
    if is_read:
        played.store.lease({played.id})
    copy = copy_after(played.id)
    played.found = [found, played.staged(copy)]
    assert stage(played) == played.staged(copy)
    assert played.store._known.damage.ids == {played.id}
    assert marked[0], "before it is forgotten, so that nobody recalls it in between"
    assert ("forgotten", played.id) in played.did
    assert played.store.leased() == {copy, *([played.id] if is_read else [])}
    assert (("receive", "source", "arriving", DIGEST) in played.did) is (found is ProofOutcome.UNKNOWN)


def test_what_another_sidecar_marked_in_the_meantime_is_not_looked_at(played):
    """R21."""
    order = played.store._order(REF)
    (played.store._layout.damaged / played.id).touch()
    played.found = [played.staged(copy_after(played.id))]
    assert played.store._obtainer._stage(order, Stop()).id == copy_after(played.id)
    assert played.did == ["source", ("find", True), "check"]
    assert played.store.leased() == {copy_after(played.id)}, "only the copy is"


def test_where_every_copy_is_damaged_that_is_told(played, monkeypatch):
    """R16: nothing is fetched without end."""
    monkeypatch.setattr("sidecar.artifacts.requests.MAX_COPIES", 1)
    played.found = [ProofOutcome.DAMAGED, ProofOutcome.DAMAGED]
    with pytest.raises(ArtifactError) as refused:
        stage(played)
    assert (refused.value.reason, refused.value.permanent) == ("artifact_damaged", False)
    assert copy_after(played.id) in refused.value.message
    assert played.store.leased() == set()


def test_a_signature_that_is_asked_for_meanwhile_is_looked_at_last(played):
    """R21."""
    played.found = [None]
    played.errors["check"] = UNFIT
    with pytest.raises(ArtifactError, match="a number is none"):
        stage(played)
    assert played.store.lookup(REF) is None


@pytest.mark.parametrize("is_there", [True, False])
def test_what_has_no_digest_is_read_once_and_pinned(played, is_there):
    """R4, W6: before anybody is told of it; from then on it is known by its digest."""
    played.found = [played.staged() if is_there else None, played.staged()]
    assert stage(played, FREE) == played.staged()
    assert played.store._pins.digest(FREE) == DIGEST
    assert played.did == [
        "source",
        ("incoming", "pin-"),
        ("receive", "source", "arriving", None),
        ("find", True),
        *([] if is_there else ["place"]),
        "gone",
        ("find", False),
        "check",
    ]
    played.did.clear()
    played.found = [played.staged()]
    stage(played, FREE)
    assert played.did == ["source", ("find", False), "check"]


def test_what_another_replica_pinned_while_we_waited_is_not_read_again(played, monkeypatch):
    """R4."""
    answers = iter([None, DIGEST])
    monkeypatch.setattr(played.store._pins, "digest", lambda _: next(answers))
    played.found = [played.staged()]
    assert stage(played, FREE) == played.staged()
    assert played.did == ["source", ("find", True), "check"]


def test_a_store_that_fails_is_told_of_the_adapter_and_a_source_that_may_not_be_read_too(played):
    """R8."""
    played.errors[("find", True)] = OSError(28, "No space left on device")
    with pytest.raises(ArtifactError) as failed:
        stage(played)
    assert (failed.value.reason, failed.value.permanent) == ("disk_full", False)
    played.errors["source"] = UNFIT
    played.did.clear()
    with pytest.raises(ArtifactError, match="a number is none"):
        stage(played)
    assert played.did == ["source"]


def test_after_a_restart_what_is_leased_is_seen_at_once(played):
    """R13: without a worker, and without the source."""
    played.peeked = played.staged(is_proven=False)
    assert recalled(played.store, REF) is None
    assert played.did == [], "it is not leased"
    played.store.lease({played.id})
    assert played.store.lookup(REF) is None
    assert played.did == [], "no file is read by whoever only asks"
    with locked(played.store._layout.lock(played.id), Stop()):
        assert recalled(played.store, REF) is None
    assert played.did == ["source"]
    assert recalled(played.store, REF) == played.peeked
    assert played.store.lookup(REF) == played.peeked
    assert played.did == ["source", "source", "peek"]
    played.proven.add(played.id)
    assert played.store.lookup(REF) == played.staged(), "it was proven in the meantime"
    played.proven.clear()
    assert played.store.lookup(REF) == played.staged(), "which is remembered"


async def test_what_an_earlier_process_staged_is_recalled_beside_the_event_loop(played, monkeypatch):
    """R13, R16: for a plan, which then finds it in memory; of what is not leased no file is read."""
    threads = list[Any]()
    peek = played.peek
    monkeypatch.setattr(played, "peek", lambda *order: threads.append(get_ident()) or peek(*order))
    played.peeked, odd = played.staged(is_proven=False), replace(REF, prepare="{")
    assert not await played.store.recall([REF, FREE, odd])
    assert (played.store.seen, played.did) == ({}, [])
    played.store.lease({played.id})
    assert await played.store.recall([REF, FREE, odd])
    assert len(threads) == 1
    assert get_ident() not in threads
    assert played.store.seen == {REF: played.peeked}
    played.proven.add(played.id)
    assert played.store.seen == {REF: played.staged()}, "it was proven in the meantime"
    played.store.let_go({played.id})
    assert played.store.seen == {}


async def test_nothing_is_let_go_of_while_it_is_recalled(played, monkeypatch):
    """R7: else it would be remembered although no lease protects it any more."""
    gone = list[Any]()
    monkeypatch.setattr(played, "peek", lambda *_: gone.append(played.store.let_go({played.id})) or played.staged())
    played.store.lease({played.id})
    assert await played.store.recall([REF])
    assert gone == [frozenset()]
    assert played.store.let_go({played.id}) == {played.id}
    assert played.store.seen == {}


@pytest.mark.parametrize("error", [UNFIT, OSError(5, "bad sector"), ZeroDivisionError()])
def test_what_cannot_be_seen_at_once_is_for_a_worker_to_say(played, error):
    """R8: but a fault of ours is told."""
    played.store.lease({played.id})
    played.put()
    played.errors = {"peek": error, "see": error}
    for look in (lambda: recalled(played.store, REF), lambda: played.store._obtainer.join(played.store._order(REF))):
        with pytest.raises(ZeroDivisionError) if isinstance(error, ZeroDivisionError) else nullcontext():
            assert look() is None
    assert played.store.leased() == {played.id}


def test_what_another_replica_staged_is_joined_and_what_is_not_there_is_not_leased(played):
    """R7: nor is what cannot be proven at once, so that the lease is a new one to the worker too."""
    order = played.store._order(REF)
    assert played.store._obtainer.join(order) is None
    played.put()
    assert played.store._obtainer.join(order) is None
    assert (played.did, played.store.leased()) == (["source", "see"], set())
    assert played.store._obtainer.join(played.store._order(FREE)) is None
    played.peeked = played.staged()
    assert played.store._obtainer.join(order) == played.staged()
    assert played.store.leased() == {played.id}
    assert played.store.lookup(REF) == played.staged()
    played.errors["source"] = UNFIT
    assert played.store._obtainer.join(order) is None
    assert played.store.leased() == {played.id}, "it was leased before"


async def test_what_is_proven_is_told_without_a_look_and_what_is_not_is_looked_at(played, monkeypatch):
    """R21: in whatever time a staging may take, and then nobody waits for it."""
    limits, stops = list[float](), list[Stop]()
    timeout = asyncio.timeout
    monkeypatch.setattr(obtain.asyncio, "timeout", lambda seconds: limits.append(seconds) or timeout(seconds))

    def stage_one(_order: StageRequest, stop: Stop, _refused: str | None) -> Staged:
        stop.check()
        stops.append(stop)
        return played.store._known.remember(_order, played.staged())

    monkeypatch.setattr(obtain.Obtainer, "_stage", lambda _, *what: stage_one(*what))
    for _ in range(2):
        assert await played.store.ensure(REF) == played.staged()
    assert (limits, len(stops)) == ([1800.0], 1)
    with pytest.raises(ArtifactError):
        stops[0].check()
    played.store._known.seen.put((REF, None), played.staged(is_proven=False))
    await played.store.ensure(REF)
    assert len(stops) == 2


def test_what_the_engine_let_go_of_is_known_no_more_and_may_go_at_once(played):
    """R7: but for what is held."""
    other = "2" * 64
    for artifact in (played.id, other):
        played.store.lease({artifact})
        played.store._layout.lock(artifact).touch()
    played.store._known.seen.put((REF, None), played.staged())
    before = played.store._layout.lock(played.id).stat().st_mtime
    with played.store._leases.held(other):
        assert played.store.let_go({played.id, other}) == {played.id}
    assert played.did == [("forgotten", played.id)]
    assert played.store.lookup(REF) is None
    assert before - played.store._layout.lock(played.id).stat().st_mtime == pytest.approx(600.0, abs=60.0)
    assert played.store.let_go({played.id}) == frozenset()


def test_what_was_used_is_noted_when_it_is_told(played):
    """R16: what was unused for the longest time goes first."""
    lock = played.store._layout.lock(played.id)
    lock.touch()
    gc.mark_used(played.store._layout, played.id, seconds_ago=5000.0)
    before = lock.stat().st_mtime
    played.store._known.doubted |= {played.id, "other"}
    played.store._known.remember(played.store._order(REF), played.staged(is_proven=False))
    assert lock.stat().st_mtime - before > 4000.0
    assert played.store._known.doubted == {played.id, "other"}
    played.store._known.remember(played.store._order(REF), played.staged())
    assert played.store._known.doubted == {"other"}


def test_a_path_is_intact_if_it_is_ours_proven_untouched_and_marked_by_nobody(played):
    """R21: else it is not known any more."""
    path = str(played.store._layout.adapter(played.id))
    played.store._known.seen.put((REF, None), played.staged())
    assert not played.store.is_intact("/elsewhere")
    assert played.did == []
    played.proven.add(played.id)
    assert played.store.is_intact(path)
    assert played.store.lookup(REF) is not None
    (played.store._layout.damaged / played.id).touch()
    assert not played.store.is_intact(path)
    assert played.did == [("forgotten", played.id)]
    assert played.store._known.seen.get((REF, None)) is None
    (played.store._layout.damaged / played.id).unlink()
    played.proven.clear()
    assert not played.store.is_intact(path)


@pytest.fixture
def served(played) -> Played:
    """What the engine served before this process started, and nobody has proven yet."""
    played.store.lease({played.id})
    played.store._known.seen.put((REF, None), played.staged(is_proven=False))
    return played


@pytest.mark.parametrize(
    ("outcome", "adopts", "is_locked", "is_doubted"),
    [
        (ProofOutcome.PROVEN, False, False, False),
        (ProofOutcome.SOURCE, True, False, False),
        (ProofOutcome.SOURCE, False, False, True),
        (ProofOutcome.SOURCE, True, True, True),
        (ProofOutcome.UNKNOWN, True, False, True),
        (ProofOutcome.CHANGED, True, False, True),
    ],
)
def test_what_the_engine_served_is_proven_while_nobody_waits(
    served, monkeypatch, outcome, adopts, is_locked, is_doubted
):
    """R7, R13, R21: at 100 MiB a second; what nothing proves is compared with its source, once nobody works on it."""
    served.outcomes[served.id], served.adopts = outcome, adopts
    forget, doubted = served.store._known.seen.forget, list[bool]()

    def forgetting(artifacts: Any) -> None:
        doubted.append(served.id in served.store._known.doubted)
        forget(artifacts)

    monkeypatch.setattr(served.store._known.seen, "forget", forgetting)
    with locked(served.store._layout.lock(served.id if is_locked else "other"), Stop()):
        served.store.maintenance.scrubbing.prove_seen(Stop())
    assert doubted == [True] * is_doubted, "before it is forgotten, so that nobody recalls it in between"
    assert served.did[0] == ("prove", served.id, DIGEST, 100 << 20)
    assert ("adopt" in served.did) is (outcome is ProofOutcome.SOURCE and not is_locked)
    assert (served.id in served.store._known.doubted) is is_doubted
    assert (("forgotten", served.id) in served.did) is is_doubted
    served.peeked = served.staged()
    assert (recalled(served.store, REF) is None) is is_doubted


def test_what_the_engine_served_and_is_damaged_is_told_to_all_and_what_need_not_be_proven_is_not_hashed(
    served, monkeypatch
):
    """R4, R21, R16: it was proven in the meantime, or is not what its reference means any more."""
    found: list[str] = []
    monkeypatch.setattr(served.store.maintenance.scrubbing, "found", found.append)
    served.proven.add(served.id)
    served.store.maintenance.scrubbing.prove_seen(Stop())
    assert (served.did, found) == ([], [])
    served.proven.clear()
    served.outcomes[served.id] = ProofOutcome.DAMAGED
    served.store.maintenance.scrubbing.prove_seen(Stop())
    assert (found, served.store._known.doubted) == ([served.id], set())
    served.did.clear()
    served.store._known.damage.mark(served.id)
    served.store.maintenance.scrubbing.prove_seen(Stop())
    assert served.did == []


def test_what_cannot_be_proven_keeps_no_other_from_it(served):
    """R8."""
    served.outcomes[served.id] = OSError(5, "bad sector")
    with pytest.raises(OSError, match="bad sector"):
        served.store.maintenance.scrubbing.prove_seen(Stop())
    assert served.store._known.seen.unproven() == []
    served.store.maintenance.scrubbing.prove_seen(Stop())
    served.store._known.seen.put((REF, None), served.staged(is_proven=False))
    served.outcomes[served.id] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        served.store.maintenance.scrubbing.prove_seen(Stop())
    assert len(served.store._known.seen.unproven()) == 1


def test_a_base_that_the_pool_names_is_what_adapters_are_compared_with(open_store):
    """R5: what was seen for another base is not what was asked for."""
    store, base = open_store(), BaseModules({"model.layers.0.mlp.up_proj": (16, 16)})
    assert (store.base_known, store.use_pool(None), store._order(REF).base) == (False, "", None)
    shapes = BaseShapes(modules=compress(base.modules), fingerprint=base.fingerprint)
    pool = PoolSpec(name="p", base_models=["b"]).model_copy(update={"base": shapes})
    store._known.seen.put((REF, None), Staged("1" * 64, "/p", DIGEST, 8))
    assert (store.use_pool(pool), store.base_known, store._order(REF).base) == ("", True, base)
    assert store.lookup(REF) is None
    other = open_store("r2", base=BaseModules({"model.layers.0.mlp.up_proj": (8, 8)}))
    assert other.base_known
    assert "--base-model" in other.use_pool(pool)


def test_a_file_of_the_operator_is_taken_again_when_it_changes(open_store, tmp_path):
    """R13: what the replica reads is another thing then, so that what was refused is tried again."""
    store, file, used = open_store(), tmp_path / "keys", list[str]()
    file.write_text("one")
    store.trust.follow(file, Path.read_text, used.append)
    assert (used, reads := store.reads) == (["one"], store.reads)
    file.write_text("other")
    store.maintenance.round(Stop())
    assert used == ["one", "other"]
    assert reads != (reads := store.reads)
    store.maintenance.round(Stop())
    assert (used, store.reads) == (["one", "other"], reads)


def test_the_end_closes_what_is_kept_and_lets_no_more_begin(played, monkeypatch):
    """R16, R12: what waits for a worker is not begun any more."""
    assert played.store._obtainer.workers._max_workers == 16, "four quick and four long, for eager and for lazy ones"
    played.store._obtainer = replace(played.store._obtainer, workers=ThreadPoolExecutor(1))
    is_dropped = Event()
    working = played.store._obtainer.workers.submit(lambda: is_dropped.wait(60) and not played.did)
    waiting = played.store._obtainer.workers.submit(played.did.append, "begun")
    waiting.add_done_callback(lambda _: is_dropped.set())
    played.store.close()
    assert (working.result(), waiting.cancelled()) == (True, True), "and sources are closed after both"
    assert played.did == ["close"]
    with pytest.raises(RuntimeError):
        played.store._obtainer.workers.submit(int)
