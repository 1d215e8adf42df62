"""What stands for torch and PEFT in quick tests of conversions computes what these compute."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from registry.tools.devstack.engine_environment import find_engine_python
from tests.support.played_torch import played_modules
from tests.support.with_torch import script

# Of matrices `a` and `b` in float64, and `a` in smaller types.
CASES = {
    "product": "a @ b",
    "scaled": "2.0 * a / 3.0 - a * a + -a",
    "transposed": "a.T.contiguous().reshape((2, 6))",
    "powers": "a.square().sqrt() + a**2 + a.sum()",
    "from behind, added up": "a.flip(0).cumsum(0)",
    "compared": "torch.cat([(a[:, 0] <= 0.5).double(), (a[:, 1] > 0.5).double()], dim=0)",
    "where": "(a >= 0.9).nonzero().double()",
    "zeros": "torch.cat([a.new_zeros(2), a[0]])",
    "norms": "torch.cat([torch.linalg.vector_norm(a, dim=1), torch.linalg.matrix_norm(a).reshape((1,))])",
    "singular values": "torch.linalg.svd(a, full_matrices=False)[1]",
    "what these are parts of": "(lambda u, s, v: (u * s) @ v)(*torch.linalg.svd(a, full_matrices=False))",
    "parts of a decomposition": "(lambda q, r: q @ r)(*torch.linalg.qr(a))",
    "bytes of bfloat16": "a.float().to(torch.bfloat16).contiguous().view(torch.uint8)",
    "bytes of float16": "a.to(torch.float16).contiguous().view(torch.uint8)",
    "read as bfloat16": "torch.frombuffer(bytearray(bytes(range(16))), dtype=torch.bfloat16).double()",
    "sum of two types": "a.float() + a",
    "size": "torch.cat([a.new_zeros(a.numel()), a.new_zeros(a.float().element_size())])",
}
MATRICES = {"a": [[0.25, 1.5, -2.0], [3.0, 0.1, 1.0], [0.7, -0.3, 2.5], [1e-3, 4.0, 0.9]], "b": [[1.0], [2.0], [-0.5]]}
PRODUCT_OF_TWO_TYPES = "a @ b.float()"
# The product of the first pair that PEFT takes out of weights, and what is left of them.
FIRST_PAIR = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(3, 4, bias=False)
model = Model()
model.one.weight.data = a.float()
config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["one"], init_lora_weights="pissa")
peft.inject_adapter_in_model(config, model)
pair = model.one.lora_B["default"].weight.data @ model.one.lora_A["default"].weight.data
left = getattr(model.one, "base_layer", model.one).weight.data
"""
ASKED = """
import json, sys, peft, torch
cases, matrices, first_pair, product = json.loads(sys.argv[1])
known = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in matrices.items()}
known |= {"torch": torch, "peft": peft}
told = {name: eval(text, known).tolist() for name, text in cases.items()}
exec(first_pair, known)
told |= {name: known[name].tolist() for name in ("pair", "left")}
try:
    eval(product, known)
except RuntimeError as error:
    told["refusal"] = type(error).__name__
json.dump(told, sys.stdout)
"""


def played() -> dict[str, Any]:
    modules = played_modules()
    torch: Any = modules["torch"]
    known = {name: torch.Tensor(rows, torch.float64) for name, rows in MATRICES.items()} | modules
    told = {name: eval(text, known).array.tolist() for name, text in CASES.items()}  # noqa: S307 - our own text
    exec(FIRST_PAIR, known)  # noqa: S102 - our own text
    told |= {name: known[name].array.tolist() for name in ("pair", "left")}
    with pytest.raises(RuntimeError) as refused:
        eval(PRODUCT_OF_TWO_TYPES, known)  # noqa: S307 - our own text
    return told | {"refusal": refused.type.__name__}


@pytest.mark.engine
def test_the_same_is_computed(tmp_path):
    file = tmp_path / "asked.py"
    file.write_text(ASKED)
    asked = json.dumps([CASES, MATRICES, FIRST_PAIR, PRODUCT_OF_TWO_TYPES])
    real = script([str(find_engine_python()), "-P", str(file), asked]).json
    ours = played()
    assert real.keys() == ours.keys()
    assert real.pop("refusal") == ours.pop("refusal")
    for name, numbers in real.items():
        # Of single precision, whose last digits differ from one kind of processor to another.
        np.testing.assert_allclose(ours[name], numbers, rtol=1e-5, atol=1e-5, err_msg=name)
