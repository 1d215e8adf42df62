"""Tensors in safetensors files: what is written is what is read, to the byte."""

from __future__ import annotations

import json

import numpy as np
import pytest

from registry.lora.digest import WEIGHTS_FILE
from tests.corpus.drafts import Values, safetensors
from tests.support.played_torch import BFLOAT16, FLOAT16, FLOAT32, Tensor

NUMBERS = [1.0, -2.5, 0.15625, 96.0, 0.0, -0.5]
KINDS = {"F32": FLOAT32, "F16": FLOAT16, "BF16": BFLOAT16}
BYTES_OF_MINUS_TWO_AND_A_HALF = {"F32": "000020c0", "F16": "00c1", "BF16": "20c0"}


@pytest.mark.parametrize("dtype", KINDS)
def test_what_is_written_is_read(numeric, tmp_path, dtype):
    kind = KINDS[dtype]
    tensors = {"b": Tensor(np.reshape(NUMBERS, (2, 3)), kind), "a": Tensor([[-2.5]], kind)}
    numeric.stored.write_tensors(tmp_path / "f", tensors, {})
    places = numeric.stored.places_in(tmp_path / "f")
    assert {name: place.read().array.tolist() for name, place in places.items()} == {
        "a": [[-2.5]],
        "b": [NUMBERS[:3], NUMBERS[3:]],
    }
    assert {(place.read().dtype, place.tensor.dtype) for place in places.values()} == {(kind, dtype)}
    content = (tmp_path / "f").read_bytes()
    length = int.from_bytes(content[:8], "little")
    first = bytes.fromhex(BYTES_OF_MINUS_TWO_AND_A_HALF[dtype])
    assert content[8 + length :].startswith(first), "they lie in the order of their names"
    assert len(content) == 8 + length + 7 * kind.width, "without gaps"


@pytest.mark.parametrize("metadata", [{}, {"format": "pt"}, {"format": "pt", "by": "somebody else"}], ids=str)
def test_equal_tensors_make_equal_files_that_start_at_a_multiple_of_eight(numeric, tmp_path, metadata):
    """What reads them in place needs that; and the digest of a second run is that of the first."""
    one, two = Tensor([[1.0, 2.0]], FLOAT32), Tensor([[3.0], [4.0]], FLOAT32)
    for file, tensors in (("f", {"a": one, "b": two}), ("g", {"b": two, "a": one})):
        numeric.stored.write_tensors(tmp_path / file, tensors, metadata)
    content = (tmp_path / "f").read_bytes()
    assert content == (tmp_path / "g").read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    header = json.loads(content[8 : 8 + length])
    assert header.pop("__metadata__", {}) == metadata
    assert b"__metadata__" in content if metadata else b"__metadata__" not in content
    assert header == {
        "a": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [2, 1], "data_offsets": [8, 16]},
    }


def test_a_part_of_a_larger_matrix_is_written_as_what_it_shows(numeric, tmp_path):
    """A column lies scattered in memory; its numbers lie side by side in the file."""
    numeric.stored.write_tensors(tmp_path / "f", {"a": Tensor(np.reshape(NUMBERS, (2, 3)), FLOAT32)[:, :1]}, {})
    assert numeric.stored.places_in(tmp_path / "f")["a"].read().array.tolist() == [[1.0], [96.0]]


def test_nothing_is_written_over(numeric, tmp_path):
    (tmp_path / "f").write_bytes(b"somebody's")
    with pytest.raises(FileExistsError):
        numeric.stored.write_tensors(tmp_path / "f", {}, {})
    assert (tmp_path / "f").read_bytes() == b"somebody's"


def test_a_base_model_is_read_from_all_of_its_files(numeric, tmp_path):
    for number, name in enumerate(("a", "b"), start=1):
        values = Values("F32", (1, 1), np.array([number], "<f4").tobytes())
        (tmp_path / f"model-0000{number}-of-00002.safetensors").write_bytes(safetensors({name: values}))
    index = {"weight_map": {name: f"model-0000{number}-of-00002.safetensors" for number, name in ((1, "a"), (2, "b"))}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    places = numeric.stored.places_of_base(tmp_path)
    assert {name: place.read().array.tolist() for name, place in places.items()} == {"a": [[1.0]], "b": [[2.0]]}


def test_a_type_that_cannot_be_computed_with_is_told(numeric, tmp_path):
    (tmp_path / WEIGHTS_FILE).write_bytes(safetensors({"a": Values("I8", (1, 2), b"\1\2")}))
    with pytest.raises(KeyError, match="I8"):
        numeric.stored.places_in(tmp_path / WEIGHTS_FILE)["a"].read()
