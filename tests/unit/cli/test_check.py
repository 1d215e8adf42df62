"""loraplane check and digest, and what apply and add see by themselves."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from registry.cli.local_adapters import base_message, base_of_pool
from registry.cli.main import run
from registry.lora.base_directory import read_base
from registry.lora.digest import FILES, FileEntry, manifest_digest
from registry.lora.directory import digest_of
from registry.v1 import registry_pb2 as pb
from tests.corpus.drafts import LLAMA, Architecture


@pytest.fixture
def base(tmp_path) -> Path:
    return LLAMA.write_base(tmp_path / "base")


@pytest.fixture
def adapter(tmp_path) -> Path:
    return LLAMA.draft().write(tmp_path / "adapter")


def test_a_right_adapter_ends_with_0(capsys, base, adapter):
    assert run(["check", str(adapter), "--base-model", str(base), "--max-rank", "8"]) == 0
    assert "is right" in capsys.readouterr().out
    assert run(["-o", "json", "check", adapter.as_uri(), "--base-model", str(base)]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_a_wrong_one_ends_with_4_and_all_findings(capsys, base, tmp_path):
    """Programs read reason, key, found, expected and remedy of each."""
    draft = LLAMA.draft()
    draft.config |= {"lora_alpha": 0, "bias": "all"}
    draft.write(tmp_path / "wrong")
    arguments = ["check", str(tmp_path / "wrong"), "--base-model", str(base), "--max-rank", "2"]
    assert run(["-o", "json", *arguments]) == 4
    out, err = capsys.readouterr()
    found = json.loads(out)["findings"]
    assert {one["reason"] for one in found} == {"bias_not_supported", "zero_alpha", "rank_too_high"}
    assert all({"reason", "key", "found", "expected", "remedy"} <= one.keys() for one in found)
    assert json.loads(err)["error"]["reason"] == "ADAPTER_UNFIT"
    assert run(arguments) == 4
    assert "zero_alpha" in capsys.readouterr().out
    assert run(["-o", "name", *arguments]) == 4
    assert capsys.readouterr().out.splitlines()[0] == "bias_not_supported"


def test_a_policy_may_be_tried_out(capsys, base, tmp_path):
    draft = LLAMA.draft()
    draft.config["use_dora"] = True
    draft.write(tmp_path / "dora")
    arguments = ["check", str(tmp_path / "dora"), "--base-model", str(base)]
    assert run(arguments) == 4
    assert run([*arguments, "--dora", "strip"]) == 0
    assert "warning: dora_stripped" in capsys.readouterr().out


def test_what_is_typed_goes_before_a_variable_for_other_commands(cli, admin, monkeypatch, base, adapter):
    monkeypatch.setenv("LORAPLANE_POOL", "some")
    assert cli("check", str(adapter), "--base-model", str(base)).code == 0
    admin.answers["GetPool"] = [pb.Pool(name="other")]
    assert cli("check", str(adapter), "--pool", "other").code == 0
    assert [one.name for one in admin.asked("GetPool")] == ["other"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["check", "{adapter}", "--base-model", "{base}", "--pool", "p"], 2),
        (["check", "{adapter}", "--base-model", "{adapter}/.."], 4),
        (["check", "oci://bucket/a", "--base-model", "{base}"], 4),
        (["check", "{base}/gone", "--base-model", "{base}"], 3),
        (["check", "{base}", "--base-model", "{base}"], 4),
        (["digest", "{base}/gone"], 3),
        (["digest", "{base}"], 4),
        (["pool", "create", "p", "--base-model", "m", "--base-name", "n"], 2),
    ],
)
def test_what_cannot_be_looked_at_is_said(capsys, base, adapter, arguments, code):
    assert run([one.format(adapter=adapter, base=base) for one in arguments]) == code
    assert capsys.readouterr().err.startswith("error: ")


def test_the_digest_is_that_of_a_record(capsys, adapter):
    assert run(["digest", str(adapter)]) == 0
    assert capsys.readouterr().out.strip() == digest_of(adapter)
    hashed = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in adapter.iterdir()}
    assert digest_of(adapter) == manifest_digest(
        FileEntry(name, (adapter / name).stat().st_size, hashed[name]) for name in FILES
    )
    assert run(["-o", "json", "digest", adapter.as_uri()]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == digest_of(adapter)


def test_a_base_survives_the_wire(base):
    read = read_base(base, ("name",))
    from registry.v1 import registry_pb2 as pb

    assert base_of_pool(pb.Pool(base=base_message(read))) == read
    assert base_of_pool(pb.Pool()) is None


def test_what_the_engine_ignores_is_refused_dropped_or_explained(capsys, tmp_path):
    """R22 applied-whole: the same words in check, in a pool's record, and in a row for each kind of matrix."""
    gate = "model.layers.0.mlp.gate"
    moe = Architecture("moe", {**LLAMA.modules, gate: (4, 32)}, (*LLAMA.targets, gate))
    base = moe.write_base(tmp_path / "moe")
    (base / "config.json").write_text(json.dumps({"architectures": ["Qwen3MoeForCausalLM"], "head_dim": 8}))
    arguments = ["check", str(moe.draft().write(tmp_path / "a")), "--base-model", str(base)]
    assert run(["-o", "json", *arguments, "--explain"]) == 4
    said = json.loads(capsys.readouterr().out)
    assert [one["reason"] for one in said["findings"]] == ["not_applied_by_engine"]
    assert said["matrices"][0] == {"module": gate, "fate": "refused", "note": "not_applied_by_engine"}
    assert run([*arguments, "--drop", "mlp.gate", "--explain"]) == 0
    out = capsys.readouterr().out
    assert "warning: modules_dropped" in out
    assert "dropped" in out
    kept = base_of_pool(pb.Pool(base=base_message(read_base(base))))
    assert kept == read_base(base)
    assert kept.architecture == "Qwen3MoeForCausalLM"


def test_only_what_can_be_opened_is_explained(capsys, base, adapter):
    (adapter / "adapter_config.json").write_text("{")
    assert run(["-o", "json", "check", str(adapter), "--base-model", str(base), "--explain"]) == 4
    assert json.loads(capsys.readouterr().out)["matrices"] == []


def test_check_takes_the_only_pool(cli, admin, adapter):
    admin.answers["GetPool"] = [pb.Pool(name="dev", base_models=["tiny"])]
    assert cli("check", str(adapter)).code == 0
    assert admin.asked("GetPool")[0].name == "dev"
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="dev"), pb.Pool(name="ops")])]
    ran = cli("check", str(adapter))
    assert (ran.code, "several pools (dev, ops)" in ran.err) == (2, True)


@pytest.mark.parametrize(("engine", "expected"), [("", "vllm"), ("sglang", "sglang")])
def test_an_adapter_is_compared_as_the_engine_of_its_pool_takes_it(engine, expected):
    read = base_of_pool(pb.Pool(engine=engine, base=pb.BaseShapes(architecture="", head_size=0)))
    assert (read.engine, read.architecture, read.head_size, read.evidence) == (expected, None, None, None)
