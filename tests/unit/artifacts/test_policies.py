"""What a pool asks of its adapters: signatures, and the base that they are compared with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from registry.lora.base import BaseModules, compress
from registry.lora.digest import CONFIG_FILE, WEIGHTS_FILE
from registry.lora.directory import open_directory
from registry.lora.ed25519 import read_public_key, sign
from registry.lora.engine_base import EngineBase
from registry.model.records import BaseShapes, PoolLimits, PoolSpec
from registry.sources.base import ArtifactError
from sidecar.artifacts.preparation import Bases
from sidecar.artifacts.store import LocalStore, ReadingEngine
from sidecar.artifacts.types import ArtifactRef
from tests.corpus.drafts import LLAMA, QWEN2, Architecture
from tests.support.adapters import WrittenAdapter, digest_of, write_adapter, write_files
from tests.support.signing import make_key, public_pem
from tests.support.worlds import pool
from tests.unit.artifacts.conftest import contents, pinned, recalled, refusal, unpinned
from tests.unit.lora.test_coverage import GATE, LLAMA4, base, draft_of

STRICT = PoolSpec(name="p", base_models=["base"], limits=PoolLimits(require_signature=True))
LAX = PoolSpec(name="p", base_models=["base"])


@pytest.fixture
def private(tmp_path) -> bytes:
    return make_key(tmp_path)[0]


@pytest.fixture
def strict(open_store, tmp_path, private):
    store = open_store()
    keys = {"team": read_public_key(make_key(tmp_path, "other")[1]), "mine": read_public_key(public_pem(private))}
    store.trust.signatures.use(keys)
    store.use_pool(STRICT)
    return store


def signed(ref: ArtifactRef, digest: str, private: bytes) -> ArtifactRef:
    return replace(ref, signature=sign(digest, private))


async def refused(store, ref: ArtifactRef) -> str:
    error = await refusal(store, ref)
    assert error.permanent
    return error.reason


@pytest.mark.parametrize("make_ref", [pinned, unpinned])
async def test_only_what_is_signed_is_served(strict, sources, private, tmp_path, make_ref):
    """R4 digest-true: the signature is of what was really fetched."""
    adapter = write_adapter(sources / "a")
    assert await refused(strict, make_ref(adapter)) == "signature_missing"
    assert not contents(tmp_path / "store" / "adapters")
    staged = await strict.ensure(signed(make_ref(adapter), adapter.digest, private))
    assert staged.digest == adapter.digest


async def test_a_signature_of_other_files_is_refused_before_these_are_read(strict, sources, private):
    """Refused if in doubt: nothing of the files is looked at that nobody vouches for."""
    broken = write_files(sources / "a", b"{", b"not an adapter")
    wrong = signed(unpinned(broken), f"sha256:{'0' * 64}", private)
    assert await refused(strict, wrong) == "signature_invalid"
    assert await refused(strict, signed(unpinned(broken, 2), broken.digest, private)) != "signature_invalid"


async def test_what_is_in_the_store_without_a_signature_is_not_handed_out(strict, open_store, sources, private):
    """R4: also where another replica, or the same before its pool asked for one, staged it."""
    adapter = write_adapter(sources / "a")
    other = open_store("r2")
    await other.ensure(pinned(adapter))
    assert await refused(strict, pinned(adapter)) == "signature_missing"
    assert (await strict.ensure(signed(pinned(adapter), adapter.digest, private))).digest == adapter.digest


async def test_a_pool_that_begins_to_ask_is_obeyed_at_once_and_may_stop_to(open_store, sources):
    adapter = write_adapter(sources / "a")
    store = open_store()
    store.use_pool(LAX)
    staged = await store.ensure(pinned(adapter))
    assert store.lookup(pinned(adapter)) == staged
    store.use_pool(STRICT)
    assert store.lookup(pinned(adapter)) is None
    assert await refused(store, pinned(adapter)) == "signature_keys_missing"
    store.use_pool(LAX)
    assert recalled(store, pinned(adapter)) == staged


async def test_without_being_asked_for_a_wrong_signature_is_refused_all_the_same(strict, sources, private):
    """Refused if in doubt."""
    adapter = write_adapter(sources / "a")
    strict.use_pool(LAX)
    wrong = signed(pinned(adapter), f"sha256:{'0' * 64}", private)
    assert await refused(strict, wrong) == "signature_invalid"
    assert (await strict.ensure(pinned(adapter))).digest == adapter.digest


def pool_of(architecture: Architecture | None) -> PoolSpec:
    if architecture is None:
        return pool()
    base = BaseModules(architecture.modules)
    shapes = BaseShapes(modules=compress(base.modules), fingerprint=base.fingerprint)
    return pool().model_copy(update={"base": shapes})


def test_the_pools_base_is_followed_as_it_changes():
    bases = Bases(None)
    bases.follow(pool_of(LLAMA))
    assert bases.current == BaseModules(LLAMA.modules)
    first = bases.current
    bases.follow(pool_of(LLAMA))
    assert bases.current is first
    bases.follow(pool_of(QWEN2))
    assert bases.current == BaseModules(QWEN2.modules)
    bases.follow(None)
    assert bases.current is None


def test_each_start_of_an_engine_is_compared():
    """R23 same-base: with the pool's base, or else the sidecar's own; what the engine says soon is waited for."""
    llama, qwen = EngineBase(files=BaseModules(LLAMA.modules)), EngineBase(files=BaseModules(QWEN2.modules))
    bases = Bases(None)
    bases.follow(pool_of(None), qwen)
    bases.follow(pool_of(None), EngineBase(awaited="asked again"))
    assert (bases.current, bases.problem) == (None, "")
    bases.follow(pool_of(LLAMA), EngineBase(awaited="asked again"))
    assert bases.problem == "asked again"
    bases.follow(pool_of(LLAMA), qwen)
    assert (bases.current, "pool update --from" in bases.problem) == (BaseModules(LLAMA.modules), True)
    bases.follow(pool_of(LLAMA), llama)
    assert bases.problem == ""
    bases.follow(pool_of(QWEN2), llama)
    assert bases.problem
    own = Bases(BaseModules(QWEN2.modules))
    own.follow(pool_of(None), llama)
    assert own.problem
    own.follow(pool_of(None), replace(llama, own=llama.files))
    assert (own.current, own.problem) == (llama.files, "")
    own.follow(pool_of(None), replace(llama, own=None))
    assert (own.current, own.problem) == (llama.files, ""), "what was read last counts until it can be read again"


def test_a_base_is_what_its_pool_says_of_it_and_of_its_engines():
    """R22 applied-whole: a record of an earlier release says no architecture, and the replica's own base does."""
    own = BaseModules(LLAMA.modules, ("mine",), architecture="LlamaForCausalLM")
    bases = Bases(own)
    bases.follow(pool_of(LLAMA))
    assert (bases.current, bases.problem) == (replace(own, names=()), "")
    said = pool_of(LLAMA)
    shapes = said.base.model_copy(update={"architecture": "Qwen3ForCausalLM", "tied": True, "head_size": 8})
    bases.follow(said.model_copy(update={"base": shapes}))
    assert bases.current == BaseModules(LLAMA.modules, (), "Qwen3ForCausalLM", is_tied=True, head_size=8)
    bases.follow(said.model_copy(update={"base": shapes, "engine": "sglang"}))
    assert (bases.current.engine, bases.current.coverage) == ("sglang", None)


