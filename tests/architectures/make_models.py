"""Makes tiny models, adapters with PEFT, and PEFT's answers. Runs inside the engine environment, as a script::

    python -P make_models.py --out DIR < families.json

Imports nothing of ours. Below OUT comes a folder for each family: ``model/``, ``adapters/KIND/`` and ``made.json``
with the logprobs of the base (under the empty name) and of each adapter, or with the error that there was.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as DEFAULTS
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

PROMPTS = ([5], [17, 101, 64], [200, 31, 7, 99, 150, 42, 8], [11, 12, 13, 240, 241, 9, 77, 140, 18, 33, 90])
STEPS = 3
RANK, ALPHA, STRENGTH = 4, 8, 0.4
_WEIGHTS = "adapter_model.safetensors"
_OLD_NAMES: dict[str, Callable[[str], str]] = {
    "old default": lambda key: re.sub(r"(lora_[AB])\.weight$", r"\1.default.weight", key),
    "old bare": lambda key: key.removeprefix("base_model.model."),
    "old doubled": lambda key: f"base_model.model.{key}",
}
Answers = list[list[dict[str, Any]]]


def answers(model: Any) -> Answers:
    """For each prompt and step: all logprobs of the next token, and the likeliest, with which it goes on."""
    found: Answers = []
    with torch.no_grad():
        for prompt in PROMPTS:
            tokens, rows = list(prompt), []
            for _ in range(STEPS):
                logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].float()
                logprobs = torch.log_softmax(logits, -1)
                token = int(logprobs.argmax())
                rows.append({"token": token, "logprobs": [round(one, 6) for one in logprobs.tolist()]})
                tokens.append(token)
            found.append(rows)
    return found


def tails(model: Any) -> dict[str, str]:
    """Last two parts of the names of linear modules within layers, with one full name of each."""
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | Conv1D) and re.search(r"\.\d+\.", name):
            last = ".".join(part for part in name.split(".")[-2:] if not part.isdigit())
            found.setdefault(last, name)
    return found


def ended(names: list[str]) -> str:
    """The pattern of PEFT's for modules whose names end so."""
    return r".*\.(" + "|".join(re.escape(name) for name in names) + ")"


