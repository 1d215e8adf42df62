"""Architectures that ignore a matrix, or order it otherwise, on the real engine: two, and all of them each night."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from registry.lora.base_directory import read_base
from registry.lora.coverage.table import Coverage
from registry.model.expected_answers import EXPECT_TOLERANCE
from sidecar.vllm_plugin.proof import compared
from sidecar.vllm_plugin.protocol import PromptedAnswer, Step, deviation
from sidecar.vllm_plugin.vllm_internals import LIKELY
from tests.architectures import matrix
from tests.architectures.families import FAMILIES
from tests.architectures.matrix import Made, judged, make, serve
from tests.architectures.page import RESULTS
from tests.corpus.drafts import IS_WHOLE

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
# Kinds that the engine leaves as the base is, though it takes them with 200; what else is compared beside them.
IGNORED = {
    "llama4": (),
    "qwen2_moe": ("only mlp.shared_expert_gate",),
    "deepseek_v2": ("only self_attn.kv_b_proj", "router"),
    "gpt_bigcode": ("default", "only attn.c_attn"),
}
BESIDE = {
    "llama4": ("attention", "only self_attn.q_proj", "only self_attn.k_proj", "only self_attn.v_proj"),
    "qwen2_moe": ("attention", "experts each"),
    "gpt_bigcode": ("only mlp.c_fc",),
}
if not IS_WHOLE:
    IGNORED = {name: IGNORED[name] for name in ("llama4", "gpt_bigcode")}
    BESIDE = {name: BESIDE[name] for name in IGNORED}
REORDERED = ("attention", "only self_attn.q_proj", "only self_attn.k_proj")


@pytest.fixture(scope="module")
def rows(tmp_path_factory, monkeypatch_module):
    """Their rows of the matrix, measured anew, and what they are made of."""
    families = [one for one in FAMILIES if one.name in IGNORED]

    def few(made: Made) -> dict[str, object]:
        kinds = (*IGNORED[made.family.name], *BESIDE.get(made.family.name, ()))
        return {kind: made.folder / "adapters" / kind for kind in kinds}

    monkeypatch_module.setattr(Made, "adapters", few)
    all_made = make(families, tmp_path_factory.mktemp("architectures"))
    serve(all_made)
    return {one.family.name: (one, judged(one)) for one in all_made}


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def test_nothing_is_accepted_that_the_engine_does_not_serve_rightly(rows):
    """R22 applied-whole, R5: as the kept matrix says; what the table knows is what the engine does."""
    kept = json.loads(RESULTS.read_text())
    for name, (_, row) in rows.items():
        assert "error" not in row, row
        for kind, cell in row["kinds"].items():
            assert cell["verdict"] in {"served", "prepared", "refused"}, (name, kind, cell)
            assert cell["verdict"] == kept[name]["kinds"][kind]["verdict"], (name, kind, cell)


def test_queries_and_keys_of_llama_4_are_right_once_prepared(rows):
    """R22 applied-whole: raw, the engine answers with 200, and otherwise than PEFT."""
    kinds = rows["llama4"][1]["kinds"]
    assert {kind: (kinds[kind]["raw"], kinds[kind]["verdict"]) for kind in REORDERED} == dict.fromkeys(
        REORDERED, ("wrong", "prepared")
    )
    assert kinds["only self_attn.v_proj"]["raw"] == "right"


def deviations(made: Made, kind: str, which: str) -> list[str | None]:
    """Where the engine answers otherwise than PEFT, as the plugin compares it."""
    told = made.told
    found = []
    for prompt, wanted, given in zip(
        told["prompts"], told["answers"][kind], made.served["adapters"][f"{which} {kind}"]["answers"], strict=True
    ):
        tokens = tuple(step["token"] for step in wanted)
        expected = PromptedAnswer(tuple(prompt), tokens, tuple(max(step["logprobs"]) for step in wanted))
        found.append(deviation(expected, [_step(step) for step in given], EXPECT_TOLERANCE))
    return found


def _step(step: dict[str, Any]) -> Step:
    """As the plugin is told it: with the likeliest tokens only."""
    likely = sorted(enumerate(step["logprobs"]), key=lambda one: -one[1])[:LIKELY]
    return step["token"], dict(likely)


@pytest.mark.parametrize("kind", REORDERED)
def test_without_the_table_an_expected_answer_refuses_what_is_ordered_otherwise(rows, monkeypatch, kind):
    """R22 applied-whole: what has an effect, and a wrong one, is seen in nothing but its answers."""
    made, _ = rows["llama4"]
    base = read_base(made.model)
    monkeypatch.setattr("registry.lora.base.coverage_of", lambda *_: Coverage())
    untold = matrix.examined(made.adapters()[kind], replace(base))
    assert not untold.findings
    assert not untold.changes, "it would be loaded as it is"
    assert any(deviations(made, kind, "raw"))
    assert deviations(made, kind, "prepared") == [""] * len(made.told["prompts"])


def test_an_expected_answer_refuses_nothing_that_is_right(rows):
    """R22 applied-whole, R8: whatever the architecture."""
    cells = ((made, kind, cell) for made, row in rows.values() for kind, cell in row["kinds"].items())
    right = [(made, kind) for made, kind, cell in cells if cell["raw"] == "right"]
    assert {made.family.name for made, _ in right} == BESIDE.keys()
    assert [said for made, kind in right for said in deviations(made, kind, "raw") if said != ""] == []


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in IGNORED.items() for kind in kinds])
def test_without_the_table_a_proof_would_refuse_what_is_ignored(rows, monkeypatch, name, kind):
    """R22 applied-whole: the second net, where the first has a hole."""
    made, row = rows[name]
    assert row["kinds"][kind]["verdict"] == "refused"
    base = read_base(made.model)
    monkeypatch.setattr("registry.lora.base.coverage_of", lambda *_: Coverage())
    untold = replace(base)
    found = matrix.examined(made.adapters()[kind], untold)
    assert not [one for one in found.findings if one.reason == "not_applied_by_engine"]
    served = made.served
    logprobs = [
        tuple(number for answer in answers for step in answer for number in step["logprobs"])
        for answers in (served["adapters"][f"raw {kind}"]["answers"], served["base"])
    ]
    assert compared(*logprobs) == "no_effect"
