"""What the real vLLM makes of the corpus with and without us, compared with what PEFT computes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from registry.lora.base_directory import read_base
from registry.sources.base import ArtifactError
from registry.tools.devstack.engine_environment import find_engine_python, reference_command
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef
from tests.corpus.goods import SPELLINGS
from tests.support.engines import Asker
from tests.support.tiny import Tiny
from tests.support.with_torch import script

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


@dataclass(frozen=True)
class World:
    """The tiny model, PEFT's adapters of it, and what PEFT answers with those that are accepted."""

    tiny: Tiny
    adapters: Path
    answers: dict[str, dict[str, list[dict[str, float]]]]


@pytest.fixture(scope="module")
def world(tmp_path_factory, tiny) -> World:
    out = tmp_path_factory.mktemp("peft")
    command = [str(find_engine_python()), "-P", str(SCRIPT), "--model", str(tiny.model), "--out", str(out)]
    done = script(command)
    assert done.code == 0, done.err[-2000:]
    paths = {name: out / name for name in ACCEPTED}
    asked = reference_command(find_engine_python(), tiny.model, paths, [PROMPT])
    return World(tiny, out, script(asked).json)


@pytest.fixture
async def asker(real_vllm) -> AsyncIterator[Asker]:
    await real_vllm.ensure()
    asker = Asker(real_vllm.url)
    await asker.clear()
    yield asker
    await asker.client.aclose()


async def prepared(world: World, source: Path, folder: Path) -> str:
    """The directory that our store makes of a source."""
    store = LocalStore(folder, "r1", [source.parent.as_uri()], base=read_base(world.tiny.model))
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


def expected(world: World, name: str) -> list[tuple[int, float]]:
    return [(int(one["token"]), one["logprob"]) for one in world.answers[name][PROMPT]]


def differs(one: list[tuple[int, float]], other: list[tuple[int, float]]) -> float:
    """The largest distance of logprobs; infinity where the tokens are others."""
    if [token for token, _ in one] != [token for token, _ in other]:
        return float("inf")
    return max(abs(mine - theirs) for (_, mine), (_, theirs) in zip(one, other, strict=True))


def respelled(source: Path, target: Path, prefix: str) -> Path:
    """A copy whose modules stand under another beginning."""
    target.mkdir(parents=True)
    (target / "adapter_config.json").write_bytes((source / "adapter_config.json").read_bytes())
    content = (source / "adapter_model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    text = content[8 : 8 + length].decode().rstrip().replace("base_model.model.model.layers.", f"{prefix}layers.")
    header = text.encode()
    (target / "adapter_model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + content[8 + length :]
    )
    return target


@pytest.mark.parametrize("name", ACCEPTED)
async def test_what_we_accept_is_served_as_peft_computes_it(world, asker, tmp_path, name):
    """R4, R5: the property behind the check, on adapters that PEFT saved."""
    path = await prepared(world, world.adapters / name, tmp_path / "store")
    assert (await asker.load(name, path)).status_code == 200
    assert differs(await answer(asker, name), expected(world, name)) <= TOLERANCE
    assert differs(await answer(asker, "tiny"), expected(world, name)) > TOLERANCE


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_every_spelling_of_module_names_is_served_as_peft_computes_it(world, asker, tmp_path, spelling):
    """R5 no-silent-base: without the renaming, vLLM takes most of these and answers as the base model does."""
    source = respelled(world.adapters / "patterns", tmp_path / spelling, SPELLINGS[spelling])
    path = await prepared(world, source, tmp_path / "store")
    assert (await asker.load(spelling, path)).status_code == 200
    assert differs(await answer(asker, spelling), expected(world, "patterns")) <= TOLERANCE


@pytest.mark.parametrize("name", REFUSED)
async def test_what_peft_saves_and_no_engine_serves_is_refused(world, tmp_path, name):
    """R4, R14: with its reason, before an engine is asked."""
    with pytest.raises(ArtifactError) as refused:
        await prepared(world, world.adapters / name, tmp_path / "store")
    assert refused.value.reason == REFUSED[name], refused.value.message


def edited(source: Path, target: Path, **config: object) -> Path:
    respelled(source, target, "base_model.model.model.")
    file = target / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return target


@pytest.mark.parametrize(
    ("fault", "reason"),
    [({"lora_alpha": 0}, "zero_alpha"), ({"r": 2}, "rank_mismatch"), ({"peft_type": "IA3"}, "wrong_peft_type")],
    ids=str,
)
async def test_what_the_engine_takes_and_serves_wrongly_never_reaches_it(world, asker, tmp_path, fault, reason):
    """R5: the engine says 200; this is why we look first."""
    source = edited(world.adapters / "plain", tmp_path / "wrong", **fault)
    assert (await asker.load("wrong", str(source))).status_code == 200
    if "peft_type" not in fault:
        assert differs(await answer(asker, "wrong"), expected(world, "plain")) > TOLERANCE
    with pytest.raises(ArtifactError) as refused:
        await prepared(world, source, tmp_path / "store")
    assert refused.value.reason == reason


async def test_a_wrong_beginning_without_us_is_the_base_models_answer(world, asker, tmp_path):
    """R5 no-silent-base: the engine says 200, and then answers exactly as the base model does."""
    source = respelled(world.adapters / "plain", tmp_path / "wrong", SPELLINGS["language_model"])
    assert (await asker.load("wrong", str(source))).status_code == 200
    assert differs(await answer(asker, "wrong"), await answer(asker, "tiny")) <= TOLERANCE
