"""Files of an artifact as they arrive in their directory: what stands there, and what it takes of the store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts import files, ingest
from sidecar.artifacts.disk import Quota
from sidecar.artifacts.ingest import Incoming, Ingest
from tests.unit.artifacts.conftest import CONFIG, WEIGHTS, entry, raising


@pytest.fixture
def taking(open_store, monkeypatch) -> Ingest:
    """Of a store with a budget of 1,000 bytes, with nothing in it that could go; weights have 5,000 at most."""
    monkeypatch.setattr(ingest, "MAX_WEIGHTS_BYTES", 5000)
    return open_store(budget_bytes=1000)._obtainer.ingest


@pytest.fixture
def quota(taking) -> Quota:
    return taking.quota


@pytest.fixture
def arriving(taking) -> Iterator[Incoming]:
    with taking.incoming("key", Stop()) as one:
        yield one


def refusal(arriving: Incoming, name: str, size_bytes: int, content: Iterator[bytes]) -> tuple[str, bool]:
    with pytest.raises(ArtifactError) as refused:
        arriving.take(name, size_bytes, content)
    return refused.value.reason, refused.value.permanent


def test_a_file_that_comes_again_takes_the_place_and_the_room_of_what_came_of_it(arriving, quota):
    """R4, R16: a source begins a file anew where its connection broke, and may have no room then."""
    arriving.take(CONFIG, 3, iter([b"{", b"}\n"]))
    arriving.take(WEIGHTS, 600, iter([b"first"]))
    assert refusal(arriving, WEIGHTS, 1001, iter([b"x"])) == ("store_full", False)
    assert quota._reserved_bytes == 3
    assert [path.name for path in arriving.directory.iterdir()] == [CONFIG]
    arriving.take(WEIGHTS, 700, iter([b"second"]))
    assert quota._reserved_bytes == 703
    assert (arriving.directory / WEIGHTS).read_bytes() == b"second"
    assert arriving.entries == [entry(CONFIG, b"{}\n"), entry(WEIGHTS, b"second")]


def test_what_broke_off_is_no_file_and_its_next_try_is(arriving):
    """R4: half of it is never counted among those that are there."""

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise ConnectionError("the source is gone")

    with pytest.raises(ConnectionError):
        arriving.take(WEIGHTS, 8, broken())
    assert arriving.entries == []
    assert not [one for one in Path("/proc/self/fd").iterdir() if str(arriving.directory) in os.path.realpath(one)]
    arriving.take(WEIGHTS, 8, iter([b"all of it"]))
    assert arriving.entries == [entry(WEIGHTS, b"all of it")]


@pytest.mark.parametrize(
    ("name", "size_bytes", "reason"),
    [
        (CONFIG, 0, ("source_incomplete", False)),
        (WEIGHTS, 5001, ("too_large", True)),
        (CONFIG, ingest.MAX_CONFIG_BYTES + 1, ("too_large", True)),
        (WEIGHTS, 5000, ("store_full", False)),
    ],
)
def test_what_cannot_be_taken_is_not_begun(arriving, quota, name, size_bytes, reason):
    """R16: its size is judged before a byte of it comes."""
    assert refusal(arriving, name, size_bytes, iter([b"x"])) == reason
    assert not list(arriving.directory.iterdir())
    assert quota._reserved_bytes == 0


def test_a_staging_that_was_stopped_takes_nothing_more(taking, quota):
    """R8: it ends between two pieces, and its directory is gone with it, and its room."""
    stop = Stop()

    def chunks() -> Iterator[bytes]:
        yield b"x"
        stop.set()
        yield b"y"
        raise AssertionError("it was asked for more")

    with taking.incoming("key", stop) as arriving:
        assert refusal(arriving, WEIGHTS, 10, chunks()) == ("staging_stopped", False)
        assert quota._reserved_bytes == 10
    assert not arriving.directory.exists()
    assert quota._reserved_bytes == 0


def test_what_got_its_name_stays_and_what_an_earlier_holder_of_the_lock_left_goes(taking, quota):
    """R12: and what belongs to another lock is another's."""
    layout = taking.layout
    for name in ("key.dead", "keys.live"):
        layout.temporary(*name.split(".")).mkdir()
    layout.temporary("key", "report").write_bytes(b"half")
    final = layout.adapter("0" * 64)
    with taking.incoming("key", Stop()) as arriving:
        assert sorted(path.name for path in (layout.root / "tmp").iterdir()) == sorted(
            [arriving.directory.name, "keys.live"]
        )
        arriving.take(CONFIG, 2, iter([b"{}"]))
        arriving.directory.rename(final)
    assert [path.name for path in final.iterdir()] == [CONFIG]
    assert [path.name for path in (layout.root / "tmp").iterdir()] == ["keys.live"]
    assert quota._reserved_bytes == 0


def test_the_disk_is_looked_at_again_for_each_32_mib_that_arrive(arriving, monkeypatch):
    """R16, fault 25: for what is still to come, and no more; others may fill it while a large file comes."""
    asked: list[tuple[int, str]] = []
    monkeypatch.setattr(arriving._reservation, "check_disk", lambda left, name: asked.append((left, name)))
    with monkeypatch.context() as patch:
        patch.setattr(ingest, "CHECK_BYTES", 10)
        arriving.take(WEIGHTS, 27, iter([b"x" * 6] * 5))
    assert asked == [(15, WEIGHTS), (3, WEIGHTS), (0, WEIGHTS)]
    asked.clear()

    def drained(_: int) -> SimpleNamespace:
        """Takes all that comes, and keeps nothing of it."""
        made = SimpleNamespace(size_bytes=0)
        made.take = lambda chunks: setattr(made, "size_bytes", sum(map(len, chunks))) or "0" * 64
        return made

    mib, size_bytes = b"x" * (1 << 20), 96 << 20
    monkeypatch.setattr(ingest, "Writing", drained)
    monkeypatch.setattr(arriving._reservation, "admit", lambda *_: None)
    monkeypatch.setitem(arriving._caps, WEIGHTS, size_bytes)
    arriving.take(WEIGHTS, size_bytes, iter([mib] * 96))
    assert [left >> 20 for left, _ in asked] == [64, 32, 0]


@pytest.mark.parametrize("error", [OSError(16, "Device or resource busy"), ZeroDivisionError()], ids=["busy", "ours"])
def test_a_directory_that_resists_is_left_to_the_next_holder_of_the_lock(taking, monkeypatch, error):
    """R8, R12: what was refused is told as it is; only a fault of ours is told instead."""
    told = ConnectionError if isinstance(error, OSError) else ZeroDivisionError
    with monkeypatch.context() as patch:
        patch.setattr(files.shutil, "rmtree", raising(error))
        with pytest.raises(told), taking.incoming("key", Stop()) as arriving:
            raise ConnectionError("the source is gone")
    assert arriving.directory.is_dir()
    with taking.incoming("key", Stop()) as following:
        assert not arriving.directory.exists()
        assert following.directory.is_dir()
    assert not list((taking.layout.root / "tmp").iterdir())
