"""Headers of weights, names of tensors, and numbers: what a line of them says, and what is refused."""

from __future__ import annotations

import io
import json
import struct
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.lora.check import Changes
from registry.lora.findings import UnfitAdapter
from registry.lora.prepare import new_weights
from registry.lora.safetensors import CHUNK_BYTES, Header, Tensor, header_length, not_finite, read_header
from registry.lora.tensor_names import TensorPart, entry_of
from tests.corpus.drafts import WEIGHTS


def header_of(entries: object, body_bytes: int) -> Header:
    text = json.dumps(entries).encode()
    return read_header(text, 8 + len(text) + body_bytes, WEIGHTS)


def tensor(shape: object = (2,), dtype: object = "F32", offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


# Bytes of 8 numbers, as safetensors lays them down.
SIZES = {
    **dict.fromkeys("BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E5M2FNUZ F8_E4M3FNUZ".split(), 8),
    **dict.fromkeys("I16 U16 F16 BF16".split(), 16),
    **dict.fromkeys("I32 U32 F32".split(), 32),
    **dict.fromkeys("I64 U64 F64 C64".split(), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}


@pytest.mark.parametrize("dtype", SIZES)
def test_a_tensor_of_each_type_has_its_size(dtype):
    """A base model in any of them is read; one byte more or less is a lie."""
    size = SIZES[dtype]
    (found,) = header_of({"a": tensor([2, 4], dtype, [0, size])}, size).tensors
    assert found == Tensor("a", dtype, (2, 4), 0, size)
    for wrong in (size - 1, size + 1):
        with pytest.raises(UnfitAdapter, match=f"{wrong} bytes"):
            header_of({"a": tensor([2, 4], dtype, [0, wrong])}, wrong)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        5,
        "F32",
        [],
        {},
        tensor(dtype=None),
        tensor(dtype=["F32"]),
        tensor(dtype="F31"),
        tensor(shape=None),
        tensor(shape=2),
        tensor(shape=[True, 2]),
        tensor(shape=[-2, -1]),
        tensor(shape=[1.0, 2.0]),
        tensor(shape=[1] * 7 + [2, 1]),
        tensor(shape=[0, 1 << 48], offsets=[0, 0]),
        tensor(offsets=None),
        tensor(offsets=[0]),
        tensor(offsets=[0, 8, 8]),
        tensor(offsets=["0", "8"]),
        tensor(offsets=[-8, 0]),
        tensor(offsets=[8, 0]),
        tensor(offsets=[1, 9]),
        tensor(offsets=[False, 8]),
    ],
    ids=str,
)
def test_what_describes_no_tensor_is_refused_by_name(entry):
    """R16, X2: whatever somebody's header holds."""
    with pytest.raises(UnfitAdapter) as refused:
        header_of({"a": entry}, 8)
    assert [(one.reason, one.key) for one in refused.value.findings] == [("not_an_adapter", "a")]


def test_a_tensor_may_be_as_odd_as_any_is():
    """R4: eight dimensions, no numbers at all, and sizes of 48 bits."""
    entries = {
        "a" * 512: tensor([1] * 7 + [2]),
        "none": tensor([0, (1 << 48) - 1], offsets=[8, 8]),
        "one": tensor([], offsets=[8, 12]),
    }
    assert [one.shape for one in header_of(entries, 12).tensors] == [(1,) * 7 + (2,), (0, (1 << 48) - 1), ()]
    with pytest.raises(UnfitAdapter, match="a key of 513 characters"):
        header_of({"a" * 513: tensor()}, 8)


def test_there_are_at_most_200_000_tensors():
    """R16 bounded: to the last one; what each of them says is looked at after that."""
    entries = ",".join(f'"{at}":0' for at in range(200_000))
    with pytest.raises(UnfitAdapter, match="data_offsets None"):
        read_header(f"{{{entries}}}".encode(), 0, WEIGHTS)
    with pytest.raises(UnfitAdapter, match="200001 tensors"):
        read_header(f'{{{entries},"a":0}}'.encode(), 0, WEIGHTS)


def test_there_are_at_most_4096_texts_beside_the_tensors():
    """R16 bounded."""
    texts = {f"{at}": "" for at in range(4096)}
    assert header_of({"__metadata__": texts, "a": tensor()}, 8).metadata == texts
    with pytest.raises(UnfitAdapter, match="at most 4096 keys"):
        header_of({"__metadata__": texts | {"one": ""}, "a": tensor()}, 8)
    with pytest.raises(UnfitAdapter, match="no tensors"):
        header_of({"__metadata__": texts}, 0)


