"""Processes that are killed while they remove, and processes that remove what others are about to use."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from registry.runtime.failpoints import Point
from registry.sources.base import Stop
from sidecar.artifacts.leases import everybodys_leases
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef
from tests.support.adapters import WrittenAdapter, digest_of, write_adapter

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 60
PROCESSES, KILLS = 3, 12


def start(folder: Path, replica: str, adapters: list[WrittenAdapter], rounds: int, dies_at: str = "-"):
    pairs = [part for adapter in adapters for part in (adapter.uri, adapter.digest)]
    arguments = [folder / "store", replica, folder / "sources", rounds, dies_at, *pairs]
    with (folder / f"{replica}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.integration.artifacts.removing_process", *map(str, arguments)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


def written(folder: Path, count: int) -> list[WrittenAdapter]:
    return [write_adapter(folder / "sources" / f"a{seed}", seed=seed) for seed in range(count)]


async def is_in_order(folder: Path, adapters: list[WrittenAdapter]) -> None:
    """What a restarted sidecar finds is whole, can be had, and nothing is left lying about."""
    store = LocalStore(folder / "store", "later", [(folder / "sources").as_uri()])
    try:
        for directory in store._layout.staged().values():
            assert digest_of(directory) in {adapter.digest for adapter in adapters}
        for adapter in adapters:
            staged = await store.ensure(ArtifactRef(adapter.uri, adapter.digest))
            assert digest_of(Path(staged.path)) == adapter.digest
        store.maintenance.round(Stop())
        assert not list((folder / "store" / "tmp").iterdir())
    finally:
        store.close()


@pytest.mark.parametrize("point", [point for point in Point if point.startswith("removal.")])
async def test_killed_at_any_point_of_a_removal_nothing_half_is_visible(tmp_path, point):
    """R12 crash-only, R7 files-pinned: what another replica leases is there; what is being removed is whole or gone."""
    shared, own = written(tmp_path, 2)
    store = LocalStore(tmp_path / "store", "other", [(tmp_path / "sources").as_uri()])
    kept = await store.ensure(ArtifactRef(shared.uri, shared.digest))
    process = start(tmp_path, "dies", [own], 1, point)
    output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == -signal.SIGKILL, logs(tmp_path)
    assert output.split() == ["whole", point]
    assert digest_of(Path(kept.path)) == shared.digest
    is_leased = len(everybodys_leases(tmp_path / "store" / "leases")) == 2
    assert is_leased == (point is Point.LET_GO)  # the file says too much rather than too little
    store.close()
    await is_in_order(tmp_path, [shared, own])


async def test_a_storm_of_kills_harms_nothing(tmp_path):
    """R12, R7: processes stage, read, let go and remove the same few artifacts, and are killed all the time."""
    adapters, clock = written(tmp_path, 3), random.Random(7)
    processes = [start(tmp_path, f"r{number}", adapters, 100_000) for number in range(PROCESSES)]
    try:
        for _ in range(KILLS):
            number = clock.randrange(PROCESSES)
            process = processes[number]
            for _ in range(clock.randrange(1, 5)):
                assert process.stdout is not None
                assert process.stdout.readline() == "whole\n", logs(tmp_path)
            process.kill()
            process.communicate(timeout=TIMEOUT_SECONDS)
            processes[number] = start(tmp_path, f"r{number}", adapters, 100_000)
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=TIMEOUT_SECONDS)
    assert "Traceback" not in logs(tmp_path)
    await is_in_order(tmp_path, adapters)


def logs(folder: Path) -> str:
    """What the processes wrote, the end of it."""
    return "\n".join(path.read_text()[-3000:] for path in folder.glob("*.log"))
