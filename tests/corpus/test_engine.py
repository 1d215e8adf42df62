"""What the real vLLM makes of the corpus with and without us, compared with what PEFT computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.lora.base_directory import read_base
from registry.sources.base import ArtifactError
from registry.tools.devstack.engine_environment import find_engine_python
from sidecar.artifacts.store import LocalStore, ReadingEngine
from sidecar.artifacts.types import ArtifactRef
from tests.support.engines import Asker
from tests.support.with_torch import reference_command, script

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]
SCRIPT = Path(__file__).with_name("peft_adapters.py")
PROMPT = "The quick brown"
TOLERANCE = 1e-4
ACCEPTED = ("plain", "all_linear", "rslora", "patterns", "lm_head", "embed_tokens")
# What PEFT saves and no engine serves rightly, and the reason that we give.
REFUSED = {
    "dora": "dora_not_supported",
    "bias_lora_only": "bias_not_supported",
    "lora_bias": "bias_not_supported",
    "pissa": "unsupported_init",
    "olora": "unsupported_init",
    "modules_to_save": "unsupported_modules_to_save",
    "trainable_tokens": "unsupported_feature",
    "layer_replication": "unsupported_feature",
    "adalora": "wrong_peft_type",
    "ia3": "wrong_peft_type",
    "loha": "wrong_peft_type",
    "vera": "wrong_peft_type",
}


async def prepared(tiny, source: Path, folder: Path) -> str:
    """The directory that our store makes of a source."""
    store = LocalStore(folder, "r1", [source.parent.as_uri()], engine=ReadingEngine(base=read_base(tiny.model)))
    try:
        return (await store.ensure(ArtifactRef(source.as_uri(), None))).path
    finally:
        store.close()


async def answer(asker: Asker, name: str) -> list[tuple[int, float]]:
    """Greedy tokens with their logprobs."""
    reply = await asker.complete(name, PROMPT)
    assert reply.status_code == 200, reply.text
    found = reply.json()["choices"][0]["logprobs"]
    tokens = [int(token.removeprefix("token_id:")) for token in found["tokens"]]
    return list(zip(tokens, found["token_logprobs"], strict=True))


def differs(one: list[tuple[int, float]], other: list[tuple[int, float]]) -> float:
    """The largest distance of logprobs; infinity where the tokens are others."""
    if [token for token, _ in one] != [token for token, _ in other]:
        return float("inf")
    return max(abs(mine - theirs) for (_, mine), (_, theirs) in zip(one, other, strict=True))


async def test_what_peft_saves_is_served_as_peft_computes_it_or_refused_by_name(real_vllm, tiny, tmp_path):
    """R4, R5, R14: the property behind the check; test_verdicts.py has what the engine does without it."""
    out = tmp_path / "peft"
    done = script([str(find_engine_python()), "-P", str(SCRIPT), "--model", str(tiny.model), "--out", str(out)])
    assert done.code == 0, done.err[-2000:]
    for name, reason in REFUSED.items():
        with pytest.raises(ArtifactError) as refused:
            await prepared(tiny, out / name, tmp_path / f"store-{name}")
        assert refused.value.reason == reason, refused.value.message
    paths = {name: out / name for name in ACCEPTED}
    answers = script(reference_command(find_engine_python(), tiny.model, paths, [PROMPT])).json
    await real_vllm.ensure()
    await real_vllm.clear()
    asker = real_vllm.asker()
    base = await answer(asker, "tiny")
    for name, source in paths.items():
        path = await prepared(tiny, source, tmp_path / f"store-{name}")
        assert (await asker.load(name, path)).status_code == 200
        expected = [(int(one["token"]), one["logprob"]) for one in answers[name][PROMPT]]
        assert differs(await answer(asker, name), expected) <= TOLERANCE, name
        assert differs(base, expected) > TOLERANCE, name
        await asker.unload(name)  # on CPUs the base is answered with the last slot, which has to stay free
    await asker.client.aclose()
