"""Environment of vLLM for development and tests: interpreter, plugin, flags.

The plugin is lent: a folder for PYTHONPATH, with the one package that it is in and the metadata by which vLLM finds its
entry points. It is always of the same version as the sidecar, and leaves the engine environment as it is. With the
flags, a replica of the tiny model starts in 13 s and has 1.0 GB, against 60 s and 2.9 GB with vLLM's own defaults.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

VARIABLE = "LORAPLANE_ENGINE_PYTHON"
_IN_PROJECT = Path(".venv-engine/bin/python")
_BESIDE_US = Path(__file__).parents[3]


class EngineNotFound(Exception):
    """There is no environment with vLLM; the message says how to get one."""


def find_engine_python() -> Path:
    """Finds it: ``LORAPLANE_ENGINE_PYTHON``, ``.venv-engine`` here or in the project, our own if it has vLLM.

    Raises:
        EngineNotFound: there is none.
    """
    named = os.environ.get(VARIABLE)
    for candidate in [Path(named)] if named else [Path.cwd() / _IN_PROJECT, _BESIDE_US / _IN_PROJECT]:
        if os.access(candidate, os.X_OK):
            # Not resolved: the link in the environment's folder is what makes it that environment.
            return candidate.absolute()
    if named or importlib.util.find_spec("vllm") is None:
        raise EngineNotFound(
            f"{named or 'the engine environment (.venv-engine)'} is not there; make it with: make engine, name its "
            f"interpreter with {VARIABLE}, or use simulated engines: --engine sim"
        )
    return Path(sys.executable)


# Of the plugin's distribution, see sidecar/vllm_plugin/pyproject.toml.
PACKAGE = "loraplane_vllm"
_INFO = {
    "METADATA": "Metadata-Version: 2.1\nName: loraplane-vllm\nVersion: 0\n",
    "entry_points.txt": (
        f"[vllm.general_plugins]\nloraplane = {PACKAGE}.entry:prepare_process\n"
        f"[vllm.endpoint_plugins]\nloraplane = {PACKAGE}.entry:Endpoints\n"
    ),
}
# vLLM loads no plugin that adds routes unless it is named, and ours does nothing unless it is told to.
PLUGIN_VARIABLES = {"VLLM_PLUGINS": "loraplane", "LORAPLANE_PLUGIN": "1"}
# Names the socket on which the plugin asks the sidecar for names that are not loaded.
RESOLVER_VARIABLE = "LORAPLANE_RESOLVER"
# Name what the plugin may be told of, and by whom.
STORE_VARIABLE = "LORAPLANE_STORE"
TOKEN_VARIABLE = "LORAPLANE_CONTROL_TOKEN_FILE"  # noqa: S105 - the name of a variable


def plugin_folder(folder: Path) -> Path:
    """Makes `folder` such a folder, or mends it, and gives it."""
    info = folder / "loraplane_vllm-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    for name, text in _INFO.items():
        (info / name).write_text(text)
    _link(folder / PACKAGE, _BESIDE_US / "sidecar" / "vllm_plugin")
    return folder


def plugin_environment(folder: Path) -> dict[str, str]:
    """Variables that vLLM's environment needs beside, to run the plugin of `folder`."""
    return {"PYTHONPATH": str(folder), **PLUGIN_VARIABLES}


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    link.unlink(missing_ok=True)
    link.symlink_to(target, target_is_directory=True)


MAX_LORAS = 4
MAX_CPU_LORAS = 16
MAX_LORA_RANK = 16
MAX_MODEL_LENGTH = 512
KV_CACHE_BYTES = 64 * 1024 * 1024

# Not by `-m`: the engine's core is spawned, and would import the whole server once more as its `__main__`.
_SERVE = 'import runpy; runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")'
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


def vllm_command(python: Path, model: Path, *, port: int, served_model_name: str = "tiny") -> list[str]:
    """The command that serves `model` on the loopback.

    Args:
        python: the interpreter of the engine environment.
        model: directory of the base model.
        port: TCP port on 127.0.0.1; it refuses connections until the engine is ready.
        served_model_name: the name that requests use for the base model.
    """
    return [
        *(str(python), "-c", _SERVE),
        *("--model", str(model), "--served-model-name", served_model_name),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--enable-lora", "--max-lora-rank", str(MAX_LORA_RANK)),
        *("--max-loras", str(MAX_LORAS), "--max-cpu-loras", str(MAX_CPU_LORAS)),
        *("--dtype", "float32", "--enforce-eager", "--max-model-len", str(MAX_MODEL_LENGTH)),
        *("--kv-cache-memory-bytes", str(KV_CACHE_BYTES), "--distributed-executor-backend", "uni"),
    ]


def vllm_environment(*, plugin: Path | None = None) -> dict[str, str]:
    """Our environment with what vLLM needs and without what would change it. `plugin`: see `plugin_folder`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    return {**inherited, **_ENVIRONMENT, **(plugin_environment(plugin) if plugin else {})}
