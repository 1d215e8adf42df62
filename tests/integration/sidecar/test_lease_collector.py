"""What a sidecar does when its disk has no room."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.adapters import digest_of
from tests.support.fleet import BASE, Hand, Sidecar, SimulatedEngine
from tests.support.waiting import eventually


async def serves(engine: SimulatedEngine, name: str) -> bool:
    return name in await engine.listing()


async def refuses(sidecar: Sidecar, name: str, reason: str) -> bool:
    return (await sidecar.failed()).get(name) == reason


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system can only be mounted by root")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)  # an engine may have a file of it open


async def test_on_a_full_disk_what_is_served_stays_and_a_restarted_engine_gets_it_back(
    hand: Hand, engine, etcd, tmp_path, small_disk
):
    """R13 static-stable, R8, R16, fault 25: a lease passes on to the next engine process without a write."""
    sidecar = Sidecar(tmp_path, etcd.endpoints, etcd.prefix, engine.url, store=small_disk / "store")
    hand.source("big", rank=64, hidden=8192)
    await hand.pool(BASE)
    await hand.put(hand.record("a", "a"))
    sidecar.program.start()
    try:
        await eventually(lambda: serves(engine, "a"))
        await hand.put(hand.record("big", "big"), hand.record("b", "b"))
        await eventually(lambda: refuses(sidecar, "big", "disk_full"))
        await eventually(lambda: serves(engine, "b"))
        fill_up(small_disk / "ballast")
        engine.program.kill()
        await engine.start()
        await eventually(lambda: serves(engine, "a"))
        await eventually(lambda: serves(engine, "b"))
        paths = (await engine.listing()).values()
        assert {digest_of(Path(path)) for path in paths} == {digest_of(hand.source(name)) for name in ("a", "b")}
    finally:
        sidecar.program.kill()


def fill_up(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return
