"""What a sidecar starts of itself, and in which order, where neither etcd nor its engine is there yet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.runtime.http import CannotListen
from sidecar import app as module
from sidecar.app import StoreUnusable, make_engine, run
from sidecar.engines.observed import EngineLimits
from sidecar.ownership import HostLock
from sidecar.plan.readiness import ReadyRule
from sidecar.plan.types import RoundReport
from sidecar.resolver.server import SocketUnusable
from sidecar.settings import SidecarSettings
from tests.support.waiting import eventually
from tests.unit.report.test_status import plan, situation

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

    async def get(self, path: str) -> int:
        """The HTTP status of a page; 0 while nobody answers."""
        with contextlib.suppress(httpx.TransportError):
            async with httpx.AsyncClient(base_url=self.url, timeout=60) as client:
                return (await client.get(path)).status_code
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


async def ask(path: Path) -> dict[str, object]:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(QUESTION)
    answer = await reader.read()
    writer.close()
    return json.loads(answer)


async def test_a_sidecar_without_etcd_and_engine_answers_and_ends_when_it_is_told(started, tmp_path, short):
    """R12, R13 static-stable, R20: its pages say how it is; the engine's questions are answered; it leaves nothing."""
    chosen = settings(tmp_path, resolver_socket=short / "s")
    started.task = asyncio.create_task(run(chosen, started.stop))
    await eventually((short / "s").exists)
    assert [await started.get(path) for path in ("/livez", "/readyz", "/metrics")] == [200, 503, 200]
    assert await ask(short / "s") == {"schema": 1, "path": None, "reason": "not_ready"}
    parts = {"watcher", "status writer", "handoff watch", "drain orders", "engine watch", "engine pulse", "changes watch"}
    parts |= {"reconciler", "resolver", "lease collector", "scrub"}
    assert parts <= {task.get_name() for task in asyncio.all_tasks()}
    twin = started.lock()
    assert not twin.try_acquire()
    started.stop.set()
    async with asyncio.timeout(60):
        await started.task
    assert (await started.get("/livez"), (short / "s").exists(), twin.try_acquire()) == (0, False, True)
    twin.close()


async def test_who_finds_another_of_its_id_on_the_host_says_so_and_drives_nothing(started, tmp_path, short):
    """R10 one-owner: it lives, is not ready, and takes its place once that ends."""
    other = started.lock()
    assert other.try_acquire()
    started.task = asyncio.create_task(run(settings(tmp_path, resolver_socket=short / "s"), started.stop))
    await eventually(lambda: started.url)
    await eventually(lambda: started.get("/livez"))
    assert await started.get("/readyz") == 503
    assert not (short / "s").exists()
    other.close()
    await eventually((short / "s").exists)


async def test_what_a_sidecar_cannot_start_with_is_told_at_once(tmp_path, short):
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


async def test_what_is_set_reaches_the_parts(tmp_path, short):
    """Each flag where it counts; without a socket the engine can ask nobody."""
    chosen = settings(
        tmp_path,
        unload_grace=11.0,
        lazy_idle=12.0,
        give_up_share=13.0,
        ready_when="served",
        degraded_share=0.5,
        labels={"zone": "a"},
        advertise_url="http://10.0.0.3:8000",
    )
    store, lock, listener = module._open(chosen, tmp_path / "state")
    listener.close()
    ports = module._ports(chosen, store, lock.owner, tmp_path / "state")
    assert (ports.grace_seconds, ports.idle_seconds, ports.give_up_seconds) == (11.0, 12.0, 13.0)
    assert (ports.ready_rule, ports.answer) == (ReadyRule("served", 0.5), None)
    presence = ports.presence
    assert (presence.pool, presence.replica, presence.owner) == ("p", "r1", lock.owner)
    assert (presence.labels, presence.engine_url) == ({"zone": "a"}, "http://10.0.0.3:8000")
    again = module._presence(chosen, lock.owner, ports.clock)
    assert again.incarnation != presence.incarnation, "each process has one of its own"
    await ports.client.aclose()
    await ports.engine.aclose()
    store.close()
    lock.close()


@pytest.mark.parametrize("kind", ["vllm", "sglang", "pegainfer", "dynamo", "axolotl"])
async def test_each_kind_of_engine_has_its_driver(tmp_path, kind):
    engine = make_engine(
        kind,
        "http://127.0.0.1:1",
        api_key_file=None,
        control_token_file=None,
        limits=EngineLimits(max_lora_rank=8),
        base=["base"],
        state=tmp_path,
    )
    assert (engine.kind, engine.url) == (kind, "http://127.0.0.1:1")
    await engine.aclose()


class Told:
    """In place of each part that is told of rounds; notes which was, in order."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def part(self, name: str) -> Any:
        return type("Part", (), {"take": lambda _, report: self.hear(name, report)})()

    def hear(self, name: str, said: object) -> None:
        self.heard.append(name)
        self.said = said


@pytest.mark.parametrize("made", [plan(leaving=("one",)), None], ids=["a plan", "none"])
def test_a_round_is_told_to_all_parts_and_then_to_who_looks_on(made):
    """R9, R16: what is offered as the newest status has the handoffs and the room of the same round."""
    told, followed, last = Told(), list[object](), list[tuple[RoundReport, list[str]]]()
    handoffs: Any = type("Handoffs", (), {"follow": lambda _, leaving: followed.append(leaving)})()
    parts = [told.part(name) for name in ("status", "share", "ring")]
    tell = module._telling(parts[0], parts[1], handoffs, parts[2], lambda one: last.append((one, [*told.heard])))
    report = RoundReport(situation(made), 1)
    tell(report)
    assert (sorted(told.heard), told.said) == (["ring", "share", "status"], report)
    assert followed == [("one",) if made else ()]
    assert [(one, sorted(heard)) for one, heard in last] == [(report, ["ring", "share", "status"])]
