"""Logprobs of samples by PEFT, for what engines said of theirs. Runs in the environment of training.

Arguments as JSON: ``model`` (a folder of the base), ``versions`` (folder of each step), ``samples`` (a file of lines,
as docs/examples/grpo.py writes it). The last line of standard output has, for each sample, how far the engine's
logprobs are from those of its version, and from those of the base.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def run(told: dict[str, Any]) -> list[dict[str, float]]:
    """The greatest difference of any token's logprob, of each sample."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(told["model"], dtype=torch.float32)
    steps = list(told["versions"].items())
    model = PeftModel.from_pretrained(base, steps[0][1], adapter_name=steps[0][0])
    for step, folder in steps[1:]:
        model.load_adapter(folder, adapter_name=step)
    model.eval()

    def far(sample: dict[str, Any]) -> float:
        prompt, completion = sample["prompt_ids"], sample["completion_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        said = logits.log_softmax(-1)[torch.arange(len(completion)), torch.tensor(completion)]
        return float((said - torch.tensor(sample["logprobs"])).abs().max())

    found = []
    for line in Path(told["samples"]).read_text().splitlines():
        sample = json.loads(line)
        model.set_adapter(str(sample["step"]))
        with_adapter = far(sample)
        with model.disable_adapter():
            found.append({"own": with_adapter, "base": far(sample)})
    return found


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
