"""Processes that are killed while they remove, and processes that remove what others are about to use."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from registry.runtime.failpoints import Point
from registry.sources.base import Stop
from sidecar.artifacts.leases import everybodys_leases
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef
from tests.corpus.in_process import InProcessExaminer
from tests.support.adapters import WrittenAdapter, digest_of, write_adapter
from tests.support.processes import Program
from tests.support.waiting import eventually

PROCESSES, KILLS = 3, 12


def start(folder: Path, replica: str, adapters: list[WrittenAdapter], rounds: int, dies_at: str = "-") -> Program:
    pairs = [part for adapter in adapters for part in (adapter.uri, adapter.digest)]
    arguments = [folder / "store", replica, folder / "sources", rounds, dies_at, *pairs]
    log = folder / f"{replica}-{len([*folder.glob('*.log')])}.log"
    program = Program("tests.integration.artifacts.removing_process", [*map(str, arguments)], log)
    program.start()
    return program


def written(folder: Path, count: int) -> list[WrittenAdapter]:
    return [write_adapter(folder / "sources" / f"a{seed}", seed=seed) for seed in range(count)]


async def is_in_order(folder: Path, adapters: list[WrittenAdapter]) -> None:
    """What a restarted sidecar finds is whole, can be had, and nothing is left lying about."""
    allowed = [(folder / "sources").as_uri()]
    store = LocalStore(folder / "store", "later", allowed, examiner=InProcessExaminer())
    try:
        for directory in map(store._layout.adapter, store._layout.staged_ids()):
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
    allowed = [(tmp_path / "sources").as_uri()]
    store = LocalStore(tmp_path / "store", "other", allowed, examiner=InProcessExaminer())
    kept = await store.ensure(ArtifactRef(shared.uri, shared.digest))
    process = start(tmp_path, "dies", [own], 1, point)
    assert process.wait() == -signal.SIGKILL, logs(tmp_path)
    assert process.log.read_text().split() == ["whole", point]
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
            number, rounds = clock.randrange(PROCESSES), clock.randrange(1, 5)
            process = processes[number]
            await eventually(lambda process=process, rounds=rounds: has_seen(process, rounds))
            process.kill()
            processes[number] = start(tmp_path, f"r{number}", adapters, 100_000)
    finally:
        for process in processes:
            process.kill()
    assert "Traceback" not in logs(tmp_path)
    await is_in_order(tmp_path, adapters)


def has_seen(process: Program, count: int) -> bool:
    """True once a process has seen so many whole adapters."""
    assert process.is_running, process.log.read_text()
    return process.log.read_text().count("whole\n") >= count


def logs(folder: Path) -> str:
    """What the processes wrote, the end of it."""
    return "\n".join(path.read_text()[-3000:] for path in folder.glob("*.log"))
