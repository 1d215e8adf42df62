"""What is right, or is made right: prepared to the same bytes everywhere, and right as it then stands."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry.lora.base_directory import read_base
from registry.lora.directory import digest_of, examine_directory, open_directory
from registry.lora.policy import AdapterLimits, Policy
from registry.sources.base import ArtifactError
from sidecar.artifacts.reports import ArtifactReport, parse_report
from sidecar.artifacts.store import LocalStore, ReadingEngine
from sidecar.artifacts.types import ArtifactRef, Staged
from tests.corpus.drafts import CONFIG, LLAMA, PLAYED, QWEN2_5_VL, WEIGHTS, Architecture, Draft
from tests.corpus.edits import vision
from tests.corpus.goods import GOODS, Good
from tests.corpus.in_process import InProcessExaminer


async def stage(
    folder: Path, base: Path | None, prepare: dict[str, Any], store: str = "store", **more: object
) -> Staged:
    own = replace(read_base(base), architecture="LlamaForCausalLM") if base else None
    opened = LocalStore(
        folder / store, "r1", [folder.as_uri()], engine=ReadingEngine(base=own), examiner=InProcessExaminer()
    )
    try:
        return await opened.ensure(ArtifactRef((folder / "source").as_uri(), None, json.dumps(prepare), **more))
    finally:
        opened.close()


def report_of(folder: Path) -> ArtifactReport:
    (path,) = (folder / "store" / "reports").iterdir()
    report = parse_report(path.read_bytes())
    assert report is not None
    return report


def tensors(directory: Path) -> dict[str, bytes]:
    opened = open_directory(directory)
    content = (directory / WEIGHTS).read_bytes()[opened.start :]
    return {tensor.name: content[tensor.begin : tensor.end] for tensor in opened.header.tensors}


@pytest.mark.parametrize("architecture", PLAYED, ids=lambda one: one.name)
@pytest.mark.parametrize("good", GOODS, ids=lambda one: one.name)
async def test_what_can_be_made_right_is_served_under_the_bases_own_names(
    tmp_path, architecture: Architecture, good: Good
):
    """R4: the numbers are the source's, byte for byte; two stores make the same files; nothing is left to be done."""
    base = architecture.write_base(tmp_path / "base")
    draft = architecture.draft()
    good.edit(draft, architecture)
    draft.write(tmp_path / "source")
    staged = await stage(tmp_path, base, good.prepare)
    directory = Path(staged.path)
    served = {name for name in tensors(directory) if "base_layer" not in name}
    assert served == set(architecture.draft().tensors)
    assert sorted(tensors(directory).values()) == sorted(_kept(draft))
    again = examine_directory(directory, read_base(base), AdapterLimits(), Policy())
    assert not again.verdict.changes
    report = report_of(tmp_path)
    assert (report.id, report.source, report.prepared) == (
        staged.id,
        digest_of(tmp_path / "source"),
        digest_of(directory),
    )
    twin = await stage(tmp_path, base, good.prepare, "twin")
    assert (twin.id, digest_of(Path(twin.path))) == (staged.id, report.prepared)
    assert not _writable(directory)


def _writable(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.stat().st_mode & 0o222]


def _kept(draft: Draft) -> list[bytes]:
    return [
        one.data for name, one in draft.tensors.items() if not re.search("visual|magnitude|embed_tokens.weight", name)
    ]


@pytest.mark.parametrize("name", ["patterns", "patterns_renamed"])
async def test_ranks_and_alphas_of_modules_survive_their_new_names(tmp_path, name):
    """A pattern that names a module in full still means it once the module is called otherwise."""
    base = LLAMA.write_base(tmp_path / "base")
    draft = LLAMA.draft()
    next(good for good in GOODS if good.name == name).edit(draft, LLAMA)
    draft.write(tmp_path / "source")
    config = json.loads((Path((await stage(tmp_path, base, {})).path) / CONFIG).read_text())
    for layer, wanted in ((0, (4, 8)), (1, (2, 4))):
        module = f"model.layers.{layer}.self_attn.q_proj"
        found = _of_peft(config["rank_pattern"], module, config["r"])
        assert (found, _of_peft(config["alpha_pattern"], module, config["lora_alpha"])) == wanted


def _of_peft(patterns: dict[str, float], module: str, default: float) -> float:
    """What a module has by PEFT's own rule (`get_pattern_key`): the first key that its name is, or ends with."""
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), default)


async def test_vision_modules_are_kept_or_dropped_only_where_that_is_asked_for(tmp_path):
    """Kept where the base has them in that shape; dropped with a warning; refused otherwise."""
    base = QWEN2_5_VL.write_base(tmp_path / "base")
    draft = QWEN2_5_VL.draft("visual.blocks.0.attn.qkv")
    draft.write(tmp_path / "source")
    assert set(tensors(Path((await stage(tmp_path, base, {"vision": "keep"})).path))) == set(draft.tensors)
    other = tmp_path / "llama"
    base_of_text = LLAMA.write_base(other / "base")
    draft = LLAMA.draft()
    vision(draft, LLAMA)
    draft.write(other / "source")
    for folder, where, prepare, reason in (
        (tmp_path, base, {}, "vision_modules"),
        (other, base_of_text, {"vision": "keep"}, "no_such_module"),
        (other, base_of_text, {"dora": "convert"}, "unsupported_policy"),
    ):
        with pytest.raises(ArtifactError) as refused:
            await stage(folder, where, prepare, f"store-{reason}")
        assert (refused.value.reason, refused.value.permanent) == (reason, True)
    staged = await stage(other, base_of_text, {"vision": "drop"})
    assert [warning.reason for warning in staged.warnings] == ["vision_dropped"]
    assert "1 vision modules" in staged.warnings[0].message
    assert len(report_of(other).dropped) == 2


async def test_what_the_record_says_of_the_base_is_only_compared(tmp_path):
    """The adapter's own configuration decides; a disagreement is in the status and in the report."""
    base = LLAMA.write_base(tmp_path / "base")
    LLAMA.draft().write(tmp_path / "source")
    staged = await stage(tmp_path, base, {}, base_model="other/base")
    assert [warning.reason for warning in staged.warnings] == ["base_name_differs"]
    assert "'other/base'" in staged.warnings[0].message
    assert [warning.reason for warning in report_of(tmp_path).warnings] == ["base_name_differs"]
    assert (await stage(tmp_path, base, {}, base_model="llama")).warnings == ()


async def test_each_policy_and_each_base_make_an_artifact_of_their_own(tmp_path):
    """R4, R7: what was prepared otherwise stands under another name, so nothing that an engine reads ever changes."""
    base = LLAMA.write_base(tmp_path / "base")
    LLAMA.draft().write(tmp_path / "source")
    ids = [(await stage(tmp_path, where, prepare)).id for where in (base, None) for prepare in ({}, {"remap": "off"})]
    assert len(set(ids)) == 4
    assert (await stage(tmp_path, base, {"remap": "auto", "dora": "reject"})).id == ids[0]


async def test_without_a_base_what_can_be_seen_is_seen(tmp_path):
    """Names are made those that every engine reads; what depends on the base is left as it is."""
    draft = LLAMA.draft()
    draft.rename("lora_A.weight", "lora_A.default.weight")
    draft.rename("lora_B.weight", "lora_B.default.weight")
    draft.write(tmp_path / "source")
    staged = await stage(tmp_path, None, {})
    assert set(tensors(Path(staged.path))) == set(LLAMA.draft().tensors)
    assert json.loads((Path(staged.path) / CONFIG).read_text()) == draft.config
