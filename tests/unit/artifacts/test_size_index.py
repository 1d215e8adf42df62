"""What the sidecars of a host know of their store without listing it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.artifacts import disk
from sidecar.artifacts.disk import SizeIndex
from sidecar.artifacts.layout import StoreLayout, open_layout

SIDECARS, ARTIFACTS = 2, 3


class Host:
    """A store, and what each of its sidecars knows of it."""

    def __init__(self, folder: Path, sidecars: int = SIDECARS) -> None:
        self.layout = open_layout(folder, "r1")
        self.sidecars = [SizeIndex(self.layout) for _ in range(sidecars)]

    def put(self, artifact: str, size_bytes: int, *, by: SizeIndex) -> None:
        with by.adding(artifact, size_bytes):
            self.make(artifact, size_bytes)

    def take(self, artifact: str, *, by: SizeIndex) -> None:
        with by.removing(artifact):
            self.unmake(artifact)

    def make(self, artifact: str, size_bytes: int) -> None:
        """Puts it there and says so to nobody."""
        aside = self.layout.temporary(artifact, "new")
        aside.mkdir()
        (aside / "f").write_bytes(b"x" * size_bytes)
        aside.rename(self.layout.adapter(artifact))

    def unmake(self, artifact: str) -> None:
        self.layout.adapter(artifact).rename(self.layout.temporary(artifact, "old"))
        shutil.rmtree(self.layout.temporary(artifact, "old"))

    def used_bytes(self) -> int:
        return sum(file.stat().st_size for file in (self.layout.root / "adapters").glob("*/*"))


def name(number: int) -> str:
    return sha256(b"%d" % number).hexdigest()


@pytest.fixture
def host(tmp_path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def listings(monkeypatch) -> list[StoreLayout]:
    """One for each time that somebody listed the store."""
    listed, staged_ids = list[StoreLayout](), StoreLayout.staged_ids

    def counted(layout: StoreLayout) -> set[str]:
        listed.append(layout)
        return staged_ids(layout)

    monkeypatch.setattr(StoreLayout, "staged_ids", counted)
    return listed


def test_one_who_is_alone_lists_once(host, listings):
    """R16: with thousands of artifacts a listing takes longer than staging a small one."""
    (alone, _) = host.sidecars
    assert alone.used_bytes() == 0
    for number in range(5):
        host.put(name(number), 10, by=alone)
        assert alone.used_bytes() == 10 * (number + 1)
    host.take(name(3), by=alone)
    assert alone.used_bytes() == host.used_bytes() == 40
    assert len(listings) == 1


def test_what_a_killed_sidecar_put_there_is_known(host):
    """R12, R16: it had said that it would."""
    first, second = host.sidecars
    killed = first.adding(name(1), 10)
    assert second.used_bytes() == 0
    killed.__enter__()
    host.make(name(1), 10)
    assert second.used_bytes() == 10


def test_what_failed_counts_until_the_next_listing(host):
    """Rather too much than too little: the name may be there all the same."""
    (alone, _) = host.sidecars
    assert alone.used_bytes() == 0
    with pytest.raises(OSError, match="lost"), alone.adding(name(1), 10):
        raise OSError("the disk is lost")
    assert alone.used_bytes() == 10
    assert alone.sizes() == {}
    assert alone.used_bytes() == 0
    host.put(name(1), 10, by=alone)
    with pytest.raises(OSError, match="lost"), alone.removing(name(1)):
        raise OSError("the disk is lost")
    assert alone.used_bytes() == 10


def test_a_removal_needs_nobody_to_be_told(host):
    """R16: on a disk that is full, or whose folder of locks is gone, something can still go."""
    (alone, other) = host.sidecars
    host.put(name(1), 10, by=alone)
    assert (alone.used_bytes(), other.used_bytes()) == (10, 10)
    (host.layout.lock("changes")).unlink()
    (host.layout.root / "locks").rmdir()
    host.take(name(1), by=alone)
    assert (alone.used_bytes(), other.used_bytes()) == (0, 0)
    with pytest.raises(FileNotFoundError), alone.adding(name(1), 10):
        raise AssertionError("nobody could be told")


steps = st.lists(
    st.tuples(st.integers(0, SIDECARS - 1), st.integers(0, ARTIFACTS - 1), st.sampled_from(["change", "look", "list"])),
    max_size=20,
)


@given(steps)
def test_every_sidecar_knows_the_sum_at_every_moment(tmp_path_factory, steps):
    """R16: whoever changes what, in whatever order."""
    host = Host(tmp_path_factory.mktemp("store"))
    for number, artifact, what in steps:
        sidecar = host.sidecars[number]
        if what == "list":
            assert sum(sidecar.sizes().values()) == host.used_bytes()
        elif what == "look":
            assert sidecar.used_bytes() == host.used_bytes()
        elif host.layout.adapter(name(artifact)).exists():
            host.take(name(artifact), by=sidecar)
        else:
            host.put(name(artifact), 1 << artifact, by=sidecar)
    assert [sidecar.used_bytes() for sidecar in host.sidecars] == [host.used_bytes()] * SIDECARS


def test_the_file_of_changes_does_not_grow_without_bound(host, monkeypatch):
    """R16."""
    monkeypatch.setattr(disk, "MAX_CHANGES_BYTES", 100)
    first, second = host.sidecars
    for number in range(100):
        host.put(name(number), 10, by=first)
        assert second.used_bytes() == 10 * (number + 1)
    assert host.layout.lock("changes").stat().st_size <= 102


def test_threads_of_two_sidecars_come_to_the_same_sum(host):
    """R16: listings in between neither lose nor double anything."""

    def work(sidecar: SizeIndex, numbers: range) -> None:
        for number in numbers:
            host.put(name(number), number, by=sidecar)
            sidecar.used_bytes()
            if number % 3 == 0:
                host.take(name(number), by=sidecar)
            if number % 7 == 0:
                sidecar.sizes()

    with ThreadPoolExecutor(6) as threads:
        done: list[Callable[[], None]] = [
            threads.submit(work, host.sidecars[part % SIDECARS], range(1 + 100 * part, 51 + 100 * part)).result
            for part in range(6)
        ]
        for result in done:
            result()
    assert host.used_bytes() > 0
    assert [sidecar.used_bytes() for sidecar in host.sidecars] == [host.used_bytes()] * SIDECARS
