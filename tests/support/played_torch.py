"""As much of torch and PEFT as `registry.tools.convert` uses, on numpy: quick, and where neither is installed.

It is as strict as torch where that matters: matrices of different types have no product. What it computes is compared
with torch itself in tests/contract/test_played_torch.py; whole conversions are, in tests/integration/convert.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pytest

import registry.tools.convert

Array = np.ndarray[Any, Any]
Number: TypeAlias = float  # which in a tensor is a method
_ROOM = "registry.tools.convert"
_NEED_TORCH = ("stored", "arithmetic", "converter")


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of numbers; `width`: bytes of each."""

    name: str
    width: int
    numpy: type[Any]


FLOAT64, FLOAT32 = Kind("float64", 8, np.float64), Kind("float32", 4, np.float32)
FLOAT16, BFLOAT16 = Kind("float16", 2, np.float16), Kind("bfloat16", 2, np.float32)
UINT8 = Kind("uint8", 1, np.uint8)


def _rounded(array: Array) -> Array:
    """The nearest numbers with the upper 16 bits of a float32 alone, as bfloat16 has."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    bits = bits + 0x7FFF + ((bits >> 16) & 1)
    made: Array = (bits & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return made


class Tensor:
    """Numbers of one kind."""

    def __init__(self, array: Any, dtype: Kind = FLOAT64) -> None:
        self.array: Array = np.asarray(array, dtype.numpy)
        self.dtype = dtype

    def _like(self, array: Any) -> Tensor:
        return Tensor(array, self.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        found: tuple[int, ...] = self.array.shape
        return found

    @property
    def T(self) -> Tensor:  # noqa: N802 - torch's name
        return self._like(self.array.T)

    @property
    def data(self) -> Tensor:
        return self

    @data.setter
    def data(self, other: Tensor) -> None:
        self.array, self.dtype = other.array, other.dtype

    def to(self, dtype: Kind) -> Tensor:
        return Tensor(_rounded(self.array) if dtype is BFLOAT16 else self.array, dtype)

    def double(self) -> Tensor:
        return self.to(FLOAT64)

    def float(self) -> Tensor:
        return self.to(FLOAT32)

    def clone(self) -> Tensor:
        return self._like(self.array.copy())

    def detach(self) -> Tensor:
        return self

    def contiguous(self) -> Tensor:
        return self._like(np.ascontiguousarray(self.array))

    def sqrt(self) -> Tensor:
        return self._like(np.sqrt(self.array))

    def square(self) -> Tensor:
        return self._like(self.array**2)

    def flip(self, dim: int) -> Tensor:
        return self._like(np.flip(self.array, dim))

    def cumsum(self, dim: int) -> Tensor:
        return self._like(np.cumsum(self.array, dim))

    def new_zeros(self, size: int) -> Tensor:
        return self._like(np.zeros(size))

    def sum(self) -> Tensor:
        return self._like(self.array.sum())

    def nonzero(self) -> Tensor:
        return self._like(np.argwhere(self.array))

    def reshape(self, shape: Sequence[int]) -> Tensor:
        return self._like(self.array.reshape(tuple(shape)))

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.dtype.width

    def view(self, dtype: Kind) -> Tensor:
        assert dtype is UINT8, "nothing else is asked for"
        if self.dtype is BFLOAT16:
            return Tensor((self.array.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8), UINT8)
        return Tensor(self.array.view(np.uint8), UINT8)

    def numpy(self) -> Array:
        return self.array

    def __matmul__(self, other: Tensor) -> Tensor:
        if self.dtype is not other.dtype:
            raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {self.dtype} != {other.dtype}")
        return self._like(self.array @ other.array)

    def _with(self, other: Any, made: Any) -> Tensor:
        dtypes = {self.dtype, other.dtype} if isinstance(other, Tensor) else {self.dtype}
        return Tensor(made, max(dtypes, key=lambda one: one.width))

    def __mul__(self, other: Any) -> Tensor:
        return self._with(other, self.array * _plain(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Tensor:
        return self._with(other, self.array / _plain(other))

    def __pow__(self, power: Number) -> Tensor:
        return self._like(self.array**power)

    def __add__(self, other: Any) -> Tensor:
        return self._with(other, self.array + _plain(other))

    def __sub__(self, other: Any) -> Tensor:
        return self._with(other, self.array - _plain(other))

    def __neg__(self) -> Tensor:
        return self._like(-self.array)

    def __le__(self, other: Any) -> Tensor:
        return self._like(self.array <= _plain(other))

    def __lt__(self, other: Any) -> Tensor:
        return self._like(self.array < _plain(other))

    def __ge__(self, other: Any) -> Tensor:
        return self._like(self.array >= _plain(other))

    def __gt__(self, other: Any) -> Tensor:
        return self._like(self.array > _plain(other))

    def __getitem__(self, key: Any) -> Tensor:
        return self._like(self.array[key])

    def __float__(self) -> Number:
        return float(self.array)

    def __int__(self) -> int:
        return int(self.array)


def _plain(value: Any) -> Any:
    return value.array if isinstance(value, Tensor) else value


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    (dtype,) = {one.dtype for one in tensors}
    return Tensor(np.concatenate([one.array for one in tensors], dim), dtype)


def _frombuffer(content: bytearray, *, dtype: Kind) -> Tensor:
    if dtype is BFLOAT16:
        return Tensor((np.frombuffer(content, np.uint16).astype(np.uint32) << 16).view(np.float32), dtype)
    return Tensor(np.frombuffer(content, dtype.numpy), dtype)


def _svd(matrix: Tensor, *, full_matrices: bool) -> tuple[Tensor, ...]:
    assert not full_matrices, "of a large base that would be memory for nothing"
    return tuple(matrix._like(one) for one in np.linalg.svd(matrix.array, full_matrices=False))


class _Linear:
    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        self.weight = Tensor(np.zeros((outputs, inputs)), FLOAT32)
        self.bias = Tensor(np.zeros(outputs), FLOAT32) if bias else None
        self.shape = (outputs, inputs)
        self.lora_A: dict[str, SimpleNamespace] = {}
        self.lora_B: dict[str, SimpleNamespace] = {}


class _Module:
    def __init__(self) -> None:
        self.is_module = True


@dataclass
class _LoraConfig:
    r: int
    lora_alpha: float
    target_modules: list[str]
    init_lora_weights: str


def first_halves(weight: Array, rank: int, scale: float) -> tuple[Array, Array]:
    """PiSSA's first pair: ``scale * up @ down`` is the nearest to the weights of that rank."""
    left, values, right = np.linalg.svd(weight, full_matrices=False)
    root = np.sqrt(values[:rank] / scale)
    return left[:, :rank] * root, root[:, None] * right[:rank]