async def staged(folder: Path, known: BaseModules, prepare: str = "{}") -> Path:
    store = LocalStore(folder / "store", "r1", [folder.as_uri()], engine=ReadingEngine(base=known))
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


@pytest.mark.parametrize("make_ref", [pinned, unpinned])
async def test_what_another_pool_of_the_host_staged_is_refused_where_the_base_has_another_name(
    open_store, sources, make_ref
):
    """R22 applied-whole: two bases of the same shapes are told apart by their names alone."""
    LLAMA.draft().write(sources / "a")
    adapter = WrittenAdapter(sources / "a", digest_of(sources / "a"))
    trained = adapter_base(adapter)
    right, wrong = BaseModules(LLAMA.modules, (trained,)), BaseModules(LLAMA.modules, ("org/fine-tuned",))
    first, second = open_store("r1", base=right), open_store("r2", base=wrong)
    staged = await first.ensure(make_ref(adapter))
    assert await refused(second, make_ref(adapter)) == "other_base"
    assert not await open_store("r2", base=wrong).recall([make_ref(adapter)])
    assert first.lookup(make_ref(adapter)) == staged


async def test_a_pool_that_names_its_base_anew_looks_at_what_it_staged_before(open_store, sources):
    LLAMA.draft().write(sources / "a")
    adapter = WrittenAdapter(sources / "a", digest_of(sources / "a"))
    store, unnamed = open_store(), pool_of(LLAMA)
    store.use_pool(unnamed)
    staged = await store.ensure(pinned(adapter))
    named = unnamed.base.model_copy(update={"names": ["org/fine-tuned"]})
    store.use_pool(unnamed.model_copy(update={"base": named}))
    assert await refused(store, pinned(adapter)) == "other_base"
    store.use_pool(unnamed)
    assert recalled(store, pinned(adapter)) == staged


def adapter_base(adapter: WrittenAdapter) -> str:
    """What an adapter calls its base."""
    return str(json.loads((adapter.directory / CONFIG_FILE).read_text())["base_model_name_or_path"])


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
