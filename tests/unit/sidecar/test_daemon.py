"""What a sidecar starts of itself, and in which order, where neither etcd nor its engine is there yet."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import httpx
import pytest

from registry.etcd3.client import Client
from registry.runtime.http import CannotListen
from registry.sources.credentials_file import read_credentials
from sidecar import daemon as module
from sidecar.app import Sidecar
from sidecar.artifacts.proof import Trust
from sidecar.artifacts.signing.signatures import read_keys, read_signature_policy
from sidecar.artifacts.store import LocalStore
from sidecar.daemon import StoreUnusable, run
from sidecar.desired.journal import Journal, SnapshotUnread
from sidecar.desired.snapshot import SnapshotBase
from sidecar.engines.observed import EngineLimits
from sidecar.engines.vllm.driver import VllmEngine
from sidecar.ownership import HostLock, ReplicaTaken
from sidecar.plan.readiness import ReadyRule
from sidecar.ports import Ports
from sidecar.resolver.server import SocketUnusable
from sidecar.settings import SidecarSettings
from sidecar.vllm_plugin.guard import CONTROL_HEADER
from tests.support.http_client import http_client
from tests.support.waiting import eventually

QUESTION = b'{"schema":1,"name":"a","base_model":"/m"}\n'


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a path that a socket's can begin with."""
    made = Path(tempfile.mkdtemp(prefix="lp-"))
    yield made
    shutil.rmtree(made)


def settings(folder: Path, **changes: Any) -> SidecarSettings:
    needed = {"etcd": "127.0.0.1:1", "pool": "p", "replica": "r1", "engine": "http://127.0.0.1:1"}
    return SidecarSettings(**(needed | {"store": folder / "store", "http": "127.0.0.1:0"} | changes))


@dataclass
class Started:
    """A sidecar that runs in this process."""

    store: Path
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    task: asyncio.Task[None] | None = None

    async def begin(self, chosen: SidecarSettings) -> None:
        """Until it answers."""
        self.task = asyncio.create_task(run(chosen, self.stop))
        await eventually(lambda: self.url)
        await eventually(lambda: self.get("/livez"))

    async def end(self) -> None:
        assert self.task is not None
        async with asyncio.timeout(60):
            await self.task

    async def get(self, path: str, **headers: str) -> int:
        """The HTTP status of a page; 0 while nobody answers."""
        with contextlib.suppress(httpx.TransportError):
            async with http_client(base_url=self.url, timeout=60) as client:
                return (await client.get(path, headers=headers)).status_code
        return 0

    def lock(self) -> HostLock:
        return HostLock(self.store / "state" / "r1" / "lock")


@pytest.fixture
async def started(monkeypatch, tmp_path, short) -> AsyncIterator[Started]:
    """With a socket for questions."""
    one, listen = Started(tmp_path / "store"), module.listen_as_told

    def listened(*args: Any) -> socket.socket:
        listener = listen(*args)
        one.url = "http://{}:{}".format(*listener.getsockname())
        return listener

    monkeypatch.setattr(module, "listen_as_told", listened)
    monkeypatch.setattr("sidecar.ownership.LOCK_RETRY_SECONDS", 0.01)
    yield one
    if one.task is not None:
        one.task.cancel()
        await asyncio.wait([one.task])


def noted(monkeypatch: pytest.MonkeyPatch, part: type, name: str) -> list[bool]:
    """Notes each call of it."""
    calls, real = list[bool](), getattr(part, name)

    def call(self: object) -> Any:
        calls.append(True)
        return real(self)

    monkeypatch.setattr(part, name, call)
    return calls


async def test_a_sidecar_that_has_no_descriptors_for_its_snapshot_ends_before_it_does_anything(tmp_path, monkeypatch):
    """R1, R12: whoever starts it again has the snapshot as it was."""
    state = tmp_path / "store" / "state" / "r1"
    with contextlib.closing(Journal(state)) as journal:
        await journal.rewrite(SnapshotBase("p", 5, 1))
    monkeypatch.setattr("sidecar.desired.journal.open_file", Mock(side_effect=OSError(errno.ENFILE, "none is left")))
    with pytest.raises(ExceptionGroup) as ended:
        async with asyncio.timeout(60):
            await run(settings(tmp_path), asyncio.Event())
    assert ended.group_contains(SnapshotUnread, match="none is left")
    assert sorted(path.name for path in state.iterdir()) == ["journal-1", "lock", "snapshot-1"]


