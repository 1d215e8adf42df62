"""The processor time of short runs of `loraplane`, beside an interpreter that does nothing.

`get adapters` is answered by a real admin service. All four take turns, so that what else the machine does is spread
over them.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from pathlib import Path

from bench.admin_service import admin
from bench.children import compiled_in
from bench.etcd import etcd
from bench.figures import Figure, check, of_times

ROUNDS = 15
# What somebody at a terminal does not notice.
LIMIT = "200 ms of ours"
_FLOOR = ("-c", "pass")
# As the console script does it.
_PROGRAM = ("-c", "import sys; from registry.cli.main import main; sys.exit(main())")


async def cli_start(folder: Path) -> list[Figure]:
    """Floor and ours in turns, after one round that compiles and reads what is not yet in the page cache."""
    async with etcd(folder, fsync=False) as store, admin(store) as service:
        address = ("--admin", service.address)
        runs = {
            "floor": _FLOOR,
            "version": (*_PROGRAM, "--version"),
            "help": (*_PROGRAM, "--help"),
            "get": (*_PROGRAM, *address, "get", "adapters"),
        }
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(ROUNDS + 1):
            for name, arguments in runs.items():
                times[name].append(await asyncio.to_thread(_processor_seconds, arguments, compiled_in(folder)))
    floor = times.pop("floor")[1:]
    return [
        of_times(f"cli_{name}", floor, ours[1:], target=LIMIT, note="processor time") for name, ours in times.items()
    ]


def _processor_seconds(arguments: tuple[str, ...], env: dict[str, str]) -> float:
    """Of one run, user and system; the other children of this process go on meanwhile, and are not counted."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=False, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    check(ran.returncode == 0, f"{' '.join(arguments)} failed")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
