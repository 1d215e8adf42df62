"""Makes a tiny Qwen model and adapters as trainings leave them. Runs inside the engine environment, as a script::

    python -P train.py --llama DIR --out DIR

Below OUT come ``qwen/`` and, for each model, ``adapters/<model>/<adapter>/``; and ``lora_ga/``, the Llama model as its
training by LoRA-GA left it, adapter included. Imports nothing of ours.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraGAConfig, preprocess_loraga
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

TARGETS = ["q_proj", "v_proj", "down_proj"]
KINDS = {
    "plain": {},
    "rslora": {"use_rslora": True, "rank_pattern": {"v_proj": 2}, "alpha_pattern": {"down_proj": 3}},
    "dora": {"use_dora": True},
    "pissa": {"init_lora_weights": "pissa"},
    "olora": {"init_lora_weights": "olora", "use_rslora": True},
    "pissa_niter": {"init_lora_weights": "pissa_niter_4"},
    "pissa_dora": {"init_lora_weights": "pissa", "use_dora": True},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
}


def write_qwen(folder: Path, llama: Path) -> None:
    """A Qwen2 with biases in its attention and keys of another width than its queries."""
    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=258, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=512, initializer_range=0.09, tie_word_embeddings=False,
        bos_token_id=256, eos_token_id=257,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.1)
    model.save_pretrained(str(folder))
    copy_tokenizer(llama, folder)


def copy_tokenizer(source: Path, folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder / name)


def train(model: Path, out: Path, name: str, fields: dict[str, object]) -> PeftModel:
    """What a training leaves: the first weights a little moved, magnitudes too."""
    torch.manual_seed(sum(name.encode()))
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    config = LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": TARGETS, "task_type": "CAUSAL_LM"} | fields)
    if config.lora_ga_config is not None:
        preprocess_loraga(base, config, lambda: gradients(base))
    adapted = get_peft_model(base, config)
    adapted.save_pretrained(str(out / f"{name}_first"))
    with torch.no_grad():
        for key, parameter in adapted.named_parameters():
            if "magnitude" in key:
                parameter.mul_(1 + 0.02 * torch.randn_like(parameter))
            elif "lora_" in key:
                parameter.add_(0.05 * torch.randn_like(parameter))
    adapted.save_pretrained(str(out / name))
    return adapted


def gradients(base: PreTrainedModel) -> None:
    """LoRA-GA begins with what one step of a training would do."""
    tokens = torch.arange(64).reshape(2, 32)
    base(input_ids=tokens, labels=tokens).loss.backward()


def main() -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--llama", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    write_qwen(arguments.out / "qwen", arguments.llama)
    for model in (arguments.llama, arguments.out / "qwen"):
        folder = arguments.out / "adapters" / ("llama" if model == arguments.llama else "qwen")
        for name, fields in KINDS.items():
            train(model, folder, name, fields)
    ga = {"init_lora_weights": "lora_ga", "lora_ga_config": LoraGAConfig()}
    adapted = train(arguments.llama, arguments.out / "adapters" / "llama", "lora_ga", ga)
    adapted.merge_and_unload().save_pretrained(str(arguments.out / "lora_ga"))
    copy_tokenizer(arguments.llama, arguments.out / "lora_ga")


if __name__ == "__main__":
    main()