def configs(model: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every kind of adapter that PEFT can train on the model."""
    ends = tails(model)
    attention = [end for end in ends if re.search(r"attn|attention", ends[end])]
    mlp = [end for end in ends if end not in attention]
    first = (attention or mlp)[0]
    yield "all-linear", {"target_modules": "all-linear"}
    if model.config.model_type in DEFAULTS:
        yield "default", {"target_modules": DEFAULTS[model.config.model_type]}
    for name, chosen in (("attention", attention), ("mlp", mlp)):
        if chosen:
            yield name, {"target_modules": ended(chosen)}
    for end in ends:
        yield f"only {end}", {"target_modules": ended([end])}
    yield "regex", {"target_modules": r".*\.1\..*" + re.escape(first.rpartition(".")[2])}
    yield "rslora", {"target_modules": ended([first]), "use_rslora": True}
    last = first.rpartition(".")[2]
    patterns = {"rank_pattern": {rf"1\..*\.{last}": 8}, "alpha_pattern": {last: 3}}
    yield "patterns", {"target_modules": ended([first]), **patterns}
    yield from ends_of_model(model, first)
    yield from expert_configs(model)


def ends_of_model(model: Any, first: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Embedding and head; for a tied base also as one."""
    names = {id(module): name for name, module in model.named_modules()}
    tied = model.config.tie_word_embeddings
    for kind, module in (("embedding", model.get_input_embeddings()), ("head", model.get_output_embeddings())):
        if id(module) in names:
            name = names[id(module)].rpartition(".")[2]
            yield kind, {"target_modules": ended([first, name]).replace(r".*\.", r"(.*\.)?")}
            if tied:
                both = {"target_modules": [last_of(first), name], "ensure_weight_tying": True}
                yield f"tied {kind}", both


def last_of(name: str) -> str:
    return name.rpartition(".")[2]


def expert_configs(model: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Experts that are one parameter of three dimensions, as PEFT targets these."""
    names = sorted({".".join(name.split(".")[-3:]) for name, value in model.named_parameters() if value.dim() == 3})
    experts = [name for name in names if "experts" in name]
    if experts:
        yield "experts 3d", {"target_modules": [], "target_parameters": experts}


def save_adapter(base: Any, kind: str, fields: dict[str, Any], out: Path) -> Answers:
    """Writes one adapter whose weights are far enough from 0 to be heard, and says what it answers."""
    torch.manual_seed(sum(kind.encode()))
    adapted = get_peft_model(copy.deepcopy(base), LoraConfig(**{"r": RANK, "lora_alpha": ALPHA} | fields))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name or "lora_embedding" in name:
                parameter.normal_(0, STRENGTH)
    adapted.save_pretrained(str(out))
    return answers(adapted.eval())


def stored_names(model: Path) -> dict[bytes, str]:
    """The checkpoint's name of each matrix, by its bytes: it may have others than transformers' own modules."""
    tensors = load_file(str(model / "model.safetensors"))
    return {raw(value): key.removesuffix(".weight") for key, value in tensors.items() if value.dim() == 2}


def raw(value: torch.Tensor) -> bytes:
    return value.detach().contiguous().numpy().tobytes()


@dataclass
class ByHand:
    """An adapter that PEFT no longer writes for such a model. Its products are added to the model's own matrices.

    Attributes:
        stored: see `stored_names`.
        own: its tensors by the names of transformers' modules.
        as_stored: by those of the checkpoint.
    """

    stored: dict[bytes, str]
    own: dict[str, torch.Tensor] = field(default_factory=dict)
    as_stored: dict[str, torch.Tensor] = field(default_factory=dict)

    def add(self, name: str, matrix: torch.Tensor) -> None:
        """One module, whose matrix is changed as its part of the adapter says."""
        stored = self.stored.get(raw(matrix), name)
        rows, columns = matrix.shape
        down, up = torch.randn(RANK, columns) / columns**0.5, torch.randn(rows, RANK) * STRENGTH
        with torch.no_grad():
            matrix.add_(up @ down * (ALPHA / RANK))
        for tensors, called in ((self.own, name), (self.as_stored, stored)):
            tensors[f"base_model.model.{called}.lora_A.weight"] = down
            tensors[f"base_model.model.{called}.lora_B.weight"] = up

    def save(self, kinds: tuple[str, str], out: Path, model: Any) -> dict[str, Answers]:
        """Writes it under one kind for each way to name it, and says what it answers."""
        names = [self.own, *([self.as_stored] if self.as_stored.keys() != self.own.keys() else [])]
        found = {kind: tensors for kind, tensors in zip(kinds, names, strict=False) if tensors}
        for kind, tensors in found.items():
            write_adapter(tensors, out / kind)
        return dict.fromkeys(found, answers(model.eval())) if found else {}


def save_experts(base: Any, out: Path, stored: dict[bytes, str]) -> dict[str, Answers]:
    """Adapters that name each expert's matrices: by transformers' modules, and by the checkpoint."""
    model, made = copy.deepcopy(base), ByHand(stored)
    torch.manual_seed(9)
    for name, module in model.named_modules():
        both = getattr(module, "gate_up_proj", None), getattr(module, "down_proj", None)
        if not all(isinstance(one, torch.nn.Parameter) for one in both) or hasattr(module, "gate_up_proj_bias"):
            continue
        if getattr(module, "is_transposed", False):
            continue
        for expert in range(len(both[0])):
            half = both[0].shape[1] // 2
            made.add(f"{name}.{expert}.gate_proj", both[0].data[expert, :half])
            made.add(f"{name}.{expert}.up_proj", both[0].data[expert, half:])
            made.add(f"{name}.{expert}.down_proj", both[1].data[expert])
    return made.save(("experts each", "experts as stored"), out, model)


def save_routers(base: Any, out: Path, stored: dict[bytes, str]) -> dict[str, Answers]:
    """Adapters of routers, which are no linear modules any more, but were while adapters were trained on them."""
    model, made = copy.deepcopy(base), ByHand(stored)
    torch.manual_seed(10)
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        is_linear = isinstance(module, torch.nn.Linear | torch.nn.Embedding | Conv1D)
        if weight is not None and weight.dim() == 2 and not is_linear:
            made.add(name, weight.data)
    return made.save(("router", "router as stored"), out, model)


def save_shared(base: Any, out: Path, stored: dict[bytes, str]) -> dict[str, Answers]:
    """Adapters of the experts that all tokens go to: PEFT trains them only together with all other experts."""
    model, made = copy.deepcopy(base), ByHand(stored)
    torch.manual_seed(11)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and re.search(r"shared_experts?\.", name):
            made.add(name, module.weight.data)
    return made.save(("shared experts", "shared experts as stored"), out, model)


def write_adapter(tensors: dict[str, torch.Tensor], out: Path) -> None:
    """Writes files that PEFT did not make."""
    out.mkdir(parents=True)
    save_file(tensors, str(out / _WEIGHTS))
    names = sorted({key.split(".")[-3] for key in tensors})
    config = {"peft_type": "LORA", "task_type": None, "r": RANK, "lora_alpha": ALPHA, "target_modules": names}
    (out / "adapter_config.json").write_text(json.dumps(config | {"bias": "none", "base_model_name_or_path": ""}))


def save_old_names(source: Path, folder: Path) -> Iterator[str]:
    """The same adapter as older releases of PEFT wrote it."""
    tensors = load_file(str(source / _WEIGHTS))
    for kind, rename in _OLD_NAMES.items():
        out = folder / kind
        out.mkdir()
        save_file({rename(key): value for key, value in tensors.items()}, str(out / _WEIGHTS))
        (out / "adapter_config.json").write_bytes((source / "adapter_config.json").read_bytes())
        yield kind


def new_model(config: Any) -> Any:
    """A model of random weights, none of which is 0."""
    # Other implementations of attention leave soft caps out.
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and "norm" not in name and "act_fn" not in name:
                parameter.normal_(0, 0.05)  # biases are 0 in a new model
            if parameter.dim() == 3:
                parameter.normal_(0, 0.09)
    for name, module in model.named_modules():
        if name.endswith("act_fn"):
            module.bfloat16()  # as engines keep the numbers of an activation, whatever else they compute in
    return model


def make(model_type: str, fields: dict[str, Any], out: Path) -> dict[str, Any]:
    """Writes one family's model and adapters; what they answer, and what PEFT cannot train."""
    torch.manual_seed(5)
    config = AutoConfig.for_model(model_type, **fields)
    base = new_model(config)
    base.save_pretrained(str(out / "model"))
    if "architectures" in fields:  # released checkpoints call it otherwise than transformers does
        config.architectures = fields["architectures"]
        config.save_pretrained(str(out / "model"))
    found, untrained = {"": answers(base)}, {}
    for kind, wanted in configs(base):
        try:
            found[kind] = save_adapter(base, kind, wanted, out / "adapters" / kind)
        except Exception as error:  # noqa: BLE001 - whatever PEFT says
            untrained[kind] = f"{type(error).__name__}: {error}"[:300]
    stored = stored_names(out / "model")
    for save in (save_experts, save_routers, save_shared):
        found |= save(base, out / "adapters", stored)
    source = out / "adapters" / ("attention" if "attention" in found else "mlp")
    if source.exists():
        found |= dict.fromkeys(save_old_names(source, out / "adapters"), found[source.name])
    return {"answers": found, "untrained": untrained}


def main() -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    for name, (model_type, fields) in json.load(sys.stdin).items():
        try:
            made = make(model_type, fields, out / name)
        except Exception as error:  # noqa: BLE001 - a configuration that transformers does not take
            made = {"error": f"{type(error).__name__}: {error}"[:500], "trace": traceback.format_exc()[-1500:]}
        (out / name).mkdir(parents=True, exist_ok=True)
        (out / name / "made.json").write_text(json.dumps(made | {"prompts": PROMPTS, "steps": STEPS}))
        print(name, made.get("error", len(made.get("answers", ()))), flush=True)


if __name__ == "__main__":
    main()
