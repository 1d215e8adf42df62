"""Every defect of the corpus: which reason we give, and that no engine hears of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from registry.lora.base import compress
from registry.lora.base_directory import read_base
from registry.model.records import BaseShapes
from registry.sources.base import ArtifactError
from sidecar.artifacts.store import LocalStore, ReadingEngine
from sidecar.artifacts.types import ArtifactRef
from tests.corpus.defects import DEFECTS, Defect
from tests.corpus.drafts import ARCHITECTURES, LLAMA, PLAYED, QWEN2, Architecture
from tests.corpus.hostile import FOLDERS
from tests.corpus.in_process import InProcessExaminer
from tests.support.engines import PATIENT
from tests.support.rig import Rig, running_rig
from tests.support.waiting import eventually


def test_the_corpus_is_large_enough():
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS) >= 60
    assert len(ARCHITECTURES) == 3 >= len(PLAYED) >= 1


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bases")
    return {one.name: one.write_base(folder / one.name) for one in ARCHITECTURES}


async def refusal(folder: Path, base: Path, defect: Defect) -> ArtifactError:
    store = LocalStore(
        folder / "store",
        "r1",
        [folder.as_uri()],
        engine=ReadingEngine(base=read_base(base)),
        examiner=InProcessExaminer(),
    )
    ref = ArtifactRef((folder / "source").as_uri(), None, prepare=json.dumps(defect.prepare))
    with pytest.raises(ArtifactError) as refused:
        await store.ensure(ref)
    store.close()
    return refused.value


@pytest.mark.parametrize("architecture", PLAYED, ids=lambda one: one.name)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
async def test_a_defect_is_refused_by_name_and_leaves_nothing(
    tmp_path, bases, architecture: Architecture, defect: Defect
):
    """R4, R8, R14: a stable reason, whether for good, and a sentence that says what to do."""
    draft = architecture.draft()
    defect.edit(draft, architecture)
    draft.write(tmp_path / "source")
    error = await refusal(tmp_path, bases[architecture.name], defect)
    assert (error.reason, error.permanent) == (defect.reason, defect.permanent), error.message
    assert ";" in error.message
    assert not list((tmp_path / "store" / "adapters").iterdir())
    assert not list((tmp_path / "store" / "tmp").iterdir())


async def test_no_engine_hears_of_any_defect_and_the_good_one_is_served(tmp_path):
    """R8 isolation, R5: all defects, and pipes and devices, desired at once, among them one good adapter."""
    async with running_rig(tmp_path) as rig:
        rig.driver._deadlines = PATIENT
        _use(rig, tmp_path, LLAMA)
        expected = {}
        for defect in DEFECTS:
            draft = LLAMA.draft()
            defect.edit(draft, LLAMA)
            draft.write(rig.sources / defect.name)
            expected[f"bad-{defect.name.lower().replace('.', '-')}"] = (defect.name, defect.reason)
        LLAMA.draft().write(rig.sources / "good")
        usual = {name: source for name, (source, _) in expected.items() if source != "wrong_prefix_kept"}
        for number, hostile in enumerate(one for one in FOLDERS if one.name not in {"loop", "nothing"}):
            hostile.write(rig.sources / hostile.name, LLAMA.draft())
            expected[f"hostile-{number}"] = hostile.name, hostile.reason
            usual[f"hostile-{number}"] = hostile.name
        rig.desire(1, good="good", **usual)

        def all_settled() -> bool:
            assert rig.statuses
            assert {name: expected[name][1] for name in usual} == rig.reasons()
            return rig.status.ready and rig.status.served.count == 1

        await eventually(all_settled, timeout_seconds=240)
        assert rig.calls("load") == ["good"]
        assert set(rig.engine.cards) == {"good"}


async def test_what_was_refused_for_another_base_is_served_once_the_pools_base_is_right(tmp_path):
    """R3, R8: the pool's record is followed as it changes, and a refusal for good ends with what it was about."""
    async with running_rig(tmp_path) as rig:
        rig.driver._deadlines = PATIENT
        _use(rig, tmp_path, QWEN2)
        LLAMA.draft().write(rig.sources / "a")
        rig.desire(1, a="a")
        await eventually(lambda: bool(rig.statuses) and rig.reasons() == {"a": "shape_mismatch"})
        assert not rig.calls("load")
        _use(rig, tmp_path, LLAMA)
        await rig.served(1, "a")
        assert [one.reason for one in rig.status.warnings] == ["base_unproven"], "nobody sees the engine's own"


def _use(rig: Rig, folder: Path, architecture: Architecture) -> None:
    """Makes this the base of the rig's pool."""
    base = read_base(architecture.write_base(folder / "bases" / architecture.name))
    shapes = BaseShapes(modules=compress(base.modules), fingerprint=base.fingerprint, architecture="LlamaForCausalLM")
    rig.set_pool(rig.mailbox.snapshot.pool.model_copy(update={"base": shapes}))
