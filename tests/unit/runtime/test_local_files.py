"""Files of a process' own, where anything may stand in their place, and those that an operator replaces."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import nullcontext
from pathlib import Path
from threading import Event, Thread
from unittest.mock import Mock, call

import pytest

from registry.model.source_uri import parse_source
from registry.runtime import local_files
from registry.runtime.local_files import (
    FollowedFile,
    NotAFile,
    make_folder,
    make_way,
    read_file,
    read_followed,
    set_aside,
    sync_directory,
)
from registry.runtime.own_paths import write_whole
from registry.sources.base import ArtifactError, StoreError
from registry.sources.credentials import Credentials
from registry.sources.credentials_file import read_credentials


def nothing(_: Path) -> None:
    """There is none."""


def folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("kept")


def link(path: Path) -> None:
    target = path.with_name("target")
    target.write_text("of somebody else")
    path.symlink_to(target)


def linked_folder(path: Path) -> None:
    folder(path.with_name("theirs"))
    path.symlink_to(path.with_name("theirs"))


def dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def listening(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a path of a socket has about a hundred characters at most
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


IN_THE_WAY = [folder, link, dangling, os.mkfifo, listening]


def is_open_count() -> int:
    return len([*Path("/dev/fd").iterdir()])


@pytest.mark.parametrize(
    ("stands", "code"),
    [
        (folder, errno.EINVAL),
        (link, errno.ELOOP),
        (dangling, errno.ELOOP),
        (os.mkfifo, errno.EINVAL),
        (listening, errno.ENXIO),
    ],
)
def test_what_is_no_file_is_neither_waited_for_nor_followed(tmp_path, stands, code):
    """R12 crash-only: a pipe without a writer would hold a start for ever. Nothing is left open."""
    stands(tmp_path / "file")
    before = is_open_count()
    with pytest.raises(NotAFile) as told:
        read_file(tmp_path / "file")
    assert (told.value.errno, told.value.filename) == (code, str(tmp_path / "file"))
    assert is_open_count() == before


def test_a_file_is_read_whole_up_to_a_bound(tmp_path, monkeypatch):
    """R16 bounded: and is closed again. What is larger than 64 MiB was written by somebody else, and is not read."""
    file, look = tmp_path / "file", os.fstat
    with pytest.raises(FileNotFoundError):
        read_file(file)
    before = is_open_count()
    for size in (0, 5):
        file.write_bytes(b"x" * size)
        assert read_file(file, max_bytes=5) == b"x" * size
    file.write_bytes(b"x" * 6)
    with pytest.raises(NotAFile, match="more than 5 bytes") as told:
        read_file(file, max_bytes=5)
    assert (told.value.errno, is_open_count()) == (errno.EFBIG, before)
    os.truncate(file, (64 << 20) + 1)
    with pytest.raises(NotAFile):
        read_file(file)
    file.write_bytes(b"x" * 5)

    def grows(descriptor: int) -> os.stat_result:
        found = look(descriptor)
        file.write_bytes(b"x" * 50)
        return found

    monkeypatch.setattr(local_files.os, "fstat", grows)
    assert read_file(file, max_bytes=5) == b"x" * 5
    monkeypatch.setattr(os, "open", Mock(side_effect=PermissionError(errno.EACCES, "no")))
    with pytest.raises(PermissionError):
        read_file(file)


@pytest.mark.parametrize("endless", ["/dev/zero", "sparse"])
def test_an_operators_file_is_followed_and_read_up_to_a_bound(tmp_path, endless):
    """X3 given-back: a link to it, as secrets are mounted; what never ends is refused."""
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 8 << 30)
    (tmp_path / "link").symlink_to(endless)
    with pytest.raises(NotAFile, match="more than 5 bytes"):
        read_followed(tmp_path / "link", max_bytes=5)
    (tmp_path / "sparse").write_bytes(b"12345")
    assert read_followed(tmp_path / "sparse", max_bytes=5) == b"12345"


def test_a_folder_whose_names_cannot_be_written_down_is_closed_again(tmp_path, monkeypatch):
    """X3 given-back."""
    before = is_open_count()
    sync_directory(tmp_path)
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EIO, "no")))
    with pytest.raises(OSError, match="no"):
        sync_directory(tmp_path)
    assert is_open_count() == before


@pytest.mark.parametrize("stands", IN_THE_WAY)
@pytest.mark.parametrize("before", [nothing, folder, link, linked_folder, Path.touch])
def test_what_is_in_the_way_of_a_file_is_set_aside_as_it_is(tmp_path, stands, before, capsys):
    """R12 crash-only: somebody may look at it there; what was there before is gone, and nothing that it led to."""
    path, aside = tmp_path / "file", tmp_path / ".damaged-file"
    before(aside)
    make_way(path)
    path.touch()
    make_way(path)
    assert path.is_file(), "one that is none stays, and so does a file"
    path.unlink()
    stands(path)
    mode = path.lstat().st_mode
    make_way(path)
    assert (os.path.lexists(path), aside.lstat().st_mode) == (False, mode)
    assert stands is not folder or (aside / "inside").read_text() == "kept"
    assert before is not linked_folder or (tmp_path / "theirs" / "inside").read_text() == "kept"
    assert link not in {stands, before} or (tmp_path / "target").read_text() == "of somebody else"
    assert capsys.readouterr().out.count("file_set_aside") == 1


@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFBLK])
def test_a_device_is_left_where_it_is(tmp_path, monkeypatch, kind):
    """R12: all of the host may use it, as it does /dev/null."""
    path = tmp_path / "device"
    path.touch()
    monkeypatch.setattr(Path, "lstat", lambda _: os.stat_result((kind | 0o600, *[0] * 9)))
    with pytest.raises(NotAFile, match="it is a device"):
        set_aside(path)
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("stands", [Path.touch, dangling, os.mkfifo])
@pytest.mark.parametrize("at", ["parent", "parent/own"])
def test_a_folder_is_made_in_whose_way_no_file_stands(tmp_path, monkeypatch, stands, at):
    """R12 crash-only: nor in the way of the folder that it is in. One that is there stays with what is in it."""
    own, blocked = tmp_path / "parent" / "own", tmp_path / at
    blocked.parent.mkdir(exist_ok=True)
    stands(blocked)
    synced = Mock()
    monkeypatch.setattr(local_files, "sync_directory", synced)
    make_folder(own)
    assert synced.mock_calls == [call(own.parent), *([call(tmp_path)] if blocked == own.parent else [])]
    assert (own.is_dir(), os.path.lexists(blocked.with_name(f".damaged-{blocked.name}"))) == (True, True)
    (own / "inside").write_text("kept")
    (tmp_path / "link").symlink_to(own.parent)
    for same in (own, tmp_path / "link" / "own"):
        make_folder(same)
        assert ((same / "inside").read_text(), (tmp_path / "link").is_symlink()) == ("kept", True)
    synced.reset_mock()
    make_folder(tmp_path / "other" / "deep" / "own")
    assert synced.mock_calls == [call(one) for one in (tmp_path / "other" / "deep", tmp_path / "other", tmp_path)]


OF_THE_TEAM = "team: {kind: env, variable: TEAM, prefixes: ['s3://team']}\n"


def replace(file: Path, text: str) -> None:
    """At once, as a tool does that rotates secrets."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


