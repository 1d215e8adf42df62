"""loraplane expect, without torch: what PEFT would say is played."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import yaml

from registry.cli.change.manifest import read_manifests
from registry.model.expected_answers import EXPECT_TOLERANCE, Expect
from tests.support.adapters import write_adapter

MODULE = "registry.tools.devstack.reference"
MANIFEST = """apiVersion: loraplane/v1
kind: Adapter
metadata: {name: sql, pool: dev}
spec:
  source: {uri: "file:///adapters/sql"}
"""


@pytest.fixture
def adapter(tmp_path) -> str:
    return str(write_adapter(tmp_path / "adapter").directory)


@pytest.fixture
def asked(monkeypatch) -> list[tuple[object, ...]]:
    """What PEFT is asked; each answer is one token more certain than the base's."""
    found: list[tuple[object, ...]] = []

    def expected(model: str, folder: str, prompts: list[str | list[int]], tokens: int, dtype: str) -> list[object]:
        found.append((model, folder, prompts, tokens, dtype))
        if prompts == [[9]]:
            raise ValueError("no such token" * 100)
        numbers = [one if isinstance(one, list) else [ord(letter) for letter in one] for one in prompts]
        rows = [-0.1234567 - place for place in range(tokens)]
        base = [one - (0.01 if prompts == [[1]] else 1.5) for one in rows]
        return [SimpleNamespace(prompt=one, tokens=[7] * tokens, logprobs=rows, base_logprobs=base) for one in numbers]

    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(expected=expected))
    return found


def test_what_is_printed_goes_into_a_manifest(cli, adapter, asked):
    """As it is, below spec: the same answers come back."""
    prompts = ["--prompt", "ab", "--prompt-ids", "1, 450"]
    printed = cli("expect", adapter, "--base-model", "/base", *prompts, "--tokens=2").out
    assert printed.startswith("# without the adapter the logprobs of these tokens are up to 1.5 away\n")
    block = "".join(f"  {line}\n" for line in printed.splitlines())
    (placed,) = read_manifests(MANIFEST + block, "a.yaml")
    expect = placed.manifest.spec.expect
    assert expect is not None
    assert [(one.prompt, one.tokens, one.logprobs) for one in expect.answers] == [
        ([97, 98], [7, 7], [-0.12346, -1.12346]),
        ([1, 450], [7, 7], [-0.12346, -1.12346]),
    ]
    assert expect.tolerance == EXPECT_TOLERANCE
    assert "prompt: [97, 98]" in printed, "numbers stand in one line"
    assert asked == [("/base", adapter, ["ab", [1, 450]], 2, "float32")]


def test_programs_get_the_same_and_how_far_the_base_is(cli, monkeypatch, adapter, asked):
    """Where the base answers alike, the answers prove little."""
    expect = ["expect", adapter, "--base-model", "/base"]
    whole = [*expect, "--tolerance", "0.5", "--dtype", "bfloat16"]
    told = cli("-o", "json", *whole, "--prompt-ids", "1").json
    assert yaml.safe_load(cli("-o", "yaml", *whole, "--prompt-ids", "1").out) == told
    assert Expect.model_validate(told["expect"]).tolerance == 0.5
    assert told["distance"] == pytest.approx(0.01)
    assert ([one["reason"] for one in told["warnings"]], cli(*whole).code) == (["expect_tells_little"], 0)
    assert len(asked[-1][2]) == 4, "without prompts it takes some of its own"
    assert asked[-1][3:] == (8, "bfloat16")
    answers = [SimpleNamespace(prompt=[1], tokens=[7], logprobs=[-0.5], base_logprobs=[-1.0])]
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(expected=lambda *_: answers))
    for tolerance, is_little in (("0.4", False), ("0.5", True), ("0.6", True)):
        first = cli(*expect, "--prompt-ids", "1", "--tolerance", tolerance).out.splitlines()[0]
        assert first.startswith("# without the adapter the logprobs of these tokens are up to 0.5 away")
        assert ("prove little" in first) == is_little, "to the last bit of it"


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        *((["--prompt-ids", one], 2, "numbers of tokens with commas between them") for one in ("1,x", "", "1,,2")),
        (["--prompt-ids", "9999999999"], 2, "numbers of tokens"),
        (["--prompt-ids", "999999999"], 0, ""),
        (["--prompt", "a"] * 5, 2, "5 prompts are more than the 4"),
        (["--prompt", "a" * 65], 2, "a prompt is 65 tokens"),
        (["--prompt-ids", "9"], 4, "CANNOT_PUBLISH: PEFT cannot load"),
        (None, 4, "pip install 'loraplane[publish]'"),
    ],
)
def test_what_cannot_be_expected_is_said(cli, adapter, asked, monkeypatch, more, code, said):
    """Without torch the remedy is named."""
    if more is None:
        monkeypatch.setitem(sys.modules, MODULE, None)
    ran = cli("expect", adapter, "--base-model", "/base", *(more or []))
    assert (ran.code, said in ran.err, len(ran.err) < 600) == (code, True, True)
