"""Examination in child processes: what ends one, and what that costs the others."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from registry.lora.base import BaseModules
from registry.lora.policy import Policy
from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts import examiner as module
from sidecar.artifacts.examiner import ExaminationLimits, Examiner
from tests.support.adapters import write_adapter, write_costly_adapter
from tests.support.processes import child
from tests.support.waiting import eventually
from tests.unit.artifacts.conftest import contents, pinned

ROOT = Path(__file__).parents[3]


@pytest.fixture
def examiner() -> Iterator[Examiner]:
    """One of its own, with little time and memory."""
    opened = Examiner(ExaminationLimits(processor_seconds=1))
    yield opened
    opened.close()


def children_of(pid: int) -> set[int]:
    return {int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in _listed(task / "children")}


def _listed(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # the thread has ended
        return []


async def test_what_takes_more_than_an_adapter_can_need_is_refused_for_good(open_store, sources, tmp_path, examiner):
    """R8, R16, X2: the kernel ends the child at its limit; the next adapter is staged as if nothing had been."""
    costly, good = write_costly_adapter(sources / "costly"), write_adapter(sources / "good")
    store = open_store(examiner=examiner)
    with pytest.raises(ArtifactError, match="more than 1 s of a processor") as refused:
        await store.ensure(pinned(costly))
    assert (refused.value.reason, refused.value.permanent) == ("examination_failed", True)
    assert not contents(tmp_path / "store" / "tmp")
    assert not contents(tmp_path / "store" / "adapters")
    assert (await store.ensure(pinned(good))).digest == good.digest


async def test_what_takes_more_memory_than_it_may_is_refused_for_good(open_store, sources):
    """R16, X2."""
    small = Examiner(ExaminationLimits(memory_bytes=300 << 20, processor_seconds=60))
    try:
        with pytest.raises(ArtifactError, match="300 MiB") as refused:
            await open_store(examiner=small).ensure(pinned(write_costly_adapter(sources / "costly")))
        assert (refused.value.reason, refused.value.permanent) == ("examination_failed", True)
    finally:
        small.close()


async def test_an_examination_that_takes_long_holds_up_no_other(open_store, sources):
    """R8, R19: another child is started for whoever waits."""
    examiner = Examiner(ExaminationLimits(processor_seconds=600))
    store = open_store(examiner=examiner)
    long, good = write_adapter(sources / "long", seed=1), write_adapter(sources / "good")
    before = children_of(os.getpid())
    examiner.warm()
    (child,) = children_of(os.getpid()) - before
    os.kill(child, signal.SIGSTOP)  # before it is asked, as if it took for ever
    held = asyncio.create_task(store.ensure(pinned(long)))
    try:
        await eventually(lambda: examiner._busy)
        assert (await store.ensure(pinned(good))).digest == good.digest
        assert not held.done()
        held.cancel()
        await eventually(lambda: child not in children_of(os.getpid()))  # and it is ended with its staging
    finally:
        examiner.close()


def test_a_child_that_somebody_else_ended_is_no_fault_of_the_adapter(tmp_path, examiner):
    """R8: whoever is short of memory may have chosen it."""
    adapter, before = write_adapter(tmp_path / "a"), children_of(os.getpid())
    examiner.warm()
    (child,) = children_of(os.getpid()) - before
    os.kill(child, signal.SIGKILL)
    assert examiner.examine(adapter.directory, None, Policy(), Stop()).rank == 4


def test_what_breaks_every_child_is_refused_for_good(tmp_path, examiner, monkeypatch):
    """X2: a fault of a library that somebody's bytes set off."""
    monkeypatch.setattr(module, "_PROGRAM", "import os; os.abort()")
    with pytest.raises(ArtifactError, match="broke off, twice") as refused:
        examiner.examine(write_adapter(tmp_path / "a").directory, None, Policy(), Stop())
    assert (refused.value.reason, refused.value.permanent) == ("examination_failed", True)


