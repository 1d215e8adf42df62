"""What an engine does not apply, as artifacts are staged and found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from registry.lora.base import BaseModules
from registry.lora.digest import WEIGHTS_FILE
from registry.lora.directory import open_directory
from registry.sources.base import ArtifactError
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef
from tests.corpus.drafts import LLAMA
from tests.unit.lora.test_coverage import GATE, LLAMA4, base, draft_of


async def staged(folder: Path, known: BaseModules, prepare: str = "{}") -> Path:
    store = LocalStore(folder / "store", "r1", [folder.as_uri()], base=known)
    try:
        ref = ArtifactRef((folder / "source").as_uri(), None, prepare=prepare, pin_key="p/a@1")
        return Path((await store.ensure(ref)).path)
    finally:
        store.close()


async def test_what_an_earlier_release_staged_is_looked_at_anew(tmp_path):
    """R22 applied-whole: more is known of the engine now than when it was put into the store."""
    unknown = base(GATE)
    draft_of(GATE, base=unknown).write(tmp_path / "source")
    await staged(tmp_path, unknown)
    known = replace(unknown, architecture="Qwen3MoeForCausalLM")
    assert known.fingerprint == unknown.fingerprint
    with pytest.raises(ArtifactError) as refused:
        await staged(tmp_path, known)
    assert (refused.value.reason, refused.value.permanent) == ("not_applied_by_engine", True)
    directory = await staged(tmp_path, known, '{"drop": ["mlp.gate"]}')
    assert not any("gate" in tensor.name for tensor in open_directory(directory).header.tensors)


async def test_rows_are_ordered_on_disk_as_the_engine_orders_the_bases(tmp_path):
    """R22 applied-whole, R4: under an id of its own."""
    LLAMA.draft().write(tmp_path / "source")
    plain = await staged(tmp_path, replace(LLAMA4, architecture="LlamaForCausalLM"))
    ordered = await staged(tmp_path, LLAMA4)
    assert plain.name != ordered.name
    for tensor in open_directory(ordered).header.tensors:
        old, new = rows(plain, tensor.name), rows(ordered, tensor.name)
        is_moved = "q_proj.lora_B" in tensor.name
        assert (old != new) is is_moved
        assert sorted(old) == sorted(new)
        if is_moved:
            assert new[:8] == [old[at] for at in (0, 2, 4, 6, 1, 3, 5, 7)]


def rows(directory: Path, name: str) -> list[bytes]:
    opened = open_directory(directory)
    [tensor] = [one for one in opened.header.tensors if one.name == name]
    content = (directory / WEIGHTS_FILE).read_bytes()[opened.start + tensor.begin : opened.start + tensor.end]
    width = len(content) // tensor.shape[0]
    return [content[at : at + width] for at in range(0, len(content), width)]
