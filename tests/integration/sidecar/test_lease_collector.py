"""Sidecars as processes: what they remove from a store that they share, and what they do when there is no room."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.adapters import digest_of
from tests.support.fleet import BASE, Hand, Sidecar, SimulatedEngine
from tests.support.waiting import eventually

# An adapter of these tests has about 1.7 kB.
ONE_ADAPTER = ("--store-budget", "3000B", "--unload-grace", "0")
# Two answers of the engine, and the longest pause between two tries.
PATIENCE_SECONDS = 150


@pytest.fixture
async def second_engine(tmp_path) -> AsyncIterator[SimulatedEngine]:
    (tmp_path / "second").mkdir()
    engine = SimulatedEngine(tmp_path / "second")
    await engine.start()
    yield engine
    engine.program.kill()


def staged(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "adapters").iterdir())


async def metric(sidecar: Sidecar, name: str) -> float:
    return (await sidecar.metrics())[name]


async def test_two_replicas_share_a_budget_and_remove_only_what_neither_reads(
    hand: Hand, engine, second_engine, etcd, tmp_path
):
    """R7 files-pinned, R16 bounded: new adapters wait until there is room, and then come by themselves."""
    first = Sidecar(tmp_path, etcd.endpoints, etcd.prefix, engine.url, extra=ONE_ADAPTER)
    second = Sidecar(
        tmp_path, etcd.endpoints, etcd.prefix, second_engine.url, replica="r2", store=first.store, extra=ONE_ADAPTER
    )
    await hand.pool(BASE)
    await hand.put(hand.record("a", "a"))
    first.program.start()
    second.program.start()
    try:
        for one in (engine, second_engine):
            await eventually(lambda one=one: serves(one, "a"))
        (kept,) = staged(first.store)
        await hand.put(hand.record("b", "b"))
        for sidecar in (first, second):
            await eventually(lambda sidecar=sidecar: refuses(sidecar, "b", "store_full"))
        assert staged(first.store) == [kept]
        await hand.delete("a")
        for one in (engine, second_engine):
            await eventually(lambda one=one: serves(one, "b"), timeout_seconds=PATIENCE_SECONDS)
        (left,) = staged(first.store)
        assert left != kept
        assert await eventually(lambda: metric(first, "loraplane_store_leased")) == 1

        async def was_removed_once() -> bool:  # who removed it counts it after the other one could see it
            removed = [await metric(sidecar, "loraplane_store_removed_total") for sidecar in (first, second)]
            return sum(removed) == 1

        await eventually(was_removed_once)
    finally:
        first.program.kill()
        second.program.kill()


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
