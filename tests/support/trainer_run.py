"""A run of transformers' Trainer with our callback: a tiny Llama with LoRA, on a CPU. Runs in the engine's environment.

Arguments as JSON: ``admin``, ``pool``, ``name``, ``model`` (a folder of the base), ``out``, ``packages`` (a folder with
what our client needs and an engine does not have), ``steps``. The last line of standard output is what came of it.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def run(told: dict[str, Any]) -> dict[str, Any]:
    """Trains, and says what the callback knows at the end."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    from loraplane.integrations.transformers import LoraPlaneCallback

    base = AutoModelForCausalLM.from_pretrained(told["model"], dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    tokens = torch.arange(8) % base.config.vocab_size
    rows = [{"input_ids": tokens, "labels": tokens} for _ in range(4)]
    args = TrainingArguments(
        told["out"],
        max_steps=told["steps"],
        per_device_train_batch_size=1,
        use_cpu=True,
        report_to="none",
        save_strategy="steps",
        save_steps=1,
        save_total_limit=1,
        learning_rate=0.1,
        disable_tqdm=True,
        eval_strategy="steps",
        eval_steps=1,
        logging_steps=1,
        run_name="run-7",
    )
    callback = LoraPlaneCallback(told["name"], told["pool"], registry=told["admin"], wait=True, keep_last_n=2)
    trainer = Trainer(model=model, args=args, train_dataset=rows, eval_dataset=rows, callbacks=[callback])
    trainer.train()
    refused = ""
    try:
        plain = AutoModelForCausalLM.from_pretrained(told["model"], dtype=torch.float32)
        unfit = LoraPlaneCallback("x", "y")
        Trainer(model=plain, args=args, train_dataset=rows, eval_dataset=rows, callbacks=[unfit]).train()
    except ValueError as error:
        refused = str(error)
    published = callback.published
    assert published is not None
    known = {"generation": published.generation, "engines": len(published.engine_urls)}
    return known | {"error": repr(callback.last_error), "refused": refused}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    sys.path.append(given["packages"])  # behind its own, which win
    print(json.dumps(run(given)))
