"""The floor of one replica, as a process: a bare watch and a bare load call.

A value is the JSON of `Order`. With a `source` its files are first copied into DIR, hashed and synced.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path

import grpc
import httpx

from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.codec import WATCH
from registry.etcd3.ops import prefix_end

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Order:
    """What to load: the adapter in `path`, or a copy of `source`. `filler` makes it as long as a real record."""

    name: str
    path: str = ""
    source: str = ""
    filler: str = ""


def copied(source: Path, target: Path) -> Path:
    """A copy that is hashed and synced, file by file, and nothing more."""
    target.mkdir()
    for file in source.iterdir():
        digest = hashlib.sha256()
        with file.open("rb", buffering=0) as read, (target / file.name).open("wb", buffering=0) as written:
            while chunk := read.read(CHUNK_BYTES):
                written.write(chunk)
                digest.update(chunk)
            os.fsync(written.fileno())
    return target


def _requests(prefix: bytes) -> Iterator[rpc.WatchRequest]:
    create = rpc.WatchCreateRequest(key=prefix, range_end=prefix_end(prefix))
    yield rpc.WatchRequest(create_request=create)


def run(endpoint: str, prefix: bytes, url: str, folder: Path, is_ready: Event) -> None:
    """Loads what is ordered until it is killed; sets the event once the watch stands."""
    with grpc.insecure_channel(endpoint) as channel, httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        call = channel.stream_stream(WATCH.path, WATCH.request.SerializeToString, WATCH.response.FromString)
        for response in call(_requests(prefix)):
            if response.created:
                is_ready.set()
            for event in response.events:
                order = Order(**json.loads(event.kv.value))
                path = copied(Path(order.source), folder / order.name) if order.source else Path(order.path)
                body = {"lora_name": order.name, "lora_path": str(path)}
                client.post("/v1/load_lora_adapter", json=body).raise_for_status()
