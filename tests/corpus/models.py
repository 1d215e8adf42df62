"""Makes a tiny Qwen2 and a tiny Qwen2.5-VL. Runs inside the engine environment, as a script::

    python -P models.py --llama DIR --out DIR

Below OUT come ``qwen2/`` and ``qwen2_5_vl/``, with the Llama's tokenizer. Imports nothing of ours.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Config, Qwen2ForCausalLM

TEXT = {
    "vocab_size": 262,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "initializer_range": 0.09,
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": 257,
}
VISION = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 1,
    "out_hidden_size": 128,
    "fullatt_block_indexes": [1],
}
SPECIAL = {"vision_start_token_id": 258, "vision_end_token_id": 259, "image_token_id": 260, "video_token_id": 261}
TOKENS = {258: "<|vision_start|>", 259: "<|vision_end|>", 260: "<|image_pad|>", 261: "<|video_pad|>"}
PROCESSOR = {
    "processor_class": "Qwen2_5_VLProcessor",
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 3136,
    "max_pixels": 3136,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def write_qwen2(folder: Path) -> None:
    """Keys of another width than queries, and biases."""
    torch.manual_seed(3)
    Qwen2ForCausalLM(Qwen2Config(**TEXT)).float().save_pretrained(str(folder))


def write_vision(folder: Path) -> None:
    """A language model beside a tower that sees."""
    torch.manual_seed(4)
    text = TEXT | {"rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [8, 12, 12]}}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=VISION, tie_word_embeddings=False, **SPECIAL)
    Qwen2_5_VLForConditionalGeneration(config).float().save_pretrained(str(folder))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))


def copy_tokenizer(llama: Path, folder: Path, more: dict[int, str]) -> None:
    """The Llama's, with some more special tokens."""
    tokenizer = json.loads((llama / "tokenizer.json").read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] += [{"id": number, "content": text, **flags} for number, text in more.items()]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copy(llama / "tokenizer_config.json", folder)


def main() -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--llama", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    write_qwen2(arguments.out / "qwen2")
    write_vision(arguments.out / "qwen2_5_vl")
    for name in ("qwen2", "qwen2_5_vl"):
        copy_tokenizer(arguments.llama, arguments.out / name, TOKENS)


if __name__ == "__main__":
    main()
