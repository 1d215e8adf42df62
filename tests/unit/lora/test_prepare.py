"""How prepared weights are made of the old ones."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from registry.lora.check import Changes
from registry.lora.prepare import new_weights
from registry.lora.safetensors import Header, Tensor


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
