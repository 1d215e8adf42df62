"""What an adapter adds to a module's weights, exactly, and the pair of a given rank that comes nearest to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch

Matrix: TypeAlias = torch.Tensor


@dataclass(frozen=True, slots=True)
class Pair:
    """Two matrices whose product ``up @ down`` is what is added to the weights: outputs x k and k x inputs."""

    up: Matrix
    down: Matrix

    @property
    def rank(self) -> int:
        return int(self.down.shape[0])


@dataclass(frozen=True, slots=True)
class Parts:
    """Singular values of a delta, the largest first, with their vectors: ``left @ diag(values) @ right``."""

    left: Matrix
    values: Matrix
    right: Matrix

    def nearest(self, rank: int) -> Pair:
        """The pair of that rank which is nearest in the Frobenius norm, evenly weighted."""
        root = self.values[:rank].sqrt()
        return Pair(self.left[:, :rank] * root, root[:, None] * self.right[:rank])

    def rank_within(self, max_error: float) -> int:
        """The lowest rank whose relative error is at most that."""
        squares = self.values.double().square()
        # What is left out of the sum at each rank: everything, all but the first, …, nothing.
        left_out = torch.cat([squares.flip(0).cumsum(0).flip(0), squares.new_zeros(1)])
        allowed = squares.sum() * max_error**2
        return max(1, int((left_out <= allowed).nonzero()[0, 0]))


def dora_delta(weight: Matrix, pair: Pair, magnitude: Matrix) -> Matrix:
    """What DoRA adds: with V = W + up @ down and D = diag(magnitude / the norms of V's rows), D V - W."""
    directed = weight + pair.up @ pair.down
    scale = magnitude / torch.linalg.vector_norm(directed, dim=1)
    delta: Matrix = scale[:, None] * directed - weight
    return delta


def parts_of(delta: Matrix) -> Parts:
    """The singular values of a matrix."""
    return Parts(*torch.linalg.svd(delta, full_matrices=False))


def parts_of_pair(pair: Pair) -> Parts:
    """The singular values of a product, without making it."""
    left, upper = torch.linalg.qr(pair.up)
    right, lower = torch.linalg.qr(pair.down.T)
    inner = parts_of(upper @ lower.T)
    return Parts(left @ inner.left, inner.values, inner.right @ right.T)


def difference(one: Pair, other: Pair) -> Pair:
    """The pair whose product is the difference of both products."""
    return Pair(torch.cat([one.up, -other.up], dim=1), torch.cat([one.down, other.down], dim=0))


def relative_error(delta: Matrix | Pair, made: Pair) -> float:
    """How far `made` is from the delta, relative to the delta, in the Frobenius norm."""
    if isinstance(delta, Pair):
        return _ratio(_norm(difference(delta, made)), _norm(delta))
    missed = delta - made.up @ made.down
    return _ratio(float(torch.linalg.matrix_norm(missed)), float(torch.linalg.matrix_norm(delta)))


def _norm(pair: Pair) -> float:
    upper, lower = torch.linalg.qr(pair.up)[1], torch.linalg.qr(pair.down.T)[1]
    return float(torch.linalg.matrix_norm(upper @ lower.T))


def _ratio(missed: float, whole: float) -> float:
    if whole == 0:
        return 0.0 if missed == 0 else float("inf")
    return missed / whole
