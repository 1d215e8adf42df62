"""What a reference answer is: the likeliest token, one by one, with its logprob, and what the base says of the same."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

MODULE = "registry.tools.devstack.reference"
VOCABULARY = 11
CERTAIN = 3.0
LIKELIEST = CERTAIN - math.log(math.exp(CERTAIN) + VOCABULARY - 1)
OTHERS = LIKELIEST - CERTAIN
STEPS = {"/base": 1, "/a": 2}


class Numbers(np.ndarray[Any, Any]):
    """An array with what torch calls otherwise."""

    def float(self) -> Numbers:
        return self


class Model:
    """After a token it says the one that is `step` further on; `seen` is what it was given."""

    def __init__(self, folder: str, dtype: str) -> None:
        self.step, self.dtype = STEPS[folder], dtype
        self.is_trained, self.seen = True, list[list[int]]()

    def get_input_embeddings(self) -> SimpleNamespace:
        return SimpleNamespace(num_embeddings=VOCABULARY)

    def eval(self) -> Model:
        self.is_trained = False
        return self

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        step, self.step = self.step, STEPS["/base"]
        yield
        self.step = step

    def __call__(self, batch: Any) -> SimpleNamespace:
        assert not self.is_trained, "dropout would make each answer another"
        assert played.is_inference, "gradients would be kept of each token"
        (sequence,) = batch.tolist()
        self.seen.append(sequence)
        logits = np.zeros((1, len(sequence), VOCABULARY))
        for place, token in enumerate(sequence):
            logits[0, place, (token + self.step) % VOCABULARY] = CERTAIN
        return SimpleNamespace(logits=logits.view(Numbers))


class Played:
    """Whether torch keeps gradients, and the models that were loaded."""

    is_inference = False

    def __init__(self) -> None:
        self.models: list[Model] = []

    def load(self, folder: str, *, dtype: str) -> Model:
        self.models.append(Model(folder, dtype))
        return self.models[-1]

    def adapt(self, base: Model, folder: str) -> Model:
        base.step = STEPS[folder]
        return base

    @contextmanager
    def inference(self) -> Iterator[None]:
        self.is_inference = True
        yield
        self.is_inference = False


played = Played()


def log_softmax(logits: Any, dim: int) -> Any:
    assert dim == -1
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.fixture
def expected(monkeypatch) -> Any:
    """What answers are expected by torch, PEFT and transformers that a test plays."""
    monkeypatch.setattr(sys.modules[__name__], "played", Played())
    torch, peft, transformers = (ModuleType(name) for name in ("torch", "peft", "transformers"))
    kinds = {"float32": "float32", "bfloat16": "bfloat16"}
    used = {"tensor": np.array, "log_softmax": log_softmax, "inference_mode": played.inference}
    torch.__dict__.update(nn=SimpleNamespace(Module=Model), **kinds, **used)
    peft.__dict__["PeftModel"] = SimpleNamespace(from_pretrained=played.adapt)
    tokenizer = SimpleNamespace(
        from_pretrained=lambda _: lambda text: {"input_ids": [ord(letter) - ord("a") for letter in text]}
    )
    transformers.__dict__.update(
        AutoModelForCausalLM=SimpleNamespace(from_pretrained=played.load), AutoTokenizer=tokenizer
    )
    for module in (torch, peft, transformers):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    made = importlib.import_module(MODULE)
    monkeypatch.delitem(sys.modules, MODULE)
    return made.expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_expected_is_told_with_what_the_base_says_of_the_same_tokens(expected, monkeypatch, dtype):
    """Texts are read by the model's own tokenizer; numbers are taken as they are, unless the model does not know one:
    it would read past the end of the embeddings.
    """
    one, two = expected("/base", "/a", ["ab", [4]], 3, dtype)
    assert (one.prompt, one.tokens, two.prompt, two.tokens) == ([0, 1], [3, 5, 7], [4], [6, 8, 10])
    for answer in (one, two):
        assert answer.logprobs == pytest.approx([LIKELIEST] * 3)
        assert answer.base_logprobs == pytest.approx([OTHERS] * 3), "it would have gone on otherwise"
    (model,) = played.models
    assert (model.dtype, model.seen[:3]) == (dtype, [[0, 1], [0, 1, 3], [0, 1, 3, 5]]), "after those before"
    assert expected("/base", "/a", [[4]], 1)[0].tokens == [6]
    assert expected("/base", "/a", [[1], [0, VOCABULARY - 1, 2]], 1)
    with pytest.raises(ValueError, match=f"a prompt has the token {VOCABULARY}, and the model knows {VOCABULARY}"):
        expected("/base", "/a", [[1], [0, VOCABULARY, 2]], 1)
    monkeypatch.setitem(STEPS, "/base", STEPS["/a"])
    (answer,) = expected("/base", "/a", [[4, 0]], 3)
    assert answer.tokens == [2, 4, 6]
    assert answer.base_logprobs == pytest.approx([LIKELIEST] * 3), "place by place, from the first after the prompt"