class Followed:
    """A file that is followed, and what was taken of it; reading or taking it may fail."""

    def __init__(self, file: Path) -> None:
        file.write_text("one")
        self.file, self.taken, self.fails = file, list[str](), dict[str, Exception]()
        self.refresh = FollowedFile(file, self._read, self._take).refresh

    def _read(self, path: Path) -> str:
        if error := self.fails.get("read"):
            raise error
        if len(text := path.read_text()) < 3:
            raise StoreError("half of it is missing")
        return text

    def _take(self, text: str) -> None:
        if error := self.fails.get("take"):
            raise error
        self.taken.append(text)


@pytest.fixture
def followed(tmp_path) -> Followed:
    return Followed(tmp_path / "file")


def test_a_file_is_read_again_when_it_was_replaced_and_only_then(followed, capsys):
    followed.refresh()
    replace(followed.file, "two")
    followed.refresh()
    followed.refresh()
    assert followed.taken == ["one", "two"]
    before = followed.file.stat()
    replace(followed.file, "new")
    os.utime(followed.file, ns=(before.st_atime_ns, before.st_mtime_ns))
    followed.refresh()
    followed.file.write_text("three")
    followed.refresh()
    assert followed.taken == ["one", "two", "new", "three"], "also of the same size and time"
    assert capsys.readouterr().out.count("file_taken") == 3


