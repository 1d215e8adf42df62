"""Exact weight differences, and the nearest pair of a given rank.

PiSSA and OLoRA take their first pairs out of the base's weights before the training.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from peft import LoraConfig, inject_adapter_in_model

from registry.lora.digest import WEIGHTS_FILE
from registry.lora.tensor_names import TensorPart, entry_of
from registry.tools.convert.stored import places_in

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
    """Delta that DoRA adds: with V = W + up @ down and D = diag(magnitude / the norms of V's rows), D V - W."""
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
    """Distance of `made` from the delta, relative to the delta, in the Frobenius norm."""
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


# A module's name, its weights, rank and scale, to the pair whose product was taken out of the weights.
First = Callable[[str, torch.Tensor, int, float], Pair]


def computed(init: str) -> First:
    """The first pairs as PEFT makes them anew from the weights each time it loads such an adapter."""

    def first(_: str, weight: torch.Tensor, rank: int, scale: float) -> Pair:
        model = _Only(weight)
        config = LoraConfig(r=rank, lora_alpha=1, target_modules=["only"], init_lora_weights=init)
        config.lora_alpha = scale * rank
        inject_adapter_in_model(config, model)
        only = model.only
        up, down = only.lora_B["default"].weight, only.lora_A["default"].weight
        return Pair(scale * up.detach().double(), down.detach().double())

    return first


class _Only(torch.nn.Module):  # type: ignore[misc] # torch is not in the environment that is checked
    """A model of one module."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.only = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.only.weight.data = weight.clone()


def kept(directory: Path) -> First:
    """The first pairs as they were saved before the training.

    Raises:
        UnfitAdapter, OSError: they cannot be read.
    """
    places = {}
    for place in places_in(directory / WEIGHTS_FILE).values():
        entry = entry_of(place.tensor)
        places[entry.module, entry.part] = place

    def first(module: str, weight: torch.Tensor, rank: int, scale: float) -> Pair:
        outputs, inputs = weight.shape
        with suppress(KeyError):
            up, down = (places[module, part].read().double() for part in (TensorPart.B, TensorPart.A))
            if (up.shape, down.shape) == ((outputs, rank), (rank, inputs)):
                return Pair(scale * up, down)
        raise KeyError(f"{directory} has no pair of rank {rank} for {module}, of {outputs} x {inputs} weights")

    return first
