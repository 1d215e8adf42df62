"""Locks, writes and syncs of the store's own files, its folders, and which paths are its own."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from threading import Lock, Semaphore, get_ident

import pytest

from registry.sources.base import ArtifactError, Stop, StoreError
from sidecar.artifacts import files, layout
from sidecar.artifacts.files import (
    SharedSync,
    append_line,
    locked,
    locked_at_once,
    store_failure,
    sync_directory,
    write_atomic,
)
from sidecar.artifacts.layout import StoreLayout, open_layout, open_like
from tests.support.waiting import eventually
from tests.unit.artifacts.conftest import raising


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def opened() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.mark.usefixtures("no_umask")
def test_a_lock_is_held_by_one_and_free_when_he_is_done(tmp_path):
    """R7: among threads as among processes; its file stays."""
    path, before = tmp_path / "lock", opened()
    with locked(path, Stop()):
        with locked_at_once(path) as is_locked:
            assert not is_locked
        with path.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    for _ in range(2):
        with locked_at_once(path) as is_locked:
            assert is_locked
            with locked_at_once(path) as again:
                assert not again
    assert (mode_of(path), opened()) == (0o644, before)


def test_who_waits_for_a_lock_looks_often_and_stops_when_it_is_told_to(tmp_path, monkeypatch):
    """R12, R19, R9: every five milliseconds; what broke in the body is told; so is what the kernel refuses."""
    waits: list[float] = []
    path, stop, stopped = tmp_path / "lock", Stop(), Stop()
    stopped.set()
    held = os.open(path, os.O_RDONLY | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)

    def check(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            os.close(held)

    monkeypatch.setattr(stop, "check", check)
    with pytest.raises(ZeroDivisionError), locked(path, stop):
        raise ZeroDivisionError
    assert waits == [0.005] * 3
    with locked(path, stop), pytest.raises(ArtifactError) as told, locked(path, stopped):
        raise AssertionError("somebody else has it")
    assert told.value.reason == "staging_stopped"
    monkeypatch.setattr(files.fcntl, "flock", raising(OSError(errno.ENOLCK, "No locks available")))
    with pytest.raises(OSError, match="No locks"), locked_at_once(path):
        raise AssertionError("it has no lock")


@pytest.mark.usefixtures("no_umask")
def test_a_file_is_replaced_as_a_whole(tmp_path):
    """R12: by a rename of what was written beside it."""
    path, aside, before = tmp_path / "f", tmp_path / "tmp", opened()
    for content in (b"longer", b"one", b""):
        aside.write_bytes(b"left by somebody who was killed")
        write_atomic(path, content, temporary=aside)
        assert (path.read_bytes(), mode_of(path) & 0o022, aside.exists()) == (content, mode_of(path) & 0o022, False)
    aside.unlink(missing_ok=True)
    path.unlink()
    write_atomic(path, b"new", temporary=aside)
    assert (mode_of(path), opened()) == (0o644, before)


@pytest.mark.parametrize("where", ["path", "temporary"])
def test_what_is_in_the_way_of_a_file_is_set_aside(tmp_path, where):
    """R12: no local file prevents a start."""
    path, aside = tmp_path / "f", tmp_path / "tmp"
    (path if where == "path" else aside).mkdir()
    write_atomic(path, b"new", temporary=aside)
    assert path.read_bytes() == b"new"
    assert (tmp_path / f".damaged-{'f' if where == 'path' else 'tmp'}").is_dir()


@pytest.mark.usefixtures("no_umask")
def test_lines_of_several_do_not_swallow_each_other(tmp_path):
    """R7: also behind one that a full disk cut off."""
    path, before = tmp_path / "f", opened()
    append_line(path, "one")
    assert (mode_of(path), opened()) == (0o644, before)
    with path.open("ab") as file:
        file.write(b"cut o")
    append_line(path, "two")
    assert path.read_text().split("\n") == ["", "one", "cut o", "two", ""]


@pytest.mark.parametrize("write", [append_line, write_atomic], ids=["append", "replace"])
def test_a_disk_that_takes_only_a_part_is_full(tmp_path, monkeypatch, write: Callable[..., None]):
    """R7, fault 25: and nothing is replaced by a half."""
    path, aside, before, whole = tmp_path / "f", tmp_path / "aside", opened(), os.write
    path.write_bytes(b"before")
    monkeypatch.setattr(files.os, "write", lambda descriptor, content: whole(descriptor, content[:1]))
    with pytest.raises(OSError, match=str(path if write is append_line else aside)) as failed:
        write(path, "two") if write is append_line else write(path, b"two", temporary=aside)
    assert failed.value.errno == errno.ENOSPC
    assert path.read_bytes().startswith(b"before")
    assert opened() == before


def test_a_directory_is_synced_and_closed(tmp_path, monkeypatch):
    synced: list[str] = []
    before = opened()
    monkeypatch.setattr(files.os, "fsync", lambda one: synced.append(str(Path(f"/proc/self/fd/{one}").readlink())))
    sync_directory(tmp_path)
    assert (synced, opened()) == ([str(tmp_path)], before)
    (tmp_path / "f").touch()
    with pytest.raises(NotADirectoryError):
        sync_directory(tmp_path / "f")


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.ENOSPC, "disk_full"), (errno.EDQUOT, "disk_full"), (errno.EIO, "store_io"), (None, "store_io")],
)
def test_a_failed_store_is_told_as_what_it_is(number, reason):
    """R8: it is tried again, whatever it was."""
    told = store_failure(OSError(number, "why") if number else OSError("why"), Path("/store"))
    assert (told.reason, told.permanent) == (reason, False)
    assert "/store" in told.message
    assert "why" in told.message


@pytest.fixture
def mine(tmp_path) -> Path:
    open_layout(tmp_path / "store", "r1")
    return tmp_path / "store"


@pytest.mark.usefixtures("no_umask")
def test_folders_that_are_there_lose_what_is_too_much_and_gain_nothing(mine):
    """R21: but for what the operator opened to the group."""
    for folder, before, after in (
        ("adapters", 0o2777, 0o2750),
        ("adapters", 0o1770, 0o1750),
        ("adapters", 0o700, 0o700),
        ("tmp", 0o2777, 0o2700),
        ("tmp", 0o500, 0o500),
        ("", 0o755, 0o750),
    ):
        (mine / folder).chmod(before)
        if after & 0o200:
            open_layout(mine, "r1")
            assert oct(mode_of(mine / folder)) == oct(after)
        (mine / folder).chmod(0o2750 if folder in {"", "adapters"} else 0o2700)


def test_a_root_of_somebody_else_stays_open_and_that_is_told(mine, monkeypatch, capsys):
    """R13: such as that of a volume; what we may not change for another reason is told as an error."""
    mine.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", raising(PermissionError(1, "Operation not permitted")))
    assert open_layout(mine, "r1").root == mine
    assert "store_open_to_others" in capsys.readouterr().out
    monkeypatch.setattr(Path, "chmod", raising(OSError(30, "Read-only file system", str(mine))))
    with pytest.raises(StoreError, match="Read-only"):
        open_layout(mine, "r1")


def test_a_folder_in_which_no_file_can_be_made_is_an_unusable_store(mine, monkeypatch):
    """R13: at the start, and not when the first adapter comes; one that is as it should be is not touched."""
    tried: list[Path] = []

    def probe(dir: Path, prefix: str) -> object:  # noqa: A002 - as the library has it
        tried.append(dir)
        assert prefix.startswith("."), "what begins so is no leftover and no lease"
        return open(os.devnull, "rb")  # noqa: PTH123 - closed by whoever probes

    monkeypatch.setattr(Path, "chmod", lambda *_: pytest.fail("it is as it should be"))
    monkeypatch.setattr(layout.tempfile, "TemporaryFile", probe)
    open_layout(mine, "r1")
    assert {path.name for path in tried} == {path.name for path in mine.iterdir() if path.is_dir()} | {mine.name}
    monkeypatch.setattr(layout.tempfile, "TemporaryFile", raising(OSError(30, "Read-only file system", "/where")))
    with pytest.raises(StoreError, match="Read-only file system: /where"):
        open_layout(mine, "r1")


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied", "/where"), ZeroDivisionError()])
def test_a_folder_that_cannot_be_made_is_an_unusable_store_and_a_fault_of_ours_is_told(mine, monkeypatch, error):
    """R13: that it is there already is the only refusal that is none."""
    mkdir, fail = Path.mkdir, raising(error)
    monkeypatch.setattr(
        Path, "mkdir", lambda path, *how, **more: fail() if path == mine / "pins" else mkdir(path, *how, **more)
    )
    with pytest.raises(StoreError if isinstance(error, OSError) else ZeroDivisionError):
        open_layout(mine, "r1")


@pytest.mark.usefixtures("no_umask")
def test_a_new_folder_is_read_by_whoever_reads_its_example(tmp_path, monkeypatch):
    """R7: the engine may be another user of the group; more than reading it gets nobody."""
    folder, example, given = tmp_path / "new", tmp_path / "example", list[tuple[object, ...]]()
    folder.mkdir(mode=0o700)
    example.mkdir()
    monkeypatch.setattr(layout.os, "chown", lambda *how: given.append(how))
    for mode, expected in ((0o2750, 0o2750), (0o1777, 0o755), (0o700, 0o700)):
        example.chmod(mode)
        open_like(folder, example)
        assert oct(mode_of(folder)) == oct(expected)
    assert given == []
    real = Path.stat

    def foreign(path: Path, **how: bool) -> object:
        found = real(path, **how)
        return os.stat_result([*found[:5], found.st_gid + 1, *found[6:]]) if path == example else found

    monkeypatch.setattr(Path, "stat", foreign)
    open_like(folder, example)
    assert given == [(folder, -1, real(example).st_gid + 1)]
    for error in (PermissionError(1, "Operation not permitted"), ZeroDivisionError()):
        monkeypatch.setattr(layout.os, "chown", raising(error))
        with nullcontext() if isinstance(error, OSError) else pytest.raises(ZeroDivisionError):
            open_like(folder, example)


def test_leases_are_told_apart_by_replica_and_engine(mine):
    """R7."""
    one = open_layout(mine, "r1")
    found = {one.lease("r1", ""), one.lease("r2", ""), one.lease("r1", "http://a"), one.lease("r1", "http://b")}
    assert len(found) == 4
    assert one.lease("r1", "") == mine / "leases" / "r1"
    name = one.lease("r1", "http://a").name
    assert name.startswith("r1@")
    assert len(name) == 3 + 16
    one.adapter("a" * 64).mkdir()
    (one.adapters / "other").mkdir()
    assert one.staged_ids() == {"a" * 64}


ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/store/adapters/",
        f"/store/adapters/sha256-{ID}/",
        f"/store/adapters/sha256-{ID}/x",
        f"/store/adapters/sha256-{ID[:-1]}",
        f"/store/adapters/sha256-{ID}0",
        f"/store/adapters/sha256-{ID.upper()}",
        f"/store/adapters/{ID}",
        f"/store//adapters/sha256-{ID}",
        f"/store/adapters/../adapters/sha256-{ID}",
        f"/store/tmp/sha256-{ID}",
        f"/other/store/adapters/sha256-{ID}",
        f"store/adapters/sha256-{ID}",
        f"sha256-{ID}",
        f"/store/adapters/sha256-{ID}\n",
    ],
)
def test_only_an_exact_path_is_owned(path):
    """R11 foreign-safe: what merely looks like ours is somebody else's."""
    layout = StoreLayout(Path("/store"))
    assert layout.owns(path) is None
    assert layout.owns(f"/store/adapters/sha256-{ID}") == layout.owns(str(layout.adapter(ID))) == ID


