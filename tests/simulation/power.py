"""Power cuts: a host loses what it did not sync, at a step of its disk, beside all other faults."""

from __future__ import annotations

import asyncio
import random
from itertools import count

from tests.simulation.disk import Image, unwatched
from tests.simulation.world import ReplicaHost, World


async def cut_power(world: World, seconds: float) -> None:
    """In half of all worlds: takes the power of hosts, at a step of their disks where one comes soon."""
    rng = random.Random(f"power {world.seed}")
    if rng.random() < 0.5:
        return
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    for number in count():
        dice = random.Random(f"power {number} {world.seed}")
        await asyncio.sleep(rng.uniform(0.0, 10.0) * world.size.pause)
        host = dice.choice(world.replicas)
        if loop.time() > end:
            return
        if not world.plays(f"b{number}", f"fault cut the power of {host.name}"):
            continue
        world.cut_power(host, await _kept(world, dice, host, dice.choice((0.0, 3.0))))
        await asyncio.sleep(dice.choice((0.05, 1.0, 5.0)))
        host.engine.start()
        world.start(host)


async def _kept(world: World, rng: random.Random, host: ReplicaHost, seconds: float) -> Image:
    """What a disk keeps at a step of the next `seconds`, which is the last of the process that makes it; else then."""
    came: asyncio.Future[Image] = asyncio.get_running_loop().create_future()
    left = rng.randint(0, 12)

    def step(_what: str) -> None:
        nonlocal left
        left -= 1
        if left < 0 and not came.done():
            came.set_result(host.disk.kept(rng))
            world.kill(host)

    host.disk.on_step = step
    try:
        async with asyncio.timeout(seconds):
            return await came
    except TimeoutError:
        return host.disk.kept(rng)
    finally:
        host.disk.on_step = unwatched
