"""Processes that are killed while they stage, and processes that stage the same at once."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from registry.runtime.failpoints import Point
from sidecar.artifacts.requests import stage_request_of
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef
from tests.corpus.in_process import InProcessExaminer
from tests.support.adapters import WrittenAdapter, digest_of, write_adapter
from tests.support.processes import Program
from tests.support.waiting import eventually

# Points that only an artifact without digest passes.
UNPINNED_ONLY = {Point.PIN_LOCKED, Point.PINNED}


@dataclass(frozen=True)
class Host:
    """A store and a source that processes of one host share."""

    store: Path
    adapter: WrittenAdapter
    digest: str

    def start(self, action: str = "run", point: str = "-", times: int = 1) -> Program:
        """Starts a process that stages the adapter."""
        arguments = [self.store, self.adapter.directory, self.adapter.uri, self.digest, action, point, times]
        log = self.store.with_name(f"log{len([*self.store.parent.glob('log*')])}")
        program = Program("tests.integration.artifacts.staging_process", [*map(str, arguments)], log)
        program.start()
        return program

    def directories(self) -> list[Path]:
        folder = self.store / "adapters"
        return list(folder.iterdir()) if folder.exists() else []

    async def stages(self) -> Path:
        """Stages in this process, as a restarted sidecar does."""
        allowed = [self.adapter.directory.as_uri()]
        store = LocalStore(self.store, "later", allowed, examiner=InProcessExaminer())
        try:
            digest = None if self.digest == "-" else self.digest
            return Path((await store.ensure(ArtifactRef(self.adapter.uri, digest, pin_key="pool/a@1"))).path)
        finally:
            store.close()


def make_host(folder: Path, *, is_pinned: bool) -> Host:
    adapter = write_adapter(folder / "source" / "a")
    return Host(folder / "store", adapter, adapter.digest if is_pinned else "-")


def points() -> list[tuple[Point, int, bool]]:
    """Every point of either way; the receiving of each of the two files."""
    staging = [point for point in Point if point.startswith("staging.")]
    return [
        (point, times, pinned)
        for point, times, pinned in product(staging, (1, 2), (False, True))
        if (times == 1 or point is Point.RECEIVING) and not (pinned and point in UNPINNED_ONLY)
    ]


@pytest.mark.parametrize(("point", "times", "is_pinned"), points())
async def test_killed_at_any_point_nothing_half_is_visible_and_the_next_try_succeeds(tmp_path, point, times, is_pinned):
    """R12 crash-only, R4 digest-true, fault 17."""
    host = make_host(tmp_path, is_pinned=is_pinned)
    process = host.start("die", point, times)
    assert process.wait() == -signal.SIGKILL, output(process)
    assert output(process)[-1] == point
    for directory in host.directories():
        assert digest_of(directory) == host.adapter.digest
    path = await host.stages()
    assert host.directories() == [path]
    assert digest_of(path) == host.adapter.digest
    # What was killed after the rename left nothing to sweep; else the next holder of the lock swept it.
    assert not list((host.store / "tmp").iterdir())


@pytest.mark.parametrize(("is_pinned", "dies"), [(True, False), (False, False), (True, True)])
async def test_two_processes_that_stage_the_same_make_one_copy(tmp_path, is_pinned, dies):
    """R7, R16, R12: the second waits for the first, which is held in the middle of its copy.

    Where that one dies, the kernel gives the lock back, and the half copy is swept by who gets it.
    """
    host = make_host(tmp_path, is_pinned=is_pinned)
    first = host.start("wait", Point.RECEIVING)
    try:
        await eventually(lambda: Point.RECEIVING in output(first))
        second = host.start()
        await eventually(lambda: has_lock_open(second, "pin-" if not is_pinned else artifact_of(host.digest)))
        first.signal(signal.SIGKILL if dies else signal.SIGCONT)
        assert (first.wait(), second.wait()) == (-signal.SIGKILL if dies else 0, 0)
    finally:
        first.kill()
    [path] = host.directories()
    assert (output(second)[-1], digest_of(path)) == (str(path), host.adapter.digest)
    assert (Point.RECEIVING in output(second)) == dies
    assert not list((host.store / "tmp").iterdir())


def output(process: Program) -> list[str]:
    """The points that a process passed, and its path."""
    return process.log.read_text().split()


def artifact_of(digest: str) -> str:
    """The id under which the default policy stages a source where no base is known."""
    return stage_request_of(ArtifactRef("file:///a", digest), None).artifact(digest)


def has_lock_open(process: Program, name: str) -> bool:
    """True once a process has, or waits for, a lock whose name begins so."""
    try:
        targets = [str(path.readlink()) for path in Path(f"/proc/{process.pid}/fd").iterdir()]
    except FileNotFoundError:  # closed in the meantime
        return False
    return any(f"/locks/{name}" in target for target in targets)
