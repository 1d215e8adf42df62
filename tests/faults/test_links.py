"""The link between a sidecar and etcd breaks in every way: noticed, caught up with, nothing unloaded."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.etcd import Cluster
from tests.support.fleet import Hand, Sidecar, lists
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


async def is_stale(sidecar: Sidecar) -> bool:
    return bool((await sidecar.status()).get("stale"))


BREAKS: dict[str, Callable[[Proxy], None]] = {
    "reset": Proxy.refuse,
    "half open": Proxy.hold,
    "one way": Proxy.hold_replies,
}


async def test_a_link_that_breaks_in_any_way_is_noticed_and_caught_up_with(hand: Hand, engine, sidecar, proxy):
    """Fault 4: R2, R3, R13; no list but the first, since nothing was compacted.

    At last what stands is dead for ever without a word, and new connections work.
    """
    await hand.pool()
    await hand.put(hand.record("a", "v1"), hand.record("old", "v2"))
    sidecar.program.start()
    await lists(engine, "a", "old")
    before = "old"
    for how, hurt in BREAKS.items():
        hurt(proxy)
        name = how.replace(" ", "-")
        await eventually(lambda: is_stale(sidecar), timeout_seconds=60)
        await hand.delete(before)
        await hand.put(hand.record(name, "v3"))
        assert set(await engine.listing()) == {"a", before}, how
        proxy.cut()
        proxy.pass_on()
        await lists(engine, "a", name)
        before = name
    losses = events(sidecar, "etcd_disconnected")
    proxy.strand()
    await hand.put(hand.record("b", "v2"))
    await lists(engine, "a", "b", before)
    assert proxy.held, "what etcd sent over the dead connection stayed there"
    assert events(sidecar, "etcd_disconnected") > losses
    assert events(sidecar, "listed") == 1


async def test_without_any_member_nothing_is_unloaded_and_the_sidecar_idles(one, hand, engine, sidecar):
    """Faults 2 and 6: R13 static-stable; frozen with TCP alive, then gone; it reconnects, and burns no processor."""
    await hand.pool()
    await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await lists(engine, "a")
    one.members[0].freeze()
    await eventually(lambda: is_stale(sidecar), timeout_seconds=60)
    assert set(await engine.listing()) == {"a"}
    one.members[0].thaw()
    await hand.put(hand.record("b", "v2"))
    await lists(engine, "a", "b")
    assert events(sidecar, "listed") == 1
    one.members[0].kill()
    await eventually(lambda: is_stale(sidecar))
    before, tries = _cpu_seconds(sidecar), events(sidecar, "etcd_disconnected")
    await eventually(lambda: events(sidecar, "etcd_disconnected") >= tries + 4, timeout_seconds=60)
    assert _cpu_seconds(sidecar) - before < 2.0
    one.members[0].start()
    await one.ready()
    await hand.put(hand.record("c", "v3"))
    await lists(engine, "a", "b", "c")

    def is_logged() -> bool:  # the engine lists it before the call comes back
        calls = [line for line in sidecar.program.logged() if line["event"] == "engine_call"]
        assert [(line["call"], line["name"]) for line in calls] == [("load", name) for name in "abc"]
        return True

    await eventually(is_logged)


def _cpu_seconds(sidecar: Sidecar) -> float:
    """What the process has used so far, by itself and in the kernel."""
    fields = Path(f"/proc/{sidecar.program.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
