"""What an examination says of an adapter, and what it has written anew."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from registry.lora.base import BaseModules
from registry.lora.findings import Finding, FindingReason, UnfitAdapter
from registry.lora.policy import Policy
from registry.lora.safetensors import LENGTH_BYTES
from sidecar.artifacts import examination
from sidecar.artifacts.examination import BaseOfReplica, Examination, ExaminationAnswer, ExaminationRequest, Examining
from tests.support.adapters import adapter_config, adapter_weights, write_adapter, write_files
from tests.unit.artifacts.conftest import raising

PLACES = ("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj")
KEYS = {f"base_model.model.{place}.lora_{half}.weight" for place in PLACES for half in "AB"}
V_KEYS = tuple(sorted(key for key in KEYS if "v_proj" in key))


def base_of(prefix: str = "model", size: int = 16, **more) -> BaseModules:
    return BaseModules({place.replace("model", prefix, 1): (size, size) for place in PLACES}, **more)


def ask(
    examining: Examining, directory: Path, base: BaseModules | None, *, has_base: bool, policy: Policy | None = None
) -> ExaminationAnswer:
    sent = BaseOfReplica.of(base) if base else None
    known = (policy or Policy()).as_dict()
    return examining.answer(
        ExaminationRequest(
            directory=str(directory), policy=known, has_base=has_base, base=sent, memory_bytes=1, processor_seconds=1
        )
    )


def examined(directory: Path, base: BaseModules | None = None, **policy) -> Examination:
    found = ask(Examining(), directory, base, has_base=base is not None, policy=Policy(**policy)).examination
    assert found is not None
    return found


def test_an_adapter_that_fits_stays_as_it_came(tmp_path):
    adapter = write_adapter(tmp_path / "a", rank=4, base="acme/base")
    found = examined(adapter.directory, base_of(names=("acme/base",)))
    assert found.is_as_it_came
    assert (found.rank, found.base_model, found.renamed, found.dropped) == (4, "acme/base", {}, ())
    assert sorted(found.modules) == sorted(PLACES)
    length = int.from_bytes((adapter.directory / "adapter_model.safetensors").read_bytes()[:LENGTH_BYTES], "little")
    assert found.start == LENGTH_BYTES + length


@pytest.mark.parametrize(
    ("base", "policy", "renamed", "dropped"),
    [
        (base_of("base"), {}, KEYS, ()),
        (None, {"drop": ("v_proj",)}, set(), V_KEYS),
        (base_of(architecture="Llama4ForCausalLM", head_size=4), {}, set(), ()),
    ],
    ids=["renamed", "dropped", "rotary"],
)
def test_weights_are_written_anew_for_each_kind_of_change(tmp_path, base, policy, renamed, dropped):
    """R22 applied-whole: names that are not the base's, modules that are left out, rows in another order."""
    found = examined(write_adapter(tmp_path / "a").directory, base, **policy)
    assert found.new_weights is not None
    assert not found.is_as_it_came
    assert (set(found.renamed), found.dropped, found.new_config) == (renamed, dropped, None)
    places = base.modules if base else PLACES[:1]
    assert sorted(found.modules) == sorted(places), "as it stands in the prepared file"


def test_a_configuration_is_written_anew_where_only_it_changes(tmp_path):
    config = json.loads(adapter_config()) | {"use_dora": True}
    adapter = write_files(tmp_path / "a", json.dumps(config).encode(), adapter_weights())
    found = examined(adapter.directory, dora="strip")
    assert (found.config, found.new_weights, found.is_as_it_came) == ({"use_dora": False}, None, False)
    assert json.loads(found.new_config or b"") == config | {"use_dora": False}


PATTERNS = {"v_proj": 4, "q_proj": 4, "proj": 4}


def test_patterns_keep_the_order_in_which_their_keys_count(tmp_path):
    """R22 applied-whole: PEFT and engines take the first key that matches, and scale by its value."""
    config = json.loads(adapter_config()) | {
        "r": 4.0,
        "rank_pattern": PATTERNS,
        "alpha_pattern": PATTERNS,
        "z": {"b": 1, "a": 2},
    }
    adapter = write_files(tmp_path / "a", json.dumps(config).encode(), adapter_weights())
    made = json.loads(examined(adapter.directory).new_config or b"")
    assert made == config
    assert list(made) == sorted(config), "whatever order nothing depends on is the same on every host"
    assert list(made["z"]) == ["a", "b"]
    assert [list(made[field]) for field in ("rank_pattern", "alpha_pattern")] == [list(PATTERNS)] * 2


def test_it_compares_with_the_base_that_it_was_told_last(tmp_path):
    """R5: a base is sent once; what has none is compared with none."""
    examining, directory = Examining(), write_adapter(tmp_path / "a").directory
    assert ask(examining, directory, base_of(size=8), has_base=True).objection is not None
    assert ask(examining, directory, None, has_base=False).examination is not None
    assert ask(examining, directory, None, has_base=True).objection is not None
    assert ask(examining, directory, base_of(), has_base=True).examination is not None
    assert ask(examining, directory, None, has_base=True).examination is not None


@pytest.mark.parametrize("are_permanent", [(False, True), (True, False), (False, False)])
def test_an_objection_has_the_first_reason_and_tells_how_many_there_are(tmp_path, monkeypatch, are_permanent):
    """R14, R8: it is for good if one of them is, and is said by the reason of that."""
    reasons: tuple[FindingReason, ...] = ("source_incomplete", "not_finite")
    findings = [
        Finding(reason, "key", "this", "that", "mend it", permanent=is_permanent)
        for reason, is_permanent in zip(reasons, are_permanent, strict=True)
    ]
    monkeypatch.setattr(examination, "examine_directory", raising(UnfitAdapter(findings)))
    objection = ask(Examining(), tmp_path, None, has_base=False).objection
    assert objection is not None
    assert objection.reason == ("not_finite" if are_permanent == (False, True) else "source_incomplete")
    assert objection.message == "key: found this, expected that; mend it (and 1 more)"


@pytest.mark.parametrize(
    ("error", "failure"),
    [(OSError(errno.EIO, "bad sector"), (errno.EIO, "[Errno 5] bad sector")), (OSError("odd"), (0, "odd"))],
)
def test_a_file_that_cannot_be_read_is_no_fault_of_the_adapter(tmp_path, monkeypatch, error, failure):
    """R8: number and text of the error reach whoever asked."""
    monkeypatch.setattr(examination, "examine_directory", raising(error))
    assert ask(Examining(), tmp_path, None, has_base=False) == ExaminationAnswer(failure=failure)
