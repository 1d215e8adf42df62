"""What the real engine does with every row of the corpus if nobody looks first; `make corpus` asks three architectures.

The verdicts are kept in verdicts.json, from which docs/corpus.md is made; CORPUS_WRITE=1 writes what was measured.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from registry.lora.base_directory import read_base
from sidecar.artifacts.store import LocalStore, ReadingEngine
from sidecar.artifacts.types import ArtifactRef
from tests.corpus.defects import DEFECTS, Defect
from tests.corpus.drafts import Draft
from tests.corpus.engine_models import NAMES as MODELS
from tests.corpus.engine_models import EngineModel, make_models
from tests.corpus.goods import GOODS, SPELLINGS
from tests.corpus.hostile import FOLDERS, NAMES
from tests.support.engines import Asker, RealVllm
from tests.support.http_client import http_client

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]
KEPT = Path(__file__).with_name("verdicts.json")
PROMPT = "The quick brown"
TOLERANCE = 1e-4
# Reading it without end takes all memory of the machine; that an engine hangs on a pipe is seen once, at the end.
NOT_TRIED = {"link_to_a_device", "fifo_adapter_config.json"}
Answer = list[tuple[int, float]]


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny) -> dict[str, EngineModel]:
    return make_models(tmp_path_factory.mktemp("models"), tiny.model)


@pytest.fixture(scope="module", params=MODELS)
def model(request, models) -> EngineModel:
    return models[request.param]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory, model) -> Iterator[RealVllm]:
    """One of its own: what others had asked of the shared one was seen to change what its base answers."""
    engine = RealVllm(model.directory, tmp_path_factory.mktemp("vllm"))
    yield engine
    engine.stop()


@pytest.fixture
async def asker(vllm, model) -> AsyncIterator[Asker]:
    await vllm.ensure(model.flags)
    asker = Asker(vllm.url)
    await asker.clear()
    yield asker
    await asker.client.aclose()


async def answer(asker: Asker, name: str) -> Answer | None:
    """Greedy tokens with their logprobs; None: the request failed."""
    reply = await asker.complete(name, PROMPT)
    if reply.status_code != 200:
        return None
    found = reply.json()["choices"][0]["logprobs"]
    tokens = [int(token.removeprefix("token_id:")) for token in found["tokens"]]
    if any(logprob is None for logprob in found["token_logprobs"]):
        return None
    return list(zip(tokens, found["token_logprobs"], strict=True))


def is_same(one: Answer | None, other: Answer | None) -> bool:
    if one is None or other is None or [token for token, _ in one] != [token for token, _ in other]:
        return False
    return max(abs(mine - theirs) for (_, mine), (_, theirs) in zip(one, other, strict=True)) <= TOLERANCE


async def verdict(asker: Asker, path: Path, base: Answer | None, good: Answer | None) -> str:
    """What became of the load, and then of a request."""
    reply = await asker.load("row", str(path))
    if reply.status_code != 200:
        return f"refused ({reply.status_code})"
    found = await answer(asker, "row")
    await asker.unload("row")
    if found is None:
        return "200, then requests fail"
    if is_same(found, base):
        return "200, answers as the base"
    return "200, as the undamaged one" if is_same(found, good) else "200, other answers"


def drafted(model: EngineModel) -> Draft:
    return model.architecture.draft(seed=7)


async def test_what_we_make_of_every_good_row_is_served_as_peft_computes_it(model, asker, tmp_path):
    """R4, R5: the property behind the check: every spelling, PEFT's logprobs."""
    plain = drafted(model).write(tmp_path / "plain")
    answers = model.answers(plain, PROMPT)
    wanted, base = ([(int(one["token"]), one["logprob"]) for one in answers[name][PROMPT]] for name in ("a", ""))
    assert is_same(await answer(asker, "tiny"), base)
    assert not is_same(wanted, base)
    others = ("default_keys", "vision_dropped", "f64", "rank_4.0", "embedding_dropped", "wrapped_elsewhere")
    for name in ("plain", *(f"spelled_{spelling}" for spelling in SPELLINGS), *others):
        good = next(one for one in GOODS if one.name == name)
        draft = drafted(model)
        good.edit(draft, model.architecture)
        source = draft.write(tmp_path / name) if name != "plain" else plain
        path = await prepared(model, source, tmp_path / f"store-{name}", good.prepare)
        assert (await asker.load(name, path)).status_code == 200, name
        assert is_same(await answer(asker, name), wanted), name
        await asker.unload(name)


