"""Compares adapters as PEFT reads them. Runs inside the engine environment, as a script, and imports nothing of ours::

python -P measure.py --model DIR --pair TRAINED PUBLISHED     errors of each module, as JSON
python -P measure.py --cast DIR --out DIR                          all numbers as bfloat16, by torch
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

WEIGHTS = "adapter_model.safetensors"


def merged(model: str, adapter: str) -> dict[str, torch.Tensor]:
    """The weights of the model with the adapter merged into them, by PEFT, in float64."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    loaded = PeftModel.from_pretrained(base, adapter, autocast_adapter_dtype=False)
    return dict(loaded.double().merge_and_unload().state_dict())


def errors(model: str, trained: str, published: str) -> dict[str, float]:
    """For each module that the training changed, how far what was added is from what should be."""
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).state_dict()
    wanted, made = merged(model, trained), merged(model, published)
    found = {}
    for name, weight in plain.items():
        delta = wanted[name] - weight
        if name.endswith(".weight") and delta.abs().max() > 0:
            missed = torch.linalg.norm(made[name] - wanted[name]) / torch.linalg.norm(delta)
            found[name.removesuffix(".weight")] = float(missed)
    return found


def cast(source: Path, out: Path) -> None:
    """Every tensor as bfloat16."""
    out.mkdir(parents=True)
    shutil.copy(source / "adapter_config.json", out)
    tensors = load_file(source / WEIGHTS)
    save_file({name: one.to(torch.bfloat16).contiguous() for name, one in tensors.items()}, out / WEIGHTS)


def main() -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--pair", nargs=2, action="append", default=[], metavar=("TRAINED", "PUBLISHED"))
    parser.add_argument("--cast", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.cast is not None:
        cast(arguments.cast, arguments.out)
    else:
        json.dump([errors(arguments.model, *pair) for pair in arguments.pair], sys.stdout)


if __name__ == "__main__":
    main()