def test_what_cannot_be_read_is_told_once_and_changes_nothing(followed, capsys):
    """R13 static-stable: half a file, and none, are what a rotation looks like from here."""
    for spoil in (lambda: followed.file.write_text("t"), followed.file.unlink):
        spoil()
        for times in (1, 0, 0):
            followed.refresh()
            assert capsys.readouterr().out.count("file_not_taken") == times
    assert followed.taken == ["one"]
    followed.file.write_text("two")
    followed.refresh()
    assert followed.taken == ["one", "two"]
    with pytest.raises(StoreError, match="nowhere"):
        FollowedFile(followed.file.with_name("nowhere"), read_credentials, followed.taken.append)


@pytest.mark.parametrize("at_start", [True, False])
def test_a_file_that_is_replaced_while_it_is_read_is_read_again(tmp_path, at_start):
    """R3: what was read is not what stands there, and nothing about it may change for months."""
    file, taken, coming = tmp_path / "file", list[str](), ["new"] if at_start else []

    def read(path: Path) -> str:
        text = path.read_text()
        if coming:
            replace(path, coming.pop())
        return text

    file.write_text("one")
    followed = FollowedFile(file, read, taken.append)
    if not at_start:
        replace(file, "two")
        coming.append("new")
        followed.refresh()
    followed.refresh()
    assert taken == ["one", *([] if at_start else ["two"]), "new"]


@pytest.mark.parametrize(
    ("at", "error"), [("read", OSError("away")), ("read", ZeroDivisionError()), ("take", ZeroDivisionError())], ids=str
)
def test_what_could_not_be_read_or_taken_once_is_read_again(followed, at, error):
    """R13: though nothing about it has changed, as where its disk was away. R12: a fault of ours is told as it is."""
    replace(followed.file, "two")
    followed.fails[at] = error
    with nullcontext() if isinstance(error, OSError) else pytest.raises(ZeroDivisionError):
        followed.refresh()
    followed.fails.clear()
    followed.refresh()
    assert followed.taken == ["one", "two"]


def test_credentials_are_replaced_under_load(tmp_path):
    """R13, R8: no staging fails for it that could have its credential before and after."""
    file, source, stop = tmp_path / "credentials.yaml", parse_source("s3://team/a"), Event()
    file.write_text(OF_THE_TEAM)
    credentials, failures = Credentials(), []
    followed = FollowedFile(file, read_credentials, credentials.use)

    def load() -> None:
        while not stop.wait(0.0005):
            try:
                assert credentials.hold("team", source) is not None
            except ArtifactError as error:
                failures.append(error)

    threads = [Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(100):
        (replace if number % 2 else Path.write_text)(file, f"new{number}: [" if number % 10 == 0 else OF_THE_TEAM)
        followed.refresh()
    replace(file, OF_THE_TEAM + OF_THE_TEAM.replace("team", "more"))
    followed.refresh()
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert credentials.hold("more", parse_source("s3://more/a")) is not None
    with pytest.raises(ArtifactError, match="is read again"):
        credentials.hold("nobody", source)


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_file_is_written_whole_or_not_at_all_for_whom_it_is_meant(tmp_path, monkeypatch, mode):
    """X1 secret-free: nobody else reads it for a moment; one that broke off before does not hinder the next."""
    file, half = tmp_path / "f", tmp_path / ".f.new"
    half.write_text("half of one")
    half.chmod(0o666)
    modes: list[int] = []

    def told(descriptor: int, to: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        half.chmod(to)

    monkeypatch.setattr("os.fchmod", told)
    write_whole(file, b"one", mode=mode)
    assert (file.read_bytes(), modes) == (b"one", [0o600])
    assert (stat.S_IMODE(file.stat().st_mode), list(tmp_path.iterdir())) == (mode, [file])
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        write_whole(file, b"two")
    assert (file.read_bytes(), list(tmp_path.iterdir())) == (b"one", [file])


def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path):
    """X3 given-back: of an administrator's /dev/null every other program would have nothing more."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(FileExistsError, match="not replaced"):
            write_whole(tmp_path / name, b"one")
    assert ((tmp_path / "pipe").is_fifo(), (tmp_path / "link").is_symlink()) == (True, True)
