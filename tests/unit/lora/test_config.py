"""What an adapter_config.json may say, what is refused by its field, and what policies there are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from registry.lora.config import AdapterConfig, config_findings, config_warnings, read_config
from registry.lora.directory import open_directory
from registry.lora.findings import Finding, UnfitAdapter, shown, summary
from registry.lora.json_files import json_object
from registry.lora.policy import Policy, is_served, policy_of
from tests.corpus.drafts import CONFIG, CONFIG_FIELDS, LLAMA


def read(**fields: Any) -> AdapterConfig:
    return read_config(json.dumps(CONFIG_FIELDS | fields).encode())


def complaints(**fields: Any) -> list[tuple[str, str]]:
    """The fields that are complained of, and what is said to be there; none: it is read."""
    try:
        read(**fields)
    except UnfitAdapter as refused:
        return [(one.key, one.found) for one in refused.findings if one.reason == "invalid_config"]
    return []


TAKEN: dict[str, list[Any]] = {
    "r": [1, 1 << 20, 4.0],
    "lora_alpha": [-1e9, 0, 0.5, 1e9],
    "target_modules": ["all-linear", []],
    "rank_pattern": [{"q": 1}, {"q": 1 << 20}, {"q": 2.0}],
    "alpha_pattern": [{"q": -1e9}, {"q": 1e9}],
}
REFUSED: dict[str, list[Any]] = {
    "r": [0, (1 << 20) + 1, True, 4.5, 0.0, 1e300, float("inf"), "4"],
    "lora_alpha": [-1e9 - 0.5, 1e9 + 0.5, float("nan"), float("inf")],
    "target_modules": [5, [1]],
    "rank_pattern": [{"q": 0}, {"q": (1 << 20) + 1}, {"q": 2.5}, {"q": True}, [2.0]],
    "alpha_pattern": [{"q": -1e9 - 0.5}, {"q": float("nan")}],
}


def told(values: dict[str, list[Any]]) -> dict[str, list[list[str]]]:
    """The fields that are complained of, for each value of each field."""
    return {name: [[key for key, _ in complaints(**{name: one})] for one in each] for name, each in values.items()}


def test_each_field_takes_what_trainings_have_and_no_more():
    """R16 bounded: to the last one, and a complaint names its field; some trainers name each module in full."""
    assert told(TAKEN) == {name: [[]] * len(values) for name, values in TAKEN.items()}
    assert told(REFUSED) == {name: [[name]] * len(values) for name, values in REFUSED.items()}
    keys, names = {f"q{at}": 1 for at in range(4096)}, [""] * 200_000
    for field, most, more in (
        ("rank_pattern", keys, keys | {"q": 1}),
        ("alpha_pattern", keys, keys | {"q": 1}),
        ("target_modules", names, [*names, ""]),
    ):
        assert told({field: [most, more]}) == {field: [[], [field]]}


def test_what_a_short_configuration_leaves_out_is_not_in_use():
    """R4: trainings write only what they use; and nothing changes it once it was looked at."""
    required = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}
    config = read_config(json.dumps({"peft_type": "LORA", **required}).encode())
    assert config.model_dump() == {
        **required,
        "peft_type": "LORA",
        "base_model_name_or_path": None,
        "bias": "none",
        "lora_bias": False,
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "rank_pattern": None,
        "alpha_pattern": None,
    }
    with pytest.raises(ValidationError, match="frozen"):
        config.r = 5


@pytest.mark.parametrize("size_bytes", [1 << 20, (1 << 20) + 1])
def test_a_configuration_has_at_most_a_mebibyte(tmp_path, size_bytes):
    """R16 bounded."""
    folder = LLAMA.draft().write(tmp_path / "a")
    text = json.dumps(CONFIG_FIELDS).encode()
    (folder / CONFIG).write_bytes(text + b" " * (size_bytes - len(text)))
    if size_bytes == 1 << 20:
        assert open_directory(folder).config == read()
        return
    with pytest.raises(UnfitAdapter, match="found more than 1048576 bytes"):
        open_directory(folder)


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("bias", "none", []),
        ("bias", "", []),
        ("bias", "all", [("bias_not_supported", "bias")]),
        ("lora_bias", True, [("bias_not_supported", "lora_bias")]),
        ("lora_bias", False, []),
        ("init_lora_weights", True, []),
        ("init_lora_weights", False, []),
        ("init_lora_weights", "gaussian", []),
        ("init_lora_weights", "EVA", []),
        ("init_lora_weights", "orthogonal", []),
        ("init_lora_weights", "mica", []),
        ("init_lora_weights", "pissa_niter_4", [("unsupported_init", "init_lora_weights")]),
        ("init_lora_weights", "lora_ga", [("unsupported_init", "init_lora_weights")]),
        ("modules_to_save", ["score", "classifier"], []),
        ("modules_to_save", ["score", "b", "a"], [("unsupported_modules_to_save", "modules_to_save")] * 2),
        ("layer_replication", [[0, 1]], [("unsupported_feature", "layer_replication")]),
        ("layer_replication", [], []),
        ("use_qalora", False, []),
        ("target_parameters", ["self_attn.q_proj.weight", "down_proj.weight"], []),
        *(
            ("target_parameters", names, [("unsupported_feature", "target_parameters")])
            for names in (
                ["q_proj.weight", "mlp.experts.gate_up_proj"],
                ["mlp.experts.down_proj.weight"],
                ["mlp.gate.weight"],
                ["q_proj.bias"],
                ["q_proj.weight", 5],
                "q_proj.weight",
            )
        ),
        ("anything_else", True, []),
        ("lora_alpha", 1, []),
        ("lora_alpha", 0.0, [("zero_alpha", "lora_alpha")]),
        ("alpha_pattern", {"q": 1, "v": 0, "o": -1}, [("zero_alpha", "alpha_pattern.v")]),
    ],
    ids=str,
)
def test_what_engines_do_not_do_is_found_by_its_field(field, value, found):
    """R5, R22: served without it, the adapter would be another one."""
    assert [(one.reason, one.key) for one in config_findings(read(**{field: value}))] == found


@pytest.mark.parametrize("field", ["rank_pattern", "alpha_pattern"])
def test_parameters_and_patterns_together_are_not_followed(field):
    """R4: PEFT matches the pattern with the parameter's name there, and engines with the module's."""
    fields: dict[str, Any] = {"target_parameters": ["q_proj.weight"], field: {"q_proj": 4}}
    assert [one.key for one in config_findings(read(**fields))] == ["target_parameters"]
    assert config_findings(read(**fields | {field: {}})) == []


def test_names_fields_and_values_are_told_in_few_characters():
    """R16 bounded: they are repeated in a status."""
    (found,) = config_findings(read(alpha_pattern={"q" * 400: 0}))
    assert found.key.startswith("alpha_pattern.qqq")
    assert len(found.key) <= 300
    (warning,) = config_warnings(read(**{f"{'x' * 99}{n}": "y" * 9999 for n in range(99)}))
    assert len(warning.message) < 3000
    assert "and 91 more" in warning.message
    assert shown("x" * 198) == repr("x" * 198)
    assert shown("x" * 199) == repr("x" * 199)[:200] + "…"


def test_a_rank_that_was_saved_with_a_point_is_the_whole_number_and_a_pattern_may_raise_the_highest():
    """Trainers that reckon a rank save 8.0. Engines take no pattern of such numbers, so that all are written anew."""
    assert read(rank_pattern={"q": 3, "v": 9}).highest_rank == 9
    told = read(r=8.0, rank_pattern={"q": 4, "v": 2.0})
    assert (told.r, told.rank_pattern, told.highest_rank) == (8, {"q": 4, "v": 2}, 8)
    assert json.dumps(told.rewritten) == '{"r": 8, "rank_pattern": {"q": 4, "v": 2}}'
    assert read(r=8, rank_pattern={"q": 4}).rewritten == {}


def test_no_bias_is_written_as_every_engine_takes_it():
    """R17: vLLM answers 500 for a bias of null."""
    assert read(bias=None).rewritten == {"bias": "none"}
    assert read(bias="none").rewritten == {}


NOT_KNOWN = ("use_magic", True), ("magic_config", {"a": 1}), ("magic", "fast"), ("steps", [0])


@pytest.mark.parametrize(("field", "value"), NOT_KNOWN, ids=str)
def test_a_field_in_use_that_nobody_knows_is_a_warning(field, value):
    """R5: what a later release of a trainer may compute otherwise, engines pass over in silence."""
    (warning,) = config_warnings(read(**{field: value}))
    assert (warning.reason, f"{field}={value!r}" in warning.message) == ("unknown_field", True)


@pytest.mark.parametrize(
    ("fields", "reason", "found"),
    [
        *(({"peft_type": kind}, "wrong_peft_type", repr(kind)) for kind in ("LOHA", "lora", "", None, ["LORA"])),
        ({"fine_tune_type": "lora"}, "other_format", None),
        ({"lora_parameters": {"rank": 8}, "num_layers": 2}, "other_format", None),
    ],
    ids=str,
)
def test_another_kind_of_adapter_is_told_as_that(fields, reason, found):
    """R14: what to do about it is not what to do about a broken one."""
    content = fields if reason == "other_format" else CONFIG_FIELDS | fields
    with pytest.raises(UnfitAdapter, match=None if found else "MLX") as refused:
        read_config(json.dumps(content).encode())
    assert [one.reason for one in refused.value.findings] == [reason]
    assert found in {None, refused.value.findings[0].found}


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "a git-lfs pointer"),
        (b"{", "what is not readable as JSON"),
        (b"\xff", "what is not readable as JSON"),
        (b"[" * 100_000, "what is not readable as JSON"),
        (b'{"a": "\\ud800"}', "what is not readable as JSON"),
        (b'{"a": 1, "b": 2, "a": 3}', "the key 'a' stands there twice"),
        (b'{"x": {"c": 1, "b": 2, "b": 3, "b": 4}}', "the key 'b' stands there twice"),
        (b"[]", "a JSON list"),
        (b"5", "a JSON int"),
        (b"null", "a JSON NoneType"),
    ],
    ids=lambda one: str(one)[:40],
)
def test_what_is_no_json_object_is_said_to_be_what_it_is(content, found):
    """X2: whatever somebody's file holds, it is a finding about that file."""
    with pytest.raises(UnfitAdapter) as refused:
        json_object("a.json", content)
    (finding,) = refused.value.findings
    assert (finding.reason, finding.key, found in finding.found) == ("not_an_adapter", "a.json", True)


