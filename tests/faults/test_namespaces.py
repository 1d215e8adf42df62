"""A replica in a network namespace of its own, whose only link is hurt in the kernel instead of in a proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from registry.model.keys import Keys
from tests.faults.test_links import events, is_stale, serves
from tests.support.etcd import Cluster, make_cluster
from tests.support.fleet import Hand, Sidecar, SimulatedEngine
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
    cluster = make_cluster(tmp_path / "etcd", flags={"unsafe-no-fsync": "true"})
    (member,) = cluster.members
    urls = f"{member.client_url},http://{namespace.here}:{member.client_port}"
    member.flags = {**member.flags, "listen-client-urls": urls}
    cluster.start()
    try:
        await cluster.ready()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
async def hand(one: Cluster, tmp_path) -> AsyncIterator[Hand]:
    (tmp_path / "sources").mkdir()
    client = one.patient()
    yield Hand(client, Keys("/x"), tmp_path / "sources")
    await client.aclose()


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
    sidecar = Sidecar(tmp_path, (endpoint,), "/x", engine.url)
    sidecar.http = sidecar.http.replace("127.0.0.1", namespace.there)
    sidecar.program.arguments = [part.replace("127.0.0.1", namespace.there) for part in sidecar.program.arguments]
    sidecar.program.before = namespace.command
    yield sidecar
    sidecar.program.kill()


@pytest.mark.parametrize("name", BREAKS)
async def test_a_partition_in_the_kernel_is_noticed_and_caught_up_with(
    name, namespace: Namespace, hand: Hand, engine, sidecar
):
    """Fault 4: R2, R3, R13; the packets are dropped, or there is no route, for whatever connection."""
    await hand.pool()
    await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await serves(engine, "a")
    BREAKS[name](namespace)
    await eventually(lambda: events(sidecar, "etcd_disconnected") > 0, timeout_seconds=60)
    await hand.put(hand.record("b", "v2"))
    await hand.delete("a")
    namespace.heal()
    await serves(engine, "b")
    assert events(sidecar, "listed") == 1
    await eventually(lambda: _is_fresh(sidecar), timeout_seconds=60)


async def test_a_narrow_link_is_slow_and_nothing_else(namespace: Namespace, hand: Hand, engine, sidecar):
    """Fault 4: R2, R3; at 64 kbit/s a flood arrives late and whole, without a second list."""
    await hand.pool()
    await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await serves(engine, "a")
    namespace.limit(64)
    record = hand.record("a", "v1")
    for generation in range(2, 60):
        spec = record.spec.model_copy(update={"labels": {"n": str(generation), "pad": "x" * 250}})
        await hand.put(record.model_copy(update={"generation": generation, "spec": spec}))
    await hand.put(hand.record("b", "v2"))

    async def arrived() -> bool:
        return set(await engine.listing()) == {"a", "b"}

    # Our own questions go through the link too: asked as often as elsewhere, they would fill it.
    await eventually(arrived, timeout_seconds=180, every_seconds=2)
    assert namespace.squeezed() > 0, "the link was wide enough for all of it"
    assert events(sidecar, "listed") == 1


async def _is_fresh(sidecar: Sidecar) -> bool:
    return not await is_stale(sidecar)
