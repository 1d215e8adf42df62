"""Leases in memory and in their files, and what was seen of artifacts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.artifacts import leases as module
from sidecar.artifacts import stored
from sidecar.artifacts.leases import (
    ArtifactLeases,
    LeasesUnreadable,
    everybodys_leases,
    may_be_read,
    read_leases,
    warn_of_strays,
)
from sidecar.artifacts.stored import Remembered
from sidecar.artifacts.types import ArtifactRef, Staged
from tests.unit.artifacts.conftest import raising

A, B, C = (digit * 64 for digit in "abc")


@pytest.fixture
def file(tmp_path) -> Path:
    (tmp_path / "leases").mkdir()
    return tmp_path / "leases" / "r1"


def opened(file: Path) -> ArtifactLeases:
    return ArtifactLeases(file, lambda: [A, B])


def write(leases: ArtifactLeases, file: Path) -> None:
    leases.write(file.parent.parent / "temporary")


def test_a_lease_is_on_the_disk_when_it_is_told_and_until_what_was_let_go_of_is_written(file):
    """R7: once, however often it is asked for; the file says at least what the engine may read."""
    leases = opened(file)
    assert [leases.add(one) for one in (B, A, B)] == [True, True, False]
    assert file.read_text().split() == [B, A]
    assert (leases.all(), A in leases, C in leases) == ({A, B}, True, False)
    assert opened(file).all() == {A, B}
    leases.add(C)
    assert leases.let_go({A, "d" * 64}) == {A}
    assert leases.all() == {B, C}
    assert read_leases(file) == {A, B, C}
    write(leases, file)
    assert file.read_text() == f"{B}\n{C}\n"
    assert leases.let_go({A}) == frozenset()
    assert leases.add(A)
    assert read_leases(file) == {A, B, C}


def test_only_what_changed_is_written(file, monkeypatch):
    """R16: each round asks for it; what is let go of after another has its turn too."""
    written: list[bytes] = []
    whole = module.write_atomic
    monkeypatch.setattr(
        module, "write_atomic", lambda path, content, **more: written.append(content) or whole(path, content, **more)
    )
    leases = opened(file)
    write(leases, file)
    leases.add(A)
    leases.add(B)
    write(leases, file)
    assert written == []
    leases.let_go({A})
    leases.let_go(set())
    assert not leases.are_lost(), "more than is needed stands there, which is still to be written"
    for _ in range(2):
        write(leases, file)
    assert written == [f"{B}\n".encode()]


@pytest.mark.parametrize("content", [None, f"{B}\n", f"{A}\n{B[:9]}", f"{A}\n{B}\n# mine\n"])
def test_a_file_that_somebody_removed_or_changed_is_written_again_with_each_lease(file, monkeypatch, content):
    """R7: a fault of ours is told."""
    leases = opened(file)
    assert leases.add(A)
    assert leases.add(B)
    assert not leases.are_lost()
    file.unlink() if content is None else file.write_text(content)
    assert leases.are_lost()
    write(leases, file)
    assert (file.read_text(), leases.are_lost()) == (f"{A}\n{B}\n", False)
    monkeypatch.setattr(module, "read_leases", raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        leases.are_lost()


def test_what_is_let_go_of_while_the_file_is_written_is_written_the_next_time(file, monkeypatch):
    """R16: the event loop lets go while a worker is at it; what stands there keeps its room until then."""
    leases, whole = opened(file), module.write_atomic

    def amid(path: Path, content: bytes, **more: Path) -> None:
        leases.let_go({B})
        whole(path, content, **more)

    monkeypatch.setattr(module, "write_atomic", amid)
    for one in (A, B):
        leases.add(one)
    leases.let_go({A})
    write(leases, file)
    assert read_leases(file) == {B}
    write(leases, file)
    assert read_leases(file) == set()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_could_not_be_written_is_written_the_next_time(file, monkeypatch, error):
    """R7, fault 25: whatever ended it."""
    leases = opened(file)
    leases.add(A)
    leases.let_go({A})
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_atomic", raising(error))
        for _ in range(2):
            with pytest.raises(type(error)):
                write(leases, file)
    write(leases, file)
    assert file.read_bytes() == b""


def test_what_is_held_is_not_let_go_of_and_what_cannot_be_appended_is_not_held(file, monkeypatch):
    """R7: a worker is about to hand it out; nobody looks for a directory without a lease."""
    leases = opened(file)
    with monkeypatch.context() as patch:
        patch.setattr(module, "append_line", raising(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"), leases.held(A):
            raise AssertionError("it has no lease")
    assert A not in leases
    with leases.held(A) as is_new:
        assert is_new
        with leases.held(A) as again:
            assert not again
        assert leases.let_go({A}) == frozenset()
    assert leases.let_go({A}) == {A}, "nobody holds it any more"


def test_a_file_that_nobody_understands_leases_everything_and_is_written_anew(file):
    """R7, R12."""
    file.write_text("no id\n")
    leases = opened(file)
    assert leases.all() == {A, B}
    write(leases, file)
    assert file.read_text() == f"{A}\n{B}\n"
    file.unlink()
    file.mkdir()
    leases.read()
    assert leases.all() == {A, B}
    assert leases.add(C)
    assert read_leases(file) == {C}
    write(leases, file)
    assert read_leases(file) == {A, B, C}


def test_what_an_earlier_process_leased_is_read_anew(file):
    """R7, R10."""
    leases = opened(file)
    leases.add(A)
    leases.let_go({A})
    file.write_text(f"{B}\n")
    leases.read()
    assert leases.all() == {B}
    file.write_text("")
    write(leases, file)
    assert file.read_text() == "", "what was just read needs not be written"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", set()),
        (f"{A}\n\n{B}", {A, B}),
        (f"{A}\n{B[:63]}\n{C}\n", {A, C}),
        (f"{A}\n0\n", {A}),
        (f"{A}0\n", None),
        (f"{A.upper()}\n", None),
        (f"{A}\n x\n", None),
        ("g\n", None),
    ],
)
def test_a_lease_is_a_line_and_what_a_full_disk_cut_off_was_never_relied_upon(file, text, found):
    """R7: what nobody wrote may be about any artifact."""
    file.write_text(text)
    if found is None:
        with pytest.raises(LeasesUnreadable, match="no artifact's id"):
            read_leases(file)
    else:
        assert read_leases(file) == found


def test_a_missing_file_leases_nothing_and_one_that_cannot_be_read_may_lease_all(file, monkeypatch):
    """R7."""
    assert read_leases(file) == set()
    monkeypatch.setattr(module, "read_file", raising(OSError(5, "bad sector")))
    with pytest.raises(LeasesUnreadable, match="bad sector"):
        read_leases(file)
    monkeypatch.setattr(module, "read_file", raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        opened(file)


def test_what_any_engine_of_the_host_may_read(file):
    """R7 files-pinned: but for those of one file; what begins with a dot is none."""
    folder = file.parent
    assert everybodys_leases(folder) == set()
    file.write_text(f"{A}\n")
    (folder / "r2").write_text(f"{B}\n")
    (folder / ".damaged-r3").write_text("no id\n")
    assert everybodys_leases(folder) == {A, B}
    assert everybodys_leases(folder, but=file) == {B}
    assert [may_be_read(one, folder) for one in (A, B, C)] == [True, True, False]
    assert [may_be_read(one, folder, but=file) for one in (A, B, C)] == [False, True, False]
    (folder / "r4").write_text("no id\n")
    assert [may_be_read(one, folder, but=file) for one in (A, B, C)] == [True, True, True]
    with pytest.raises(LeasesUnreadable):
        everybodys_leases(folder)
    with pytest.raises(FileNotFoundError):
        may_be_read(A, folder / "none")


@pytest.mark.parametrize(
    ("own", "others", "told"),
    [
        ("r1@x", ["r1@x"], []),
        ("r1@x", ["r1", "r1@y", "r10@x", "r2@x"], ["r1", "r1@y"]),
        ("r1", ["r1@y", "r1"], ["r1@y"]),
        ("r1", [], []),
    ],
)
def test_leases_for_another_engine_of_the_replica_are_told(file, capsys, own, others, told):
    """R7: nobody lets go of them by himself."""
    for name in others:
        (file.parent / name).touch()
    warn_of_strays(file.parent / own)
    said = capsys.readouterr().out
    assert ("leases_of_another_engine" in said) is bool(told)
    assert all(f"'{file.parent / name}'" in said for name in told)
    assert not any(f"'{file.parent / name}'" in said for name in {*others} - {*told})


def staged(artifact: str, *, is_proven: bool = True) -> Staged:
    return Staged(artifact, f"/store/{artifact}", "", 8, is_proven=is_proven)


def key(name: str) -> tuple[ArtifactRef, None]:
    return ArtifactRef(f"file:///{name}", None), None


def test_what_was_seen_is_remembered_until_it_is_forgotten():
    """R7: by artifact, whatever it was asked for by."""
    seen = Remembered()
    for name, one in (("one", A), ("two", A), ("three", B)):
        seen.put(key(name), staged(one, is_proven=one == B))
    assert seen.get(key("one")) == staged(A, is_proven=False)
    assert seen.unproven() == [(key("one"), staged(A, is_proven=False)), (key("two"), staged(A, is_proven=False))]
    seen.put(key("two"), replace(staged(A), is_proven=True))
    assert [one for one, _ in seen.unproven()] == [key("one")]
    seen.forget({A})
    assert (len(seen), seen.get(key("one")), seen.get(key("three"))) == (1, None, staged(B))
    seen.clear()
    assert len(seen) == 0


def test_the_oldest_of_what_was_seen_goes_first_and_more_is_remembered_than_an_engine_holds(monkeypatch):
    """R16 bounded: 65,536 of them, whatever they were asked for by; it is looked up on the disk again."""
    seen, one = Remembered(), staged(A)
    for number in range(65_537):
        seen.put((number, None), one)  # type: ignore[arg-type]
    assert (len(seen), seen.get((0, None))) == (65_536, None)  # type: ignore[arg-type]
    monkeypatch.setattr(stored, "MAX_REMEMBERED", 2)
    seen = Remembered()
    for name in ("one", "two", "one", "three"):
        seen.put(key(name), one)
    assert [seen.get(key(name)) is not None for name in ("one", "two", "three")] == [False, True, True]


def test_the_lock_of_whoever_writes_is_the_file_s(file):
    """R12: of each replica another; it can name a file itself."""
    names = {opened(file.parent / name).key for name in ("r1", "r2", "r1@x")}
    assert len(names) == 3
    assert all(name.startswith("leases-") and len(name) == 7 + 16 for name in names)
