"""What is kept of loads, on disk and in memory, for engines that list no paths."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from sidecar.engines import load_ledger as module
from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.load_ledger import LoadLedger, write_synced
from sidecar.engines.observed import (
    AlreadyThere,
    Done,
    EngineGone,
    EnginePaused,
    NotThere,
    Outcome,
    PathMissing,
    Refused,
    Transient,
    Unknown,
)


def test_nothing_that_stands_in_the_way_keeps_it_from_being_written(tmp_path):
    """R12: it is set aside."""
    for name in ("file.json", "file.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "more").write_text("?")
    write_synced(tmp_path / "file.json", b"new")
    assert (tmp_path / "file.json").read_bytes() == b"new"


def test_what_replaces_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """R12 crash-only: a power cut leaves the old one or the new one, whole."""
    file, synced = tmp_path / "file.json", list[tuple[bytes, bytes]]()
    file.write_bytes(b"old")

    def note(descriptor: int) -> None:
        if (path := Path(f"/proc/self/fd/{descriptor}")).is_file():
            synced.append((path.read_bytes(), file.read_bytes()))

    monkeypatch.setattr(module.os, "fsync", note)
    write_synced(file, b"new")
    assert (synced, file.read_bytes()) == ([(b"new", b"old")], b"new")


@pytest.fixture(params=["disk", "memory"])
def folder(request, tmp_path) -> Path | None:
    return tmp_path if request.param == "disk" else None


def kept(ledger: LoadLedger, folder: Path | None, incarnation: str = "p1") -> dict[str, str]:
    """What it says, which the sidecar's next process reads too; what is in memory alone has none."""
    found = dict(ledger.of(incarnation))
    assert folder is None or LoadLedger(folder).of(incarnation) == found
    return found


async def test_what_is_listed_is_recorded_once_and_stays(folder):
    """R4: a name that had other weights in this process does not get those that it is listed with now."""
    ledger = LoadLedger(folder)
    assert ledger.of("p1") == {}
    assert await ledger.seen("p1", {"x": "/a"}) == {"x": "/a"}
    assert await ledger.seen("p1", {"x": "/b", "y": "/c"}) == {"x": "/a", "y": "/c"}
    assert await ledger.seen("p1", {}) == {"x": "/a", "y": "/c"}
    assert (kept(ledger, folder), kept(ledger, folder, "p2")) == ({"x": "/a", "y": "/c"}, {})
    assert await ledger.seen("p2", {"z": "/d"}) == {"z": "/d"}
    assert (kept(ledger, folder), kept(ledger, folder, "p2")) == ({}, {"z": "/d"})


