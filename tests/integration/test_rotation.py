"""Every certificate, key, token and password is exchanged while calls run: none fails, and no change is missed.

One etcd asks everybody for a certificate, and knows some by their password and others by the name in it: of two admin
services and of two sidecars one each. Connections to it are cut after each exchange, so that all are made anew.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from loraplane import AsyncRegistry, AuditEntry, Published, Tls, TokenFile
from registry.access import tokens
from registry.access.etcd_users import ADMIN, replica_user
from registry.admin import server
from registry.admin.server import RunningServer, running
from registry.admin.settings import AdminSettings
from registry.etcd3.options import TlsFiles
from registry.model.errors import RegistryError
from registry.model.keys import Keys
from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from tests.support.adapters import write_adapter
from tests.support.etcd import Cluster, make_cluster, running_etcd
from tests.support.fleet import BASE, POOL, Sidecar
from tests.support.proxy import Proxy
from tests.support.ran import ran
from tests.support.tls import Authority, server_flags
from tests.support.waiting import eventually

# Of all exchanges; the nightly run plays more.
ROUNDS = int(os.environ.get("LORAPLANE_TEST_ROTATIONS", "1"))
# Of the calls that run all the time; the other pool has replicas.
ALICE, JOB, LAST = "spiffe://ops.example/alice", "ci:job", "alice/last"
BUSY, DIGEST = "busy", "sha256:" + "0" * 64
# Common name and host of each certificate, by its owner. The first are of the authority that is exchanged.
SERVERS = {
    "api": ("api", "IP:127.0.0.1"),
    "alice": ("alice", f"URI:{ALICE}"),
    "etcd": ("etcd", "IP:127.0.0.1"),
}
ETCD_CLIENTS = {
    "root": ("root", "DNS:root"),
    "unnamed": ("unnamed", "DNS:unnamed"),  # of those who have a password
    "admin": (ADMIN, "DNS:admin"),
    "r2": (replica_user(POOL, "r2"), "DNS:r2"),
}
ACCESS = """apiVersion: loraplane/v1
kind: Access
authentication:
  trustDomains: [ops.example]
  issuers: [{{issuer: https://ci, audiences: [loraplane], prefix: "ci:", algorithms: [ES256], jwks: {jwks}}}]
bindings:
  - {{role: security, users: [spiffe://ops.example/alice]}}
  - {{role: pool-operator, users: [spiffe://ops.example/alice]}}
  - {{role: publisher, users: [spiffe://ops.example/alice, "ci:job"], tenants: ["*"]}}
  - {{role: auditor, users: [spiffe://ops.example/alice, "ci:job"], tenants: ["*"]}}
"""
pytestmark = pytest.mark.timeout(300 + 60 * ROUNDS)


def replace(target: Path, *sources: Path) -> None:
    """Puts what these files hold, one after another, in the place of a file."""
    written = target.with_name(f"{target.name}.new")
    written.write_bytes(b"".join(one.read_bytes() for one in sources))
    written.replace(target)


@dataclass
class Secrets:
    """Files of everybody in a folder, of which each may be exchanged."""

    root: Path
    authorities: list[Authority] = field(default_factory=list)
    keys: list[tuple[str, ec.EllipticCurvePrivateKey]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root.mkdir()
        # etcd reads the authority of its clients at its start alone.
        self.of_clients = Authority(self.root / "clients", "clients of etcd")
        self.new_authority()
        for owner in (*SERVERS, *ETCD_CLIENTS):
            (self.root / owner).mkdir()
            self.new_certificate(owner)
        self.new_key()
        self.new_token()
        (self.root / "access.yaml").write_text(ACCESS.format(jwks=self.root / "jwks"))

    def files(self, owner: str) -> TlsFiles:
        folder = self.root / owner
        return TlsFiles(self.root / "ca", folder / "certificate", folder / "key")

    def new_authority(self) -> None:
        """One more, beside those that there are."""
        number = len(self.authorities)
        self.authorities.append(Authority(self.root / f"authority-{time.monotonic_ns()}", f"authority {number}"))
        self.believe(*self.authorities)

    def believe(self, *authorities: Authority) -> None:
        self.authorities = [*authorities]
        replace(self.root / "ca", *(one.certificate for one in authorities))

    def new_certificate(self, owner: str) -> None:
        """A new one with its key: as two files, one after the other."""
        authority = self.authorities[-1] if owner in SERVERS else self.of_clients
        name, host = (SERVERS | ETCD_CLIENTS)[owner]
        made, files = authority.issue(name, host=host), self.files(owner)
        for target, source in ((files.certificate, made.certificate), (files.key, made.key)):
            assert target is not None
            assert source is not None
            replace(target, source)

    def new_key(self) -> None:
        """One more key of the issuer of tokens; the newest two count."""
        self.keys = [*self.keys, (f"k{time.monotonic_ns()}", ec.generate_private_key(ec.SECP256R1()))][-2:]
        whole = [
            {**jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": name, "alg": "ES256"}
            for name, key in self.keys
        ]
        (self.root / "jwks.new").write_text(json.dumps({"keys": whole}))
        (self.root / "jwks.new").replace(self.root / "jwks")

    def new_token(self) -> None:
        name, key = self.keys[-1]
        claims = {"iss": "https://ci", "aud": "loraplane", "sub": "job", "exp": time.time() + 600}
        (self.root / "token.new").write_text(jwt.encode(claims, key, "ES256", headers={"kid": name}))
        (self.root / "token.new").replace(self.root / "token")


@dataclass
class Load:
    """Calls that run all the time, what they changed (principal, name, kind of change), and what went wrong."""

    calls: int = 0
    changes: list[tuple[str, str, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    is_over: bool = False

    async def keep(self, registry: AsyncRegistry, principal: str, tenant: str) -> None:
        """Publishes, reads and withdraws one adapter after another; the last one stays."""
        number = 0
        while not self.is_over:
            name = f"{tenant}/a{number}"
            await self.publish(registry, principal, name)
            await self._call(registry.get(name, BUSY))
            if number:
                await self._call(registry.withdraw(f"{tenant}/a{number - 1}", BUSY))
                self.changes.append((principal, f"{tenant}/a{number - 1}", "deleted"))
            number += 1

    async def publish(self, registry: AsyncRegistry, principal: str, name: str) -> None:
        await self._call(registry.publish("s3://b/x", name, BUSY, digest=DIGEST, wait=False))
        self.changes.append((principal, name, "created"))

    async def _call(self, call: Awaitable[object]) -> None:
        self.calls += 1
        try:
            await call
        except (RegistryError, OSError) as error:
            self.failures.append(f"{type(error).__name__}: {error}")

    async def until_more(self) -> None:
        """Waits until some more calls were made."""
        enough = self.calls + 15

        async def made() -> bool:
            return self.calls >= enough

        await eventually(made)


def etcd_flags(files: TlsFiles) -> tuple[str, ...]:
    """Flags of TLS to etcd, of all our programs."""
    return "--etcd-tls-ca", str(files.ca), "--etcd-tls-cert", str(files.certificate), "--etcd-tls-key", str(files.key)


@dataclass
class World:
    """An etcd as everybody is told it, behind `proxy`, and who works on it."""

    secrets: Secrets
    cluster: Cluster
    proxy: Proxy
    folder: Path

    def password(self, user: str) -> Path:
        return self.secrets.root / "passwords" / user.replace("/", "%2F")

    async def etcd_access(self, *words: str) -> None:
        """Runs a command of `loraplane etcd-access` as root, who has a certificate."""
        target = ("--etcd", ",".join(self.cluster.endpoints), *etcd_flags(self.secrets.files("root")))
        line = ["etcd-access", *words, *target, "--password-dir", str(self.secrets.root / "passwords")]
        done = await asyncio.to_thread(ran, *line)
        assert done.code == 0, done.err

    async def apply(self) -> None:
        """Gives whoever has no password file a new one."""
        await self.etcd_access("apply", *(word for name in ("r1", "r2") for word in ("--replica", f"{POOL}/{name}")))

    def admin(self, **who: object) -> AbstractAsyncContextManager[RunningServer]:
        """An admin service with TLS and tokens, which etcd knows so."""
        api, free = self.secrets.files("api"), "127.0.0.1:0"
        settings = {
            "etcd": self.proxy.endpoint,
            "listen": free,
            "http": free,
            "tls_ca": api.ca,
            "tls_cert": api.certificate,
            "tls_key": api.key,
            "token_listen": free,
            "access": self.secrets.root / "access.yaml",
        }
        return running(AdminSettings.model_validate(settings | who), drain_seconds=0)

    def sidecar(self, replica: str, engine: str, *who: str) -> Sidecar:
        """A sidecar that etcd knows so."""
        etcd, sources = (self.proxy.endpoint,), self.folder / "sources"
        return Sidecar(self.folder / replica, etcd, Keys().prefix, engine, replica=replica, sources=sources, extra=who)


@asynccontextmanager
async def secure_etcd(folder: Path) -> AsyncIterator[World]:
    """An etcd with TLS that asks for certificates and users."""
    secrets = Secrets(folder / "secrets")
    server = secrets.files("etcd")
    server = TlsFiles(secrets.of_clients.certificate, server.certificate, server.key)
    flags = server_flags(server, client_certificates=True)
    own = running_etcd(make_cluster(folder / "etcd-data", flags=flags, tls=secrets.files("root")))
    async with own as cluster, Proxy(cluster.members[0].client_port) as proxy:
        world = World(secrets, cluster, proxy, folder)
        await world.apply()
        await world.etcd_access("enable")
        yield world


@dataclass
class Fleet:
    """Two admin services, the clients of each, and two replicas: etcd knows the second ones by certificates."""

    alice: AsyncRegistry
    job: AsyncRegistry
    engines: dict[str, SimulatedVllm]

    async def is_known(self) -> bool:
        return len((await self.alice.replicas(POOL)).replicas) == len(self.engines)


@asynccontextmanager
async def fleet_of(world: World) -> AsyncIterator[Fleet]:
    """All that works on an etcd."""
    unnamed, admin, r2 = map(world.secrets.files, ("unnamed", "admin", "r2"))
    own, token = world.secrets.files("alice"), TokenFile(world.secrets.root / "token")
    user = replica_user(POOL, "r1")
    replicas = {
        "r1": (*etcd_flags(unnamed), "--etcd-user", user, "--etcd-password-file", str(world.password(user))),
        "r2": etcd_flags(r2),
    }
    engines = {name: SimulatedVllm(Options(served_model_name=BASE)) for name in replicas}
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        for name, who in replicas.items():
            sidecar = world.sidecar(name, await enter(serving(engines[name])), *who)
            # In a thread, so that the engines here see their connections end.
            stack.push_async_callback(asyncio.to_thread, sidecar.program.kill)
            sidecar.program.start()
        login = {"etcd_user": ADMIN, "etcd_password_file": world.password(ADMIN)}
        first = await enter(world.admin(**login, **_settings(unnamed)))
        second = await enter(world.admin(**_settings(admin)))
        tls = Tls(own.ca, own.certificate, own.key)
        alice = await enter(AsyncRegistry(f"127.0.0.1:{first.grpc_port}", tls=tls))
        job = await enter(AsyncRegistry(f"127.0.0.1:{second.token_port}", tls=Tls(own.ca), token=token))
        yield Fleet(alice, job, engines)


def _settings(files: TlsFiles) -> dict[str, object]:
    return {"etcd_tls_ca": files.ca, "etcd_tls_cert": files.certificate, "etcd_tls_key": files.key}


@dataclass
class Versions:
    """One adapter, published again and again; each time each replica has to take it."""

    world: World
    fleet: Fleet
    load: Load
    published: list[Published] = field(default_factory=list)

    async def next(self) -> None:
        """Publishes one more, and waits until both replicas serve it."""
        folder = self.world.folder / "sources" / str(len(self.published))
        write_adapter(folder, seed=len(self.published))
        made = await self.fleet.alice.publish(folder, "alice/v", POOL, timeout_seconds=60)
        assert made.generation == len(self.published) + 1
        assert len(made.engine_urls) == len(self.fleet.engines)
        kind = "updated" if self.published else "created"
        self.load.changes.append((ALICE, "alice/v", kind))
        self.published.append(made)

    def taken(self, replica: str) -> list[str]:
        """Changes for which an engine was told to load it, in turn."""
        calls = self.fleet.engines[replica].calls
        return [one.request_id for one in calls if (one.kind, one.name) == ("load", "alice/v")]


async def test_all_is_exchanged_under_load(tmp_path, monkeypatch):
    """A6 rotates: no call fails, each change is told once, and each replica takes each generation once."""
    monkeypatch.setattr(server, "CONNECTION_AGE_SECONDS", 0.5)
    monkeypatch.setattr(tokens, "PAUSE_SECONDS", 0.1)  # between two looks for a key that is not known
    load = Load()
    async with secure_etcd(tmp_path) as world, fleet_of(world) as fleet:
        versions = Versions(world, fleet, load)
        for pool in (BUSY, POOL):
            await fleet.alice.create_pool(pool, [BASE])
        await eventually(fleet.is_known)
        async with asyncio.TaskGroup() as tasks:
            known = tasks.create_task(_followed(fleet.job))
            told = [tasks.create_task(_audited(registry)) for registry in (fleet.alice, fleet.job)]
            await _exchange_under_load(world, fleet, load, versions)
        assert Counter(load.failures) == {}
        assert load.calls > 100 * ROUNDS
        listing = await fleet.alice.list(BUSY)
        assert known.result() == sorted(one.name for one in listing.adapters)
        for each in told:
            _check_told(each.result(), load.changes)
        wanted = [one.request_id for one in versions.published]
        assert {name: versions.taken(name) for name in fleet.engines} == dict.fromkeys(fleet.engines, wanted)


async def _exchange_under_load(world: World, fleet: Fleet, load: Load, versions: Versions) -> None:
    await versions.next()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.keep(fleet.alice, ALICE, "alice"))
        tasks.create_task(load.keep(fleet.job, JOB, "job"))
        await load.until_more()
        for _ in range(ROUNDS):
            await _exchange_all(world, load, versions)
        load.is_over = True
    await load.publish(fleet.alice, ALICE, LAST)


def _check_told(entries: list[AuditEntry], changes: list[tuple[str, str, str]]) -> None:
    """All that was changed was told, and once; nothing was refused."""
    revisions = [one.revision for one in entries]
    assert revisions == sorted(set(revisions))
    assert [one for one in entries if one.denial] == []
    told = [(entry.principal, one.name, one.action) for entry in entries for one in entry.changes]
    assert Counter(one for one in told if "/" in one[1]) == Counter(changes)


async def _audited(registry: AsyncRegistry) -> list[AuditEntry]:
    """What the audit tells one who watches from the first change to the last."""
    entries: list[AuditEntry] = []
    async with aclosing(registry.watch_audit(start_revision=1)) as told:
        async for entry in told:
            entries.append(entry)
            if any(one.name == LAST for one in entry.changes):
                break
    return entries


async def _followed(registry: AsyncRegistry) -> list[str]:
    """What one who watches adapters all the time knows after the last change."""
    async with aclosing(registry.watch(BUSY)) as listings:
        async for listing in listings:
            names = sorted(one.name for one in listing.adapters)
            if LAST in names:
                return names
    raise AssertionError("the watch has ended")


async def _exchange_all(world: World, load: Load, versions: Versions) -> None:
    """Each secret for a new one, and some calls after each."""
    secrets = world.secrets

    def new(*owners: str) -> Callable[[], object]:
        return lambda: [secrets.new_certificate(one) for one in owners]

    steps: list[Callable[[], object]] = [
        new("api", "alice"),
        new("etcd", "unnamed", "admin", "r2"),
        secrets.new_key,
        secrets.new_token,
        secrets.new_token,
        secrets.new_authority,
        new("api", "alice", "etcd"),
        lambda: secrets.believe(secrets.authorities[-1]),
    ]
    for step in steps:
        await asyncio.to_thread(step)
        await _work(world, load)
    await versions.next()
    for user in (ADMIN, replica_user(POOL, "r1")):
        await asyncio.to_thread(world.password(user).unlink)
    await world.apply()
    await _work(world, load)
    await versions.next()


async def _work(world: World, load: Load) -> None:
    """Some calls, for longer than a connection lives; those to etcd are cut."""
    world.proxy.cut()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.until_more())
        tasks.create_task(asyncio.sleep(0.7))
