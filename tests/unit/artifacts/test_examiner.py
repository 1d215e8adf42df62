"""Examination in child processes: what ends one, and what that costs the others."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sidecar.artifacts.examiner import ExaminationLimits, Examiner
from tests.support.adapters import write_adapter, write_costly_adapter
from tests.support.processes import child
from tests.support.waiting import eventually
from tests.unit.artifacts.conftest import contents, pinned, refusal

ROOT = Path(__file__).parents[3]


@pytest.fixture
def make_examiner() -> Iterator[Callable[..., Examiner]]:
    """Makes one with limits of its own; each is closed at the end."""
    made: list[Examiner] = []

    def make(**limits: int) -> Examiner:
        made.append(Examiner(ExaminationLimits(**limits)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def children_of(pid: int) -> set[int]:
    return {int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in _listed(task / "children")}


def _listed(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # the thread has ended
        return []


async def test_what_takes_more_than_an_adapter_can_need_is_refused_for_good(
    open_store, sources, tmp_path, make_examiner
):
    """R8, R16, X2: the kernel ends the child at its limit; the next adapter is staged as if nothing had been."""
    costly, good = write_costly_adapter(sources / "costly"), write_adapter(sources / "good")
    store = open_store(examiner=make_examiner(processor_seconds=1))
    error = await refusal(store, pinned(costly))
    assert "more than 1 s of a processor" in error.message
    assert (error.reason, error.permanent) == ("examination_failed", True)
    assert not contents(tmp_path / "store" / "tmp")
    assert not contents(tmp_path / "store" / "adapters")
    assert (await store.ensure(pinned(good))).digest == good.digest


async def test_what_takes_more_memory_than_it_may_is_refused_for_good(open_store, sources, make_examiner):
    """R16, X2."""
    store = open_store(examiner=make_examiner(memory_bytes=300 << 20, processor_seconds=60))
    error = await refusal(store, pinned(write_costly_adapter(sources / "costly")))
    assert (error.reason, error.permanent, "300 MiB" in error.message) == ("examination_failed", True, True)


async def test_an_examination_that_takes_long_holds_up_no_other(open_store, sources, make_examiner):
    """R8, R19: another child is started for whoever waits."""
    examiner = make_examiner(processor_seconds=600)
    store = open_store(examiner=examiner)
    long, good = write_adapter(sources / "long", seed=1), write_adapter(sources / "good")
    before = children_of(os.getpid())
    examiner.warm()
    (child,) = children_of(os.getpid()) - before
    os.kill(child, signal.SIGSTOP)  # before it is asked, as if it took for ever
    held = asyncio.create_task(store.ensure(pinned(long)))
    await eventually(lambda: examiner._busy)
    assert (await store.ensure(pinned(good))).digest == good.digest
    assert not held.done()
    held.cancel()
    await eventually(lambda: child not in children_of(os.getpid()))  # and it is ended with its staging


async def test_children_end_with_a_sidecar_that_is_killed(tmp_path):
    """R12: at whatever they are; here in the middle of an examination, and idle."""
    costly, good = write_costly_adapter(tmp_path / "costly"), write_adapter(tmp_path / "good")
    program = (
        "import sys; from pathlib import Path; from registry.lora.policy import Policy\n"
        "from registry.sources.base import Stop; from sidecar.artifacts.examiner import EXAMINER\n"
        "for folder in sys.argv[1:]:\n"
        "    EXAMINER.examine(Path(folder), None, Policy(), Stop())\n"
        "    print('examined', flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(good.directory), *[str(costly.directory)] * 20]
    with child(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "examined\n"
        children = children_of(process.pid)
    assert children
    await eventually(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
