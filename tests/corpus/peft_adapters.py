"""Makes adapters with PEFT itself. Runs inside the engine environment, as a script, and imports nothing of ours::

    python -P peft_adapters.py --model DIR --out DIR

Each is saved with `save_pretrained` below OUT under the name that it has here.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from peft import AdaLoraConfig, IA3Config, LoHaConfig, LoraConfig, VeraConfig, get_peft_model
from transformers import AutoModelForCausalLM

TARGETS = ["q_proj", "v_proj"]
LORA = {
    "plain": {},
    "all_linear": {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]},
    "rslora": {"use_rslora": True},
    "patterns": {"rank_pattern": {"layers.1.self_attn.q_proj": 8}, "alpha_pattern": {"v_proj": 3}},
    "lm_head": {"target_modules": ["q_proj", "lm_head"]},
    "embed_tokens": {"target_modules": ["q_proj", "embed_tokens"]},
    "dora": {"use_dora": True},
    "bias_lora_only": {"bias": "lora_only"},
    "lora_bias": {"lora_bias": True},
    "pissa": {"init_lora_weights": "pissa"},
    "olora": {"init_lora_weights": "olora"},
    "modules_to_save": {"modules_to_save": ["embed_tokens"]},
    "trainable_tokens": {"trainable_token_indices": {"embed_tokens": [1, 2]}},
    "layer_replication": {"layer_replication": [[0, 2], [1, 2]]},
}
OTHERS = {
    "adalora": AdaLoraConfig(target_modules=TARGETS, total_step=10, task_type="CAUSAL_LM"),
    "ia3": IA3Config(target_modules=["v_proj", "down_proj"], feedforward_modules=["down_proj"], task_type="CAUSAL_LM"),
    "loha": LoHaConfig(target_modules=TARGETS, r=4, task_type="CAUSAL_LM"),
    "vera": VeraConfig(target_modules=TARGETS, r=4, task_type="CAUSAL_LM"),
}


def save(model: str, config: object, out: Path) -> None:
    """Saves one adapter whose weights are far enough from 0 to be heard."""
    torch.manual_seed(sum(out.name.encode()))
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name or "lora_embedding_B" in name or "lora_embedding_A" in name:
                parameter.normal_(0, 0.3)
    adapted.save_pretrained(str(out))


def main() -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description="Make adapters with PEFT.")
    parser.add_argument("--model", required=True, help="directory of the base model")
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    arguments = parser.parse_args()
    for name, fields in LORA.items():
        config = LoraConfig(**({"r": 4, "lora_alpha": 8, "target_modules": TARGETS, "task_type": "CAUSAL_LM"} | fields))
        save(arguments.model, config, arguments.out / name)
    for name, config in OTHERS.items():
        save(arguments.model, config, arguments.out / name)


if __name__ == "__main__":
    main()
