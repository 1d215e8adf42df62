"""Users of etcd as `loraplane etcd-access` makes them, on a real etcd that asks for users."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest

from registry.access.etcd_users import ADMIN, AUDITOR, replica_user
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdPermissionDenied, EtcdUnauthenticated
from registry.etcd3.ops import Delete, Put, Range, Txn, prefix_end
from registry.model.keys import Keys
from registry.model.status import RememberedReplica, RememberedReplicas
from registry.v1 import registry_pb2 as pb
from tests.support.adapters import write_adapter
from tests.support.admin import admin_inside, admin_with_pool, change_set, drop, make_pool, put, wait_ready
from tests.support.etcd import PATIENCE_SECONDS, ROOT, Cluster, etcdctl, make_cluster, running_etcd
from tests.support.fleet import BASE, POOL, Sidecar, SimulatedEngine
from tests.support.processes import Program
from tests.support.ran import Ran, ran
from tests.support.waiting import eventually

KEYS = Keys()
WHOLE = f"{KEYS.prefix}/".encode()
OWN = (KEYS.replica(POOL, "r1"), KEYS.status(POOL, "r1"), KEYS.left(POOL, "r1"), KEYS.drain(POOL, "r1"))
FOREIGN = (
    KEYS.replica(POOL, "r2"),
    KEYS.status(POOL, "r2"),
    KEYS.left(POOL, "r2"),
    KEYS.drain(POOL, "r2"),
    KEYS.replica(POOL, "r1") + b"0",
    KEYS.replica("other", "r1"),
    KEYS.adapter(POOL, "acme/a"),
    KEYS.history(POOL, "acme/a", 1),
    KEYS.pool(POOL),
    KEYS.members(POOL),
    KEYS.tenant("acme"),
    KEYS.request("id"),
    KEYS.audit(POOL, "id"),
    KEYS.meta(),
    b"/others",
)
UNREAD = (KEYS.adapters("other"), KEYS.replicas("other"), KEYS.tenants(), KEYS.audits(), KEYS.all_left(), b"/others")


@dataclass
class Guarded:
    """An etcd that asks for users, with those that the command made, and their passwords."""

    cluster: Cluster
    folder: Path

    async def cli(self, *words: str) -> Ran:
        """Runs `loraplane etcd-access` as root; as nobody before there is a root."""
        return await self._run("etcd-access", *words)

    async def doctor(self) -> Ran:
        """Runs `loraplane doctor`, without an admin service."""
        return await self._run("--admin", "127.0.0.1:1", "doctor")

    async def _run(self, *words: str) -> Ran:
        root = self.folder / "root"
        login = ("--etcd-user", "root", "--etcd-password-file", str(root)) if root.exists() else ()
        line = ["-o", "json", *words, "--etcd", ",".join(self.cluster.endpoints), *login]
        return await asyncio.to_thread(ran, *line)

    def file(self, user: str) -> Path:
        return self.folder / "passwords" / user.replace("/", "%2F")

    def client(self, user: str) -> Client:
        password = self.file(user).read_text().strip
        return Client(
            self.cluster.options(user=user, password=password, call_timeout_seconds=PATIENCE_SECONDS),
        )

    def login(self, user: str) -> tuple[str, ...]:
        """Flags for a daemon."""
        return "--etcd-user", user, "--etcd-password-file", str(self.file(user))


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    """Applied for the replicas r1 and r2 before etcd asks for users."""
    async with running_etcd(make_cluster(tmp_path / "etcd")) as cluster:
        guarded = Guarded(cluster, tmp_path)
        replicas = [word for name in ("r1", "r2") for word in ("--replica", f"{POOL}/{name}")]
        applied = await guarded.cli("apply", *replicas, "--password-dir", str(tmp_path / "passwords"))
        assert applied.code == 0, applied.err
        assert "etcdctl auth enable" in applied.err
        assert not applied.json["enabled"]
        await etcdctl(cluster, "user", "add", "root:root-password")
        await etcdctl(cluster, "user", "grant-role", "root", "root")
        await etcdctl(cluster, "auth", "enable")
        (tmp_path / "root").write_text("root-password\n")
        yield guarded


async def test_a_replicas_user_changes_its_own_keys_and_nothing_else(guarded: Guarded):
    """A4 own-keys: etcd refuses each other put, delete, range and end of a lease."""
    async with AsyncExitStack() as stack:
        users = (replica_user(POOL, "r1"), replica_user(POOL, "r2"), ADMIN, AUDITOR)
        client, other, admin, auditor = [
            await stack.enter_async_context(aclosing(guarded.client(user))) for user in users
        ]
        theirs = await other.lease_grant(60)
        await other.txn(Txn((), (Put(KEYS.replica(POOL, "r2"), b"2", theirs),)))
        mine = await client.lease_grant(60)
        await client.txn(Txn((), tuple(Put(key, b"1", mine) for key in OWN)))
        await client.txn(Txn((), tuple(Delete(key) for key in OWN)))
        forbidden = [Txn((), (op,)) for key in FOREIGN for op in (Put(key, b"x"), Delete(key))]
        whole = KEYS.replicas(POOL)
        forbidden += [Txn((), (Delete(whole, prefix_end(whole)),)), Txn((), (Put(OWN[0], b"1"), Put(FOREIGN[0], b"x")))]
        forbidden += [Txn((), (Range(key, prefix_end(key)),)) for key in UNREAD]
        for txn in forbidden:
            with pytest.raises(EtcdPermissionDenied):
                await client.txn(txn)
            with pytest.raises(EtcdPermissionDenied):
                await auditor.txn(txn) if not isinstance(txn.success[0], Range) else await client.txn(txn)
        with pytest.raises(EtcdPermissionDenied):
            await client.lease_revoke(theirs)
        for key in (KEYS.replica(POOL, "r1"), KEYS.status(POOL, "r1")):
            with pytest.raises(EtcdPermissionDenied):
                await admin.txn(Txn((), (Put(key, b"x"),)))
        assert (await auditor.range(Range(KEYS.audits(), prefix_end(KEYS.audits())))).kvs == ()
        found = (await admin.list_prefix(WHOLE)).kvs
        assert [(kv.key, kv.value) for kv in found] == [(KEYS.replica(POOL, "r2"), b"2")]


async def test_etcd_asks_for_users_once_all_have_one(tmp_path: Path):
    """A4 own-keys: by a command of ours, which shuts out no admin service, and may be repeated."""
    async with running_etcd(make_cluster(tmp_path / "etcd")) as cluster:
        guarded = Guarded(cluster, tmp_path)
        folder = ("--password-dir", str(tmp_path / "passwords"))
        early = await guarded.cli("enable", *folder)
        assert (early.code, "run loraplane etcd-access apply first" in early.err) == (2, True)
        assert (await guarded.cli("apply", *folder)).code == 0
        assert (await guarded.cli("enable", *folder)).json == {"enabled": True, "changed": True}
        guarded.file("root").rename(tmp_path / "root")
        assert (await guarded.cli("enable", *folder)).json == {"enabled": True, "changed": False}
        assert (await guarded.cli("check")).json == {"excess": [], "enabled": True}
        async with aclosing(Client(cluster.options())) as nobody:
            with pytest.raises(EtcdUnauthenticated):
                await nobody.txn(Txn((), (Put(KEYS.meta(), b"x"),)))


async def test_a_sidecar_and_an_admin_service_work_with_their_users(guarded: Guarded, tmp_path: Path):
    """A4 own-keys: what each writes, watches and ends is what its user may; a drained replica goes at once, too."""
    engine = SimulatedEngine(tmp_path)
    login = guarded.login(replica_user(POOL, "r1"))
    sidecar = Sidecar(tmp_path, guarded.cluster.endpoints, KEYS.prefix, engine.url, extra=login)
    source = tmp_path / "sources" / "a"
    write_adapter(source)
    user = {"etcd_user": ADMIN, "etcd_password_file": guarded.file(ADMIN)}
    async with admin_inside(guarded.cluster.endpoints, KEYS.prefix, **user) as admin:
        await wait_ready(admin)
        await make_pool(admin, POOL, BASE)
        await engine.start()
        sidecar.program.start()
        try:
            await eventually(sidecar.is_ready)
            await admin.stub.ApplyAdapters(change_set(put("acme/a", source.as_uri()), pool=POOL, request_id="one"))

            async def is_served() -> bool:
                return "acme/a" in await engine.listing()

            await eventually(is_served)
            await admin.stub.DrainReplica(pb.DrainReplicaRequest(pool=POOL, name="r1", request_id="two"))

            async def is_drained() -> bool:
                return any(line["event"] == "drain_begun" for line in sidecar.program.logged())

            await eventually(is_drained)
            await asyncio.to_thread(sidecar.program.stop)
        finally:
            sidecar.program.kill()
            engine.program.kill()
    async with aclosing(guarded.client(ADMIN)) as client:
        left = [kv.key for kv in (await client.list_prefix(WHOLE)).kvs]
    assert not set(left) & {KEYS.replica(POOL, "r1"), KEYS.status(POOL, "r1"), KEYS.drain(POOL, "r1")}
    assert KEYS.left(POOL, "r1") in left
    refused = [line for line in sidecar.program.logged() if "permission denied" in json.dumps(line)]
    assert refused == []


async def test_apply_is_idempotent_mends_and_renews_and_check_tells_what_is_too_much(guarded: Guarded):
    """A4 own-keys, X1 secret-free: no password is in the output, and files are for their owner alone."""
    folder = ("--password-dir", str(guarded.folder / "passwords"))
    one = ("--replica", f"{POOL}/r1", *folder)
    user, keys = replica_user(POOL, "r1"), KEYS.adapters(POOL).decode()
    assert ((await guarded.cli("apply", *one)).json, (await guarded.cli("check")).code) == (
        {"steps": [], "enabled": True},
        0,
    )
    assert {file.stat().st_mode & 0o777 for file in (guarded.folder / "passwords").iterdir()} == {0o600}
    before = guarded.file(user).read_text()
    guarded.file(user).unlink()
    await etcdctl(guarded.cluster, *ROOT, "role", "grant-permission", user, "--prefix=true", "readwrite", keys)
    await etcdctl(guarded.cluster, *ROOT, "role", "grant-permission", user, "--prefix=true", "read", "/loraplane/v1/a")
    await etcdctl(guarded.cluster, *ROOT, "user", "grant-role", AUDITOR, "root")
    checked = await guarded.cli("check")
    assert (checked.code, checked.json["excess"]) == (
        7,
        [
            f"{AUDITOR}: may do everything by the role root, and does not need it",
            f"{user}: may read /loraplane/v1/a* by the role {user}, and does not need it",
            f"{user}: may readwrite {keys}* by the role {user}, and does not need it",
        ],
    )
    steps = [
        f"grant {user}: read {keys}*",
        f"set a new password of {user}",
        f"revoke from {user}: read /loraplane/v1/a*",
    ]
    assert (await guarded.cli("plan", *one)).json["steps"] == steps
    mended = await guarded.cli("apply", *one)
    assert mended.json["steps"] == steps
    assert guarded.file(user).read_text() != before
    assert guarded.file(user).read_text().strip() not in mended.out + mended.err
    async with aclosing(guarded.client(user)) as client:
        await client.range(Range(KEYS.meta()))
    assert (await guarded.cli("plan", *one)).json["steps"] == []
    assert len((await guarded.cli("check")).json["excess"]) == 1
    doctor = await guarded.doctor()
    told = [(one["reason"], one["subject"]) for one in doctor.json["findings"] if one["part"] == "etcd"]
    assert ("excess_permission", AUDITOR) in told
    kept = (*folder, "--replica", f"{POOL}/r2")
    gone = [f"remove user {user}", f"remove role {user}"]
    planned = await guarded.cli("plan", *kept)
    assert (planned.json["steps"], all(one in planned.err for one in gone)) == ([], True)
    async with aclosing(guarded.client(ADMIN)) as client:
        members = RememberedReplicas(members={"r1": RememberedReplica()})
        await client.txn(Txn((), (Put(KEYS.members(POOL), members.to_bytes()),)))
        assert (await guarded.cli("apply", *kept, "--prune")).json["steps"] == []  # it may come back
        await client.txn(Txn((), (Put(KEYS.members(POOL), b"{"),)))
        assert (await guarded.cli("apply", *kept, "--prune")).code == 4
        await client.txn(Txn((), (Delete(KEYS.members(POOL)),)))
    async with aclosing(guarded.client(user)) as client:
        await client.txn(Txn((), (Put(KEYS.replica(POOL, "r1"), b"{}"),)))
        assert (await guarded.cli("apply", *kept, "--prune")).json["steps"] == []  # it lives
        await client.txn(Txn((), (Delete(KEYS.replica(POOL, "r1")),)))
    assert (await guarded.cli("plan", *kept, "--prune")).json["steps"] == gone
    assert (await guarded.cli("apply", *kept, "--prune")).json["steps"] == gone
    assert (await guarded.cli("apply", *kept, "--prune")).json["steps"] == []
    (guarded.folder / "root").write_text(before)
    refused = await guarded.cli("check")
    assert (refused.code, refused.error["reason"]) == (4, "ETCD_PERMISSION")


async def test_the_audit_readers_user_can_follow_and_verify_and_write_nothing(guarded: Guarded, tmp_path):
    """A5 tamper-evident: with what etcd-access gives it, and no more."""
    user = ("--etcd-user", AUDITOR, "--etcd-password-file", str(guarded.file(AUDITOR)))
    reach = ("--etcd", ",".join(guarded.cluster.endpoints), *user)
    admin = {"etcd_user": ADMIN, "etcd_password_file": guarded.file(ADMIN)}
    follower = Program("registry.tools.audit.main", ["follow", *reach, "--out", str(tmp_path / "a")], tmp_path / "log")
    async with admin_with_pool(guarded.cluster.endpoints, KEYS.prefix, **admin) as service:
        follower.start()
        try:
            for number in range(3):
                await service.stub.ApplyAdapters(change_set(put("acme/a", priority=number)))

            await eventually(lambda: _has_records(tmp_path / "a", 4))
            follower.kill()
            await service.stub.ApplyAdapters(change_set(drop("acme/a")))
            follower.start()
            await eventually(lambda: _has_records(tmp_path / "a", 5))
        finally:
            follower.kill()
    assert "audit_hole" not in (tmp_path / "log").read_text()
    verify = [sys.executable, "-m", "registry.tools.audit.main", "verify", str(tmp_path / "a"), *reach]
    whole = await asyncio.to_thread(subprocess.run, verify, capture_output=True, text=True, timeout=60)
    assert (whole.returncode, whole.stdout.endswith(": 0 findings\n")) == (0, True), whole
    async with aclosing(guarded.client(AUDITOR)) as client:
        (record,) = (await client.list_prefix(KEYS.audit("p", ""))).kvs[:1]
        with pytest.raises(EtcdPermissionDenied):
            await client.txn(Txn((), (Delete(record.key),)))
    async with aclosing(guarded.client(ADMIN)) as client:
        await client.txn(Txn((), (Delete(record.key),)))
    found = await asyncio.to_thread(subprocess.run, verify, capture_output=True, text=True, timeout=60)
    assert (found.returncode, "its time is not up: removed" in found.stdout) == (1, True), found


async def _has_records(file: Path, number: int) -> bool:
    def counted() -> int:
        return file.read_text().count('"record"') if file.exists() else 0

    return await asyncio.to_thread(counted) == number


async def test_the_replicas_of_a_pool_get_users_without_passwords(guarded: Guarded):
    async with aclosing(guarded.client(replica_user(POOL, "r2"))) as client:
        await client.txn(Txn((), (Put(KEYS.replica(POOL, "r2"), b"{}"),)))
    planned = await guarded.cli("plan", "--pool", POOL)
    assert planned.json["steps"] == []
    (applied,) = [await guarded.cli("apply", "--replica", "q/r9")]
    assert f"add user {replica_user('q', 'r9')}" in applied.json["steps"]
    assert (await guarded.cli("plan", "--replica", "r9")).code == 2
    late = await guarded.cli("apply", "--replica", "q/r9", "--password-dir", str(guarded.folder / "passwords"))
    assert (late.code, "etcdctl user delete" in late.err) == (2, True), late.err
    assert not guarded.file(replica_user("q", "r9")).exists(), "a password that does not work"