def test_tensors_fill_their_file():
    """R4: without a gap, one over another, or bytes that nobody describes."""
    two = {"b": tensor(offsets=[8, 16]), "a": tensor()}
    assert [one.name for one in header_of(two, 16).tensors] == ["a", "b"]
    assert header_of({"e": tensor([0], offsets=[0, 0]), **two}, 16).tensors[0].name == "e"
    for wrong in (tensor(offsets=[0, 8]), tensor(offsets=[9, 17]), tensor(offsets=[4, 12])):
        with pytest.raises(UnfitAdapter, match="expected 8"):
            header_of({**two, "b": wrong}, 17)
    with pytest.raises(UnfitAdapter) as cut:
        header_of(two, 15)
    assert [(one.reason, one.permanent) for one in cut.value.findings] == [("source_incomplete", False)]
    with pytest.raises(UnfitAdapter) as longer:
        header_of(two, 17)
    assert [(one.reason, one.permanent) for one in longer.value.findings] == [("not_an_adapter", True)]


@pytest.mark.parametrize("value", [None, [], "pt", {"format": 1}, {"format": None}], ids=str)
def test_metadata_are_text_by_name(value):
    assert header_of({"__metadata__": {"format": "pt"}, "a": tensor()}, 8).metadata == {"format": "pt"}
    assert header_of({"a": tensor()}, 8).metadata == {}
    with pytest.raises(UnfitAdapter, match="__metadata__"):
        header_of({"__metadata__": value, "a": tensor()}, 8)


LENGTHS = {
    "whole": (struct.pack("<Q", 20), 28, None),
    "cut": (struct.pack("<Q", 20), 27, "source_incomplete"),
    "cut in its length": (b"\x14\0\0", 3, "source_incomplete"),
    "empty": (b"", 0, "source_incomplete"),
    "cut in a large length": (b"\xff" * 7, 7, "source_incomplete"),
    "cut while it is read": (b"\0\0\0", 100, "source_incomplete"),
    "as long as may be": (struct.pack("<Q", 16 << 20), 1 << 30, None),
    "longer": (struct.pack("<Q", (16 << 20) + 1), 1 << 30, "not_an_adapter"),
    "too long": (struct.pack("<Q", 1 << 40), 1 << 50, "not_an_adapter"),
    "a pointer of LFS": (b"version ", 130, "not_an_adapter"),
}


@pytest.mark.parametrize(("start", "size_bytes", "reason"), LENGTHS.values(), ids=LENGTHS)
def test_the_length_of_a_header_is_believed_within_limits(start, size_bytes, reason):
    """R16: whoever reads it takes so much memory."""
    if reason is None:
        assert header_length(start, size_bytes, WEIGHTS) == int.from_bytes(start, "little")
        return
    with pytest.raises(UnfitAdapter) as refused:
        header_length(start, size_bytes, WEIGHTS)
    assert [one.reason for one in refused.value.findings] == [reason]


LAYER = "model.layers.0.self_attn.q_proj"
PARTS = {
    f"{LAYER}.lora_A.weight": (LAYER, TensorPart.A, "weight"),
    f"{LAYER}.lora_B.default.weight": (LAYER, TensorPart.B, "weight"),
    f"{LAYER}.lora_A.bias": (f"{LAYER}.lora_A", TensorPart.BIAS, "weight"),
    f"{LAYER}.lora_B.default.bias": (f"{LAYER}.lora_B.default", TensorPart.BIAS, "weight"),
    f"{LAYER}.bias": (LAYER, TensorPart.BIAS, "weight"),
    f"{LAYER}.lora_embedding_A": (LAYER, TensorPart.EMBEDDING_A, "weight"),
    f"{LAYER}.lora_embedding_B.default": (LAYER, TensorPart.EMBEDDING_B, "weight"),
    f"{LAYER}.lora_magnitude_vector": (LAYER, TensorPart.MAGNITUDE, "weight"),
    f"{LAYER}.lora_magnitude_vector.default.weight": (LAYER, TensorPart.MAGNITUDE, "weight"),
    f"{LAYER}.base_layer.weight": (LAYER, TensorPart.BASE_LAYER, "weight"),
    f"{LAYER}.lora_A.one.two.weight": (f"{LAYER}.lora_A.one.two.weight", TensorPart.UNKNOWN, "weight"),
    f"{LAYER}.weight": (LAYER, TensorPart.WHOLE, "weight"),
    "model.embed_tokens.weight": ("model.embed_tokens", TensorPart.WHOLE, "weight"),
    "model.embed_tokens.modules_to_save.default.weight": ("model.embed_tokens", TensorPart.WHOLE, "weight"),
    "score.weight": ("score", TensorPart.SAVED, "weight"),
    "model.classifier.modules_to_save.default.bias": ("model.classifier", TensorPart.SAVED, "bias"),
}


@pytest.mark.parametrize("prefix", ["", "base_model.model.", "base_model.model.base_model.model."])
@pytest.mark.parametrize("name", PARTS)
def test_a_tensors_name_says_what_it_is(prefix, name):
    """R4, R5: what is none of these parts is never taken for one."""
    found = entry_of(Tensor(prefix + name, "F32", (), 0, 0))
    assert (found.module, found.part, found.leaf) == PARTS[name]


