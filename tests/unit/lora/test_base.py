"""Names and shapes of base models: read, described in short, derived."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.lora import base_directory
from registry.lora.base import (
    MAX_MODULES,
    BaseModules,
    check_patterns,
    compress,
    count_modules,
    expand,
    fingerprint_of_patterns,
    modules_of,
    vocabulary_of,
)
from registry.lora.base_directory import (
    BaseUnreadable,
    UnknownArchitecture,
    derive,
    names_of,
    read_base,
    weights_files,
)
from registry.lora.safetensors import Tensor
from tests.corpus.drafts import LLAMA, Values, safetensors

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}
parts = st.lists(st.sampled_from(["a", "b1", "0", "1", "2", "7", "03"]), min_size=1, max_size=4)


@given(st.dictionaries(parts.map(".".join), st.sampled_from([(1, 2), (3, 4)]), max_size=40))
def test_a_description_in_short_means_the_same(modules):
    assert expand(compress(modules)) == modules


def test_a_large_model_is_a_few_lines_which_stand_for_all_of_their_numbers():
    experts = {f"model.layers.{i}.experts.{j}.w1": (8, 8) for i in range(60) for j in range(128)}
    assert compress(experts) == {"model.layers.{0-59}.experts.{0-127}.w1": (8, 8)}
    modules = {f"a.{i}.b": (1, 2) for i in (0, 1, 2, 4, 6, 7)} | {"a.03.b": (1, 2), "a.9.b": (3, 4), "c": (1, 2)}
    expected = {"a.03.b": (1, 2), "a.9.b": (3, 4), "a.{0-2,4,6-7}.b": (1, 2), "c": (1, 2)}
    assert list(compress(modules).items()) == list(expected.items())
    assert count_modules(expected) == len(modules) == len(expand(expected))
    assert count_modules(["a.{0-1}.b.{2,4-5}.c.{7}"]) == 6
    numbers = {f"a.{one}.b.{two}.c.7": 9 for one in (0, 1) for two in (2, 4, 5)}
    assert expand({"a.{0-1}.b.{2,4-5}.c.{7}": 9, "d": 8}) == numbers | {"d": 8}


HUGE = "a.{0-999999}.b {0-999}.{0-999} {0-9999999} {99999999999999999999-1} {1-99999999999999999999} {1000000}"


@pytest.mark.parametrize("pattern", [*HUGE.split(), "{99999999999999999999}", "a.{0-2,5-4}"])
def test_a_description_that_would_explode_is_refused_unexpanded(pattern):
    """R16 bounded: whatever stands in a record; 200,000 modules are more than the largest have."""
    with pytest.raises(ValueError, match=r"modules|range"):
        check_patterns({pattern: (1, 1)})
    check_patterns({f"a.{{0-{MAX_MODULES - 1}}}": (1, 1)})
    check_patterns(["a.{0-99999}", "b.{0-99999}"])
    with pytest.raises(ValueError, match="at most 200000 modules"):
        check_patterns(["a.{0-99999}", "b.{0-99999}", "c"])


def test_the_fingerprint_is_over_names_and_shapes_and_that_of_their_patterns():
    modules = {f"a.{at}.b": (1, 2) for at in range(3)}
    text = '{"a.0.b":[1,2],"a.1.b":[1,2],"a.2.b":[1,2]}'
    expected = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    assert fingerprint_of_patterns({"a.{0-2}.b": (1, 2)}) == expected
    assert BaseModules(modules).fingerprint == BaseModules(modules, ("name",)).fingerprint == expected
    assert BaseModules(dict.fromkeys(modules, (2, 1))).fingerprint != expected
    with pytest.raises(ValueError, match="not a range"):
        fingerprint_of_patterns({"a.{2-1}": (1, 1)})


def test_the_modules_that_are_derived_are_those_of_the_weights(tmp_path):
    """Without weights at hand, config.json says the same."""
    assert derive(CONFIG) == LLAMA.modules
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    derived = read_base(tmp_path)
    weights = read_base(LLAMA.write_base(tmp_path / "base"))
    assert derived.fingerprint == weights.fingerprint
    assert (derived.layout, weights.layout is None) == (None, False), "no tensors were read, which are not other ones"


@pytest.mark.parametrize("family", ["gemma", "gemma2", "gemma3_text", "smollm3"])
def test_a_family_whose_head_is_its_embedding_need_not_say_so(family):
    """R5: an engine of a tied model leaves out what an adapter has for the head."""
    assert "lm_head" not in derive(CONFIG | {"tie_word_embeddings": True})
    assert "lm_head" not in derive(CONFIG | {"model_type": family, "head_dim": 8})
    assert "lm_head" in derive(CONFIG | {"model_type": family, "tie_word_embeddings": False})


def test_a_family_with_fused_modules():
    modules = derive(CONFIG | {"model_type": "phi3", "head_dim": 8})
    assert {name.removeprefix("model.layers.1."): shape for name, shape in modules.items() if ".0." not in name} == {
        **dict.fromkeys(("model.embed_tokens", "lm_head", "self_attn.qkv_proj"), (64, 32)),
        "self_attn.o_proj": (32, 32),
        "mlp.gate_up_proj": (96, 32),
        "mlp.down_proj": (32, 48),
    }


@pytest.mark.parametrize(
    ("changes", "queries", "keys"),
    [
        ({}, 32, 16),
        ({"num_key_value_heads": 1}, 32, 8),
        ({"num_key_value_heads": None}, 32, 32),
        ({"head_dim": 16}, 64, 32),
        ({"head_dim": 1, "num_attention_heads": 1, "num_key_value_heads": 1}, 1, 1),
        ({"num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 2}, 128, 128),
    ],
    ids=str,
)
def test_the_widths_of_attention_follow_from_its_heads(changes, queries, keys):
    """R14: an adapter of the right base is not refused, where its config.json alone tells the shapes."""
    attention = {
        name.rpartition(".")[2]: shape
        for name, shape in derive(CONFIG | {"num_hidden_layers": 1} | changes).items()
        if "self_attn" in name
    }
    assert attention == {"q_proj": (queries, 32), "k_proj": (keys, 32), "v_proj": (keys, 32), "o_proj": (32, queries)}


def test_a_model_has_no_more_layers_than_any_has():
    """R16 bounded: whatever number stands in its config.json."""
    small = CONFIG | {"model_type": "phi3"}
    assert len(derive(small | {"num_hidden_layers": 10_000})) == 4 * 10_000 + 2
    assert len(derive(small | {"num_hidden_layers": 10_001})) == 4 * 10_000 + 2


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": []},
        {"model_type": "llama"},
        CONFIG | {"model_type": "mamba"},
        CONFIG | {"model_type": None},
        CONFIG | {"num_hidden_layers": True},
        CONFIG | {"num_hidden_layers": 0},
        CONFIG | {"num_attention_heads": 33, "num_key_value_heads": 1},
        *(CONFIG | {name: "64"} for name in CONFIG if name not in {"model_type", "num_key_value_heads"}),
        *(CONFIG | {name: None} for name in CONFIG if name != "num_key_value_heads"),
    ],
    ids=str,
)
def test_what_cannot_be_derived_is_said(config):
    with pytest.raises(UnknownArchitecture):
        derive(config)


def test_no_more_files_are_read_than_a_model_has(tmp_path, monkeypatch):
    """R16 bounded: whatever a directory holds."""
    monkeypatch.setattr(base_directory, "_MAX_FILES", 2)
    for name in "abc":
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors({f"{name}.weight": Values("F32", (1, 2), bytes(8))}))
    assert list(read_base(tmp_path).modules) == ["a", "b"]


@pytest.mark.parametrize(
    ("names", "is_right"),
    [
        (["a.safetensors"], True),
        ([f"{at}.safetensors" for at in range(1024)], True),
        ([f"{at}.safetensors" for at in range(1025)], False),
        ([], False),
        (["a.safetensors", "../b.safetensors"], False),
        (["/a.safetensors", "b.safetensors"], False),
    ],
    ids=["one", "1024", "1025", "none", "above", "anywhere"],
)
def test_an_index_names_files_beside_it(tmp_path, names, is_right):
    """R16, X2: as many as the largest models have, and never one of somebody else."""
    weights = {f"{at}.weight": name for at, name in enumerate(names)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    if is_right:
        assert weights_files(tmp_path) == [tmp_path / name for name in sorted(names)]
        return
    with pytest.raises(ValueError, match="names other than files beside it"):
        weights_files(tmp_path)


def test_what_tells_of_a_base_is_read_up_to_64_mib(tmp_path):
    """R16 bounded; beside weights that tell the modules, it stays unknown."""
    (tmp_path / "config.json").touch()
    for size_bytes, told in ((64 << 20, "JSON"), ((64 << 20) + 1, "config.json is larger than 67108864 bytes")):
        os.truncate(tmp_path / "config.json", size_bytes)
        with pytest.raises(BaseUnreadable, match=told):
            read_base(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(safetensors({"b.weight": Values("F32", (1, 2), bytes(8))}))
    known = read_base(tmp_path, ("name",))
    assert (known.modules, known.names, known.architecture) == ({"b": (1, 2)}, ("name",), None)


def test_the_modules_of_a_checkpoint_are_its_matrices():
    shapes = {
        "a.weight": (2, 3),
        "b.weight": (2,),
        "c.weight": (2, 3, 4),
        "d.bias": (2, 3),
        "e.weight_scale": (2, 3),
        "weight": (2, 3),
    }
    assert modules_of(Tensor(name, "F32", shape, 0, 0) for name, shape in shapes.items()) == {"a": (2, 3)}


@pytest.mark.parametrize(
    ("embedding", "heads"),
    [
        ("model.embed_tokens", ["lm_head"]),
        ("language_model.model.embed_tokens", ["language_model.lm_head"]),
        ("vision.model.embed_tokens", []),
        ("model.embed_tokens_extra", []),
    ],
)
def test_the_head_of_a_tied_base_stands_where_that_of_another_one_would(embedding, heads):
    """R5: where an engine would look for it, in the shape of the embedding."""
    known = BaseModules({embedding: (64, 32)}, architecture="LlamaForCausalLM", is_tied=True)
    assert known.served == {embedding: (64, 32), **dict.fromkeys(heads, (64, 32))}
    assert known.modules == {embedding: (64, 32)}


@pytest.mark.parametrize(
    ("modules", "known"),
    [
        ({}, None),
        ({"model.layers.{0-3}.self_attn.q_proj": (64, 32)}, None),
        ({"model.embed_tokens": (260, 32), "model.layers.0.mlp.up_proj": (512, 32)}, 260),
        ({"language_model.model.embed_tokens": (256, 32), "language_model.lm_head": (320, 32)}, 320),
        ({"transformer.wte": (50_257, 768), "transformer.wpe": (1024, 768)}, 50_257),
    ],
)
def test_how_many_tokens_a_base_knows(modules, known):
    """By the larger where its embedding and its head differ: some are filled up to a round number."""
    assert vocabulary_of(modules) == known


def test_bases_of_which_something_else_is_found_out_differ():
    """What was found out about an adapter is kept for the same base only."""
    one = BaseModules({"a": (1, 2)}, architecture="A", head_size=8)
    others = [
        BaseModules({"a": (1, 3)}, architecture="A", head_size=8),
        BaseModules({"a": (1, 2)}, architecture="B", head_size=8),
        BaseModules({"a": (1, 2)}, architecture="A", head_size=4),
        BaseModules({"a": (1, 2)}, architecture="A", head_size=8, is_tied=True),
        BaseModules({"a": (1, 2)}, architecture="A", head_size=8, engine="sglang"),
        BaseModules({"a": (1, 2)}, ("name",), architecture="A", head_size=8),
    ]
    assert len({each.identity for each in (one, *others)}) == 7
    assert replace(one, layout="sha256:1", weights="sha256:2").identity == one.identity
    assert (one.is_tied, one.engine) == (False, "vllm")


@pytest.mark.parametrize(
    ("name", "dtype", "are_believed"),
    [
        ("b.zeros", "U8", True),
        ("a.weight", "U8", False),
        ("a.qweight", "F32", False),
        ("a.weight_packed", "F16", False),
    ],
)
def test_packed_weights_are_not_believed(tmp_path, name, dtype, are_believed):
    """Their shapes are not the modules'; the configuration says them."""
    width = {"U8": 1, "F32": 4, "F16": 2}[dtype]
    packed = {name: Values(dtype, (8, 1), bytes(8 * width)), "b.weight": Values("F32", (1, 2), bytes(8))}
    (tmp_path / "model.safetensors").write_bytes(safetensors(packed))
    if not are_believed:
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert read_base(tmp_path).modules == ({"b": (1, 2)} if are_believed else LLAMA.modules)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"config.json": b"[]"},
        {"config.json": b'{"model_type": "mamba"}'},
        {"model.safetensors": b"html"},
        {"model.safetensors": safetensors({"norm.weight": Values("F32", (2,), bytes(8))})},
        {"model.safetensors.index.json": b'{"weight_map": {"a": "../../etc/passwd"}}'},
        {"model.safetensors.index.json": b'{"weight_map": {"a": "gone.safetensors"}}'},
        {"model.safetensors.index.json": b'{"weight_map": ["a.safetensors"]}'},
        {"model.safetensors.index.json": b'{"weight_map": {"a": ["a.safetensors"]}}'},
    ],
)
def test_a_directory_that_tells_nothing_is_said_to(tmp_path, files):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BaseUnreadable, match="does not tell"):
        read_base(tmp_path)


def test_a_base_is_called_as_its_place_or_its_origin(tmp_path):
    cached = LLAMA.write_base(tmp_path / "models--org--Tiny-1B" / "snapshots" / "abc")
    assert names_of(cached) == {"abc", "tiny-1b"}
    (cached / "config.json").write_text('{"_name_or_path": "org/Older-1B/"}')
    assert names_of(cached) == {"abc", "tiny-1b", "older-1b"}
    (cached / "config.json").write_text('{"_name_or_path": "/old/models--org--Older-1B/snapshots/def"}')
    assert names_of(cached) == {"abc", "tiny-1b", "older-1b"}
