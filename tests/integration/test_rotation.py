"""Every certificate, key, token and password is exchanged while calls run: none fails, and no change is missed."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from loraplane import AsyncRegistry, Tls, TokenFile
from registry.access import keysets
from registry.access.etcd_users import ADMIN
from registry.admin import server
from registry.admin.server import running
from registry.admin.settings import AdminSettings
from registry.cli.main import run
from registry.etcd3.options import TlsFiles
from registry.model.errors import RegistryError
from tests.support.etcd import Cluster, make_cluster
from tests.support.tls import Authority, server_flags
from tests.support.waiting import eventually

# Of all exchanges; the nightly run plays more.
ROUNDS = int(os.environ.get("LORAPLANE_TEST_ROTATIONS", "1"))
POOL, DIGEST = "p", "sha256:" + "0" * 64
ACCESS = """apiVersion: loraplane/v1
kind: Access
authentication:
  trustDomains: [ops.example]
  issuers: [{{issuer: https://ci, audiences: [loraplane], prefix: "ci:", algorithms: [ES256], jwks: {jwks}}}]
bindings:
  - {{role: security, users: [spiffe://ops.example/alice]}}
  - {{role: pool-operator, users: [spiffe://ops.example/alice]}}
  - {{role: publisher, users: [spiffe://ops.example/alice, "ci:job"], tenants: ["*"]}}
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
        for end in ("api", "alice", "etcd"):
            (self.root / end).mkdir()
        self.new_authority()
        for owner, host in (
            ("api", "IP:127.0.0.1"),
            ("alice", "URI:spiffe://ops.example/alice"),
            ("etcd", "IP:127.0.0.1"),
        ):
            self.new_certificate(owner, host)
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

    def new_certificate(self, owner: str, host: str) -> None:
        """A new one with its key, of the newest authority: as two files, one after the other."""
        made, files = self.authorities[-1].issue(owner, host=host), self.files(owner)
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
    """Calls that run all the time, and what went wrong."""

    calls: int = 0
    failures: list[str] = field(default_factory=list)
    is_over: bool = False

    async def keep(self, registry: AsyncRegistry, name: str) -> None:
        """Publishes, reads and withdraws one adapter after another; the last one stays."""
        number = 0
        while not self.is_over:
            await self._call(registry.publish("s3://b/x", f"{name}/a{number}", POOL, digest=DIGEST, wait=False))
            await self._call(registry.get(f"{name}/a{number}", POOL))
            if number:
                await self._call(registry.withdraw(f"{name}/a{number - 1}", POOL))
            number += 1

    async def _call(self, call: Awaitable[object]) -> None:
        self.calls += 1
        try:
            await call
        except (RegistryError, OSError) as error:
            self.failures.append(f"{type(error).__name__}: {error}")

    async def until_more(self, count: int = 15) -> None:
        """Waits until so many more calls were made."""
        enough = self.calls + count

        async def made() -> bool:
            return self.calls >= enough

        await eventually(made)


async def etcd_access(cluster: Cluster, secrets: Secrets, *words: str, root: bool = False) -> None:
    """Runs a command of `loraplane etcd-access`; as root once etcd asks for users."""
    passwords = secrets.root / "passwords"
    login = ("--etcd-user", "root", "--etcd-password-file", str(passwords / "root")) if root else ()
    target = ("--etcd", ",".join(cluster.endpoints), "--etcd-tls-ca", str(secrets.root / "ca"))
    line = ["etcd-access", *words, *target, *login, "--password-dir", str(passwords)]
    out = io.StringIO()

    def ran() -> int:
        with redirect_stdout(out), redirect_stderr(out):
            return run(line)

    assert await asyncio.to_thread(ran) == 0, out.getvalue()


@asynccontextmanager
async def secure_service(secrets: Secrets, folder: Path) -> AsyncIterator[tuple[Cluster, int, int]]:
    """An admin service with TLS and tokens on an etcd with TLS and passwords, and its ports."""
    flags = {"unsafe-no-fsync": "true", **server_flags(secrets.files("etcd"), client_certificates=False)}
    cluster = make_cluster(folder / "etcd-data", flags=flags, tls=TlsFiles(ca=secrets.root / "ca"))
    cluster.start()
    try:
        await cluster.ready()
        await etcd_access(cluster, secrets, "apply")
        await etcd_access(cluster, secrets, "enable")
        api, free = secrets.files("api"), "127.0.0.1:0"
        settings = AdminSettings.model_validate(
            {
                "etcd": ",".join(cluster.endpoints),
                "etcd_tls_ca": secrets.root / "ca",
                "etcd_user": ADMIN,
                "etcd_password_file": secrets.root / "passwords" / ADMIN,
                "listen": free,
                "http": free,
                "tls_ca": api.ca,
                "tls_cert": api.certificate,
                "tls_key": api.key,
                "token_listen": free,
                "access": secrets.root / "access.yaml",
            }
        )
        async with running(settings, drain_seconds=0) as ports:
            yield cluster, ports.grpc_port, ports.token_port
    finally:
        cluster.stop()


async def test_all_is_exchanged_under_load(tmp_path, monkeypatch):
    """A6 rotates: connections are made anew all the time, so that each meets what was exchanged."""
    monkeypatch.setattr(server, "CONNECTION_AGE_SECONDS", 0.5)
    monkeypatch.setattr(keysets, "PAUSE_SECONDS", 0.1)  # between two looks for a key that is not known
    secrets, load = Secrets(tmp_path), Load()
    async with secure_service(secrets, tmp_path) as (cluster, port, token_port):
        own = secrets.files("alice")
        tls = Tls(own.ca, own.certificate, own.key)
        async with (
            AsyncRegistry(f"127.0.0.1:{port}", tls=tls) as alice,
            AsyncRegistry(f"127.0.0.1:{token_port}", tls=Tls(own.ca), token=TokenFile(secrets.root / "token")) as job,
        ):
            await alice.create_pool(POOL, ["b"])
            async with asyncio.TaskGroup() as tasks:
                seen = tasks.create_task(_followed(job, load))
                for registry, name in ((alice, "alice"), (job, "job")):
                    tasks.create_task(load.keep(registry, name))
                await load.until_more()
                for _ in range(ROUNDS):
                    await _exchange_all(secrets, cluster, load)
                load.is_over = True
            assert Counter(load.failures) == {}
            assert load.calls > 100 * ROUNDS
            listing = await alice.list(POOL)
            assert sorted(one.name for one in seen.result()) == sorted(one.name for one in listing.adapters)


async def _followed(registry: AsyncRegistry, load: Load) -> list[object]:
    """What one who watches all the time knows at the end, once nothing is changed any more."""
    known: list[object] = []
    async with aclosing(registry.watch(POOL)) as listings:
        while True:
            try:
                async with asyncio.timeout(5 if load.is_over else 60):
                    known = [*(await anext(listings)).adapters]
            except TimeoutError:
                return known


async def _exchange_all(secrets: Secrets, cluster: Cluster, load: Load) -> None:
    """Each secret for a new one, and some calls after each."""
    steps: list[Callable[[], object]] = [
        lambda: secrets.new_certificate("api", "IP:127.0.0.1"),
        lambda: secrets.new_certificate("alice", "URI:spiffe://ops.example/alice"),
        lambda: secrets.new_certificate("etcd", "IP:127.0.0.1"),
        secrets.new_key,
        secrets.new_token,
        secrets.new_token,
        secrets.new_authority,
        lambda: secrets.new_certificate("api", "IP:127.0.0.1"),
        lambda: secrets.new_certificate("alice", "URI:spiffe://ops.example/alice"),
        lambda: secrets.new_certificate("etcd", "IP:127.0.0.1"),
        lambda: secrets.believe(secrets.authorities[-1]),
    ]
    for step in steps:
        await asyncio.to_thread(step)
        await load.until_more()
        await asyncio.sleep(0.7)  # longer than a connection lives
    shutil.move(secrets.root / "passwords" / ADMIN, secrets.root / "old")
    await etcd_access(cluster, secrets, "apply", root=True)
    await load.until_more()
