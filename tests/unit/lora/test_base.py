"""Names and shapes of base models: read, described in short, derived."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.lora import base_directory
from registry.lora.base import MAX_MODULES, BaseModules, check_patterns, compress, count_modules, expand
from registry.lora.base_directory import BaseUnreadable, UnknownArchitecture, derive, names_of, read_base
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


def test_a_large_model_is_a_few_lines():
    modules = {f"model.layers.{i}.experts.{j}.w1": (8, 8) for i in range(60) for j in range(128)}
    assert compress(modules) == {"model.layers.{0-59}.experts.{0-127}.w1": (8, 8)}


def test_numbers_that_do_not_run_through_are_told_one_by_one():
    modules = {f"a.{i}.b": (1, 2) for i in (0, 1, 2, 4, 6, 7)} | {"a.03.b": (1, 2), "a.9.b": (3, 4), "c": (1, 2)}
    expected = {"a.03.b": (1, 2), "a.9.b": (3, 4), "a.{0-2,4,6-7}.b": (1, 2), "c": (1, 2)}
    assert list(compress(modules).items()) == list(expected.items())
    assert count_modules(expected) == len(modules) == len(expand(expected))


@pytest.mark.parametrize(
    "pattern",
    [
        "a.{0-999999}.b",
        "{0-999}.{0-999}",
        "{0-9999999}",
        "{99999999999999999999-1}",
        "{1-99999999999999999999}",
        "{99999999999999999999}",
        "a.{0-2,5-4}",
    ],
)
def test_a_description_that_would_explode_is_refused_unexpanded(pattern):
    """R16 bounded: whatever stands in a record."""
    with pytest.raises(ValueError, match=r"modules|range"):
        check_patterns({pattern: (1, 1)})
    check_patterns({f"a.{{0-{MAX_MODULES - 1}}}": (1, 1)})


def test_the_fingerprint_is_over_names_and_shapes():
    one, other = BaseModules({"a": (1, 2)}), BaseModules({"a": (2, 1)})
    assert one.fingerprint != other.fingerprint
    assert BaseModules({"a": (1, 2)}, ("name",)).fingerprint == one.fingerprint


def test_the_modules_that_are_derived_are_those_of_the_weights(tmp_path):
    """Without weights at hand, config.json says the same."""
    assert derive(CONFIG) == LLAMA.modules
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    derived = read_base(tmp_path)
    assert derived.fingerprint == read_base(LLAMA.write_base(tmp_path / "base")).fingerprint


def test_a_tied_model_has_no_head_of_its_own():
    assert "lm_head" not in derive(CONFIG | {"tie_word_embeddings": True})


@pytest.mark.parametrize("family", ["gemma", "gemma2", "gemma3_text", "smollm3"])
def test_a_family_whose_head_is_its_embedding_need_not_say_so(family):
    """R5: an engine of a tied model leaves out what an adapter has for the head."""
    assert "lm_head" not in derive(CONFIG | {"model_type": family, "head_dim": 8})
    assert "lm_head" in derive(CONFIG | {"model_type": family, "tie_word_embeddings": False})


def test_a_family_with_fused_modules():
    modules = derive(CONFIG | {"model_type": "phi3", "head_dim": 8})
    assert modules["model.layers.1.self_attn.qkv_proj"] == (64, 32)
    assert modules["model.layers.0.mlp.gate_up_proj"] == (96, 32)


@pytest.mark.parametrize(
    "config", [{}, {"model_type": "mamba"}, {"model_type": []}, {"model_type": "llama"}, CONFIG | {"vocab_size": "64"}]
)
def test_what_cannot_be_derived_is_said(config):
    with pytest.raises(UnknownArchitecture):
        derive(config)


def test_weights_in_several_files_are_found_by_their_index(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors({f"{name}.weight": Values("F32", (1, 2), bytes(8))}))
    (tmp_path / "other.safetensors").write_bytes(b"not of the model")
    index = {"weight_map": {"a.weight": "a.safetensors", "b.weight": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_base(tmp_path).modules == {"a": (1, 2), "b": (1, 2)}


def test_no_more_files_are_read_than_a_model_has(tmp_path, monkeypatch):
    """R16 bounded: whatever an index names, or a directory holds."""
    monkeypatch.setattr(base_directory, "_MAX_FILES", 2)
    names = ["a", "b", "c"]
    for name in names:
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors({f"{name}.weight": Values("F32", (1, 2), bytes(8))}))
    assert list(read_base(tmp_path).modules) == names[:2]
    index = tmp_path / "model.safetensors.index.json"
    for count in (3, 2):
        index.write_text(
            json.dumps({"weight_map": {f"{name}.weight": f"{name}.safetensors" for name in names[:count]}})
        )
        if count > 2:
            with pytest.raises(BaseUnreadable, match="names other than files beside it"):
                read_base(tmp_path)
    assert list(read_base(tmp_path).modules) == names[:2]


@pytest.mark.parametrize(("name", "dtype"), [("a.weight", "U8"), ("a.qweight", "F32"), ("a.weight_packed", "F16")])
def test_packed_weights_are_not_believed(tmp_path, name, dtype):
    """Their shapes are not the modules'; the configuration says them."""
    width = {"U8": 1, "F32": 4, "F16": 2}[dtype]
    packed = {name: Values(dtype, (8, 1), bytes(8 * width)), "b.weight": Values("F32", (1, 2), bytes(8))}
    (tmp_path / "model.safetensors").write_bytes(safetensors(packed))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert read_base(tmp_path).modules == LLAMA.modules


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"config.json": b"[]"},
        {"config.json": b'{"model_type": "mamba"}'},
        {"model.safetensors": b"html"},
        {"model.safetensors": safetensors({"norm.weight": Values("F32", (2,), bytes(8))})},
        {"model.safetensors.index.json": b'{"weight_map": {"a": "../../etc/passwd"}}'},
        {"config.json": b" " * (64 << 20) + b"{}"},
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
