"""A whole installation in pods, from the chart as it is rendered, and who publishes to it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import yaml

from loraplane import AsyncRegistry, Tls
from registry.etcd3.options import TlsFiles
from registry.tools.devstack.engine_environment import plugin_folder
from registry.tools.devstack.tiny_adapters import write_adapter
from registry.v1 import registry_pb2 as pb
from registry.v1 import registry_pb2_grpc
from tests.support.manifests import DEPLOY, Manifest, documents, rendered
from tests.support.pods.cluster import Cluster
from tests.support.pods.images import Image, ours
from tests.support.pods.kubelet import Pod
from tests.support.tls import Authority
from tests.support.waiting import eventually

POOL = "main"
# Two real engines that start at once, on a busy machine.
_START_SECONDS = 600
_OPERATOR = "operator.example"
# Shorter than the chart's: callers here are done within a second, and nothing else looks at Services.
_SHORT = {"sidecar": {"handOverSeconds": 10}, "engine": {"routerSeconds": 3, "requestSeconds": 20, "startSeconds": 300}}


def values_of(sources: Path, *, replicas: int) -> dict[str, Any]:
    """Values for tests: adapters lie in a folder of the nodes, at the same path in the sidecar."""
    mount = {"name": "sources", "mountPath": str(sources), "readOnly": True}
    volume = {"name": "sources", "hostPath": {"path": str(sources), "type": "Directory"}}
    sidecar = {**_SHORT["sidecar"], "allowSource": [f"file://{sources}/"], "extraVolumeMounts": [mount]}
    return {"sidecar": sidecar, "engine": _SHORT["engine"], "replicas": {"count": replicas, "extraVolumes": [volume]}}


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Values laid over others, as helm does it."""
    deep = {
        key: merged(one[key], value)
        for key, value in other.items()
        if isinstance(value, dict) and isinstance(one.get(key), dict)
    }
    return {**one, **other, **deep}