def _inject(config: _LoraConfig, model: Any) -> None:
    """Takes the first pair out of the weights, as PEFT does where the names of modules end with a target."""
    assert model.is_module, "torch.nn.Module was not begun"
    assert config.init_lora_weights == "pissa", "only PiSSA is played"
    (target,) = config.target_modules
    linear = getattr(model, target)
    assert linear.bias is None, "PEFT takes the bias for weights"
    assert linear.weight.shape == linear.shape, "PEFT makes the pair for the module's own sizes"
    scale = config.lora_alpha / config.r
    up, down = first_halves(linear.weight.array, config.r, scale)
    linear.lora_B["default"] = SimpleNamespace(weight=Tensor(up, FLOAT32))
    linear.lora_A["default"] = SimpleNamespace(weight=Tensor(down, FLOAT32))
    linear.weight.array -= scale * (up @ down)


def played_modules() -> dict[str, ModuleType]:
    """What stands for ``torch`` and ``peft``; tests/contract/test_played_torch.py compares them with these."""
    torch, peft = ModuleType("torch"), ModuleType("peft")
    torch.__dict__.update(
        Tensor=Tensor,
        dtype=Kind,
        float64=FLOAT64,
        float32=FLOAT32,
        float16=FLOAT16,
        bfloat16=BFLOAT16,
        uint8=UINT8,
        cat=_cat,
        frombuffer=_frombuffer,
        nn=SimpleNamespace(Module=_Module, Linear=_Linear),
        linalg=SimpleNamespace(
            svd=_svd,
            qr=lambda one: tuple(one._like(part) for part in np.linalg.qr(one.array)),
            matrix_norm=lambda one: one._like(np.linalg.norm(one.array)),
            vector_norm=lambda one, dim: one._like(np.linalg.norm(one.array, axis=dim)),
        ),
    )
    peft.__dict__.update(LoraConfig=_LoraConfig, inject_adapter_in_model=_inject)
    return {"torch": torch, "peft": peft}


def convert_on_numpy() -> SimpleNamespace:
    """The modules ``stored``, ``arithmetic`` and ``converter``, on these; nobody else comes to import them."""
    ours = [f"{_ROOM}.{name}" for name in _NEED_TORCH]
    with pytest.MonkeyPatch.context() as patch:
        for name in ours:
            patch.delitem(sys.modules, name, raising=False)
            patch.delattr(registry.tools.convert, name.rpartition(".")[2], raising=False)
        for name, module in played_modules().items():
            patch.setitem(sys.modules, name, module)
        made = {name: importlib.import_module(f"{_ROOM}.{name}") for name in _NEED_TORCH}
        for name in ours:
            sys.modules.pop(name)
            delattr(registry.tools.convert, name.rpartition(".")[2])
    return SimpleNamespace(**made)
