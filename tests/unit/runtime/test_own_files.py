"""Files of a process' own, where anything may stand in their place."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from registry.runtime import local_files
from registry.runtime.local_files import (
    FollowedFile,
    NotAFile,
    make_folder,
    make_way,
    read_file,
    read_followed,
    set_aside,
)


def nothing(_: Path) -> None:
    """There is none."""


def folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("kept")


def link(path: Path) -> None:
    target = path.with_name("target")
    target.write_text("of somebody else")
    path.symlink_to(target)


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


def test_a_file_that_is_not_there_or_may_not_be_read_is_told_so(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "file")

    def refuses(*_: object) -> int:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(os, "open", refuses)
    with pytest.raises(PermissionError):
        read_file(tmp_path / "file")


@pytest.mark.parametrize(("size", "is_read"), [(0, True), (5, True), (6, False)])
def test_a_file_is_read_whole_up_to_a_bound(tmp_path, size, is_read):
    """R16 bounded: and is closed again."""
    file = tmp_path / "file"
    file.write_bytes(b"x" * size)
    before = is_open_count()
    if is_read:
        assert read_file(file, max_bytes=5) == b"x" * size
    else:
        with pytest.raises(NotAFile, match="more than 5 bytes") as told:
            read_file(file, max_bytes=5)
        assert told.value.errno == errno.EFBIG
    assert is_open_count() == before


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


def test_a_file_that_grows_while_it_is_read_is_read_up_to_the_bound(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_bytes(b"x" * 5)
    look = os.fstat

    def grows(descriptor: int) -> os.stat_result:
        found = look(descriptor)
        file.write_bytes(b"x" * 50)
        return found

    monkeypatch.setattr(local_files.os, "fstat", grows)
    assert read_file(file, max_bytes=5) == b"x" * 5


def test_no_file_of_a_process_has_more_than_64_mebibytes(tmp_path):
    """R16 bounded: what is larger was written by somebody else; it is not read at all."""
    file = tmp_path / "file"
    file.touch()
    os.truncate(file, (64 << 20) + 1)
    with pytest.raises(NotAFile):
        read_file(file)


@pytest.mark.parametrize("stands", IN_THE_WAY)
@pytest.mark.parametrize("before", [nothing, folder, link, Path.touch])
def test_what_is_in_the_way_of_a_file_is_set_aside_as_it_is(tmp_path, stands, before, capsys):
    """R12 crash-only: somebody may look at it there; what was there before is gone, and nothing that it led to."""
    path, aside = tmp_path / "file", tmp_path / ".damaged-file"
    before(aside)
    stands(path)
    mode = path.lstat().st_mode
    make_way(path)
    assert not os.path.lexists(path)
    assert aside.lstat().st_mode == mode
    if stands is folder:
        assert (aside / "inside").read_text() == "kept"
    if link in {stands, before}:
        assert (tmp_path / "target").read_text() == "of somebody else"
    assert "file_set_aside" in capsys.readouterr().out


@pytest.mark.parametrize("stands", [nothing, Path.touch])
def test_a_file_that_is_one_stays_and_so_does_nothing(tmp_path, stands):
    stands(tmp_path / "file")
    before = [*tmp_path.iterdir()]
    make_way(tmp_path / "file")
    assert [*tmp_path.iterdir()] == before


@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFBLK])
def test_a_device_is_left_where_it_is(tmp_path, monkeypatch, kind):
    """R12: all of the host may use it, as it does /dev/null."""
    path = tmp_path / "device"
    path.touch()
    look = Path.lstat

    def told(one: Path) -> os.stat_result:
        found = look(one)
        return os.stat_result((kind | 0o600, *found[1:])) if one == path else found

    monkeypatch.setattr(Path, "lstat", told)
    with pytest.raises(NotAFile, match="it is a device"):
        set_aside(path)
    assert path.exists()
    assert not (tmp_path / ".damaged-device").exists()


@pytest.mark.parametrize("stands", [Path.touch, dangling, os.mkfifo])
@pytest.mark.parametrize("at", ["parent", "parent/own"])
def test_a_folder_is_made_in_whose_way_no_file_stands(tmp_path, stands, at):
    """R12 crash-only: nor in the way of the folder that it is in."""
    own, blocked = tmp_path / "parent" / "own", tmp_path / at
    blocked.parent.mkdir(exist_ok=True)
    stands(blocked)
    make_folder(own)
    assert own.is_dir()
    assert os.path.lexists(blocked.with_name(f".damaged-{blocked.name}"))


def test_a_folder_that_is_one_stays_with_what_is_in_it(tmp_path):
    own = tmp_path / "other" / "parent" / "own"
    make_folder(own)
    (own / "inside").write_text("kept")
    make_folder(own)
    assert (own / "inside").read_text() == "kept"
    (tmp_path / "link").symlink_to(own.parent)
    make_folder(tmp_path / "link" / "own")
    assert (tmp_path / "link" / "own" / "inside").read_text() == "kept"
    assert (tmp_path / "link").is_symlink()


class Defect(Exception):
    """A fault of ours."""


@pytest.mark.parametrize("at", ["read", "take"])
def test_a_fault_of_ours_in_what_is_read_again_is_told_as_it_is(tmp_path, at):
    """R12: and what could not be taken is tried again."""
    file, taken = tmp_path / "file", list[str]()
    file.write_text("one")
    broken = False

    def read(path: Path) -> str:
        if broken and at == "read":
            raise Defect
        return path.read_text()

    def take(text: str) -> None:
        if broken and at == "take":
            raise Defect
        taken.append(text)

    followed = FollowedFile(file, read, take)
    file.write_text("another")
    broken = True
    with pytest.raises(Defect):
        followed.refresh()
    broken = False
    followed.refresh()
    assert taken == ["one", "another"]
