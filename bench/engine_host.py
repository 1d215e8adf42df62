"""Simulated engines in one process: `python -m bench.engine_host COUNT`.

Its first line tells their URLs; each further one a call that loads or unloads, as it came in. The line "empty" on its
input makes all of them look as if they had just been started; the end of its input ends it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack

from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import SimulatedCall, SimulatedVllm
from sidecar.engines.simulated.options import Options
from tests.support.fleet import BASE

_OPTIONS = Options(served_model_name=BASE, max_cpu_loras=100_000)


def _tell(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _engine(number: int) -> SimulatedVllm:
    def tell(call: SimulatedCall) -> None:
        _tell({"engine": number, "kind": call.kind, "name": call.name, "at": call.received_at})

    return SimulatedVllm(_OPTIONS, on_call=tell)


async def _input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def run(count: int) -> None:
    """Serves until the input ends."""
    orders = await _input()
    engines = [_engine(number) for number in range(count)]
    async with AsyncExitStack() as stack:
        _tell({"urls": [await stack.enter_async_context(serving(engine)) for engine in engines]})
        while await orders.readline():
            for engine in engines:
                engine.cards.clear()
                engine.started_at = time.time()
            _tell({"emptied": time.monotonic()})


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1])))
