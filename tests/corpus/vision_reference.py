"""What PEFT answers on a vision-language model, to text alone. Runs inside the engine environment, as a script::

    python -P vision_reference.py --model DIR --adapter DIR --prompt TEXT

It prints what ``tests/support/reference.py`` does, with the adapter under ``a``. The adapter's modules stand
below ``model.layers`` as in the checkpoint; here they are below ``model.language_model.layers``. Imports nothing of
ours.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

TOKENS = 8
WEIGHTS = "adapter_model.safetensors"


def greedy(model: torch.nn.Module, prompt: list[int]) -> list[dict[str, float]]:
    """The likeliest tokens, one by one, each with its logprob."""
    sequence, answer = list(prompt), []
    with torch.inference_mode():
        for _ in range(TOKENS):
            logprobs = torch.log_softmax(model(torch.tensor([sequence])).logits[0, -1].float(), dim=-1)
            token = int(logprobs.argmax())
            answer.append({"token": token, "logprob": float(logprobs[token])})
            sequence.append(token)
    return answer


def respelled(adapter: Path, folder: Path) -> str:
    """The adapter under the names that the modules have in transformers."""
    (folder / "adapter_config.json").write_bytes((adapter / "adapter_config.json").read_bytes())
    tensors = load_file(adapter / WEIGHTS)
    new = {
        name.replace("model.model.layers", "model.model.language_model.layers"): one for name, one in tensors.items()
    }
    save_file(new, folder / WEIGHTS)
    return str(folder)


def main() -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser()
    for name in ("model", "adapter", "prompt"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(arguments.model, dtype=torch.float32).eval()
    prompt = AutoTokenizer.from_pretrained(arguments.model)(arguments.prompt)["input_ids"]
    answers = {"": {arguments.prompt: greedy(model, prompt)}}
    with TemporaryDirectory() as folder:
        adapted = PeftModel.from_pretrained(model, respelled(Path(arguments.adapter), Path(folder))).eval()
    answers["a"] = {arguments.prompt: greedy(adapted, prompt)}
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
