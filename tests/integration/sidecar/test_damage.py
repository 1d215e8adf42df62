"""Files that change under a replica: between two of its processes, while it serves, and before it serves again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import SimulatedVllm
from tests.support.adapters import digest_of
from tests.support.rig import Rig, running, running_rig
from tests.support.waiting import eventually
from tests.unit.artifacts.conftest import WEIGHTS, flip


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
        assert path not in {call.path for call in engine.calls if call.kind == "load"}
        assert digest_of(Path(engine.cards["a"].path)) == digest_of(rig.sources / "v1")


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