def secret(name: str, **entries: bytes) -> Manifest:
    """A Secret; `_` in a key stands for a dot."""
    data = {key.replace("_", "."): base64.b64encode(content).decode() for key, content in entries.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


def tls_secret(name: str, files: TlsFiles) -> Manifest:
    """A Secret as cert-manager makes one."""
    assert files.ca
    assert files.certificate
    assert files.key
    ca, certificate, key = (one.read_bytes() for one in (files.ca, files.certificate, files.key))
    return secret(name, ca_crt=ca, tls_crt=certificate, tls_key=key)


@dataclass
class PodFleet:
    """What runs, and a connection to it."""

    cluster: Cluster
    registry: AsyncRegistry
    channel: grpc.aio.Channel
    sources: Path

    def version(self, adapter: str, number: int) -> Path:
        """Files of a version of an adapter; each has a place of its own."""
        folder = self.sources / adapter / str(number)
        if not folder.exists():
            write_adapter(folder, seed=f"{adapter} {number}")
        return folder

    async def place(self, adapter: str, number: int, replicas: int = 0) -> None:
        """Declares a version, on so many replicas (0: on all), and waits until it is served."""
        source = pb.Source(uri=self.version(adapter, number).as_uri())
        spec = pb.AdapterSpec(source=source, placement=pb.Placement(replicas=replicas) if replicas else None)
        change = pb.AdapterChange(upsert=pb.Adapter(name=adapter, spec=spec))
        stub = registry_pb2_grpc.AdapterRegistryStub(self.channel)  # type: ignore[no-untyped-call]
        await stub.ApplyAdapters(pb.ApplyAdaptersRequest(pool=POOL, changes=[change]))
        await self.registry.wait(await self.registry.get(adapter, POOL), timeout_seconds=_START_SECONDS)

    async def settled(self, workload: str = "replica", seconds: float = _START_SECONDS) -> None:
        """Waits until a workload is as declared."""
        await asyncio.sleep(0.3)  # controllers have seen what was declared last
        await eventually(lambda: self.cluster.is_settled(workload), timeout_seconds=seconds, every_seconds=0.1)


@asynccontextmanager
async def trial(
    folder: Path, engine: Image, *, replicas: int, change: Callable[[list[Manifest]], None] = lambda _: None
) -> AsyncIterator[PodFleet]:
    """The chart as deploy/examples/helm/trial.yaml has it: one etcd, nothing protected. `change`: of its manifests."""
    sources = folder / "sources"
    values = folder / "values.yaml"
    sources.mkdir()
    values.write_text(yaml.safe_dump(values_of(sources, replicas=replicas)))
    manifests = rendered(DEPLOY / "examples/helm/trial.yaml", values)
    change(manifests)
    async with _cluster(folder, engine) as cluster:
        cluster.apply(*manifests)
        async with _connected(cluster, sources, None) as fleet:
            yield fleet


@asynccontextmanager
async def production(folder: Path, engine: Image, more: Mapping[str, Any], *, replicas: int) -> AsyncIterator[PodFleet]:
    """The chart with TLS everywhere, roles and tokens, on deploy/examples/etcd with three members."""
    sources, values = folder / "sources", folder / "values.yaml"
    sources.mkdir()
    roles = [{"role": role, "users": [_OPERATOR]} for role in ("security", "pool-operator")]
    publisher = {"role": "publisher", "users": [_OPERATOR], "tenants": ["*"], "pools": ["*"]}
    bindings = [*roles, {**publisher, "sources": [f"file://{sources}/"]}]
    policy = {"apiVersion": "loraplane/v1", "kind": "Access", "bindings": bindings}
    own = {
        "etcd": {
            "endpoints": [f"etcd-{one}.etcd:2379" for one in range(3)],
            "tlsSecretName": "etcd-client",
            "maxTxnOps": 1024,
        },
        "admin": {"tlsSecretName": "api", "http": {"tlsSecretName": "api"}, "access": {"policy": policy}},
        "sidecar": {"controlTokenSecretName": "control", "http": {"tlsSecretName": "api", "tokenSecretName": "scrape"}},
    }
    values.write_text(yaml.safe_dump(merged(merged(values_of(sources, replicas=replicas), own), more)))
    async with _cluster(folder, engine) as cluster:
        operator = _secrets(folder / "tls", cluster)
        cluster.apply(*documents((DEPLOY / "examples/etcd/etcd.yaml").read_text()), *rendered(values))
        async with _connected(cluster, sources, operator) as fleet:
            yield fleet


def _secrets(folder: Path, cluster: Cluster) -> Tls:
    """Makes all Secrets; gives what an operator shows."""
    authority, peers = Authority(folder / "all", "all"), Authority(folder / "peers", "peers")
    members = ",".join(f"DNS:etcd-{one}.etcd" for one in range(3))
    addresses = ",".join(f"IP:{one}" for one in cluster.addresses())
    cluster.apply(
        tls_secret("etcd-peer", peers.issue("peer", host=members)),
        tls_secret("etcd-server", authority.issue("etcd", host=f"{members},IP:127.0.0.1")),
        tls_secret("etcd-client", authority.issue("client", host="DNS:client")),
        tls_secret("api", authority.issue("api", host=addresses)),
        secret("control", token=b"of-the-pod\n"),
        secret("scrape", token=b"of-prometheus\n"),
    )
    shown = authority.issue("operator", host=f"DNS:{_OPERATOR}")
    return Tls(ca=shown.ca, cert=shown.certificate, key=shown.key)


@asynccontextmanager
async def _cluster(folder: Path, engine: Image) -> AsyncIterator[Cluster]:
    images = ours(plugin_folder(folder / "plugin"), engine)
    async with Cluster(folder / "cluster", images, [f"node-{one}" for one in range(1, 8)]) as cluster:
        yield cluster


@asynccontextmanager
async def _connected(cluster: Cluster, sources: Path, tls: Tls | None) -> AsyncIterator[PodFleet]:
    """Waits for the admin services, makes the pool, and waits for replicas."""
    await eventually(lambda: cluster.is_settled("admin"), timeout_seconds=_START_SECONDS, every_seconds=0.1)
    address = f"{cluster.pods_of('admin')[0].address}:7600"
    async with AsyncRegistry(address, tls=tls) as registry, _channel(address, tls) as channel:
        fleet = PodFleet(cluster, registry, channel, sources)
        await _make_pool(cluster.pods_of("admin")[0], "unix:/run/loraplane/admin.sock" if tls else "127.0.0.1:7600")
        await fleet.settled()
        yield fleet


async def _make_pool(pod: Pod, admin: str) -> None:
    """As the chart's notes say, by the command line in a pod; with an access file by the socket there."""
    command = ["python", "-m", "registry.cli.main", "--admin", admin, "pool", "create", POOL, "--base-model", "base"]
    code = await pod.containers["admin"].execute(command, 60)
    assert code == 0, pod.containers["admin"].log.read_text()[-2000:]


def _channel(address: str, tls: Tls | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address)
    files = (Path(str(one)).read_bytes() for one in (tls.ca, tls.key, tls.cert))
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(*files))
