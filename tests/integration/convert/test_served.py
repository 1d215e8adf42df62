"""A published adapter through the whole of it: bucket or folder, our store, the real vLLM."""

from __future__ import annotations

import pytest

from registry.lora.base_directory import read_base
from sidecar.artifacts.store import LocalStore, ReadingEngine
from sidecar.artifacts.types import ArtifactRef
from tests.integration.convert.conftest import PROMPTS
from tests.support.engines import Asker

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]


async def test_a_converted_adapter_is_served_as_peft_computed_the_training(trained, real_vllm, tmp_path):
    """R4, R5: PiSSA, which vLLM refuses, is published, pinned by the printed digest, staged, and answers as trained."""
    model, target = trained.models["llama"], tmp_path / "published"
    digest = trained.publish("llama", "pissa", target).json["digest"]
    wanted = trained.answers("llama", pissa=trained.adapter("llama", "pissa"))
    store = LocalStore(tmp_path / "store", "r1", [tmp_path.as_uri()], engine=ReadingEngine(base=read_base(model)))
    try:
        staged = await store.ensure(ArtifactRef(target.as_uri(), digest))
        await real_vllm.ensure()
        asker = Asker(real_vllm.url)
        await asker.clear()
        assert (await asker.load("raw", str(trained.adapter("llama", "pissa")))).status_code == 500
        assert (await asker.load("sql", staged.path)).status_code == 200
        for prompt in PROMPTS:
            reply = (await asker.complete("sql", prompt)).json()["choices"][0]["logprobs"]
            tokens = [int(token.removeprefix("token_id:")) for token in reply["tokens"]]
            assert tokens == [one["token"] for one in wanted["pissa"][prompt]]
            distances = zip(reply["token_logprobs"], wanted["pissa"][prompt], strict=True)
            assert max(abs(mine - theirs["logprob"]) for mine, theirs in distances) <= 1e-4
        await asker.client.aclose()
    finally:
        store.close()
