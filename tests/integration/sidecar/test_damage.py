"""Files that change under a replica: between two of its processes, while it serves, and before it serves again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from registry.sources.base import Stop
from sidecar.artifacts import proof
from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import SimulatedVllm
from tests.support.adapters import digest_of
from tests.support.rig import Keeping, Rig, running, running_rig
from tests.support.waiting import eventually
from tests.unit.artifacts.conftest import WEIGHTS, flip


def paths_given(engine: SimulatedVllm) -> set[str]:
    """What the engine was told to read."""
    return {call.path for call in engine.calls if call.kind == "load"}


async def is_given_a_copy(rig: Rig, name: str, damaged: str) -> None:
    """Waits until the engine has the right bytes from elsewhere."""
    await eventually(lambda: name in rig.engine.cards and rig.engine.cards[name].path not in ("", damaged))
    copy = Path(rig.engine.cards[name].path)
    assert digest_of(copy) == digest_of(rig.sources / "v1")


async def test_a_bit_that_was_flipped_before_a_cold_start_reaches_no_engine(tmp_path):
    """R4, R21."""
    async with running_rig(tmp_path) as rig:
        rig.desire(1, a="v1")
        await rig.served(1, "a")
        path = rig.engine.cards["a"].path
    flip(path)
    engine = SimulatedVllm()
    async with serving(engine) as url, running(Rig(tmp_path, engine, url)) as rig:
        rig.desire(1, a="v1")
        await rig.served(1, "a")
        assert path not in paths_given(engine)
        assert digest_of(Path(engine.cards["a"].path)) == digest_of(rig.sources / "v1")


@pytest.mark.parametrize("is_flipped", [False, True])
async def test_what_an_engine_serves_stays_and_is_proven_in_the_background(tmp_path, monkeypatch, is_flipped):
    """R4, R13, R21: a replica whose sidecar restarts is ready at once; what is damaged is then replaced."""
    hashed: list[Path] = []
    wrapped = proof.hash_directory
    monkeypatch.setattr(proof, "hash_directory", lambda path, *more: hashed.append(path) or wrapped(path, *more))
    engine = SimulatedVllm()
    async with serving(engine) as url:
        async with running(Rig(tmp_path, engine, url)) as rig:
            rig.desire(1, a="v1", b="v2")
            await rig.served(1, "a", "b")
            path = engine.cards["a"].path
        if is_flipped:
            flip(path)
        given = paths_given(engine)
        async with running(Rig(tmp_path, engine, url, Keeping(pause_seconds=0.2))) as rig:
            rig.desire(1, a="v1", b="v2")
            await eventually(lambda: bool(rig.statuses) and rig.status.ready)
            assert rig.status.served.count == 2
            await eventually(lambda: len(hashed) >= 2)
            rig.store.maintenance.scrub(Stop())
            if is_flipped:
                rig.mailbox.wake()
                await is_given_a_copy(rig, "a", path)
                assert rig.store.maintenance.round(Stop()).damaged == 1
            else:
                assert paths_given(engine) == given
            await rig.served(1, "a", "b")


def warned(rig: Rig) -> set[str]:
    return {one.name for one in rig.status.warnings if one.reason == "files_touched"}


REMOVALS: dict[str, Callable[[Path], None]] = {
    "folder": shutil.rmtree,
    "store": lambda directory: shutil.rmtree(directory.parents[1]),
    "weights": lambda directory: (directory / WEIGHTS).unlink(),
}


@pytest.mark.parametrize("remove", REMOVALS.values(), ids=REMOVALS)
async def test_files_that_somebody_removes_while_they_are_served_are_told_and_put_back(tmp_path, remove):
    """R4, R7, R9: an engine that has to read them again would end; nothing is unloaded for that, or loaded."""
    async with running_rig(tmp_path) as rig:
        rig.desire(1, a="v1", b="v2")
        await rig.served(1, "a", "b")
        path, calls = rig.engine.cards["a"].path, len(rig.engine.calls)
        aside = (rig.sources / "v1").rename(tmp_path / "aside")
        remove(Path(path))
        await eventually(lambda: "a" in warned(rig) and "a" in rig.reasons())
        assert rig.engine.cards["a"].path == path
        aside.rename(rig.sources / "v1")
        await eventually(lambda: not warned(rig))
        await rig.served(1, "a", "b")
        assert digest_of(Path(path)) == digest_of(rig.sources / "v1")
        assert len(rig.engine.calls) == calls


async def test_a_bit_that_is_flipped_while_nobody_serves_it_is_found_before_the_next_load(tmp_path):
    """R4, R21: its lease still stands, and it was proven."""
    async with running_rig(tmp_path) as rig:
        rig.desire(1, a="v1", b="v2")
        await rig.served(1, "a", "b")
        path = rig.engine.cards["a"].path
        rig.desire(2, b="v2")
        await rig.served(2, "b")
        flip(path)
        rig.engine.calls.clear()
        rig.desire(3, a="v1", b="v2")
        await is_given_a_copy(rig, "a", path)
        await rig.served(3, "a", "b")
        assert path not in paths_given(rig.engine)