async def ask(path: Path) -> dict[str, object]:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(QUESTION)
    answer = await reader.read()
    writer.close()
    return json.loads(answer)


async def test_a_sidecar_without_etcd_and_engine_answers_and_ends_when_it_is_told(
    started, tmp_path, short, monkeypatch
):
    """R12, R13 static-stable, R20: its pages say how it is; the engine's questions are answered; it leaves nothing."""
    closed = [noted(monkeypatch, *one) for one in ((LocalStore, "close"), (VllmEngine, "aclose"), (Client, "aclose"))]
    await started.begin(settings(tmp_path, resolver_socket=short / "s"))
    await eventually((short / "s").exists)
    assert [await started.get(path) for path in ("/livez", "/readyz", "/metrics")] == [200, 503, 200]
    assert await ask(short / "s") == {"schema": 1, "path": None, "reason": "not_ready"}
    twin = started.lock()
    assert not twin.try_acquire()
    started.stop.set()
    await started.end()
    assert (await started.get("/livez"), (short / "s").exists(), twin.try_acquire()) == (0, False, True)
    assert closed == [[True]] * 3
    twin.close()


async def test_who_finds_another_of_its_id_on_the_host_says_so_and_drives_nothing(started, tmp_path, short):
    """R10 one-owner: it lives, is not ready, and takes its place once that ends."""
    other = started.lock()
    assert other.try_acquire()
    await started.begin(settings(tmp_path, resolver_socket=short / "s"))
    assert await started.get("/readyz") == 503
    assert not (short / "s").exists()
    other.close()
    await eventually((short / "s").exists)


async def test_its_port_answers_by_its_own_names_and_drains_it_for_who_has_the_token(started, tmp_path):
    """R20, X2: no web page reads it by a name that was led here, nor takes it out."""
    (tmp_path / "token").write_text("abc")
    chosen = settings(tmp_path, http_names="lora.example.com", control_token_file=tmp_path / "token")
    await started.begin(chosen)
    hosts = ("evil.example", "lora.example.com", socket.gethostname())
    assert [await started.get("/status", Host=host) for host in hosts] == [421, 200, 200]
    for said, code in (("sidecar", 403), ("abc", 200)):
        assert await started.get("/drain", **{CONTROL_HEADER: said}) == code


async def test_who_waits_for_another_of_its_id_ends_when_it_is_told(started, tmp_path):
    """Kubernetes would kill it half a minute later."""
    other = started.lock()
    assert other.try_acquire()
    await started.begin(settings(tmp_path))
    started.stop.set()
    await started.end()
    other.close()


async def test_what_ends_a_sidecar_otherwise_is_told_to_who_started_it(started, tmp_path, monkeypatch):
    """R10: its exit code says so."""

    def lose(*_: object) -> None:
        raise ReplicaTaken("twice")

    monkeypatch.setattr(Sidecar, "start", lose)
    other = started.lock()
    assert other.try_acquire()
    await started.begin(settings(tmp_path))
    other.close()
    with pytest.raises(ExceptionGroup) as raised:
        await started.end()
    assert raised.group_contains(ReplicaTaken)