def test_a_summary_tells_the_first_finding_and_how_many_there_are():
    one = Finding("not_finite", "a", "NaN", "numbers", "look")
    for findings, text in (
        ([one], "a: found NaN, expected numbers; look"),
        ([one, one], "a: found NaN, expected numbers; look (and 1 more)"),
        ([one] * 3, "a: found NaN, expected numbers; look (and 2 more)"),
    ):
        assert summary(findings) == text
        assert (str(UnfitAdapter(findings)), UnfitAdapter(findings).findings) == (text, tuple(findings))
    assert one.permanent


def test_a_policy_has_the_form_that_prepared_ids_are_made_of():
    """R4, R22: what every release made under an id has the same bytes, so that this changes only with the bytes.

    No module at all would be left of what ends with nothing.
    """
    assert policy_of({}).as_dict() == {
        "name": "prepare",
        "version": 1,
        "remap": "auto",
        "vision": "reject",
        "dora": "reject",
    }
    assert policy_of({"drop": ("b", "a")}) == Policy(drop=("b", "a"))
    assert policy_of({"drop": ["b", "a", "b"]}).as_dict()["drop"] == ["a", "b"]
    assert policy_of({"drop": None}) == policy_of({"drop": []}) == policy_of({})
    no_lists: list[object] = [5, "a", [None], [""], ["mlp.gate", ""], [1], {"mlp.gate": 1}]
    for name, values in {"remap": ["on", None], "vision": ["auto"], "dora": ["off"], "drop": no_lists}.items():
        for value in values:
            with pytest.raises(ValueError, match=f"prepare.{name} is "):
                policy_of({name: value})


