"""List of models by vLLM's own code and by our plugin: bytes and milliseconds. Runs in vLLM's environment.

No engine is started: the list is made of what the API server knows.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from starlette.responses import Response

from sidecar.vllm_plugin.listing import PublicListing
from sidecar.vllm_plugin.usage import Usage
from sidecar.vllm_plugin.vllm_internals import VllmServer, tell_apart

# Times and random numbers of a card: all that may differ.
_OF_THE_MOMENT = re.compile(rb'"created":\d+|"id":"modelperm-[0-9a-f-]+"')


def served_models(adapters: int) -> tuple[Any, Any]:
    """vLLM's served models with so many adapters, and an engine client that is not asked for anything."""
    from vllm.entrypoints.openai.models.protocol import BaseModelPath
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.lora.request import LoRARequest

    tell_apart(LoRARequest)
    config = SimpleNamespace(max_model_len=512, model="/models/tiny")
    engine = SimpleNamespace(model_config=config, renderer=None, input_processor=None)
    engine.output_processor = SimpleNamespace(request_states={})
    bases = [BaseModelPath(name=name, model_path="/models/tiny") for name in ("tiny", "süß")]
    models = OpenAIServingModels(engine, bases)
    for number in range(adapters):
        name, path = f"tenant-{number % 7}/adapter-{number}", f"/var/lib/loraplane/artifacts/{number:064x}/prepared"
        models.lora_requests[name] = LoRARequest(name, number + 1, path)
    return engine, models


async def compared(adapters: int) -> dict[str, object]:
    """Whether both are the same to the byte but for times and random numbers, and how long each takes."""
    from starlette.responses import JSONResponse
    from vllm.lora.request import LoRARequest

    engine, models = served_models(adapters)
    own, own_ms = b"", list[float]()
    for _ in range(3):
        began = time.perf_counter()
        own = bytes(JSONResponse(content=(await models.show_available_models()).model_dump()).body)
        own_ms.append((time.perf_counter() - began) * 1000)
    server = VllmServer(engine, models, LoRARequest)
    listing = PublicListing(server, 5.0)
    assert isinstance(server.registered, Usage)
    ours = await listing.page(whole=False)
    ours_ms = list[float]()
    for _ in range(50):
        began = time.perf_counter()
        Response(await listing.page(whole=False), media_type="application/json")
        ours_ms.append((time.perf_counter() - began) * 1000)
    same = _OF_THE_MOMENT.sub(b"", own) == _OF_THE_MOMENT.sub(b"", ours)
    return {"adapters": adapters, "same": same, "own_ms": median(own_ms), "ours_ms": median(ours_ms)}


def both(*counts: int) -> list[dict[str, Any]]:
    """The same for each number of adapters, by vLLM's interpreter. The caller's own timeout is the deadline."""
    from registry.tools.devstack.engine_environment import find_engine_python

    python, path = find_engine_python(), str(Path(__file__).parents[2])
    environment = {**os.environ, "VLLM_TARGET_DEVICE": "cpu", "PYTHONPATH": path}
    command = [str(python), "-m", "tests.support.vllm_listing", *map(str, counts)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps([asyncio.run(compared(int(count))) for count in sys.argv[1:]]))