def test_opening_makes_the_folders_of_an_absolute_and_plain_root_and_may_be_repeated(tmp_path, monkeypatch):
    """The engine is given absolute paths, for it takes relative ones for names of a hub."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert open_layout(Path("a/../store"), "r1").root == tmp_path / "store"
    names = {path.name for path in (tmp_path / "store").iterdir()}
    assert names == {"adapters", "tmp", "locks", "leases", "reports", "pins", "bundles", "damaged", "state"}
    assert not list((tmp_path / "store").glob("*/*"))
    assert open_layout(tmp_path / "var" / "lib" / "store", "r1").adapters.is_dir(), "as the folders above it"


def test_a_store_that_cannot_be_used_is_named_with_the_remedy(tmp_path):
    """What is in the way of its own folders is set aside; what the operator named is not."""
    (tmp_path / "store").write_text("in the way")
    (tmp_path / "store").chmod(0o646)
    with pytest.raises(StoreError, match="--store") as refused:
        open_layout(tmp_path / "store", "r1")
    assert str(tmp_path / "store") in str(refused.value)
    assert (tmp_path / "store").read_text() == "in the way"
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o646


@pytest.mark.parametrize("replica", ["", "../r1", "a/b", ".", "r1\n"])
def test_a_replica_that_cannot_name_a_file_is_refused_and_a_fault_of_ours_is_told(tmp_path, monkeypatch, replica):
    """R9: whoever starts it would look for it in his own settings."""
    with pytest.raises(StoreError, match="replica"):
        open_layout(tmp_path, replica)
    monkeypatch.setattr(layout, "check_segment", raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        open_layout(tmp_path, "r1")


class Queue:
    """A lock that knows how many came to it. Each has noted before what he waits for."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self._lock = Lock()

    def __enter__(self) -> None:
        self.came.append(get_ident())
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Disk:
    """Notes who begins to sync, and lets him end when it is told to."""

    def __init__(self) -> None:
        self.begun: list[Path] = []
        self.may_end = Semaphore(0)
        self.fails = False

    def sync(self, directory: Path) -> None:
        self.begun.append(directory)
        self.may_end.acquire()
        if self.fails:
            raise OSError("the disk is lost")


