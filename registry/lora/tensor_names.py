"""Names of an adapter's tensors: module and part. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from registry.lora.safetensors import Tensor

PREFIX = "base_model.model."
_PART = re.compile(
    r"(?P<module>.+)\.(?:"
    r"(?P<linear>lora_[AB])(?:\.[^.]+)?\.weight"
    r"|(?P<embedding>lora_embedding_[AB])(?:\.[^.]+)?"
    r"|(?P<magnitude>lora_magnitude_vector)(?:\.[^.]+)*"
    r"|(?P<base>base_layer)\.weight"
    r"|(?P<bias>bias)"
    r")",
    re.ASCII,
)
_SAVED = re.compile(r"(?P<module>(?:.+\.)?(?:score|classifier))(?:\.modules_to_save\.[^.]+)?\.(?P<leaf>weight|bias)")
# A matrix of the base itself, whole, as PEFT saves it with save_embedding_layers or modules_to_save.
_WHOLE = re.compile(r"(?P<module>(?:(?!\.lora_).)+?)(?:\.modules_to_save\.[^.]+)?\.weight")
# Modules of the parts that see or hear, and of what connects them, by the names in `get_mm_mapping` of vLLM's models.
# Engines serve adapters of these only if they are told to.
_VISION = re.compile(
    r"(?:^|\.)(?:(?:embed_)?(?:vision|visual|image|img|vit|audio|sound|speech|whisper)(?:_\w+)?|vpm|apm|sam_model"
    r"|embed_tokens_extend|qformer|resampler|connector|merger|mlp1|mlp_AR|language_projection"
    r"|(?:\w+_)?projectors?)(?:\.|$)"
)
# A module of a repeated block: what comes before its number's name, and the rest.
_BLOCK = re.compile(r"(?P<prefix>(?:.*?\.)??)(?P<tail>[A-Za-z_]\w*\.\d+(?:\..+)?)", re.ASCII)


class TensorPart(StrEnum):
    """Role of a tensor in its module."""

    A = "lora_A"
    B = "lora_B"
    EMBEDDING_A = "lora_embedding_A"
    EMBEDDING_B = "lora_embedding_B"
    MAGNITUDE = "lora_magnitude_vector"
    BASE_LAYER = "base_layer"
    SAVED = "saved"
    WHOLE = "whole"
    BIAS = "bias"
    UNKNOWN = "unknown"


PAIR_PARTS = frozenset({TensorPart.A, TensorPart.B, TensorPart.EMBEDDING_A, TensorPart.EMBEDDING_B})


@dataclass(frozen=True, slots=True)
class TensorName:
    """A tensor, its module's name without PEFT's prefix, what it is to it, and the leaf of a saved module."""

    tensor: Tensor
    module: str
    part: TensorPart
    leaf: str = "weight"

    def key(self, module: str) -> str:
        """The tensor's name in the form that every engine takes, if its module is called `module`."""
        match self.part:
            case TensorPart.A | TensorPart.B:
                return f"{PREFIX}{module}.{self.part}.weight"
            case TensorPart.EMBEDDING_A | TensorPart.EMBEDDING_B:
                return f"{PREFIX}{module}.{self.part}"
            case TensorPart.SAVED:
                return f"{PREFIX}{module}.{self.leaf}"
            case _:
                return self.tensor.name


def entry_of(tensor: Tensor) -> TensorName:
    """Parts of a tensor's name."""
    name = tensor.name
    while name.startswith(PREFIX):
        name = name.removeprefix(PREFIX)
    if match := _SAVED.fullmatch(name):
        return TensorName(tensor, match["module"], TensorPart.SAVED, match["leaf"])
    match = _PART.fullmatch(name)
    if match is None and (whole := _WHOLE.fullmatch(name)):
        return TensorName(tensor, whole["module"], TensorPart.WHOLE)
    if match is None:
        return TensorName(tensor, name, TensorPart.UNKNOWN)
    if match["bias"]:
        return TensorName(tensor, match["module"], TensorPart.BIAS)
    text = match["linear"] or match["embedding"] or match["magnitude"] or match["base"]
    return TensorName(tensor, match["module"], TensorPart(text))


# Weights of the base that vLLM passes over. A file with others of them it refuses.
_PASSED_OVER = (".embed_tokens.base_layer.weight", ".lm_head.base_layer.weight")


def is_taken(entry: TensorName) -> bool:
    """False for weights of the base for which engines refuse the whole file."""
    return entry.part is not TensorPart.BASE_LAYER or entry.tensor.name.endswith(_PASSED_OVER)


def is_vision(module: str) -> bool:
    """True for a module of a tower beside the language model, or of what connects the two."""
    return _VISION.search(module) is not None


def split_module(module: str) -> tuple[str, str]:
    """A module's prefix, which wrappers change, and its tail, which they do not: from its first numbered block on."""
    match = _BLOCK.fullmatch(module)
    if match is not None:
        return match["prefix"], match["tail"]
    prefix, dot, tail = module.rpartition(".")
    return prefix + dot, tail
