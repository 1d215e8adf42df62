"""What the collector takes out of a store, in which order, and what stays; with directories made by hand."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts import files, gc, maintenance
from sidecar.artifacts.disk import Quota, SizeIndex
from sidecar.artifacts.files import locked
from sidecar.artifacts.gc import GarbageCollector, mark_used
from sidecar.artifacts.layout import open_layout
from sidecar.artifacts.leases import ArtifactLeases
from sidecar.artifacts.maintenance import Holdings, Maintenance, Scrub
from sidecar.artifacts.proof import DamagedArtifacts, ProofOutcome
from sidecar.metrics import STORE_REMOVED
from tests.unit.artifacts.conftest import raising

GRACE = 600.0
DAY = 24 * 3600.0
A, B, C = (digit * 64 for digit in "abc")


class Store:
    """A store with artifacts of ten bytes, used so many seconds ago."""

    def __init__(self, root: Path, monkeypatch) -> None:
        self.layout = open_layout(root, "r1")
        self.index = SizeIndex(self.layout)
        self.collector = GarbageCollector(self.layout, self.index, GRACE)
        self.now = time.time()
        monkeypatch.setattr(gc.time, "time", lambda: self.now)

    def put(self, artifact: str, *, used_ago: float | None = 9999.0, leased_by: str = "") -> None:
        self.layout.adapter(artifact).mkdir()
        (self.layout.adapter(artifact) / "f").write_bytes(b"x" * 10)
        self.layout.report(artifact).write_text("{}")
        if used_ago is not None:
            self.layout.lock(artifact).touch()
            mark_used(self.layout, artifact, seconds_ago=used_ago)
        if leased_by:
            self.lease(artifact, leased_by)

    def lease(self, artifact: str, replica: str) -> None:
        (self.layout.leases / replica).write_text(f"{artifact}\n")

    def collect(self, wanted_bytes: int, stop: Stop | None = None) -> int:
        return self.collector.collect(wanted_bytes, stop or Stop())

    @property
    def here(self) -> set[str]:
        return self.layout.staged_ids()


@pytest.fixture
def store(tmp_path, monkeypatch) -> Store:
    return Store(tmp_path / "store", monkeypatch)


@pytest.mark.parametrize(
    ("wanted", "removed"), [(-1, ""), (0, ""), (1, "a"), (10, "a"), (11, "ac"), (30, "acb"), (99, "acb")]
)
def test_the_longest_unused_go_until_enough_is_free_and_no_more(store, wanted, removed):
    """R16 bounded: with their reports; their locks stay, for somebody may wait for one."""
    for artifact, used_ago in ((A, 9999), (B, 1000), (C, 5000)):
        store.put(artifact, used_ago=used_ago)
    before = STORE_REMOVED._value.get()
    assert store.collect(wanted) == 10 * len(removed)
    assert store.here == {A, B, C} - {digit * 64 for digit in removed}
    assert {path.stem for path in (store.layout.root / "reports").iterdir()} == store.here
    assert store.layout.lock(A).exists()
    assert list((store.layout.root / "tmp").iterdir()) == []
    assert STORE_REMOVED._value.get() - before == len(removed)
    assert store.index.used_bytes() == 30 - 10 * len(removed)


@pytest.mark.parametrize(
    ("used_ago", "is_removed"),
    [(GRACE, True), (GRACE - 1, False), (0.0, False), (-GRACE, True), (1 - GRACE, False), (None, False)],
    ids=["old", "young", "now", "a clock set back", "a clock set back a little", "never noted"],
)
def test_what_was_used_of_late_stays(store, used_ago, is_removed):
    """R16: a clock that was set back keeps nothing for ever."""
    store.put(A, used_ago=used_ago)
    store.now = float(int(store.now))
    if used_ago is not None:
        mark_used(store.layout, A, seconds_ago=used_ago)
    assert store.collect(1) == (10 if is_removed else 0)
    assert (store.here == set()) is is_removed


def test_what_any_replica_leases_stays_and_goes_once_it_does_not(store):
    """R7 files-pinned."""
    store.put(A, leased_by="r2")
    store.put(B)
    assert store.collect(99) == 10
    assert store.here == {A}
    (store.layout.leases / "r2").unlink()
    assert store.collect(99) == 10


def test_where_a_lease_file_cannot_be_understood_nothing_goes(store, monkeypatch):
    """R7, R9: it may be about any; a fault of ours is told."""
    store.put(A)
    (store.layout.leases / "r2").write_bytes(b"?\n")
    assert store.collect(99) == 0
    assert not store.collector.make_way(A, but=store.layout.leases / "r1")
    assert store.here == {A}
    monkeypatch.setattr(gc, "everybodys_leases", raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        store.collect(1)


def test_what_somebody_is_at_work_on_or_leases_after_the_choice_stays(store, monkeypatch):
    """R7: whoever leases from then on looks for the directory only once the lock is free."""
    store.put(A)
    store.put(B)
    with locked(store.layout.lock(A), Stop()):
        mark_used(store.layout, A, seconds_ago=9999)
        assert store.collect(99) == 10
    whole = gc.locked_at_once

    @contextmanager
    def leased_first(path: Path) -> Iterator[bool]:
        store.lease(A, "r2")
        with whole(path) as is_locked:
            yield is_locked

    monkeypatch.setattr(gc, "locked_at_once", leased_first)
    assert store.collect(99) == 0
    assert store.here == {A}


def test_who_is_stopped_removes_nothing_more(store):
    """R12."""
    store.put(A)
    stop = Stop()
    stop.set()
    with pytest.raises(ArtifactError):
        store.collect(1, stop)
    (store.layout.root / "tmp" / "x.dead").mkdir()
    with pytest.raises(ArtifactError):
        store.collector.tidy(stop)
    assert store.here == {A}
    assert (store.layout.root / "tmp" / "x.dead").exists()


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_somebody_put_in_place_of_a_directory_goes_and_nothing_behind_it(store, tmp_path, kind):
    """R7, X2."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "f").write_text("precious")
    if kind == "link":
        store.layout.adapter(A).symlink_to(tmp_path / "elsewhere")
    else:
        store.layout.adapter(A).write_text("x")
    store.layout.report(A).write_text("{}")
    before = STORE_REMOVED._value.get()
    assert store.collector.make_way(A, but=store.layout.leases / "r1")
    assert (store.here, store.layout.report(A).exists()) == (set(), False)
    assert (tmp_path / "elsewhere" / "f").read_text() == "precious"
    assert store.collector.take_out(A) == 0, "somebody else of the host was first"
    assert STORE_REMOVED._value.get() == before


