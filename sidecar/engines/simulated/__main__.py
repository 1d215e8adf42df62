"""Entry point of ``python -m sidecar.engines.simulated``."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys

from registry.runtime.http import listen
from sidecar.engines.simulated.app import serve
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import DEFAULTS, Options
from sidecar.vllm_plugin.entry import RUNTIME_LORA_VARIABLE, hide_seconds, is_on, resolver_socket
from sidecar.vllm_plugin.guard import guard_of_environment

PLUGIN = "loraplane"


# Of each flag what it is without being given, whose type it has, and what it means.
_FLAGS = {
    "--host": ("127.0.0.1", "address to listen on"),
    "--served-model-name": (DEFAULTS.served_model_name, "name of the base model"),
    "--model": (DEFAULTS.model, "directory that the listing shows for the base model"),
    "--max-loras": (DEFAULTS.max_loras, "adapters that one batch may mix"),
    "--max-lora-rank": (DEFAULTS.max_lora_rank, "adapters above it are refused"),
    "--max-cpu-loras": (DEFAULTS.max_cpu_loras, "adapters kept in memory"),
    "--vllm-version": (DEFAULTS.version, "release that it plays"),
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sidecar.engines.simulated", description="A vLLM without a model.")
    parser.add_argument("--port", type=int, required=True, help="TCP port")
    for flag, (default, about) in _FLAGS.items():
        parser.add_argument(flag, default=default, type=type(default), help=about)
    return parser.parse_args()


def _options(arguments: argparse.Namespace) -> Options:
    return Options(
        served_model_name=arguments.served_model_name,
        model=arguments.model,
        max_loras=arguments.max_loras,
        max_cpu_loras=arguments.max_cpu_loras,
        max_lora_rank=arguments.max_lora_rank,
        runtime_lora=is_on(RUNTIME_LORA_VARIABLE),
        plugin=is_on() and is_on(RUNTIME_LORA_VARIABLE) and PLUGIN in os.environ.get("VLLM_PLUGINS", "").split(","),
        resolver=resolver_socket() or None,
        guard=guard_of_environment(),
        hide_seconds=hide_seconds(),
        version=arguments.vllm_version,
    )


async def _run(arguments: argparse.Namespace) -> int:
    engine = SimulatedVllm(_options(arguments))
    work = asyncio.create_task(serve(engine, listen(arguments.host, arguments.port)))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    await asyncio.wait({work})
    return 1 if engine.dead.is_set() else 0


def main() -> None:
    """Entry point."""
    sys.exit(asyncio.run(_run(_arguments())))


if __name__ == "__main__":
    main()
