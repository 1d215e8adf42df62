"""The whole check of a 200 MB adapter, the numbers included, beside reading its weights once.

Both read from the page cache, where the weights are after they arrived. What is checked against is a base of its own
modules, so that every name and shape is looked up too.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from bench.children import child
from bench.figures import Figure, check, of_times
from bench.weights import write_large_adapter
from tests.support.adapters import write_adapter

SIZE_BYTES = 200_000_000
ROUNDS = 9
MEMORY_LIMIT_BYTES = 100_000_000
_MEASURED = """
    seconds, used = time.perf_counter() - started, pathlib.Path("/proc/self/status").read_text()
    print(json.dumps([seconds, int(re.search(r"VmHWM:\\s+(\\d+)", used)[1]) * 1024]), flush=True)
"""
_FLOOR = (
    """
import json, pathlib, re, sys, time
folder, rounds = pathlib.Path(sys.argv[1]), int(sys.argv[2])
for number in range(rounds):
    sys.stdin.readline()
    started = time.perf_counter()
    with (folder / "adapter_model.safetensors").open("rb", buffering=0) as file:
        while file.read(1 << 20):
            pass
"""
    + _MEASURED
)
_OURS = (
    """
import json, pathlib, re, sys, time
from registry.lora.base import BaseModules
from registry.lora.directory import examine_directory, open_directory
from registry.lora.tensor_names import entry_of
from registry.lora.policy import AdapterLimits, Policy
folder, rounds = pathlib.Path(sys.argv[1]), int(sys.argv[2])
shapes = {}
for tensor in open_directory(folder).header.tensors:
    entry = entry_of(tensor)
    sides = shapes.setdefault(entry.module, [0, 0])
    sides[entry.part == "lora_A"] = tensor.shape[entry.part == "lora_A"]
base = BaseModules({module: tuple(sides) for module, sides in shapes.items()})
for number in range(rounds):
    sys.stdin.readline()
    started = time.perf_counter()
    examine_directory(folder, base, AdapterLimits(512), Policy())
"""
    + _MEASURED
)


_SMALL = """
import json, pathlib, sys, time
from registry.lora.base import BaseModules
from registry.lora.directory import examine_directory
from registry.lora.policy import AdapterLimits, Policy
from registry.sources.base import Stop
from sidecar.artifacts.examiner import EXAMINER
folder, in_child = pathlib.Path(sys.argv[1]), sys.argv[2] == "child"
base = BaseModules({f"model.layers.{i}.self_attn.{name}_proj": (16, 16) for i in range(32) for name in "qkvo"})
while True:
    sys.stdin.readline()
    started = time.perf_counter()
    if in_child:
        EXAMINER.examine(folder, base, Policy(), Stop())
    else:
        examine_directory(folder, base, AdapterLimits(), Policy())
    print(json.dumps([time.perf_counter() - started, 0]), flush=True)
"""
SMALL_ROUNDS = 101
EXTRA_LIMIT_SECONDS = 0.01


async def check_in_child(folder: Path) -> list[Figure]:
    """What a small adapter pays for being examined in another process, after the first that starts it."""
    written = write_adapter(folder / "a", layers=32)
    async with (
        child(_SMALL, str(written.directory), "here") as here,
        child(_SMALL, str(written.directory), "child") as ours,
    ):
        for _ in range(SMALL_ROUNDS):
            await here.round()
            await ours.round()
    alone, whole = statistics.median(here.seconds[1:]), statistics.median(ours.seconds[1:])
    told = f"in the same process {alone * 1000:.2f} ms, in a child {whole * 1000:.2f} ms; n {SMALL_ROUNDS - 1}"
    return [Figure("check_in_child", (whole - alone) / EXTRA_LIMIT_SECONDS, "<= 1 of 10 ms more", told)]


async def check_200mb(folder: Path) -> list[Figure]:
    """Reading and checking, in turns, after one round of each that warms the page cache."""
    written = write_large_adapter(folder / "a", SIZE_BYTES, 1)
    check(written.directory.is_dir(), "there is nothing to check")
    arguments = (str(written.directory), str(ROUNDS))
    async with child(_FLOOR, *arguments) as floor, child(_OURS, *arguments) as ours:
        for _ in range(ROUNDS):
            await floor.round()
            await ours.round()
    told = f"ours {ours.peak_bytes / 1e6:.1f} MB at its peak, reading {floor.peak_bytes / 1e6:.1f} MB"
    return [
        of_times("check_200mb", floor.seconds[1:], ours.seconds[1:], target="< 1.5", note="from the page cache"),
        Figure("check_200mb_memory", ours.peak_bytes / MEMORY_LIMIT_BYTES, "< 1 of 100 MB", told),
    ]
