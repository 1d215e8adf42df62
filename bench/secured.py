"""Access control and TLS beside the same without: changes a second, and from a change to the engines.

Both sides are our own programs, and take turns. The plain side has neither TLS, nor an access file, nor users of etcd.
`secured_writes` compares two admin services before one etcd, of which one has TLS, clients' certificates and an access
file with 200 bindings. `secured_propagation` compares two fleets: the etcd of one has TLS too, and knows each program
by its certificate.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import grpc

from bench.admin_rate import DIGEST, Rates, uri_of
from bench.admin_service import Admin
from bench.engines import Engines, engines
from bench.etcd import etcd
from bench.figures import Figure, of_times
from bench.propagation import SMALL_BYTES, WARM_UP
from bench.weights import write_large_adapter
from registry.access.etcd_users import ADMIN, replica_user
from registry.etcd3.options import TlsFiles
from registry.etcd3.tls import TlsReader
from registry.model.keys import Keys
from registry.tools.devstack.processes import free_ports
from tests.support.etcd import Cluster, make_cluster, running_etcd
from tests.support.fleet import POOL, Sidecar
from tests.support.processes import Program
from tests.support.tls import Authority, server_flags
from tests.support.waiting import eventually

CALLERS, TURNS = 16, 6
CHANGES = 60
REPLICAS = ("r0", "r1")
BINDINGS = 200


@asynccontextmanager
async def _admin(folder: Path, members: Sequence[str], authority: Authority | None, *more: str) -> AsyncIterator[Admin]:
    """An admin service with TLS and roles, or without; the caller's binding is the last but one."""
    grpc_port, http_port = free_ports(2)
    address = f"127.0.0.1:{grpc_port}"
    flags = ["--etcd", ",".join(members), "--listen", address, "--http", f"127.0.0.1:{http_port}", *more]
    credentials = None
    if authority is not None:
        server, ours = authority.issue("server"), authority.issue("ann")
        flags += ["--tls-cert", str(server.certificate), "--tls-key", str(server.key), "--tls-ca", str(server.ca)]
        flags += ["--access", str(_access_file(folder))]
        credentials = grpc.ssl_channel_credentials(*TlsReader(ours, print).newest())
    program = Program("registry.admin.main", flags, folder / "admin.log")
    program.start()
    try:
        async with _channel(address, credentials) as channel:
            calls = Admin(channel, program.pid, address, f"http://127.0.0.1:{http_port}")
            await eventually(calls.create_pool)
            yield calls
    finally:
        program.stop()


def _make(*folders: Path) -> None:
    for one in folders:
        one.mkdir(parents=True)