def test_what_is_damaged_makes_way_unless_another_engine_reads_it(store):
    """R7, R4: our own does not, whose lease is new."""
    store.put(A, used_ago=0.0, leased_by="r2")
    own = store.layout.leases / "r2"
    assert not store.collector.make_way(A, but=store.layout.leases / "r1")
    assert store.here == {A}
    assert store.collector.make_way(A, but=own)
    assert store.here == set()


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(store, tmp_path, monkeypatch):
    """R12, R16: whose lock is held lives; what begins with a dot is no leftover; one that resists stops no other."""
    tmp = store.layout.root / "tmp"
    for name in ("k1.dead", "k2.live", ".probe"):
        (tmp / name).mkdir()
        (tmp / name / "f").write_bytes(b"half")
    (tmp_path / "elsewhere").mkdir()
    (tmp / "k4.link").symlink_to(tmp_path / "elsewhere")
    for error, left in ((OSError(16, "busy"), {"k1.dead"}), (ZeroDivisionError(), {"k1.dead"}), (None, set())):
        (tmp / "k3.report").write_bytes(b"half")
        with monkeypatch.context() as patch, locked(store.layout.lock("k2"), Stop()):
            if error:
                patch.setattr(files.shutil, "rmtree", raising(error))
            with pytest.raises(ZeroDivisionError) if isinstance(error, ZeroDivisionError) else nullcontext():
                store.collector.tidy(Stop())
        if not isinstance(error, ZeroDivisionError):
            assert {path.name for path in tmp.iterdir()} == {"k2.live", ".probe", *left}
    assert (tmp_path / "elsewhere").exists()


