"""How vLLM is started for development and tests: the flags and the environment that a small machine needs.

13 s and 1.0 GB for a replica of the tiny model, against up to 60 s and 2.9 GB with vLLM's own defaults.
"""

from __future__ import annotations

import os
from pathlib import Path

from registry.dev.engine_plugin import plugin_environment

MAX_LORAS = 4
MAX_CPU_LORAS = 16
MAX_LORA_RANK = 16
MAX_MODEL_LENGTH = 512
KV_CACHE_BYTES = 64 * 1024 * 1024

# The routes that load and unload adapters do not exist without it.
RUNTIME_LORA_VARIABLE = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
_ENVIRONMENT = {
    RUNTIME_LORA_VARIABLE: "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


def vllm_command(
    python: Path,
    model: Path,
    *,
    port: int,
    served_model_name: str = "tiny",
    max_loras: int = MAX_LORAS,
    max_cpu_loras: int = MAX_CPU_LORAS,
    api_key: str | None = None,
) -> list[str]:
    """The command that serves `model` on the loopback.

    Args:
        python: the interpreter of the engine environment.
        model: directory of the base model.
        port: TCP port on 127.0.0.1; it refuses connections until the engine is ready.
        served_model_name: the name that requests use for the base model.
        max_loras: adapters that one batch may mix.
        max_cpu_loras: adapters that stay in memory.
        api_key: what clients must send; it shows in the process list, so use it in tests only.
    """
    key = ["--api-key", api_key] if api_key else []
    return [
        *(str(python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", served_model_name),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--enable-lora", "--max-lora-rank", str(MAX_LORA_RANK)),
        *("--max-loras", str(max_loras), "--max-cpu-loras", str(max_cpu_loras)),
        *("--dtype", "float32", "--enforce-eager", "--max-model-len", str(MAX_MODEL_LENGTH)),
        *("--kv-cache-memory-bytes", str(KV_CACHE_BYTES), "--distributed-executor-backend", "uni"),
        *key,
    ]


def vllm_environment(*, runtime_lora: bool = True, plugin: Path | None = None) -> dict[str, str]:
    """Our environment with what vLLM needs and without what would change it.

    Args:
        runtime_lora: False leaves the routes that load adapters out.
        plugin: a folder of `registry.dev.engine_plugin`, whose plugin is to run; None: none is.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    ours = {name: value for name, value in _ENVIRONMENT.items() if runtime_lora or name != RUNTIME_LORA_VARIABLE}
    return {**inherited, **ours, **(plugin_environment(plugin) if plugin else {})}


def reference_command(python: Path, model: Path, adapters: dict[str, Path], prompts: list[str]) -> list[str]:
    """The command that prints what transformers and PEFT make of `prompts`, see `registry.dev.reference`."""
    script = Path(__file__).with_name("reference.py")
    named = [part for name, path in adapters.items() for part in ("--adapter", f"{name}={path}")]
    asked = [part for prompt in prompts for part in ("--prompt", prompt)]
    # -P: the script's folder stays off the import path, so that its neighbours shadow nothing.
    return [str(python), "-P", str(script), "--model", str(model), *named, *asked]