@pytest.mark.parametrize(
    ("outcome", "is_kept"),
    [
        *((one, True) for one in (Done(), Unknown("?"))),
        *((one, False) for one in (AlreadyThere(), NotThere(), PathMissing("?"), Refused("?"))),
        *((one, False) for one in (Transient("?"), EngineGone("?"), EnginePaused("?"))),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_certainly_did_not_come_of_a_load_is_taken_back(folder, outcome, is_kept):
    """R12: it is recorded before the engine is called; and what others recorded meanwhile stays."""
    ledger = LoadLedger(folder)
    await ledger.seen("p1", {"x": "/old", "z": "/z"})

    async def load() -> Outcome:
        assert kept(ledger, folder)[name] == "/new"
        await ledger.seen("p1", {f"beside {name}": "/m"})
        return outcome

    for name in ("x", "y"):
        assert await ledger.recording("p1", name, "/new", load) == outcome
    expected = {"x": "/old", "z": "/z", "beside x": "/m", "beside y": "/m"}
    expected |= {"x": "/new", "y": "/new"} if is_kept else {}
    assert kept(ledger, folder) == expected


full = Mock(side_effect=OSError(errno.ENOSPC, "no space left"))


async def test_on_a_full_disk_nothing_is_loaded_that_cannot_be_recorded(tmp_path, monkeypatch):
    """R12, R4: what cannot be taken back counts as loaded, which only forbids."""
    ledger, called = LoadLedger(tmp_path), list[str]()
    await ledger.seen("p1", {"x": "/a", "y": "/b"})

    async def refused() -> Outcome:
        called.append("load")
        monkeypatch.setattr(module, "write_synced", full)
        return Refused("?")

    assert await ledger.recording("p1", "x", "/new", refused) == Refused("?")
    assert kept(ledger, tmp_path) == {"x": "/new", "y": "/b"}
    found = await ledger.recording("p1", "z", "/z", refused)
    assert isinstance(found, Transient)
    assert "no space left" in found.message
    assert called == ["load"]
    with pytest.raises(EngineUnreachable, match="no space left"):
        await ledger.seen("p1", {"n": "/n"})
    assert await ledger.seen("p1", {"x": "/new"}) == {"x": "/new", "y": "/b"}, "which asks for no writing"
    await ledger.forget("p1", "y")
    assert ledger.of("p1") == {"x": "/new"}
    assert LoadLedger(tmp_path).of("p1") == {"x": "/new", "y": "/b"}


async def test_looks_and_loads_change_it_one_after_another(tmp_path, monkeypatch):
    """R4: none of two that are written at once is lost."""
    ledger, real = LoadLedger(tmp_path), asyncio.to_thread

    async def slow(*args: object) -> object:
        for _ in range(3):
            await asyncio.sleep(0)
        return await real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "to_thread", slow)
    load = AsyncMock(return_value=Refused("?"))
    names = [f"n{number}" for number in range(5)]
    await ledger.seen("p1", {"gone": "/g"})
    await asyncio.gather(
        *(ledger.seen("p1", {name: f"/{name}"}) for name in names),
        *(ledger.recording("p1", f"l{number}", "/l", load) for number in range(5)),
        ledger.forget("p1", "gone"),
    )
    assert kept(ledger, tmp_path) == {name: f"/{name}" for name in names}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        *(
            json.dumps({"schema": 1, "incarnation": "p1", "paths": {"x": "/a"}} | odd).encode()
            for odd in ({"schema": 2}, {"incarnation": 7}, {"paths": ["x"]}, {"paths": {"x": "/a", "y": 7}})
        ),
    ],
)
async def test_what_is_damaged_says_nothing_and_is_replaced(tmp_path, content):
    """R12 crash-only."""
    (tmp_path / "loaded.json").write_bytes(content)
    ledger = LoadLedger(tmp_path)
    assert ledger.of("p1") == {}
    await ledger.seen("p1", {"z": "/z"})
    found = json.loads((tmp_path / "loaded.json").read_bytes())
    assert found == {"schema": 1, "incarnation": "p1", "paths": {"z": "/z"}}


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_for_want_of_descriptors_nothing_is_held_to_be_damaged(tmp_path, monkeypatch, number):
    """R4, R12: what is not read yet is read later, and not written anew before."""
    await LoadLedger(tmp_path).seen("p1", {"x": "/a"})
    ledger, load = LoadLedger(tmp_path), AsyncMock(return_value=Done())
    with monkeypatch.context() as patch:
        patch.setattr(module, "read_file", Mock(side_effect=OSError(number, "none left")))
        with pytest.raises(EngineUnreachable, match="none left"):
            await ledger.seen("p1", {"x": "/b"})
        assert isinstance(await ledger.recording("p1", "x", "/b", load), Transient)
        with pytest.raises(OSError, match="none left"):
            ledger.of("p1")
    load.assert_not_awaited()
    assert kept(ledger, tmp_path) == {"x": "/a"}


async def test_two_records_of_a_replica_are_two_files(tmp_path):
    for file in ("loaded.json", "past.json"):
        await LoadLedger(tmp_path, file).seen("p1", {file: "/a"})
    for file in ("loaded.json", "past.json"):
        assert LoadLedger(tmp_path, file).of("p1") == {file: "/a"}


async def test_a_fault_of_our_own_is_no_full_disk(tmp_path, monkeypatch):
    """R12: it is told."""
    ledger = LoadLedger(tmp_path)
    await ledger.seen("p1", {"x": "/a"})
    fault = Mock(side_effect=ZeroDivisionError)

    async def load() -> Outcome:
        monkeypatch.setattr(module, "write_synced", fault)
        return Refused("?")

    with pytest.raises(ZeroDivisionError):
        await ledger.recording("p1", "y", "/y", load)
    calls = [ledger.seen("p1", {"z": "/z"}), ledger.recording("p1", "z", "/z", load), ledger.forget("p1", "x")]
    for call in calls:
        with pytest.raises(ZeroDivisionError):
            await call
    monkeypatch.setattr(module, "read_file", fault)
    with pytest.raises(ZeroDivisionError):
        LoadLedger(tmp_path).of("p1")
