"""What PiSSA and OLoRA took out of the base's weights before the training: their first pairs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from peft import LoraConfig, inject_adapter_in_model

from registry.lora.keys import Part, entry_of
from registry.lora.manifest import WEIGHTS_FILE
from registry.publish.arithmetic import Pair
from registry.publish.stored import places_in

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
            up, down = (places[module, part].read().double() for part in (Part.B, Part.A))
            if (up.shape, down.shape) == ((outputs, rank), (rank, inputs)):
                return Pair(scale * up, down)
        raise KeyError(f"{directory} has no pair of rank {rank} for {module}, of {outputs} x {inputs} weights")

    return first
