"""From the start of the list, or of the snapshot's reading, to the first plan; beside a raw paged Range with JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from bench.boot_child import Told
from bench.etcd import Store, catalogue, etcd
from bench.figures import Figure, check, of_times
from registry.model.keys import DEFAULT_PREFIX, Keys

RECORDS = 20_000
USUAL_EAGER = 200  # as many as an engine holds; the others wait to be asked for
RUNS = 5
CHILD_SECONDS = 60
MODES = ("floor", "list", "snapshot")  # the last boots from what the one before it left


async def boot_20000(folder: Path) -> list[Figure]:
    """Each run is a process of its own, in turns, so that nothing is warm that would be cold at a boot."""
    usual = await _boots(folder / "usual", "boot_20000", eager=USUAL_EAGER)
    return usual + await _boots(folder / "eager", "boot_20000_all_eager", eager=RECORDS)


async def _boots(folder: Path, name: str, *, eager: int) -> list[Figure]:
    async with etcd(folder, fsync=False) as store:
        keys = Keys()
        await store.put_pool(keys)
        await store.put(*catalogue(keys, RECORDS, eager=eager))
        turns = [{mode: await _child(mode, store, turn, eager) for mode in MODES} for turn in range(RUNS)]
    floor, ours, snapshot = ([turn[mode].seconds for turn in turns] for mode in MODES)
    note = f"{RECORDS} records, {eager} of them eager; a process for each run"
    return [
        of_times(name, floor, ours, target="<= 2", note=note),
        of_times(f"{name}_snapshot", floor, snapshot, target="<= 2", note=note),
    ]


async def _child(mode: str, store: Store, turn: int, eager: int) -> Told:
    arguments = [mode, store.endpoint, DEFAULT_PREFIX, str(store.folder / f"state-{turn}")]
    command = [sys.executable, "-m", "bench.boot_child", *arguments]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(CHILD_SECONDS):
        output, log = await process.communicate()
    check(process.returncode == 0, f"the process for {mode!r} failed: {log.decode()}")
    told = Told(**json.loads(output))
    check(told.records == RECORDS, f"{mode}: {told.records} records were read instead of {RECORDS}")
    check(mode == "floor" or told.actions == eager, f"{mode}: the plan has {told.actions} actions")
    return told
