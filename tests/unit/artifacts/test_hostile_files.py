"""A store and a replica's own state with anything at all in the place of their files."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from registry.sources.base import Stop
from sidecar.artifacts.requests import pin_name
from sidecar.artifacts.types import ArtifactRef
from sidecar.engines.driver import EngineOptions
from sidecar.engines.load_ledger import FILE, LoadLedger
from sidecar.engines.others.axolotl import FILE as SLOT
from sidecar.engines.others.axolotl import AxolotlEngine
from sidecar.ownership import HostLock
from tests.corpus.drafts import LLAMA
from tests.support.adapters import digest_of, write_adapter
from tests.unit.artifacts.conftest import pinned, recalled, refusal, unpinned

ENGINE = "http://127.0.0.1:1"
DEEP = b"[" * 30_000
Junk = Callable[[Path], object]


def _full_folder(path: Path) -> None:
    (path / "inner").mkdir(parents=True)


def _socket(path: Path) -> None:
    os.chdir(path.parent)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


JUNK: dict[str, Junk] = {
    "folder": Path.mkdir,
    "full folder": _full_folder,
    "pipe": os.mkfifo,
    "socket": _socket,
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "bytes": lambda path: path.write_bytes(b"\xff\x00\n" * 9),
    "deep": lambda path: path.write_bytes(DEEP),
    "huge": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
    "large number": lambda path: path.write_bytes(b'{"schema": 1' + b"0" * 400 + b"}"),
}


def put_junk(path: Path, junk: str) -> None:
    """In place of what is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path):
        path.unlink()
    JUNK[junk](path)


@pytest.fixture(autouse=True)
def _back_here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("junk", JUNK)
async def test_leases(open_store, sources, tmp_path, junk):
    """R12, R7: what cannot be read may be about any artifact, so none goes; the sidecar starts, and stages."""
    staged = await open_store().ensure(pinned(write_adapter(sources / "a")))
    for name in ("r1", "r2@0123456789abcdef"):
        put_junk(tmp_path / "store" / "leases" / name, junk)
        store = open_store()
        store.take_over()
        await store.ensure(pinned(write_adapter(sources / "b", seed=1)))
        store.let_go({staged.id})
        store.maintenance.collector.collect(1 << 60, Stop())
        assert staged.id in store._layout.staged_ids()
        store.maintenance.round(Stop())
        if name == "r1":
            assert open_store().leased(), "what is written from then on is read again"


@pytest.mark.parametrize("layer", ["{5-3}", "{0-9999999}", "{0-999999}"])
async def test_a_module_that_is_called_as_ranges_are(open_store, sources, layer):
    """X2: where no base is known to compare it with, it is refused all the same, and after a restart nothing ends."""
    draft = LLAMA.draft()
    draft.rename(".layers.0.", f".layers.{layer}.")
    draft.write(sources / "a")
    ref = ArtifactRef((sources / "a").as_uri(), digest_of(sources / "a"))
    refused = await refusal(open_store(), ref)
    assert (refused.reason, refused.permanent) == ("not_taken_by_engine", True)
    assert not await open_store().recall([ref])


@pytest.mark.parametrize("junk", JUNK)
async def test_folders_of_the_store(open_store, sources, tmp_path, junk):
    """R12: each is set aside, and made."""
    for folder in ("adapters", "tmp", "locks", "leases", "reports", "pins"):
        put_junk(tmp_path / "store" / folder, junk)
    staged = await open_store().ensure(pinned(write_adapter(sources / "a")))
    assert staged.id in open_store()._layout.staged_ids()


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("name", [".", "lock"])
def test_the_replicas_own_folder_and_lock(tmp_path, name, junk):
    """R12, R10: whatever stands there, one process has the lock."""
    state = tmp_path / "state" / "r1"
    put_junk(state / name if name == "lock" else state, junk)
    first, second = HostLock(state / "lock"), HostLock(state / "lock")
    assert first.try_acquire()
    assert not second.try_acquire()
    first.close()
    second.close()


@pytest.mark.parametrize("junk", JUNK)
async def test_the_ledger_of_loads_and_the_slot_of_an_engine(tmp_path, junk):
    """R12: they say nothing, and are written anew."""
    for name in (FILE, "loaded.tmp", SLOT):
        put_junk(tmp_path / name, junk)
    ledger = LoadLedger(tmp_path)
    assert ledger.of("p1") == {}
    await ledger.seen("p1", {"a": "/a"})
    assert LoadLedger(tmp_path).of("p1") == {"a": "/a"}
    assert AxolotlEngine(EngineOptions(ENGINE, state=tmp_path))._slot().incarnation == ""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300))
@example(DEEP)
@example(b'{"digest": 1e999}')
def test_any_bytes_as_lease_pin_and_report(open_store, tmp_path, content):
    """R12, X2."""
    store, ref = open_store(), unpinned(write_adapter(tmp_path / "sources" / "a"))
    for path in (store._leases.file, store._layout.pin(pin_name(ref)), store._layout.report("0" * 64)):
        path.write_bytes(content)
    store.take_over()
    assert store.lookup(ref) is None
    store.maintenance.round(Stop())
    store.maintenance.scrub(Stop())


@pytest.mark.parametrize("junk", JUNK)
async def test_a_report_and_a_pin(open_store, sources, tmp_path, junk):
    """R12: a report only adds warnings; for a pin the source is read once more."""
    ref = unpinned(write_adapter(sources / "a"))
    staged = await open_store().ensure(ref)
    put_junk(tmp_path / "store" / "reports" / f"{staged.id}.json", junk)
    store = open_store()
    assert (await store.ensure(ref)).path == staged.path
    store.maintenance.scrub(Stop())
    put_junk(tmp_path / "store" / "pins" / f"{pin_name(ref)}.json", junk)
    store = open_store()
    assert store.lookup(ref) is None
    assert (await store.ensure(ref)).path == staged.path
    assert recalled(open_store(), ref) is not None