async def test_what_a_sidecar_cannot_start_with_is_told_at_once(tmp_path, short, monkeypatch):
    """Before it says anything to anybody."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnusable):
        await run(settings(tmp_path, store=tmp_path / "file" / "store"), asyncio.Event())
    with pytest.raises(StoreUnusable):
        await run(settings(tmp_path, base_model=tmp_path / "nowhere"), asyncio.Event())
    with pytest.raises(SocketUnusable, match="there is no directory"):
        await run(settings(tmp_path, resolver_socket=short / "no" / "s"), asyncio.Event())
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(CannotListen, match="--http"):
        await run(settings(tmp_path, http=f"127.0.0.1:{taken.getsockname()[1]}"), asyncio.Event())

    def refuse(_path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "HostLock", refuse)
    with pytest.raises(StoreUnusable, match="Permission denied"):
        await run(settings(tmp_path), asyncio.Event())


@contextlib.asynccontextmanager
async def ports_of(folder: Path, **changes: Any) -> AsyncIterator[Ports]:
    chosen = settings(folder, **changes)
    store, lock, listener = module._open(chosen, folder / "state")
    listener.close()
    ports = module._ports(chosen, store, lock.owner, "a seat", folder / "state")
    yield ports
    await ports.client.aclose()
    await ports.engine.aclose()
    store.close()
    lock.close()


async def test_what_is_set_reaches_the_parts(tmp_path):
    """Each flag where it counts; without a socket the engine can ask nobody."""
    times = {"unload_grace": 11.0, "lazy_idle": 12.0, "give_up_share": 13.0}
    rule = {"ready_when": "served", "degraded_share": 0.5}
    said = {"labels": {"zone": "a"}, "advertise_url": "http://10.0.0.3:8000"}
    async with ports_of(tmp_path, **times, **rule, **said) as ports:
        assert (ports.grace_seconds, ports.idle_seconds, ports.give_up_seconds) == (11.0, 12.0, 13.0)
        assert (ports.ready_rule, ports.answer) == (ReadyRule("served", 0.5), None)
        presence = ports.presence
    assert (presence.pool, presence.replica, bool(presence.owner)) == ("p", "r1", True)
    assert (presence.labels, presence.engine_url) == ({"zone": "a"}, "http://10.0.0.3:8000")
    async with ports_of(tmp_path) as ports:
        assert (ports.presence.engine_url, ports.presence.owner) == ("", presence.owner)
        assert ports.presence.incarnation != presence.incarnation, "each process has one of its own"


async def test_what_is_said_of_the_engine_the_hub_and_secrets_reaches_the_parts(tmp_path, monkeypatch):
    """R21, R22: an adapter is judged by these limits and fetched from there; what is unprotected or ends is told."""
    engine, store = Mock(wraps=module.make_engine), Mock(wraps=module.LocalStore)
    monkeypatch.setattr(module, "make_engine", engine)
    monkeypatch.setattr(module, "LocalStore", store)
    limits = {"engine_max_rank": 8, "engine_max_cpu_loras": 9, "engine_target_modules": "q_proj"}
    key = {"engine": "http://10.0.0.3:8000", "engine_api_key_file": tmp_path / "key", "insecure": True}
    hub, authorities = "https://hub.example", tmp_path / "ca"
    async with ports_of(tmp_path, hf_endpoint=hub, etcd_tls_ca=authorities, **limits, **key) as ports:
        assert ports.certificates == {"--etcd-tls-ca": authorities}
        assert [one.partition(":")[0] for one in ports.insecure] == ["--engine-api-key-file"]
        assert ports.engine._is_intact == ports.store.is_intact, "R21: of what a swap puts back"
    assert engine.call_args[0][1].limits == EngineLimits(None, 9, 8, ("q_proj",))
    assert store.call_args[1]["remote"].hub == hub


async def test_files_with_secrets_and_keys_are_followed_where_they_are_named(tmp_path, monkeypatch):
    """X1: they change while the sidecar runs."""
    followed = list[tuple[Path, object]]()
    monkeypatch.setattr(Trust, "follow", lambda _, path, read, _use: followed.append((path, read)))
    async with ports_of(tmp_path):
        assert followed == []
    async with ports_of(tmp_path, credentials=tmp_path / "c", signature_keys=tmp_path / "k"):
        assert followed == [(tmp_path / "c", read_credentials), (tmp_path / "k", read_keys)]
    followed.clear()
    async with ports_of(tmp_path, signature_policy=tmp_path / "p"):
        assert followed == [(tmp_path / "p", read_signature_policy)]


async def test_at_a_signal_it_hands_over_before_it_ends():
    """R20 drain: not before, and for as long as it may take."""
    stop, drain = asyncio.Event(), Mock(wait_at_end=AsyncMock())
    ending = asyncio.create_task(module._end(stop, drain, 7.0))
    for _ in range(3):
        await asyncio.sleep(0)
    assert (drain.mock_calls, ending.done()) == ([], False)
    stop.set()
    with pytest.raises(module._Ended):
        await ending
    drain.wait_at_end.assert_awaited_once_with(7.0)
