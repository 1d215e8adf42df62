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
from sidecar.vllm_plugin.entry import RUNTIME_LORA_VARIABLE, is_on, resolver_socket
from sidecar.vllm_plugin.guard import guard_of_environment

PLUGIN = "loraplane"


def _arguments() -> argparse.Namespace:
    default = DEFAULTS
    parser = argparse.ArgumentParser(prog="python -m sidecar.engines.simulated", description="A vLLM without a model.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, required=True, help="TCP port")
    parser.add_argument("--served-model-name", default=default.served_model_name, help="name of the base model")
    parser.add_argument("--model", default=default.model, help="directory that the listing shows for the base model")
    parser.add_argument("--max-loras", type=int, default=default.max_loras, help="adapters that one batch may mix")
    parser.add_argument("--max-cpu-loras", type=int, default=default.max_cpu_loras, help="adapters kept in memory")
    parser.add_argument("--max-lora-rank", type=int, default=default.max_lora_rank, help="highest rank taken")
    parser.add_argument("--api-key", default=None, help="guards /v1")
    parser.add_argument("--vllm-version", default=default.version, help="release that it plays")
    parser.add_argument("--start-seconds", type=float, default=0.0, help="refuse connections for so long at first")
    parser.add_argument("--load-seconds", type=float, default=default.load_seconds, help="how long a load takes")
    parser.add_argument("--token-seconds", type=float, default=default.token_seconds, help="how long a token takes")
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
        api_key=arguments.api_key,
        version=arguments.vllm_version,
        load_seconds=arguments.load_seconds,
        token_seconds=arguments.token_seconds,
    )


async def _run(arguments: argparse.Namespace) -> int:
    await asyncio.sleep(arguments.start_seconds)
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
