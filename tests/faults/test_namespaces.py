"""A replica in a network namespace of its own, whose only link is hurt in the kernel instead of in a proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import pytest

from tests.faults.test_links import events, is_stale
from tests.support.etcd import Cluster, make_cluster, running_etcd
from tests.support.fleet import Hand, Sidecar, SimulatedEngine, lists
from tests.support.netns import Namespace, why_not
from tests.support.waiting import eventually

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"fault 4 in the kernel needs network namespaces: {WHY_NOT}")
BREAKS: dict[str, Callable[[Namespace], None]] = {"drop": Namespace.drop, "reject": Namespace.reject}


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    with Namespace() as namespace:
        yield namespace


@pytest.fixture
async def one(namespace: Namespace, tmp_path) -> AsyncIterator[Cluster]:
    """One member, which also listens on the link."""
    cluster = make_cluster(tmp_path / "etcd")
    (member,) = cluster.members
    urls = f"{member.client_url},http://{namespace.here}:{member.client_port}"
    member.flags = {**member.flags, "listen-client-urls": urls}
    async with running_etcd(cluster):
        yield cluster


@pytest.fixture
async def engine(namespace: Namespace, tmp_path) -> AsyncIterator[SimulatedEngine]:
    engine = SimulatedEngine(tmp_path)
    engine.url = engine.url.replace("127.0.0.1", namespace.there)
    engine.program.arguments = [part.replace("127.0.0.1", namespace.there) for part in engine.program.arguments]
    engine.program.before = namespace.command
    await engine.start()
    yield engine
    engine.program.kill()


@pytest.fixture
async def sidecar(namespace: Namespace, one: Cluster, engine: SimulatedEngine, tmp_path) -> AsyncIterator[Sidecar]:
    endpoint = f"{namespace.here}:{one.members[0].client_port}"
    sidecar = Sidecar(tmp_path, (endpoint,), "/x", engine.url, extra=("--insecure",))  # its pages are asked from here
    sidecar.http = sidecar.http.replace("127.0.0.1", namespace.there)
    sidecar.program.arguments = [part.replace("127.0.0.1", namespace.there) for part in sidecar.program.arguments]
    sidecar.program.before = namespace.command
    yield sidecar
    sidecar.program.kill()


async def test_a_link_that_is_hurt_in_the_kernel_is_noticed_and_caught_up_with(namespace, hand: Hand, engine, sidecar):
    """Fault 4: R2, R3; packets are dropped, there is no route, or 64 kbit/s, at which a flood is late and whole."""
    await hand.pool()
    await hand.put(hand.record("a", "v1"), hand.record("old", "v2"))
    sidecar.program.start()
    await lists(engine, "a", "old")
    before = "old"
    for name, hurt in BREAKS.items():
        losses = events(sidecar, "etcd_disconnected")
        hurt(namespace)
        await eventually(partial(_has_lost, sidecar, losses), timeout_seconds=60)
        await hand.put(hand.record(name, "v3"))
        await hand.delete(before)
        namespace.heal()
        await lists(engine, "a", name)
        await eventually(lambda: _is_fresh(sidecar), timeout_seconds=60)
        before = name
    namespace.limit(64)
    record = hand.record("a", "v1")
    for generation in range(2, 40):
        spec = record.spec.model_copy(update={"labels": {"n": str(generation), "pad": "x" * 250}})
        await hand.put(record.model_copy(update={"generation": generation, "spec": spec}))
    await hand.put(hand.record("b", "v2"))

    async def has_arrived() -> bool:
        return set(await engine.listing()) == {"a", "b", before}

    # Our own questions go through the link too: asked as often as elsewhere, they would fill it.
    await eventually(has_arrived, timeout_seconds=180, every_seconds=2)
    assert namespace.squeezed() > 0, "the link was wide enough for all of it"
    assert events(sidecar, "listed") == 1


def _has_lost(sidecar: Sidecar, before: int) -> bool:
    return events(sidecar, "etcd_disconnected") > before


async def _is_fresh(sidecar: Sidecar) -> bool:
    return not await is_stale(sidecar)