async def prepared(model: EngineModel, source: Path, folder: Path, prepare: dict[str, str]) -> str:
    store = LocalStore(folder, "r1", [source.parent.as_uri()], engine=ReadingEngine(base=read_base(model.directory)))
    try:
        return (await store.ensure(ArtifactRef(source.as_uri(), None, json.dumps(prepare)))).path
    finally:
        store.close()


async def test_the_engines_verdicts_are_those_that_are_kept(model, asker, tmp_path):
    """R5, R8: why every one of these is refused before the engine hears of it."""
    base = await answer(asker, "tiny")
    assert (await asker.load("good", str(drafted(model).write(tmp_path / "good")))).status_code == 200
    good = await answer(asker, "good")
    found = {}
    for name, folder in rows(model, tmp_path / "rows"):
        found[name] = await verdict(asker, folder, base, good)
        shutil.rmtree(tmp_path / "rows", ignore_errors=True)
    for number, name in enumerate(NAMES):
        reply = await asker.load(name, str(tmp_path / "good"))
        found[f"name_{number}"] = "taken" if reply.status_code == 200 else f"refused ({reply.status_code})"
        await asker.unload(name)
    assert is_same(await answer(asker, "good"), good)
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if os.environ.get("CORPUS_WRITE"):
        KEPT.write_text(json.dumps(kept | {model.name: found}, indent=1, sort_keys=True) + "\n")
    else:
        assert found == kept[model.name]


def rows(model: EngineModel, folder: Path) -> Iterator[tuple[str, Path]]:
    """Each row as it would lie before an engine without us; made when its turn comes."""
    architecture = model.architecture
    for defect in sorted(DEFECTS, key=_is_not_finite):
        draft = drafted(model)
        defect.edit(draft, architecture)
        yield defect.name, draft.write(folder / defect.name)
    for hostile in FOLDERS:
        if hostile.name not in NOT_TRIED:
            folder.mkdir(parents=True, exist_ok=True)
            hostile.write(folder / hostile.name, drafted(model))
            yield hostile.name, folder / hostile.name


def _is_not_finite(defect: Defect) -> bool:
    """These come last: what they leave in the engine's memory may spoil what comes after them."""
    return any(part in {"nan", "inf"} for part in defect.name.split("_"))


@pytest.mark.parametrize("model", ["llama"], indirect=True)
async def test_a_pipe_in_the_place_of_a_configuration_holds_the_engine(model, vllm, asker, tmp_path):
    """R7: why nothing but a regular file of our own store is ever named to an engine. It waits for who may write."""
    hostile = next(one for one in FOLDERS if one.name == "fifo_adapter_config.json")
    hostile.write(tmp_path / "a", drafted(model))
    async with http_client(base_url=vllm.url, timeout=httpx.Timeout(60, read=10)) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": str(tmp_path / "a")})
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/completions", json={"model": "tiny", "prompt": "x", "max_tokens": 1})
    pipe = tmp_path / "a" / "adapter_config.json"
    writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    pipe.unlink()
    pipe.write_bytes((drafted(model).write(tmp_path / "good") / pipe.name).read_bytes())  # for who reads it again
    os.write(writer, pipe.read_bytes())
    os.close(writer)
    assert await answer(asker, "tiny") is not None
