"""One thousand small adapters from a source of another host, beside plain downloads of the same files with sha256.

The source and each side are processes of their own. Both sides load as many adapters at once as a sidecar does. The
floor keeps a connection for each of them, hashes, writes and syncs each file, and gives the directory its name by a
rename that is synced too. What the source takes of the time, asked for the same files by somebody who throws them away,
is told beside.

A source of another machine takes time to answer: object stores document single digits to 200 ms to the first byte. So
the same is measured with one that answers after 10 ms: a fast one, since a slower one hides more of what we take.
"""

from __future__ import annotations

from pathlib import Path

from bench.children import child
from bench.fetch import SERVER
from bench.figures import Figure, of_times, percentile
from sidecar.artifacts.staging import QUICK_SLOTS
from tests.support.adapters import write_adapter

COUNT, ROUNDS = 1000, 10
_PLAIN = """
import hashlib, http.client, json, os, sys, time
from concurrent.futures import ThreadPoolExecutor
port, folder, count, rounds, slots, kept = int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:7])
def sync(directory):
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)
def download(connection, number):
    place = f"{folder}/{number}"
    if kept:
        os.mkdir(place + ".new")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        connection.request("GET", f"/a{number}/{name}")
        content = connection.getresponse().read()
        if kept:
            hashlib.sha256(content).hexdigest()
            with open(f"{place}.new/{name}", "wb", buffering=0) as file:
                file.write(content)
                os.fsync(file.fileno())
    if kept:
        sync(place + ".new")
        os.rename(place + ".new", place)
        sync(folder)
def some(numbers):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for number in numbers:
        download(connection, number)
    connection.close()
with ThreadPoolExecutor(slots) as workers:
    for turn in range(rounds):
        sys.stdin.readline()
        started = time.perf_counter()
        numbers = range(turn * count // rounds, (turn + 1) * count // rounds)
        list(workers.map(some, [numbers[slot::slots] for slot in range(slots)]))
        print(json.dumps([time.perf_counter() - started, 0]), flush=True)
"""
_OURS = """
import asyncio, json, pathlib, sys, time
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef
port, folder, digests, rounds, slots = sys.argv[1], sys.argv[2], json.load(open(sys.argv[3])), *map(int, sys.argv[4:6])
url = f"http://127.0.0.1:{port}/"
store = LocalStore(pathlib.Path(folder), "r", [url])
async def stage(numbers):
    free = asyncio.Semaphore(slots)
    async def one(number):
        async with free:
            await store.ensure(ArtifactRef(f"{url}a{number}/", digests[number]))
    await asyncio.gather(*map(one, numbers))
async def all_turns():
    for turn in range(rounds):
        sys.stdin.readline()
        started = time.perf_counter()
        await stage(range(turn * len(digests) // rounds, (turn + 1) * len(digests) // rounds))
        print(json.dumps([time.perf_counter() - started, 0]), flush=True)
asyncio.run(all_turns())
"""


async def small_1000(folder: Path) -> list[Figure]:
    """In turns of a hundred: thrown away, plainly kept, staged."""
    return [await _measured("small_1000", folder, 0.0, target="")]


async def small_1000_10ms(folder: Path) -> list[Figure]:
    """The same, from a source that answers each request after 10 ms."""
    return [await _measured("small_1000_10ms", folder, 0.01, target="<= 1.3")]


async def _measured(name: str, folder: Path, delay_seconds: float, target: str) -> Figure:
    served, digests = folder / "served", folder / "digests.json"
    written = [write_adapter(served / f"a{number}", seed=number).digest for number in range(COUNT)]
    digests.write_text("[" + ",".join(f'"{digest}"' for digest in written) + "]")
    (folder / "floor").mkdir()
    numbers = (str(COUNT), str(ROUNDS), str(QUICK_SLOTS))
    async with child(SERVER, str(served), str(delay_seconds)) as server:
        port = (await server.line()).strip()
        async with (
            child(_PLAIN, port, str(folder / "floor"), *numbers, "0") as source,
            child(_PLAIN, port, str(folder / "floor"), *numbers, "1") as floor,
            child(_OURS, port, str(folder / "ours"), str(digests), *numbers[1:]) as ours,
        ):
            for _ in range(ROUNDS):
                for each in (source, floor, ours):
                    await each.round()
    alone = percentile(source.seconds, 0.5) / percentile(floor.seconds, 0.5)
    note = f"{COUNT // ROUNDS} adapters a turn; the source alone takes {alone:.2f} of the floor"
    return of_times(name, floor.seconds, ours.seconds, target=target, note=note)