def test_a_use_that_cannot_be_noted_costs_nothing(store, monkeypatch):
    lock = store.layout.lock(A)
    mark_used(store.layout, A)
    lock.touch()
    for seconds_ago in (30.0, 0.0):
        mark_used(store.layout, A, seconds_ago=seconds_ago)
        times = (lock.stat().st_mtime, lock.stat().st_atime)
        assert times == pytest.approx((store.now - seconds_ago,) * 2, abs=0.001)
    monkeypatch.setattr(gc.os, "utime", raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        mark_used(store.layout, A)


class Scrubbed(Store):
    """The same with a scrub whose clocks stand still; what is found is as told, what is read is noted."""

    def __init__(self, root: Path, monkeypatch) -> None:
        super().__init__(root, monkeypatch)
        self.damage = DamagedArtifacts(self.layout)
        self.outcomes: dict[str, ProofOutcome | Exception] = {}
        self.read: list[tuple[str, str | None, float]] = []
        self.told: list[set[str]] = []
        self.order: list[str] = []
        self.monotonic = 0.0
        monkeypatch.setattr(maintenance.time, "monotonic", lambda: self.monotonic)
        self.proofs = self
        self.scrub = Scrub(self.layout, self.collector, self, None, None)  # type: ignore[arg-type]
        monkeypatch.setattr(self.scrub, "prove_seen", lambda _: self.order.append("served"))

    def distrust(self, found: Collection[str]) -> None:
        self.told.append(set(found))

    def prove(self, artifact: str, source: str | None, stop: Stop, *, bytes_per_second: float) -> ProofOutcome:
        stop.check()
        self.read.append((artifact, source, bytes_per_second))
        outcome = self.outcomes.get(artifact, ProofOutcome.PROVEN)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def put_read(self, artifact: str, seconds_ago: float, **how: str) -> None:
        """Puts one there that was read so long ago."""
        self.put(artifact, **how)
        os.utime(self.layout.report(artifact), (self.now - seconds_ago, self.now - seconds_ago))

    def step(self, stop: Stop | None = None) -> list[str]:
        """What one step reads."""
        before = len(self.read)
        self.scrub.step(stop or Stop())
        return [one for one, *_ in self.read[before:]]

    def maintenance(self, leases: ArtifactLeases, quota: Quota | None, before: Callable[[], None]) -> Maintenance:
        parts = (self.layout, leases, self.index, quota, self.collector, self.scrub, None, None)
        return Maintenance(*parts, before=before)  # type: ignore[arg-type]


@pytest.fixture
def scrubbed(tmp_path, monkeypatch) -> Scrubbed:
    return Scrubbed(tmp_path / "store", monkeypatch)


@pytest.mark.parametrize(("ago", "is_read"), [(DAY, True), (DAY - 1, False), (-DAY, True), (1 - DAY, False)])
def test_each_artifact_is_read_once_a_day(scrubbed, ago, is_read):
    """R4 digest-true: ten MiB a second, by the report; a clock that was set back keeps nothing from it."""
    scrubbed.now = float(int(scrubbed.now))
    scrubbed.put_read(A, ago)
    assert scrubbed.step() == ([A] if is_read else [])
    assert scrubbed.read == ([(A, None, 10 << 20)] if is_read else [])
    assert scrubbed.order == ["served"]


def test_the_one_that_was_read_longest_ago_is_read_first_and_all_are_looked_through_a_minute_later(scrubbed):
    """R4, R16: a listing of thousands takes a while. What has no report is not read, for nothing is known of it."""
    for artifact, days in ((A, 2), (B, 3), (C, 1.5)):
        scrubbed.put_read(artifact, days * DAY)
    scrubbed.layout.report(C).unlink()
    stopped = Stop()
    stopped.set()
    with pytest.raises(ArtifactError):
        scrubbed.step(stopped)
    assert [scrubbed.step() for _ in range(3)] == [[B], [A], []], "what was not read to its end is first"
    os.utime(scrubbed.layout.report(A), (1, 1))
    for at, read in ((59.9, []), (60.0, [A])):
        scrubbed.monotonic = at
        assert scrubbed.step() == read


@pytest.mark.parametrize(
    ("outcome", "again"),
    [
        (ProofOutcome.UNKNOWN, []),
        (ProofOutcome.SOURCE, []),
        (ProofOutcome.PROVEN, []),
        (ProofOutcome.CHANGED, [A]),
    ],
)
def test_what_is_not_damaged_is_read_again_the_next_day_and_what_changed_meanwhile_at_once(scrubbed, outcome, again):
    """R4: it may have been removed and fetched."""
    scrubbed.put_read(A, 2 * DAY)
    scrubbed.outcomes[A] = outcome
    assert [scrubbed.step(), scrubbed.step()] == [[A], again]
    assert (scrubbed.here, scrubbed.told) == ({A}, [])


def test_what_cannot_be_read_waits_a_day_and_is_told(scrubbed):
    """R8: a fault of ours is read again at once."""
    scrubbed.put_read(A, 2 * DAY)
    for error in (ZeroDivisionError(), ZeroDivisionError(), OSError(5, "bad sector")):
        scrubbed.outcomes[A] = error
        with pytest.raises(type(error)):
            scrubbed.step()
    assert scrubbed.step() == []


def test_that_a_look_cannot_be_noted_is_no_failure_and_a_fault_of_ours_is(scrubbed, monkeypatch):
    """R8, R12: a store that nobody can write to is still read; the report of what went meanwhile is gone with it."""
    scrubbed.put_read(A, 2 * DAY)
    with monkeypatch.context() as patch:
        for error in (PermissionError(13, "Permission denied"), ZeroDivisionError()):
            patch.setattr(maintenance.os, "utime", raising(error))
            with nullcontext() if isinstance(error, OSError) else pytest.raises(ZeroDivisionError):
                assert scrubbed.step() == [A]
    scrubbed.prove = lambda artifact, *_, **__: scrubbed.collector.take_out(artifact) and ProofOutcome.UNKNOWN
    scrubbed.scrub.step(Stop())
    assert scrubbed.here == set()


@pytest.mark.parametrize("is_leased", [True, False])
def test_what_is_damaged_goes_or_is_marked_and_is_told_either_way(scrubbed, is_leased):
    """R4, R7: it goes once no engine reads it."""
    scrubbed.put_read(A, 2 * DAY, leased_by="r2" if is_leased else "")
    scrubbed.outcomes[A] = ProofOutcome.DAMAGED
    left = {A} if is_leased else set()
    assert scrubbed.step() == [A]
    assert (scrubbed.told, scrubbed.here, scrubbed.damage.ids) == ([{A}], left, left)
    assert scrubbed.scrub.hear() == len(left)
    assert scrubbed.step() == [], "it is not read again"
    (scrubbed.layout.leases / "r2").unlink(missing_ok=True)
    with locked(scrubbed.layout.lock(A), Stop()):
        scrubbed.step()
        assert scrubbed.here == left
    scrubbed.step()
    assert (scrubbed.here, scrubbed.scrub.hear()) == (set(), 0)


def test_what_another_sidecar_marked_is_heard_once(scrubbed):
    """R4, R21."""
    scrubbed.put(A)
    scrubbed.put(B)
    (scrubbed.layout.damaged / A).touch()
    assert [scrubbed.scrub.hear(), scrubbed.scrub.hear()] == [1, 1]
    assert scrubbed.told == [{A}]


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_round_writes_leases_sweeps_makes_room_and_says_what_is_there(scrubbed, is_readable):
    """R16, R9: in this order; where a lease cannot be read, all that is there counts as in use."""
    layout, order = scrubbed.layout, list[str]()
    for artifact, used_ago in ((A, 9999.0), (B, 20_000.0), (C, 9999.0)):
        scrubbed.put(artifact, used_ago=used_ago)
    file = layout.leases / "r1"
    leases = ArtifactLeases(file, layout.staged_ids)
    for artifact in (A, B):
        leases.add(artifact)
    assert leases.let_go({B}) == {B}
    (layout.root / "tmp" / "x.dead").mkdir()
    (layout.damaged / A).touch()
    quota = Quota(layout.root, scrubbed.index, 20, lambda _: None)
    excess_bytes = quota.excess_bytes

    def noting() -> int:
        assert not list((layout.root / "tmp").iterdir()), "what the dead left has gone before room is made"
        assert file.read_text() == f"{A}\n", "and what was let go of may go"
        order.append("room")
        return excess_bytes()

    quota.excess_bytes = noting  # type: ignore[method-assign]
    if not is_readable:
        (layout.leases / "r2").write_bytes(b"?\n")
    one = scrubbed.maintenance(leases, quota, lambda: order.append(file.read_text().replace("\n", "")))
    found = one.round(Stop())
    assert order == [A + B, "room"], "first what the operator changed"
    assert file.read_text() == f"{A}\n"
    assert not list((layout.root / "tmp").iterdir())
    assert scrubbed.here == ({A, C} if is_readable else {A, B, C})
    count, in_use = (2, 10) if is_readable else (3, 30)
    assert found.room is not None
    assert found == Holdings(10 * count, count, 1, 1, found.room)
    assert (found.room.in_use_bytes, found.room.bound) == (in_use, "budget")
    assert scrubbed.told == [{A}]


def test_leases_are_written_under_their_own_lock(scrubbed):
    """R12: what lies beside them belongs to whoever holds it."""
    leases = ArtifactLeases(scrubbed.layout.leases / "r1", scrubbed.layout.staged_ids)
    one, stop = scrubbed.maintenance(leases, None, lambda: None), Stop()
    stop.set()
    with locked(scrubbed.layout.lock(leases.key), Stop()), pytest.raises(ArtifactError):
        one.write_leases(stop)
    one.write_leases(stop)