def test_a_child_that_cannot_be_started_is_tried_again(tmp_path, examiner, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(ArtifactError, match="no process could be started") as refused:
        examiner.examine(write_adapter(tmp_path / "a").directory, None, Policy(), Stop())
    assert not refused.value.permanent


def test_one_child_is_kept_and_compares_with_the_base_that_it_is_told(tmp_path, examiner):
    adapter, before = write_adapter(tmp_path / "a"), children_of(os.getpid())
    right = BaseModules({f"model.layers.0.self_attn.{name}_proj": (16, 16) for name in "qv"})
    wrong = BaseModules({f"model.layers.0.self_attn.{name}_proj": (8, 8) for name in "qv"})
    for base in (right, None, right, None):
        modules = examiner.examine(adapter.directory, base, Policy(), Stop()).modules
        assert {one.rpartition(".")[2] for one in modules} == {"q_proj", "v_proj"}
    with pytest.raises(ArtifactError) as refused:
        examiner.examine(adapter.directory, wrong, Policy(), Stop())
    assert refused.value.reason == "shape_mismatch"
    assert len(children_of(os.getpid()) - before) == 1


def test_a_child_gets_no_secret_of_ours_and_writes_nothing(tmp_path, examiner, monkeypatch):
    """X1."""
    monkeypatch.setenv("HF_TOKEN", "canary-secret")
    examiner.warm()
    pid = examiner._idle[0]._process.pid
    assert b"canary-secret" not in Path(f"/proc/{pid}/environ").read_bytes()
    examiner.examine(write_adapter(tmp_path / "a").directory, None, Policy(), Stop())
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert [line.split()[3] for line in limits.splitlines() if line.startswith("Max file size")] == ["0"]


class FakeChild:
    """A child without a process: alive until it is ended, or until somebody else ends it."""

    def __init__(self, started: list[FakeChild]) -> None:
        self.is_alive, self.is_ready, self.times_ended = True, True, 0
        started.append(self)

    def end(self) -> None:
        self.is_alive = False
        self.times_ended += 1


@pytest.fixture
def started(examiner, monkeypatch) -> list[FakeChild]:
    """The children that the examiner has started, none of them a process; nobody may wait for one."""
    children: list[FakeChild] = []
    monkeypatch.setattr(module, "_Child", lambda: FakeChild(children))
    monkeypatch.setattr(examiner._changed, "wait_for", lambda *_: pytest.fail("it waits"))
    return children


def test_a_free_child_is_taken_again_and_nobody_waits_where_none_is_at_work(examiner, started):
    """R19: the first adapter after a start, and each one after another."""
    for _ in range(3):
        with examiner._child(is_new=False) as child:
            assert child.is_alive
    assert [one.times_ended for one in started] == [0]
    examiner.warm()
    assert len(started) == 1


def test_one_child_is_kept_of_several_and_each_other_is_ended_once(examiner, started, monkeypatch):
    """R16 bounded: a process that nobody needs ends, and its pipes are closed."""
    monkeypatch.setattr(examiner._changed, "wait_for", lambda *_: False)  # the one that is at work takes too long
    with examiner._child(is_new=False) as first, examiner._child(is_new=False) as second:
        assert first is not second
        examiner.warm()  # they are at work: nothing to be started
    assert [one.times_ended for one in started] == [1, 0]
    with examiner._child(is_new=False) as third:
        assert third is second
    examiner.close()
    assert [one.times_ended for one in started] == [1, 1]


def test_a_child_that_did_not_do_what_it_was_asked_is_ended_once(examiner, started):
    """R16: whatever broke off, also the staging itself."""
    with suppress(ArtifactError), examiner._child(is_new=False) as child:
        child.is_ready = False
        raise ArtifactError("staging_stopped", "")
    with examiner._child(is_new=False):
        pass
    assert [one.times_ended for one in started] == [1, 0]


def test_a_kept_child_that_somebody_else_ended_is_cleared_away(examiner, started):
    """R16: its pipes are closed before another is started."""
    examiner.warm()
    started[0].is_alive = False
    with examiner._child(is_new=False) as child:
        assert child.is_alive
    assert [one.times_ended for one in started] == [1, 0]


def test_the_second_try_gets_a_child_of_its_own_at_once(examiner, started):
    """R8: what was kept may have what broke the first."""
    with examiner._child(is_new=False), examiner._child(is_new=True) as second:
        assert second is started[1]
    with examiner._child(is_new=True) as third:
        assert third is started[2]


def children_of_killed(program: list[str]) -> set[int]:
    """Those that a process had when it was killed, after its first examination."""
    with child([sys.executable, "-c", *program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "examined\n"
        children = children_of(process.pid)
    assert children
    return children


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
    children = children_of_killed([program, str(good.directory), *[str(costly.directory)] * 20])
    await eventually(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