@pytest.fixture
def disk(monkeypatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(files, "sync_directory", disk.sync)
    yield disk
    disk.may_end.release(100)


async def test_who_asks_while_a_sync_runs_waits_for_the_next_which_serves_all(tmp_path, disk):
    """Fault 17: one that has begun may have missed the names that came since."""
    shared = SharedSync(tmp_path)
    shared._running = queue = Queue()
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(shared.sync)
        await eventually(lambda: len(disk.begun) == 1)
        others = [threads.submit(shared.sync) for _ in range(3)]
        await eventually(lambda: len(queue.came) == 4)
        disk.may_end.release()
        await eventually(first.done)
        await eventually(lambda: len(disk.begun) == 2)
        assert not any(one.done() for one in others)
        disk.may_end.release(10)  # and nobody needs one of them
        for one in others:
            one.result()
    assert len(disk.begun) == 2


async def test_a_sync_that_fails_serves_nobody_and_whoever_waited_for_it_syncs_himself(tmp_path, disk):
    """Fault 17: that another one began for all who wait is not enough."""
    shared = SharedSync(tmp_path)
    shared._running = queue = Queue()
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(shared.sync)
        await eventually(lambda: len(disk.begun) == 1)
        others = [threads.submit(shared.sync) for _ in range(2)]
        await eventually(lambda: len(queue.came) == 3)
        disk.may_end.release()
        await eventually(lambda: len(disk.begun) == 2)
        disk.fails = True
        disk.may_end.release(2)
        first.result()
        for one in others:
            with pytest.raises(OSError, match="lost"):
                one.result()
    disk.fails = False
    disk.may_end.release()
    shared.sync()
    assert disk.begun == [tmp_path] * 4
