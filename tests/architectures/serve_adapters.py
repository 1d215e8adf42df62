"""Loads adapters into the real engine, one after another. Runs inside the engine environment, as a script::

    python -P serve_adapters.py --coverage FILE < orders.json

An order is a model's folder with adapters by name; a child process serves each, and writes ``served.json`` beside the
model: what each adapter answered or why it did not, and what the plugin's own question to the workers gives.
Imports nothing of ours but the file that the plugin asks workers with.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.update({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_TARGET_DEVICE": "cpu", "OMP_NUM_THREADS": "1"})
os.environ.update({"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"})
os.environ.update({"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_LOGGING_LEVEL": "WARNING"})

import torch
import vllm
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.model_executor.layers.activation import SwigluOAIAndMul
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.experts import triton_moe

FLAGS = {
    "skip_tokenizer_init": True,
    "enable_lora": True,
    "max_loras": 1,
    "max_cpu_loras": 1,
    "max_lora_rank": 16,
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 128,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
    "kv_cache_memory_bytes": 32 << 20,
    "max_logprobs": -1,
    "enable_prefix_caching": False,
    "distributed_executor_backend": "uni",
}
# The numbers of vLLM's own `SwigluOAIAndMul`, which is made within a configuration only.
SWIGLUOAI = SimpleNamespace(alpha=1.702, limit=7.0)
# A machine that does much else takes long; it is only to end.
SECONDS = 1800


def install_experts() -> None:
    """Puts plain torch in the place of the Triton kernels, which need a GPU; all buffers stay vLLM's."""
    triton_moe.TritonExperts._supports_current_device = staticmethod(lambda: True)
    triton_moe.TritonExperts.apply = experts


def experts(
    self: Any,
    output: Any,
    hidden_states: Any,
    w1: Any,
    w2: Any,
    topk_weights: Any,
    topk_ids: Any,
    activation: Any,
    apply_router_weight_on_input: bool = False,
    **_: Any,
) -> None:
    """What `TritonExperts.apply` computes, expert by expert."""
    context = self._lora_context
    slots = _slots(context, hidden_states)
    output.zero_()
    for expert in range(w1.shape[0]):
        rows, places = (topk_ids == expert).nonzero(as_tuple=True)
        if not len(rows):
            continue
        weights = topk_weights[rows, places].unsqueeze(1).to(hidden_states.dtype)
        inputs = hidden_states[rows]
        up = inputs @ w1[expert].T
        if self.w1_bias is not None:
            up = up + self.w1_bias[expert]
        up = up + _delta(context, inputs, slots[rows], expert, "w13")
        middle = torch.empty(len(rows), self.adjust_N_for_activation(up.shape[1], activation), dtype=up.dtype)
        if activation == MoEActivation.SWIGLUOAI:
            middle.copy_(SwigluOAIAndMul.forward_native(SWIGLUOAI, up))
        else:
            self.activation(activation, middle, up.contiguous())
        down = middle @ w2[expert].T
        if self.w2_bias is not None:
            down = down + self.w2_bias[expert]
        delta = _delta(context, middle, slots[rows], expert, "w2")
        output.index_add_(0, rows, (down + delta) * (1 if apply_router_weight_on_input else weights))


def _slots(context: Any, hidden_states: Any) -> Any:
    if context is None:
        return torch.full((len(hidden_states),), -1)
    return context.punica_wrapper.token_lora_indices[: len(hidden_states)]


def _delta(context: Any, inputs: Any, slots: Any, expert: int, which: str) -> Any:
    if context is None:
        return 0
    downs, ups = getattr(context, f"{which}_lora_a_stacked"), getattr(context, f"{which}_lora_b_stacked")
    rows = []
    for row, slot in zip(inputs, slots.tolist(), strict=True):
        pairs = zip(downs, ups, strict=True)
        parts = [b[slot, expert] @ (a[slot, expert] @ row) if slot >= 0 else b.new_zeros(b.shape[2]) for a, b in pairs]
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def answers(llm: Any, prompts: list[list[int]], steps: int, request: Any) -> list[list[dict[str, Any]]]:
    """Greedy tokens with all logprobs, as `make_models.answers` gives them."""
    params = SamplingParams(temperature=0, max_tokens=steps, logprobs=-1, ignore_eos=True, detokenize=False)
    asked = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
    outputs = llm.generate(asked, params, lora_request=request, use_tqdm=False)
    return [
        [_row(token, found) for token, found in zip(o.outputs[0].token_ids, o.outputs[0].logprobs, strict=True)]
        for o in outputs
    ]


def _row(token: int, found: Any) -> dict[str, Any]:
    return {"token": token, "logprobs": [found[number].logprob for number in range(len(found))]}


def serve(order: dict[str, Any], coverage: Any) -> dict[str, Any]:
    """All adapters of one order."""
    began = time.monotonic()
    llm = LLM(model=order["model"], **FLAGS, **order.get("flags", {}))
    told: dict[str, Any] = {"of": order["of"], "version": vllm.__version__, "start_seconds": time.monotonic() - began}
    try:
        began = time.monotonic()
        told["coverage"] = coverage.merged(llm.collective_rpc(coverage.coverage))
        told["coverage_seconds"] = time.monotonic() - began
    except Exception as error:  # noqa: BLE001 - the engine's errors have no type of their own
        told["coverage_error"] = f"{type(error).__name__}: {error}"[:300]
    prompts, steps = order["prompts"], order["steps"]
    told["base"] = answers(llm, prompts, steps, None)
    told["again"] = told["base"] == answers(llm, prompts, steps, None)
    told["adapters"] = {}
    began = time.monotonic()
    for number, (name, path) in enumerate(order["adapters"].items(), 1):
        request = LoRARequest(lora_name=name, lora_int_id=number, lora_path=path)
        try:
            llm.llm_engine.add_lora(request)
        except Exception as error:  # noqa: BLE001 - the engine's errors have no type of their own
            told["adapters"][name] = {"refused": f"{error}"[:300]}
            continue
        try:
            told["adapters"][name] = {"answers": answers(llm, prompts, steps, request)}
        except Exception as error:  # noqa: BLE001 - the same
            told["adapters"][name] = {"failed": f"{type(error).__name__}: {error}"[:300]}
            break  # an engine is not of use after that
    told["seconds"] = time.monotonic() - began
    return told


def child(order: dict[str, Any], coverage: Any) -> None:
    """Serves in a process of its own, and never returns."""
    signal.alarm(SECONDS)
    try:
        told = serve(order, coverage)
    except BaseException as error:  # noqa: BLE001 - whatever it was, it is said
        told = {
            "of": order["of"],
            "error": f"{type(error).__name__}: {error}"[:500],
            "trace": traceback.format_exc()[-3000:],
        }
    Path(order["out"]).write_text(json.dumps(told))
    os._exit(0)


def main() -> None:
    """Entry point of the script. The imports are those of all children."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--coverage", required=True)
    spec = importlib.util.spec_from_file_location("plugin_coverage", parser.parse_args().coverage)
    coverage = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(coverage)
    torch.set_num_threads(1)
    install_experts()
    for order in json.load(sys.stdin):
        pid = os.fork()
        if pid == 0:
            child(order, coverage)
        os.waitpid(pid, 0)
        if not Path(order["out"]).exists():
            Path(order["out"]).write_text(
                json.dumps({"of": order["of"], "error": "the engine ended, or took too long"})
            )
        print(order["out"], flush=True)


if __name__ == "__main__":
    main()
