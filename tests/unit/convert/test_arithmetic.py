"""What is computed of matrices, compared with numpy's own numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from registry.lora.digest import WEIGHTS_FILE
from registry.lora.findings import UnfitAdapter
from tests.corpus.drafts import Values, safetensors
from tests.support.played_torch import FLOAT32, Tensor, first_halves

Array = np.ndarray[Any, Any]
ORTHOGONAL = np.linalg.qr(np.arange(16.0).reshape(4, 4) ** 2 + np.eye(4))[0]
# Singular values 4, 2, 1 and 0.5.
KNOWN = ORTHOGONAL @ np.diag([4.0, 2.0, 1.0, 0.5]) @ ORTHOGONAL.T


def pair(numeric, up: Array, down: Array) -> Any:
    return numeric.arithmetic.Pair(Tensor(up), Tensor(down))


def product(of: Any) -> Array:
    made: Array = (of.up @ of.down).array
    return made


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_the_nearest_pair_of_a_rank_misses_just_the_smaller_singular_values(numeric, rank):
    found = numeric.arithmetic.parts_of(Tensor(KNOWN)).nearest(rank)
    assert (found.rank, found.up.shape, found.down.shape) == (rank, (4, rank), (rank, 4))
    missed = np.linalg.svd(KNOWN - product(found), compute_uv=False)
    assert missed[: 4 - rank] == pytest.approx([4.0, 2.0, 1.0, 0.5][rank:], abs=1e-9)
    assert missed[4 - rank :] == pytest.approx([0.0] * rank, abs=1e-9)
    halves = np.linalg.norm(found.up.array, axis=0), np.linalg.norm(found.down.array, axis=1)
    assert halves[0] == pytest.approx(halves[1]), "both halves weigh the same, so that neither overflows a small type"


# Of 21.25 in all, the squares that are left out at each rank: 21.25, 5.25, 1.25, 0.25, 0.
@pytest.mark.parametrize(
    ("allowed", "rank"),
    [
        (math.inf, 1),
        (21.25, 1),
        (5.26, 1),
        (5.24, 2),
        (1.26, 2),
        (1.24, 3),
        (0.26, 3),
        (0.24, 4),
        (0.0, 4),
    ],
)
def test_the_lowest_rank_within_an_error_is_found(numeric, allowed, rank):
    """Never 0: an adapter has at least rank 1."""
    parts = numeric.arithmetic.parts_of(Tensor(KNOWN))
    assert parts.rank_within(math.sqrt(allowed / 21.25)) == rank


def test_an_error_just_at_the_bound_is_within_it(numeric):
    values = Tensor(np.array([2.0, 1.0, 1.0, 0.0]))
    parts = numeric.arithmetic.Parts(Tensor(np.eye(4)), values, Tensor(np.eye(4)))
    assert parts.rank_within(0.0) == 3
    nothing = numeric.arithmetic.Parts(Tensor(np.eye(4)), Tensor(np.zeros(4)), Tensor(np.eye(4)))
    assert nothing.rank_within(0.05) == 1


def test_of_nothing_there_is_no_error_but_what_is_made_of_it_is_infinitely_wrong(numeric):
    """A module whose second half is still zeros is as it was trained."""
    nothing, one = pair(numeric, np.zeros((3, 1)), np.ones((1, 3))), pair(numeric, np.ones((3, 1)), np.ones((1, 3)))
    for wanted in (nothing, Tensor(np.zeros((3, 3)))):
        assert numeric.arithmetic.relative_error(wanted, nothing) == 0.0
        assert numeric.arithmetic.relative_error(wanted, one) == math.inf


def test_first_pairs_are_computed_anew_and_the_weights_stay(numeric):
    """R4: `scale` times the pair is what PiSSA took out, where the training had this rank and scale."""
    weight = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    given = Tensor(weight.copy(), FLOAT32)
    for rank, scale in ((1, 2.0), (2, 0.5)):
        found = numeric.arithmetic.computed("pissa")("layers.0.q_proj", given, rank, scale)
        up, down = first_halves(weight, rank, scale)
        assert found.rank == rank
        assert product(found) == pytest.approx(scale * (up @ down), abs=1e-5)
    assert (given.array == weight).all(), "the base's weights are needed as they are"


def test_first_pairs_are_read_from_the_adapter_that_was_kept(numeric, tmp_path):
    up, down = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), np.array([[1.0, 0.5, 0.0, 2.0], [0.0, 1.0, 1.0, 1.0]])
    stem = "base_model.model.layers.0.q_proj.lora_"
    tensors = {
        f"{stem}A.weight": Values("F32", (2, 4), down.astype("<f4").tobytes()),
        f"{stem}B.weight": Values("F32", (3, 2), up.astype("<f4").tobytes()),
        "base_model.model.layers.0.k_proj.lora_A.weight": Values("F32", (2, 4), down.astype("<f4").tobytes()),
    }
    (tmp_path / WEIGHTS_FILE).write_bytes(safetensors(tensors))
    first = numeric.arithmetic.kept(tmp_path)
    weight = Tensor(np.zeros((3, 4)), FLOAT32)
    assert product(first("layers.0.q_proj", weight, 2, 0.5)).tolist() == (0.5 * up @ down).tolist()
    for module, shape, rank in [
        ("layers.0.v_proj", (3, 4), 2),
        ("layers.0.k_proj", (3, 4), 2),
        ("layers.0.q_proj", (3, 4), 1),
        ("layers.0.q_proj", (3, 5), 2),
        ("layers.0.q_proj", (4, 4), 2),
    ]:
        outputs, inputs = shape
        with pytest.raises(KeyError, match=f"no pair of rank {rank} for {module}, of {outputs} x {inputs} weights"):
            first(module, Tensor(np.zeros(shape), FLOAT32), rank, 0.5)


def test_a_kept_adapter_that_is_none_or_goes_away_is_told_as_such(numeric, tmp_path):
    """And not as one that has no such pair."""
    with pytest.raises(OSError, match="No such file"):
        numeric.arithmetic.kept(tmp_path)
    (tmp_path / WEIGHTS_FILE).write_bytes(b"no safetensors")
    with pytest.raises(UnfitAdapter):
        numeric.arithmetic.kept(tmp_path)
    tensors = {f"base_model.model.q_proj.lora_{half}.weight": Values("F32", (1, 1), bytes(4)) for half in "AB"}
    (tmp_path / WEIGHTS_FILE).write_bytes(safetensors(tensors))
    first = numeric.arithmetic.kept(tmp_path)
    (tmp_path / WEIGHTS_FILE).unlink()
    with pytest.raises(OSError, match="No such file"):
        first("q_proj", Tensor([[0.0]], FLOAT32), 1, 1.0)