def _channel(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(address)
    return grpc.aio.secure_channel(address, credentials)


def _access_file(folder: Path) -> Path:
    others = [
        {"role": "publisher", "users": [f"user-{n}"], "tenants": [f"tenant-{n}"], "credentials": ["*"]}
        for n in range(BINDINGS - 3)
    ]
    ours = [
        {"role": "pool-operator", "users": ["ann"]},
        {"role": "publisher", "users": ["ann"], "tenants": ["*"], "sources": ["file:///"]},
        {"role": "security", "users": ["root"]},
    ]
    whole = {
        "apiVersion": "loraplane/v1",
        "kind": "Access",
        "authentication": {"certificateNames": ["commonName"]},
        "bindings": [*others, *ours],
    }
    file = folder / "access.yaml"
    file.write_text(json.dumps(whole))
    return file


async def secured_writes(folder: Path) -> list[Figure]:
    """Changes a second of 16 callers, with and without."""
    _make(folder / "plain", folder / "secured")
    authority, numbers = Authority(folder / "authority", "ours"), count(1)
    async with (
        etcd(folder, fsync=True) as store,
        _admin(folder / "plain", (store.endpoint,), None) as plain,
        _admin(folder / "secured", (store.endpoint,), authority) as secured,
    ):
        rates = {plain: Rates(), secured: Rates()}

        async def turn(side: Admin, into: Rates) -> None:
            async def once(caller: int) -> None:
                name = f"tenant-{caller}/adapter-{next(numbers)}"
                await side.upsert(name, uri_of(name), DIGEST)

            await into.turn_of(side.pid, CALLERS, once)

        for side in rates:
            await turn(side, Rates())
        for _ in range(TURNS):
            for side, into in rates.items():
                await turn(side, into)
    floor, ours = rates.values()
    ratio = statistics.median(ours.per_second) / statistics.median(floor.per_second)
    told = f"plain {floor.told()}, {floor.told_cpu()}; secured {ours.told()}, {ours.told_cpu()}; {BINDINGS} bindings"
    return [Figure("secured_writes", ratio, ">= 0.9", told)]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Two replicas, their etcd and admin service."""

    admin: Admin
    engines: Engines

    async def change(self, name: str, uri: str, digest: str) -> float:
        """Seconds from the reply to a change until both engines were called."""
        await asyncio.sleep(0.15)
        await self.admin.upsert(name, uri, digest)
        answered = time.monotonic()
        return max(await self.engines.received("load", [name])) - answered


@asynccontextmanager
async def _fleet(folder: Path, sources: Path, authority: Authority | None) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(_etcd(folder / "etcd", authority))

        def login(user: str) -> Sequence[str]:
            return () if authority is None else _flags(authority.issue(user))

        calls = await stack.enter_async_context(_admin(folder, cluster.endpoints, authority, *login(ADMIN)))
        hosted = await stack.enter_async_context(engines(len(REPLICAS)))
        for name, url in zip(REPLICAS, hosted.urls, strict=True):
            extra = login(replica_user(POOL, name))
            etcd_at, store = tuple(cluster.endpoints), folder / f"store-{name}"
            sidecar = Sidecar(
                folder, etcd_at, Keys().prefix, url, replica=name, store=store, sources=sources, extra=extra
            )
            stack.callback(sidecar.program.kill)
            sidecar.program.start()
            await eventually(sidecar.is_ready)
        yield Fleet(calls, hosted)


@asynccontextmanager
async def _etcd(folder: Path, authority: Authority | None) -> AsyncIterator[Cluster]:
    root = authority.issue("root") if authority else None
    server = server_flags(authority.issue("etcd"), client_certificates=True) if authority else {}
    async with running_etcd(make_cluster(folder, flags=server, tls=root)) as cluster:
        if root is not None:
            await _give_users(cluster, root)
        yield cluster


async def _give_users(cluster: Cluster, root: TlsFiles) -> None:
    reach = ["--etcd", ",".join(cluster.endpoints), *_flags(root)]
    replicas = [word for name in REPLICAS for word in ("--replica", f"{POOL}/{name}")]
    for words in (["apply", *replicas], ["enable"]):
        line = [sys.executable, "-m", "registry.cli.main", "etcd-access", *words, *reach]
        await asyncio.to_thread(subprocess.run, line, check=True, capture_output=True)


def _flags(files: TlsFiles) -> Sequence[str]:
    named = (("ca", files.ca), ("cert", files.certificate), ("key", files.key))
    return [word for name, file in named for word in (f"--etcd-tls-{name}", str(file))]


async def secured_propagation(folder: Path) -> list[Figure]:
    """From the reply to a change until both engines were called, with and without."""
    sources = folder / "sources"
    _make(folder / "plain", folder / "secured")
    adapter = write_large_adapter(sources / "staged", SMALL_BYTES, 0)
    authority = Authority(folder / "authority", "ours")
    floor, ours = list[float](), list[float]()
    async with _fleet(folder / "plain", sources, None) as plain, _fleet(folder / "secured", sources, authority) as own:
        for number in range(WARM_UP + CHANGES):
            for fleet, times in ((plain, floor), (own, ours)):
                times.append(await fleet.change(f"a-{number}", adapter.uri, adapter.digest))
    note = "etcd with TLS and users, API with TLS and roles; 2 sidecar processes each"
    return [of_times("secured_propagation", floor[WARM_UP:], ours[WARM_UP:], target="<= 1.1", note=note)]