def test_new_weights_are_described_as_the_old_ones_were():
    """R4: names as they are to be, all else as it was, and no metadata where there were none."""
    tensors = (Tensor("a", "F16", (1, 4), 0, 8), Tensor("b", "F32", (2,), 8, 16), Tensor("c", "I8", (3,), 16, 19))
    for metadata in ({}, {"format": "pt"}):
        layout = new_weights(Header(tensors, metadata), Changes({"c": "d"}, ("a",), {}))
        assert (b"__metadata__" in layout.start, len(layout.start) % 8) == (bool(metadata), 0)
        size_bytes = len(layout.start) + sum(one.end - one.begin for one in layout.ranges)
        found = read_header(layout.start[8:], size_bytes, WEIGHTS)
        assert found == Header((Tensor("b", "F32", (2,), 0, 8), Tensor("d", "I8", (3,), 8, 11)), metadata)


FINITE = b"\0" * 4
BAD = {
    "F64": struct.pack("<d", float("-inf")),
    "F32": struct.pack("<f", float("nan")),
    "F16": b"\0\x7c",
    "BF16": b"\x80\xff",
}


@pytest.mark.parametrize("dtype", BAD)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_number_that_is_none_is_found_wherever_it_is(dtype, at):
    """R5: in the tensor that has it, and in no other; also where its bytes come in more than one piece."""
    width, count = len(BAD[dtype]), CHUNK_BYTES // 4
    places = [0, count // 2, count - 1]
    good = bytes(width) * count
    spoilt = bytearray(good)
    spoilt[places[at] * width : (places[at] + 1) * width] = BAD[dtype]
    size = len(good)
    tensors = [Tensor(name, dtype, (count,), n * size, (n + 1) * size) for n, name in enumerate("abc")]
    content = io.BytesIO(b"head" + good + bytes(spoilt) + good)
    assert [(one.reason, one.key) for one in not_finite(content, 4, tensors)] == [("not_finite", "b")]
    assert not_finite(io.BytesIO(b"head" + good * 3), 4, tensors) == []


def test_only_the_bytes_of_what_is_asked_are_looked_at():
    """Whole numbers beside it may look like anything."""
    content = io.BytesIO(b"\xff" * 8 + FINITE * 2 + b"\xff" * 8)
    tensors = [Tensor("a", "I32", (2,), 0, 8), Tensor("b", "F32", (2,), 8, 16), Tensor("c", "I32", (2,), 16, 24)]
    assert not_finite(content, 0, tensors) == []
    largest = struct.pack("<f", 3.4028234663852886e38)
    assert not_finite(io.BytesIO(largest), 0, [Tensor("a", "F32", (1,), 0, 4)]) == []


@pytest.mark.parametrize(
    ("number", "is_found"),
    [(3.4028234663852886e38, False), (3.4028235677973362e38, False), (3.4028235677973366e38, True), (-1e300, True)],
)
def test_a_double_that_no_engine_can_keep_is_found(number, is_found):
    """R5: engines cast to their own type, where it would be infinite. The bound is where float32 rounds up to that."""
    content = io.BytesIO(struct.pack("<d", number))
    found = not_finite(content, 0, [Tensor("a", "F64", (1,), 0, 8)])
    assert [one.reason for one in found] == ["not_finite"] * is_found


def test_what_follows_a_large_tensor_is_none_of_its_numbers():
    """R5: its last bytes are fewer than what is read at once."""
    size = CHUNK_BYTES + 4
    content = io.BytesIO(b"head" * 2 + bytes(size) + b"\xff" * CHUNK_BYTES)
    tensors = [Tensor("a", "F32", (size // 4,), 4, 4 + size), Tensor("b", "I8", (CHUNK_BYTES,), 4 + size, 4 + size + 1)]
    assert not_finite(content, 4, tensors) == []


@pytest.mark.parametrize("size_bytes", range(9))
def test_a_file_that_was_cut_off_anywhere_ends_the_look_at_it(size_bytes):
    """R16: in the middle of a number, too."""
    assert not_finite(io.BytesIO(bytes(size_bytes)), 0, [Tensor("a", "F32", (4,), 0, 16)]) == []


def test_a_tensor_of_any_size_is_looked_at_in_little_memory():
    """R16 bounded: its file may have been cut off since its header was believed."""
    assert not_finite(io.BytesIO(FINITE), 0, [Tensor("a", "F32", (1 << 44,), 0, 1 << 46)]) == []


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans())))
def test_just_the_bytes_of_what_is_kept_are_taken(sizes: list[tuple[int, bool]]):
    """R4, R5: nothing of a matrix that is left out between two others, and neighbours in one piece."""
    ends = list(accumulate((size for size, _ in sizes), initial=0))
    tensors = tuple(
        Tensor(f"t{at}", "U8", (end - begin,), begin, end) for at, (begin, end) in enumerate(pairwise(ends))
    )
    dropped = tuple(one.name for one, (_, is_kept) in zip(tensors, sizes, strict=True) if not is_kept)
    ranges = new_weights(Header(tensors, {}), Changes({}, dropped, {})).ranges
    taken = [byte for one in ranges for byte in range(one.begin, one.end)]
    assert taken == [byte for one in tensors if one.name not in dropped for byte in range(one.begin, one.end)]
    assert all(before.end < after.begin for before, after in pairwise(ranges))
