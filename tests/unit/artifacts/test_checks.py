"""What is and what is not a LoRA adapter."""

from __future__ import annotations

import json

import pytest

from sidecar.artifacts.checks import MAX_HEADER_BYTES, check_config, check_header, header_bytes
from sidecar.artifacts.types import ArtifactError
from tests.support.adapters import adapter_config, adapter_weights


def config(**changes: object) -> bytes:
    return json.dumps({**json.loads(adapter_config()), **changes}).encode()


def header(**tensors: object) -> bytes:
    return json.dumps(tensors).encode()


def tensor(begin: object, end: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [1], "data_offsets": [begin, end]}


def check_weights(content: bytes) -> None:
    length = header_bytes(content[:8], len(content))
    check_header(content[8 : 8 + length], len(content))


@pytest.mark.parametrize("rank", [1, 4, 512])
def test_a_config_tells_its_rank(rank):
    assert check_config(adapter_config(rank)) == rank


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "not readable as JSON"),
        (b"<html>404</html>", "not readable as JSON"),
        (b"\xff\xfe{}", "not readable as JSON"),
        (b'{"r": 1', "not readable as JSON"),
        (b"[" * 100_000, "not readable as JSON"),
        (b'{"r": ' + b"9" * 5000 + b"}", "not readable as JSON"),
        (b'{"peft_type": "LORA", "r": 1, "r": 2}', "'r' stands there twice"),
        (b"[]", "a JSON list"),
        (b"null", "a JSON NoneType"),
        (b"{}", "peft_type None"),
        (config(peft_type="ADALORA"), "'ADALORA'"),
        (config(peft_type=["LORA"]), "['LORA']"),
        (config(r=0), "r = 0"),
        (config(r=-1), "r = -1"),
        (config(r="8"), "r = '8'"),
        (config(r=8.0), "r = 8.0"),
        (config(r=True), "r = True"),
        (config(r=None), "r = None"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git-lfs pointer"),
    ],
)
def test_a_config_that_is_none_is_refused_with_what_was_found(content, found):
    with pytest.raises(ArtifactError) as refused:
        check_config(content)
    assert (refused.value.reason, refused.value.permanent) == ("not_an_adapter", True)
    assert found in refused.value.message


@pytest.mark.parametrize(("rank", "layers"), [(1, 1), (8, 3)])
def test_whole_weights_pass(rank, layers):
    check_weights(adapter_weights(rank, layers=layers))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (header(), "no tensors"),
        (header(__metadata__={"format": "pt"}), "no tensors"),
        (header(a=tensor(4, 8)), "begins at 4, expected 0"),
        (header(a=tensor(0, 8), b=tensor(4, 12)), "begins at 4, expected 8"),
        (header(a=tensor(0, 4), b=tensor(8, 12)), "begins at 8, expected 4"),
        (header(a=tensor(0, -4)), "ends at -4, before it begins at 0"),
        (header(a={"data_offsets": [True, 4]}), "no pair of data_offsets"),
        (header(a=tensor(0.0, 4)), "no pair of data_offsets"),
        (header(a={"data_offsets": [0, 4, 8]}), "no pair of data_offsets"),
        (header(a={"dtype": "F32"}), "no pair of data_offsets"),
        (header(a=7), "no pair of data_offsets"),
        (b'{"a": {}, "a": {}}', "'a' stands there twice"),
        (b"[]", "a JSON list"),
        (header(a=tensor(0, 3)), "its header describes"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused_with_what_was_found(content, found):
    with pytest.raises(ArtifactError) as refused:
        check_header(content, 8 + len(content) + 4)
    assert (refused.value.reason, refused.value.permanent) == ("not_an_adapter", True)
    assert found in refused.value.message


@pytest.mark.parametrize("kept_bytes", [1, 7, 8, 20, -1])
def test_weights_that_end_too_early_may_still_be_being_written(kept_bytes):
    """R8: a training job that still writes is tried again, not refused for good."""
    with pytest.raises(ArtifactError) as refused:
        check_weights(adapter_weights()[:kept_bytes])
    assert (refused.value.reason, refused.value.permanent) == ("source_incomplete", False)


def test_a_header_bomb_is_refused_before_it_is_read():
    """R16 bounded: the length is judged, not the header."""
    with pytest.raises(ArtifactError) as refused:
        header_bytes((MAX_HEADER_BYTES + 1).to_bytes(8, "little"), 1 << 40)
    assert refused.value.reason == "not_an_adapter"
    assert str(MAX_HEADER_BYTES) in refused.value.message
    assert header_bytes(MAX_HEADER_BYTES.to_bytes(8, "little"), 1 << 40) == MAX_HEADER_BYTES


def test_a_git_lfs_pointer_is_called_by_its_name():
    with pytest.raises(ArtifactError) as refused:
        check_weights(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    assert "git-lfs pointer" in refused.value.message
