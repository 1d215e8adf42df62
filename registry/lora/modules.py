"""An adapter's tensors by module, with what their shapes say. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from registry.lora.base import Shape
from registry.lora.findings import Finding
from registry.lora.keys import Entry, Part
from registry.lora.tensors import Tensor

DTYPES = ("F32", "F16", "BF16")
_PAIRS = {Part.A, Part.B, Part.EMBEDDING_A, Part.EMBEDDING_B}


@dataclass(frozen=True, slots=True)
class Module:
    """The tensors of one module by what they are; `name` is the adapter's own."""

    name: str
    parts: dict[Part, Tensor]

    @property
    def down(self) -> Tensor | None:
        """A: rank x inputs."""
        return self.parts.get(Part.A) or self.parts.get(Part.EMBEDDING_A)

    @property
    def up(self) -> Tensor | None:
        """B: outputs x rank."""
        return self.parts.get(Part.B) or self.parts.get(Part.EMBEDDING_B)

    @property
    def is_embedding(self) -> bool:
        return Part.EMBEDDING_A in self.parts or Part.EMBEDDING_B in self.parts

    def shape(self) -> tuple[int | None, int | None]:
        """The shape of the base's module that this one was trained on, as far as it can be told."""
        outputs = self.up.shape[0] if self.up and len(self.up.shape) == 2 else None
        inputs = self.down.shape[1] if self.down and len(self.down.shape) == 2 else None
        # An embedding takes entries in and gives its width out; its matrix lies the other way round.
        return (inputs, outputs) if self.is_embedding else (outputs, inputs)

    def fits(self, shape: Shape) -> bool:
        """True if nothing that is known speaks against that shape."""
        return all(own in (None, theirs) for own, theirs in zip(self.shape(), shape, strict=True))


def modules_by_name(entries: Iterable[Entry]) -> tuple[dict[str, Module], list[Finding]]:
    """All modules, and what two tensors claim to be at once."""
    modules: dict[str, Module] = {}
    findings = []
    for entry in entries:
        module = modules.setdefault(entry.module, Module(entry.module, {}))
        if entry.part in module.parts and entry.part is not Part.SAVED:
            findings.append(duplicate(entry.tensor.name, f"{entry.part} of {entry.module}"))
        module.parts[entry.part] = entry.tensor
    return modules, findings


def duplicate(key: str, what: str) -> Finding:
    """Two tensors would come to have one name."""
    return Finding("duplicate_module", key, f"a second {what}", "one", "save the adapter again with one adapter in it")


def pair_findings(module: Module) -> list[Finding]:
    """What is wrong with a module's pair of tensors in itself."""
    if not _PAIRS & module.parts.keys():
        return []
    findings = [_dtype(tensor) for part, tensor in module.parts.items() if tensor.dtype not in DTYPES]
    findings += [
        _flat(module.parts[part]) for part in _PAIRS & module.parts.keys() if len(module.parts[part].shape) != 2
    ]
    if module.down is None or module.up is None:
        there, missing = ("lora_B", "lora_A") if module.down is None else ("lora_A", "lora_B")
        remedy = "save the adapter again, or fetch the whole file"
        findings.append(Finding("unpaired_tensor", module.name, f"{there} without {missing}", "both", remedy))
    elif (Part.A in module.parts) != (Part.B in module.parts):
        findings.append(Finding("unpaired_tensor", module.name, "halves of two kinds", "a pair", "save it again"))
    return findings


def _dtype(tensor: Tensor) -> Finding:
    remedy = "save the adapter in float32, float16 or bfloat16"
    return Finding("dtype_not_supported", tensor.name, tensor.dtype, " or ".join(DTYPES), remedy)


def _flat(tensor: Tensor) -> Finding:
    return Finding(
        "shape_mismatch", tensor.name, f"shape {list(tensor.shape)}", "a matrix", "save the adapter again with PEFT"
    )


def rank_findings(module: Module, rank: int) -> list[Finding]:
    """Whether both halves have the rank that the configuration says."""
    if module.down is None or module.up is None or {len(module.down.shape), len(module.up.shape)} != {2}:
        return []
    remedy = "take adapter_config.json and adapter_model.safetensors of the same training"
    return [
        Finding("rank_mismatch", tensor.name, f"rank {found}", f"{rank} as adapter_config.json says", remedy)
        for tensor, found in ((module.down, module.down.shape[0]), (module.up, module.up.shape[1]))
        if found != rank
    ]


def shape_findings(module: Module, name: str, shape: Shape) -> list[Finding]:
    """Whether it was trained on a module of the base's shape."""
    kind = name.rpartition(".")[2] == "embed_tokens"
    remedy = "serve it in a pool of the base model that it was trained on"
    own = module.parts.get(Part.BASE_LAYER)
    if own is not None and own.shape != shape:
        found, expected = f"base weights of shape {list(own.shape)}", f"the base's {list(shape)}"
        return [Finding("shape_mismatch", own.name, found, expected, remedy)]
    if kind and module.parts.keys() & {Part.A, Part.B}:
        return [Finding("shape_mismatch", module.name, "a linear adapter", "an embedding adapter", remedy)]
    if module.fits(shape):
        return []
    outputs, inputs = module.shape()
    found, expected = f"outputs x inputs {outputs} x {inputs}", f"{shape[0]} x {shape[1]} of the base's {name}"
    return [Finding("shape_mismatch", module.name, found, expected, remedy)]
