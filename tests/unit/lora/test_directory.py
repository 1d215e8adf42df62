"""An adapter's files: their digest, what is missing of them, and what is read of their headers."""

from __future__ import annotations

import hashlib
import io
import json

import pytest

from registry.lora.directory import (
    check_files,
    digest_of,
    examine_files,
    open_config,
)
from registry.lora.findings import UnfitAdapter
from registry.lora.policy import AdapterLimits, Policy
from tests.corpus.drafts import CONFIG, LLAMA, WEIGHTS
from tests.support.adapters import adapter_config, write_files


def test_the_digest_is_of_whole_files_whatever_else_is_there(tmp_path):
    """R4: also where a file is larger than what is read at once."""
    adapter = write_files(tmp_path / "a", b"{}", b"x" * ((3 << 20) + 7))
    (tmp_path / "a" / "README.md").write_text("no part of it")
    weights = hashlib.sha256(b"x" * ((3 << 20) + 7)).hexdigest()
    manifest = (
        f'{{"files":[{{"path":"{CONFIG}","sha256":"{hashlib.sha256(b"{}").hexdigest()}","size":2}},'
        f'{{"path":"{WEIGHTS}","sha256":"{weights}","size":{(3 << 20) + 7}}}],"schema":"lora-manifest/1"}}'
    )
    assert digest_of(adapter.directory) == "sha256:" + hashlib.sha256(manifest.encode()).hexdigest()
    write_files(tmp_path / "a", b"{}", b"x" * ((3 << 20) + 6) + b"y")
    assert digest_of(adapter.directory) != adapter.digest


def test_a_configuration_is_read_without_the_weights(tmp_path):
    """For what a store has, whose weights were looked at when they came."""
    write_files(tmp_path, adapter_config(4, "acme/base"), b"")
    assert open_config(tmp_path).r == 4
    write_files(tmp_path, b"{", b"")
    with pytest.raises(UnfitAdapter):
        open_config(tmp_path)


def test_all_that_is_wrong_is_said_at_once():
    """R14: in the configuration, in the names and in the numbers; wherever the files are."""
    draft = LLAMA.draft()
    draft.config["bias"] = "all"
    names = iter(draft.tensors)
    spoilt = draft.tensors[next(names)]
    spoilt.data = b"\xff" * len(spoilt.data)
    draft.tensors[next(names)].dtype = "I32"
    files = draft.files()
    with pytest.raises(UnfitAdapter) as refused:
        examine_files(lambda name: io.BytesIO(files[name]), None, AdapterLimits(), Policy())
    reasons = [one.reason for one in refused.value.findings]
    assert reasons == ["bias_not_supported", "dtype_not_supported", "not_finite"]


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ([CONFIG, WEIGHTS], []),
        ([CONFIG], [("source_incomplete", WEIGHTS, False)]),
        ([WEIGHTS], [("source_incomplete", CONFIG, False)]),
        ([], [("source_incomplete", CONFIG, False), ("source_incomplete", WEIGHTS, False)]),
        ([CONFIG, "adapter_model.bin"], [("weights_not_safetensors", "adapter_model.bin", True)]),
        ([CONFIG, "adapter_model.pt"], [("weights_not_safetensors", "adapter_model.pt", True)]),
        ([CONFIG, "adapters.safetensors"], [("other_format", "adapters.safetensors", True)]),
        ([CONFIG, "model.safetensors"], [("not_an_adapter", "model.safetensors", True)]),
        ([CONFIG, WEIGHTS, "adapter_model.bin"], []),
        (["adapter_model.bin", WEIGHTS], [("source_incomplete", CONFIG, False)]),
        ([f"{CONFIG}/", WEIGHTS], [("not_an_adapter", CONFIG, True)]),
        ([CONFIG, f"{WEIGHTS}/", "adapter_model.bin"], [("not_an_adapter", WEIGHTS, True)]),
    ],
    ids=str,
)
def test_what_is_missing_is_said_by_its_name(tmp_path, there, expected):
    """R8: what may still be written is tried again; weights that can hold code never are."""
    for name in there:
        if name.endswith("/"):
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_text(json.dumps({}))
    found = []
    try:
        check_files(tmp_path)
    except UnfitAdapter as refused:
        found = [(one.reason, one.key, one.permanent) for one in refused.findings]
    assert found == expected
