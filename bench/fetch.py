"""Fetching 200 MB from loopback into the store, verified and synced, beside a plain download to disk with sha256.

The source and each side are processes of their own. The floor opens a socket, reads, hashes, writes and syncs, as
anybody would who keeps a download; ours does all that goes between a record and a directory that an engine may read.
"""

from __future__ import annotations

from pathlib import Path

from bench.children import child
from bench.figures import Figure, check, of_times
from bench.weights import write_large_adapter

SIZE_BYTES = 200_000_000
ROUNDS = 5
MEMORY_LIMIT_BYTES = 100_000_000
SERVER = """
import sys, time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
class Quiet(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def do_GET(self):
        time.sleep(float(sys.argv[2]))
        super().do_GET()
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=sys.argv[1]))
print(server.server_port, flush=True)
server.serve_forever()
"""
_FLOOR = """
import hashlib, http.client, json, os, pathlib, re, sys, time
port, folder, rounds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
def download(name, target):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/a/" + name)
    answer = connection.getresponse()
    digest = hashlib.sha256()
    with open(target, "wb", buffering=0) as file:
        while chunk := answer.read(1 << 16):
            digest.update(chunk)
            file.write(chunk)
        os.fsync(file.fileno())
    connection.close()
for number in range(rounds):
    sys.stdin.readline()
    started = time.perf_counter()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        download(name, f"{folder}/{number}-{name}")
    seconds, used = time.perf_counter() - started, pathlib.Path("/proc/self/status").read_text()
    print(json.dumps([seconds, int(re.search(r"VmHWM:\\s+(\\d+)", used)[1]) * 1024]), flush=True)
    os.unlink(f"{folder}/{number}-adapter_model.safetensors")
"""
_OURS = """
import asyncio, json, pathlib, re, sys, time
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef
port, folder, rounds = int(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
url = f"http://127.0.0.1:{port}/a/"
for number in range(rounds):
    sys.stdin.readline()
    store = LocalStore(folder / str(number), "r", [url])
    started = time.perf_counter()
    staged = asyncio.run(store.ensure(ArtifactRef(url, None, pin_key="p/a@1")))
    seconds, used = time.perf_counter() - started, pathlib.Path("/proc/self/status").read_text()
    print(json.dumps([seconds, int(re.search(r"VmHWM:\\s+(\\d+)", used)[1]) * 1024]), flush=True)
    (pathlib.Path(staged.path) / "adapter_model.safetensors").unlink()
    store.close()
"""


async def fetch_200mb(folder: Path) -> list[Figure]:
    """A plain download and a staging, in turns."""
    written = write_large_adapter(folder / "served" / "a", SIZE_BYTES, 1)
    check(written.directory.is_dir(), "there is nothing to serve")
    for name in ("floor", "ours"):
        (folder / name).mkdir()
    async with child(SERVER, str(folder / "served"), "0") as server:
        port = (await server.line()).strip()
        async with (
            child(_FLOOR, port, str(folder / "floor"), str(ROUNDS)) as floor,
            child(_OURS, port, str(folder / "ours"), str(ROUNDS)) as ours,
        ):
            for _ in range(ROUNDS):
                await floor.round()
                await ours.round()
    told = f"ours {ours.peak_bytes / 1e6:.1f} MB at its peak, the plain download {floor.peak_bytes / 1e6:.1f} MB"
    return [
        of_times("fetch_200mb", floor.seconds, ours.seconds, target="<= 1.3", note="both are synced to the disk"),
        Figure("fetch_200mb_memory", ours.peak_bytes / MEMORY_LIMIT_BYTES, "< 1 of 100 MB", told),
    ]
