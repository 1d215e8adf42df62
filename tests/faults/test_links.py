"""The link between a sidecar and etcd breaks in every way: noticed, caught up with, nothing unloaded."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.etcd import Cluster
from tests.support.fleet import Hand, Sidecar, SimulatedEngine
from tests.support.proxy import Proxy
from tests.support.waiting import eventually


@pytest.fixture
async def proxy(one: Cluster) -> AsyncIterator[Proxy]:
    async with Proxy(one.members[0].client_port) as proxy:
        yield proxy


@pytest.fixture
async def sidecar(proxy, engine, tmp_path) -> AsyncIterator[Sidecar]:
    """Its only way to etcd is the proxy."""
    sidecar = Sidecar(tmp_path, (proxy.endpoint,), "/x", engine.url)
    yield sidecar
    sidecar.program.kill()


def events(sidecar: Sidecar, name: str) -> int:
    return sum(line["event"] == name for line in sidecar.program.logged())


async def serves(engine: SimulatedEngine, *names: str) -> None:
    async def is_so() -> bool:
        return set(await engine.listing()) == set(names)

    await eventually(is_so, timeout_seconds=60)


async def is_stale(sidecar: Sidecar) -> bool:
    return bool((await sidecar.status()).get("stale"))


BREAKS: dict[str, Callable[[Proxy], None]] = {
    "reset": Proxy.refuse,
    "half open": Proxy.hold,
    "one way": Proxy.hold_replies,
}


@pytest.mark.parametrize("name", BREAKS)
async def test_a_partition_is_noticed_and_caught_up_with(name, hand: Hand, engine, sidecar, proxy):
    """Fault 4: R2, R3, R13; no list but the first, since nothing was compacted."""
    await hand.pool()
    await hand.put(hand.record("a", "v1"), hand.record("b", "v2"))
    sidecar.program.start()
    await serves(engine, "a", "b")
    BREAKS[name](proxy)
    await eventually(lambda: is_stale(sidecar), timeout_seconds=60)
    await hand.delete("a")
    await hand.put(hand.record("c", "v3"))
    assert set(await engine.listing()) == {"a", "b"}
    proxy.cut()
    proxy.pass_on()
    await serves(engine, "b", "c")
    assert events(sidecar, "listed") == 1


async def test_a_connection_that_dies_without_a_word_is_replaced(hand, engine, sidecar, proxy):
    """Fault 4: what stands is dead for ever, new connections work."""
    await hand.pool()
    await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await serves(engine, "a")
    proxy.strand()
    await hand.put(hand.record("b", "v2"))
    await serves(engine, "a", "b")
    assert proxy.held, "what etcd sent over the dead connection stayed there"
    assert events(sidecar, "etcd_disconnected") >= 1
    assert events(sidecar, "listed") == 1


async def test_without_any_member_nothing_is_unloaded_and_the_sidecar_idles(one, hand, engine, sidecar):
    """Fault 2: R13 static-stable; it reconnects, and burns no processor over it."""
    await hand.pool()
    await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await serves(engine, "a")
    one.members[0].kill()
    await eventually(lambda: is_stale(sidecar))
    before, tries = _cpu_seconds(sidecar), events(sidecar, "etcd_disconnected")
    await eventually(lambda: events(sidecar, "etcd_disconnected") >= tries + 4, timeout_seconds=60)
    assert _cpu_seconds(sidecar) - before < 2.0
    one.members[0].start()
    await one.ready()
    await hand.put(hand.record("b", "v2"))
    await serves(engine, "a", "b")

    def is_logged() -> bool:  # the engine lists it before the call comes back
        calls = [line for line in sidecar.program.logged() if line["event"] == "engine_call"]
        assert [(line["call"], line["name"]) for line in calls] == [("load", "a"), ("load", "b")]
        return True

    await eventually(is_logged)


def _cpu_seconds(sidecar: Sidecar) -> float:
    """What the process has used so far, by itself and in the kernel."""
    fields = Path(f"/proc/{sidecar.program.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_a_frozen_etcd_is_noticed_while_its_connections_stand(one, hand, engine, sidecar):
    """Fault 6: SIGSTOP with TCP alive; SIGCONT, and what was written then arrives."""
    await hand.pool()
    await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await serves(engine, "a")
    one.members[0].freeze()
    await eventually(lambda: is_stale(sidecar), timeout_seconds=60)
    assert set(await engine.listing()) == {"a"}
    one.members[0].thaw()
    await hand.put(hand.record("b", "v2"))
    await serves(engine, "a", "b")
    assert events(sidecar, "listed") == 1
