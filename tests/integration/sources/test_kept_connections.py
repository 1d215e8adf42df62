"""Connections that one staging leaves to the next."""

from __future__ import annotations

import asyncio
import gc
import threading
import types
from collections.abc import Callable

import pytest

from registry.sources import connections
from registry.sources.base import ArtifactError, Stop
from tests.integration.sources.conftest import CONFIG, PATIENT, QUICK, WEIGHTS, content, left_behind, ref
from tests.support.waiting import eventually
from tests.support.web import Exchange, Site

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"

pytestmark = pytest.mark.usefixtures("fetched_alone")


@pytest.fixture(autouse=True)
def _kept_however_slow_the_machine(monkeypatch) -> None:
    monkeypatch.setattr(connections, "KEPT_SECONDS", 600.0)


@pytest.fixture
def folders(web) -> list[str]:
    """Adapters at /team/0/ … /team/7/."""
    names = [f"/team/{number}/" for number in range(8)]
    for name in names:
        web.put(name, CONFIG, WEIGHTS)
    return names


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """The waits before something was tried again, none of which is waited."""
    seconds: list[float] = []
    check = Stop.check

    def noted(stop: Stop, wait_seconds: float = 0.0) -> None:
        seconds.extend([wait_seconds] if wait_seconds else [])
        check(stop)

    monkeypatch.setattr(Stop, "check", noted)
    return seconds


async def test_stagings_at_once_have_a_connection_each_and_the_next_ones_take_them(web, open_store, folders):
    store = open_store(f"{web.url}/team")
    together = threading.Barrier(4)

    def in_company(exchange: Exchange) -> None:
        together.wait()
        web.serve(exchange)

    web.answers |= {f"{folder}{CONFIG_FILE}": in_company for folder in folders}
    for some in folders[:4], folders[4:]:
        await asyncio.gather(*(store.ensure(ref(web.url + folder)) for folder in some))
        assert len(web.accepted) == 4


def half(site: Site, released: threading.Event, halfway: threading.Event) -> Callable[[Exchange], None]:
    """Sends half of the weights, and the rest once it is released."""

    def answer(exchange: Exchange) -> None:
        exchange.start(200, Content_Length=len(WEIGHTS))
        exchange.wfile.write(WEIGHTS[:50_000])
        halfway.set()
        released.wait()
        exchange.wfile.write(WEIGHTS[50_000:])

    return answer


async def test_a_staging_that_is_stopped_takes_its_half_read_connection_with_it(web, open_store, folders):
    """And no other: one that runs beside it, and one that comes after it, are served to the last byte."""
    store = open_store(f"{web.url}/team")
    stopped, beside, after = folders[:3]
    released = threading.Event()
    halves = {folder: threading.Event() for folder in (stopped, beside)}
    for folder, halfway in halves.items():
        web.answers[f"{folder}{WEIGHTS_FILE}"] = half(web, released, halfway)
    tasks = [asyncio.create_task(store.ensure(ref(web.url + folder))) for folder in halves]
    await eventually(lambda: all(halfway.is_set() for halfway in halves.values()))
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    released.set()
    assert content((await tasks[1]).path) == (CONFIG, WEIGHTS)
    await eventually(lambda: not left_behind(store)[:-1])
    assert content((await store.ensure(ref(web.url + after))).path) == (CONFIG, WEIGHTS)
    assert web.paths.count(f"{beside}{WEIGHTS_FILE}") == 1
    assert len(web.accepted) == 2
    assert len(await eventually(lambda: web.ended)) == 1


async def test_a_server_that_closes_what_is_idle_costs_nothing(web, open_store, folders, pauses):
    """Whether its end arrives before the next request or crosses it."""
    store = open_store(f"{web.url}/team")

    def last(exchange: Exchange) -> None:
        web.serve(exchange)
        exchange.close_connection = True

    web.answers |= {f"{folder}{WEIGHTS_FILE}": last for folder in folders}
    for folder in folders:
        await store.ensure(ref(web.url + folder))
    assert len(web.accepted) == len(folders)
    assert pauses == []


async def test_a_request_that_nobody_reads_is_sent_again_on_a_new_connection(web, open_store, folders, pauses):
    """Once, and at once, as long as not one byte has come."""
    store = open_store(f"{web.url}/team")

    def unless_new(exchange: Exchange) -> None:
        exchange.cut() if exchange.asked > 1 else web.serve(exchange)

    web.answers |= {f"{folder}{CONFIG_FILE}": unless_new for folder in folders}
    for folder in folders[:3]:
        await store.ensure(ref(web.url + folder))
    assert [web.paths.count(f"{folder}{CONFIG_FILE}") for folder in folders[:3]] == [1, 2, 2]
    assert (len(web.accepted), pauses) == (3, [])


@pytest.mark.parametrize("is_trickling", [False, True])
async def test_limits_hold_on_a_kept_connection(web, open_store, folders, is_trickling):
    """Fault 25: nothing for too long, or too little for too long."""
    store, asked = open_store(f"{web.url}/team"), list[int]()

    def keep_waiting(exchange: Exchange) -> None:
        asked.append(exchange.asked)
        exchange.start(200, Content_Length=len(WEIGHTS))
        while not web.closing.wait(0.05):
            exchange.wfile.write(b"x" if is_trickling else b"")

    async def is_given_up(sound: str, slow: str) -> bool:
        """On a machine that stands still for a moment, a sound answer is late too."""
        connections = store.trust.sources._web.connections
        connections.limits = PATIENT
        await store.ensure(ref(web.url + sound))
        connections.limits = QUICK
        web.answers[f"{slow}{WEIGHTS_FILE}"] = keep_waiting
        with pytest.raises(ArtifactError) as refused:
            await store.ensure(ref(web.url + slow))
        assert refused.value.reason == "source_timeout"
        return bool(asked)

    pairs = zip(folders[::2], folders[1::2], strict=True)
    await eventually(lambda: is_given_up(*next(pairs)))
    assert asked[0] == 4


async def test_a_credential_is_not_remembered_by_a_connection(web, open_store, folders, monkeypatch):
    """X1: one staging's secret is not another's."""
    monkeypatch.setenv("TOKEN", "tokenCANARY")
    mine = {"mine": {"kind": "env", "variable": "TOKEN", "prefixes": [web.url]}}
    store = open_store(f"{web.url}/team", credentials=mine)
    await store.ensure(ref(web.url + folders[0], "mine"))
    await store.ensure(ref(web.url + folders[1]))
    assert ["Authorization" in headers for _, headers in web.seen] == [True, True, False, False]
    assert len(web.accepted) == 1
    kept = store.trust.sources._web.connections._kept
    assert kept
    assert not [text for text in texts_of(kept) if "CANARY" in text]
    assert "tokenCANARY" in texts_of([kept, {"planted": b"tokenCANARY"}])


def texts_of(root: object) -> set[str]:
    """All text that an object leads to, whatever it shows of itself; not by way of code, which is everybody's."""
    code = (type, types.ModuleType, types.FunctionType, types.MethodType, types.FrameType)
    seen, left, found = set[int](), [root], set[str]()
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, code):
            continue
        seen.add(id(one))
        if isinstance(one, str):
            found.add(one)
        elif isinstance(one, bytes | bytearray):
            found.add(one.decode("latin-1"))
        else:
            left += gc.get_referents(one)
    return found