@pytest.mark.parametrize(
    ("module", "targets", "is_right"),
    [
        ("model.layers.0.self_attn.q_proj", None, True),
        ("model.layers.0.self_attn.q_proj", (), False),
        ("model.layers.0.self_attn.q_proj", ("q_proj",), True),
        ("model.layers.0.self_attn.q_proj", ("model.layers.0.self_attn.q_proj",), True),
        ("model.layers.1.self_attn.q_proj", ("model.layers.0.self_attn.q_proj",), False),
        ("model.layers.0.self_attn.q_proj", ("self_attn",), False),
        ("model.layers.0.self_attn.q_proj", ("qkv_proj",), True),
        ("model.layers.0.self_attn.q_proj", ("k_proj",), True),
        ("model.layers.0.self_attn.q_proj", ("gate_proj", "gate_up_proj"), False),
        ("model.layers.0.self_attn.qkv_proj", ("v_proj",), True),
        ("model.layers.0.mlp.up_proj", ("gate_proj",), True),
        ("model.layers.0.mlp.gate_up_proj", ("up_proj",), True),
        ("model.layers.0.mlp.down_proj", ("gate_up_proj", "qkv_proj"), False),
        ("lm_head", ("lm_head",), True),
    ],
)
def test_a_module_is_served_where_it_its_whole_or_a_part_of_that_is_named(module, targets, is_right):
    """R5: engines that fuse modules apply adapters of all of them, or of none."""
    assert is_served(module, targets) is is_right
