"""Requests through LiteLLM's own Router with our callback, until standard input ends. Runs in LiteLLM's environment.

Arguments as JSON: ``admin``, ``pool``, ``engines`` (URLs), ``models``, ``rate`` (requests a second), ``pauses`` (before
each repetition of what failed, in seconds), ``prompt``, ``max_tokens``. A line on standard output says that it began;
the last one is what came of the requests, as `Answer` has them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from itertools import cycle
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would ask the network

import litellm
from litellm import Router

from loraplane.integrations.litellm import LoraPlaneRouting


def deployments(engines: list[str]) -> list[dict[str, Any]]:
    """As ``loraplane export litellm`` writes them."""
    params = [{"model": "hosted_vllm/*", "api_base": f"{url}/v1", "api_key": "none"} for url in engines]
    return [
        {"model_name": "*", "litellm_params": one, "model_info": {"id": f"r{number}"}}
        for number, one in enumerate(params, start=1)
    ]


async def traffic(told: dict[str, Any]) -> dict[str, Any]:
    """Sends requests for each model in turn until standard input ends."""
    routing = LoraPlaneRouting(told["admin"], [told["pool"]])
    litellm.callbacks = [routing]
    router = Router(model_list=deployments(told["engines"]), num_retries=0)
    answers, running, models = list[dict[str, Any]](), set[asyncio.Task[None]](), cycle(told["models"])
    asked = {name: told[name] for name in ("prompt", "max_tokens", "temperature")}

    async def ask(model: str) -> None:
        found: dict[str, Any] = {"name": model, "began": time.monotonic(), "text": "", "error": ""}
        for tries, pause in enumerate((*told["pauses"], 0.0), start=1):
            try:
                answer = await router.atext_completion(model=model, **asked)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is counted
                found |= {"error": f"{type(error).__name__}: {str(error)[:300]}", "tries": tries}
                await asyncio.sleep(pause)
            else:
                found |= {"text": answer.choices[0].text, "error": "", "tries": tries, "before": found["error"]}
                break
        answers.append(found | {"ended": time.monotonic()})

    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await ask(told["models"][0])
    print("begun", flush=True)
    while not ended.done():
        task = asyncio.create_task(ask(next(models)))
        running.add(task)
        task.add_done_callback(running.discard)
        await asyncio.sleep(1 / told["rate"])
    await asyncio.gather(*running)
    await routing.aclose()
    return {"answers": answers}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(traffic(json.loads(sys.argv[1])))))
