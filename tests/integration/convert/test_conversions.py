"""What `loraplane publish` makes of adapters that are not plain LoRA, compared with what PEFT computes."""

from __future__ import annotations

import shutil

import pytest

from registry.lora.directory import digest_of, open_directory
from tests.integration.convert.conftest import distance
from tests.support.with_torch import loraplane

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]
TOLERANCE = 1e-4
MODELS = ("llama", "qwen")


@pytest.mark.parametrize("model", MODELS)
def test_an_exact_conversion_answers_as_the_training_did(trained, tmp_path, model):
    """R4, R5: PiSSA and OLoRA at twice the rank, DoRA at full rank: PEFT's logprobs of both are equal."""
    exact = {"pissa": (), "olora": (), "dora": ("--rank", "128", "--max-error", "1e-5")}
    for name, more in exact.items():
        found = trained.publish(model, name, tmp_path / name, *more).json
        assert all(one["error"] < 1e-5 for one in found["modules"]), found["modules"]
        assert found["warnings"] == []
        assert found["digest"] == digest_of(tmp_path / name)
    made = {f"new_{name}": tmp_path / name for name in exact}
    answers = trained.answers(model, **{name: trained.adapter(model, name) for name in exact}, **made)
    for name in exact:
        assert distance(answers[name], answers[f"new_{name}"]) <= TOLERANCE, name
        assert distance(answers[""], answers[f"new_{name}"]) > TOLERANCE, name


@pytest.mark.parametrize("model", MODELS)
def test_an_approximation_is_as_near_as_it_says(trained, tmp_path, model):
    """Each module's printed error is that of what was written, measured anew from both files."""
    wishes = {"dora": ("--rank", "64"), "rslora": ("--rank", "3"), "plain": ("--dtype", "bfloat16")}
    said = []
    kinds = {"dora": {"dora"}, "rslora": {"rank", "kept"}, "plain": {"cast"}}
    for name, more in wishes.items():
        found = trained.publish(model, name, tmp_path / name, *more, "--max-error", "0.9").json
        assert {one["kind"] for one in found["modules"]} == kinds[name]
        said.append({one["module"]: one["error"] for one in found["modules"]})
    measured = trained.errors(model, {trained.adapter(model, name): tmp_path / name for name in wishes})
    for ours, theirs in zip(said, measured, strict=True):
        assert theirs == pytest.approx(ours, rel=1e-3, abs=1e-6)
        assert any(error > 1e-4 for error in ours.values())


def test_an_error_above_the_bound_is_refused_and_nothing_is_written(trained, tmp_path):
    """The message names the worst module, and the rank that would do."""
    refused = trained.publish("llama", "dora", tmp_path / "out")
    assert refused.code == 4
    assert "CANNOT_PUBLISH" in refused.err
    assert "(--rank)" in refused.err
    assert not (tmp_path / "out").exists()
    rank = refused.err.split("rank ")[1].split(" ")[0]
    assert trained.publish("llama", "dora", tmp_path / "out", "--rank", rank).code == 0
    fewer = trained.publish("llama", "dora", tmp_path / "less", "--rank", str(int(rank) - 1))
    assert fewer.code == 4


def test_the_first_adapter_may_be_given_instead_of_computed(trained, tmp_path):
    """PiSSA by iterations begins otherwise each time; only the adapter that was kept tells how."""
    refused = trained.publish("llama", "pissa_niter", tmp_path / "niter")
    assert (refused.code, "unsupported_init" in refused.err) == (4, True)
    initial = ("--initial", str(trained.adapter("llama", "pissa_niter_first")))
    assert trained.publish("llama", "pissa_niter", tmp_path / "niter", *initial).code == 0
    kept = ("--initial", str(trained.adapter("llama", "pissa_first")))
    assert trained.publish("llama", "pissa", tmp_path / "kept", *kept).code == 0
    assert trained.publish("llama", "pissa", tmp_path / "computed").code == 0
    answers = trained.answers("llama", kept=tmp_path / "kept", computed=tmp_path / "computed")
    assert distance(answers["kept"], answers["computed"]) <= TOLERANCE
    strange = ("--initial", str(trained.adapter("llama", "rslora_first")))
    refused = trained.publish("llama", "pissa", tmp_path / "strange", *strange)
    assert (refused.code, "no pair of rank" in refused.err) == (4, True)


def test_what_changed_its_base_when_it_began_is_served_as_it_was_trained(trained, tmp_path):
    """R4: of LoRA-GA only the first adapter tells the change; as it is, PEFT answers otherwise than it trained."""
    refused = trained.publish("llama", "lora_ga", tmp_path / "ga")
    assert (refused.code, "unsupported_init" in refused.err) == (4, True)
    source, initial = trained.adapter("llama", "lora_ga"), str(trained.adapter("llama", "lora_ga_first"))
    assert trained.publish("llama", "lora_ga", tmp_path / "ga", "--initial", initial).code == 0
    wanted = trained.answers("lora_ga")[""]
    answers = trained.answers("llama", as_it_is=source, made=tmp_path / "ga")
    assert distance(wanted, answers["made"]) <= TOLERANCE
    assert distance(wanted, answers["as_it_is"]) > TOLERANCE


def test_what_cannot_be_converted_is_refused_by_name(trained, tmp_path):
    refused = trained.publish("llama", "pissa_dora", tmp_path / "out")
    assert (refused.code, "use_dora" in refused.err) == (4, True)
    source = str(trained.adapter("llama", "dora"))
    without = loraplane("publish", source, str(tmp_path / "out"), "--base-model", str(tmp_path))
    assert without.code == 4
    assert not (tmp_path / "out").exists()


def test_weights_of_a_base_of_another_name_are_told(trained, tmp_path):
    """R4: nothing else tells them from those that the adapter was trained on."""
    other = shutil.copytree(trained.models["llama"], tmp_path / "another")
    source = str(trained.adapter("llama", "olora"))
    found = loraplane("-o", "json", "publish", source, str(tmp_path / "out"), "--base-model", str(other)).json
    assert [one["reason"] for one in found["warnings"]] == ["base_name_differs"]


def test_a_cast_has_the_bytes_of_the_engines_own(trained, tmp_path):
    """The engine casts with torch; so do we, and the configuration stays as it was."""
    source = trained.adapter("llama", "embedding")
    assert trained.publish("llama", "embedding", tmp_path / "out", "--dtype", "bfloat16").code == 0
    cast = trained.cast(source, tmp_path / "theirs")
    theirs, ours = open_directory(cast), open_directory(tmp_path / "out")
    content = {folder: (folder / "adapter_model.safetensors").read_bytes() for folder in (cast, tmp_path / "out")}
    bytes_of = [
        {one.name: content[folder][opened.start + one.begin : opened.start + one.end] for one in opened.header.tensors}
        for folder, opened in ((cast, theirs), (tmp_path / "out", ours))
    ]
    assert bytes_of[0] == bytes_of[1]
    assert {one.dtype for one in ours.header.tensors} == {"BF16"}
    assert (source / "adapter_config.json").read_bytes() == (tmp_path / "out" / "adapter_config.json").read_bytes()


def test_two_runs_make_the_same_bytes(trained, tmp_path):
    digests = [trained.publish("qwen", "olora", tmp_path / name).json["digest"] for name in ("one", "two")]
    assert digests[0] == digests[1]
