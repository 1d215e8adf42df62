"""Following a pool: what the registry tells replaces what was known, and what was known stays while it is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import grpc
import pytest
import structlog

from registry.client.transport import AdminCalls
from registry.model.errors import Reason, Unavailable
from registry.picker import following
from registry.picker.following import PoolWatch, ready_replica
from registry.picker.served import PickPool
from registry.v1 import registry_pb2 as pb
from tests.simulation.loop import virtual
from tests.support.fake_admin import FakeAdmin, Hold, Refusal, Slow, connected
from tests.support.waiting import eventually

SERVING = pb.RolloutReplica.SERVING
GONE = Refusal(grpc.StatusCode.UNAVAILABLE, message="gone")


def state(revision: int, *generations: int, url: str = "http://10.0.0.1:8000") -> pb.WatchResidencyResponse:
    """A whole state, in which sql has a generation on each replica."""
    replicas = [
        pb.Residence(replica=f"r{number}", engine_url=url, model="sql", generation=one, state=SERVING)
        for number, one in enumerate(generations)
    ]
    sql = pb.AdapterResidency(name="sql", generation=max(generations), replicas=replicas)
    return pb.WatchResidencyResponse(revision=revision, adapters=[sql], snapshot=True)


def replica(**changes: object) -> pb.Replica:
    status = {"ready": True, "engine": {"url": "http://10.0.0.2:8000"}, **changes}
    return pb.Replica(name="r1", status_json=json.dumps(status))


@asynccontextmanager
async def watching(admin: FakeAdmin) -> AsyncIterator[PoolWatch]:
    with connected(admin) as address:
        watch = PoolWatch("p", lambda: AdminCalls(address, None, 5.0))
        task = asyncio.create_task(watch.run())
        try:
            yield watch
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def known(watch: PoolWatch, revision: int = 5) -> PickPool:
    """What it knows, once it has heard of a revision."""
    await eventually(lambda: watch.pool is not None and watch.pool.revision == revision)
    assert watch.pool is not None
    return watch.pool


@pytest.fixture(autouse=True)
def soon(monkeypatch) -> None:
    monkeypatch.setattr(following, "_LIST_SECONDS", 0.02)
    monkeypatch.setattr(following, "_LIST_SOON_SECONDS", 0.01)
    monkeypatch.setattr(following, "_CALL_SECONDS", 0.5)


async def test_a_pool_is_known_with_its_bases_and_its_ready_replicas():
    admin = FakeAdmin()
    admin.answers["WatchResidency"] = [[state(5, 1), state(9, 1, 2), Hold()]]
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[replica(), replica(ready=False)])]
    async with watching(admin) as watch:
        await eventually(lambda: watch.pool is not None and watch.pool.ready)
        pool = await known(watch, 9)
        assert (pool.bases, [one.url for one in pool.ready]) == ({"tiny"}, ["http://10.0.0.2:8000"])
        assert pool.seen["sql"][0].last_revision == 5
        assert (watch.away_seconds, watch.trouble) == (0.0, "")
        admin.answers["ListReplicas"] = [
            pb.ListReplicasResponse(replicas=[replica(engine={"url": "http://10.0.0.3:1"})])
        ]
        await eventually(
            lambda: watch.pool is not None and [one.url for one in watch.pool.ready] == ["http://10.0.0.3:1"]
        )


async def test_a_listing_does_not_bring_back_what_was_served_before(monkeypatch):
    """R5, R13: hosts are looked up for as long as DNS takes, and meanwhile the registry may tell something newer."""
    asked: list[str] = []

    async def resolved(names: frozenset[str]) -> dict[str, str]:
        asked.extend(names)
        await asyncio.sleep(0.2 if "old" in names else 0.05)
        return dict.fromkeys(names, "10.0.0.1")

    monkeypatch.setattr(following, "_resolved", resolved)
    admin = FakeAdmin()
    admin.answers["WatchResidency"] = [[state(5, 1, url="http://old:8000"), state(9, 1, url="http://new:8000"), Hold()]]
    async with watching(admin) as watch:
        await known(watch, 9)
        listings = len(asked)
        await eventually(lambda: len(asked) > listings + 2)
        assert (watch.pool.revision, watch.pool.resolved) == (9, {"new": "10.0.0.1"})


async def test_an_address_stays_while_names_lead_nowhere(monkeypatch):
    """R13 static-stable: while DNS is away engines serve on."""
    found = [{"one": "10.0.0.1"}, {}]

    async def resolved(_names: frozenset[str]) -> dict[str, str]:
        return found.pop(0) if len(found) > 1 else found[0]

    monkeypatch.setattr(following, "_resolved", resolved)
    admin = FakeAdmin()
    admin.answers["WatchResidency"] = [[state(5, 1, url="http://one:8000"), state(6, 1, url="http://one:8000"), Hold()]]
    async with watching(admin) as watch:
        assert (await known(watch, 6)).resolved == {"one": "10.0.0.1"}
        found[0] = {"one": "10.0.0.2"}
        await eventually(lambda: watch.pool is not None and watch.pool.resolved == {"one": "10.0.0.2"})


async def test_a_pool_is_not_known_before_its_base_is():
    """R5 no-silent-base the other way: the base's own name is not unknown while a picker starts."""
    admin = FakeAdmin()
    admin.answers["WatchResidency"] = [[state(5, 1), Hold()]]
    admin.answers["GetPool"] = [GONE, pb.Pool(name="p", base_models=["tiny"])]
    async with watching(admin) as watch:
        assert (await known(watch)).bases == {"tiny"}


async def test_what_was_known_stays_while_the_registry_is_away():
    """R13 static-stable."""
    admin = FakeAdmin()
    admin.answers["WatchResidency"] = [[state(5, 1), GONE], GONE, GONE, [state(6, 1), Hold()]]
    async with watching(admin) as watch:
        await eventually(lambda: watch.away_seconds > 0 and watch.pool is not None)
        assert "no connection to the admin service" in watch.trouble
        await known(watch, 6)
        assert watch.away_seconds == 0.0
        assert all(channel.graces for channel in admin.channels[:-1])


async def test_a_connection_that_ends_at_its_age_is_no_news():
    """The admin service ends each after five minutes; a warning that comes twelve times an hour is read by nobody."""
    admin = FakeAdmin()
    admin.answers["WatchResidency"] = [[state(5, 1), GONE], [state(6, 1), GONE], GONE, [state(7, 1), Hold()]]
    with structlog.testing.capture_logs() as logged:
        async with watching(admin) as watch:
            await known(watch, 7)
            await eventually(lambda: watch.away_seconds == 0.0)
    assert [one["event"] for one in logged] == ["registry_followed", "registry_away", "registry_followed"]


async def test_a_registry_that_stays_away_is_asked_ever_more_slowly(monkeypatch):
    """R16 bounded: and at once again after it was there."""
    failures: list[int] = []
    monkeypatch.setattr(following, "_AGAIN", SimpleNamespace(delay=lambda count, _: failures.append(count) or 0.0))
    admin = FakeAdmin()
    admin.answers["WatchResidency"] = [GONE, GONE, [state(5, 1), GONE], GONE, [state(6, 1), Hold()]]
    async with watching(admin) as watch:
        await known(watch, 6)
        assert failures == [1, 2, 1, 2]


@pytest.mark.parametrize("ends", [True, False], ids=["it ends", "nobody answers a listing"])
async def test_a_stream_that_ends_or_is_dead_without_a_word_is_begun_again(ends):
    """R18."""
    admin = FakeAdmin()
    admin.answers["WatchResidency"] = [[state(5, 1), *[Hold()] * (not ends)], [state(6, 1), Hold()]]
    if not ends:
        admin.answers["ListReplicas"] = [pb.ListReplicasResponse(), *[GONE] * 30, pb.ListReplicasResponse()]
    async with watching(admin) as watch:
        await known(watch, 6)


@virtual
async def test_replicas_are_listed_soon_after_a_change_and_else_now_and_then(monkeypatch):
    """R16 bounded: not twice a second by each picker."""
    monkeypatch.setattr(following, "_LIST_SECONDS", 5.0)
    monkeypatch.setattr(following, "_LIST_SOON_SECONDS", 0.5)
    admin = FakeAdmin()
    admin.answers["WatchResidency"] = [[state(5, 1), Slow(state(6, 1), 100.0), Hold()]]
    async with watching(admin) as watch:
        await asyncio.sleep(99.9)
        listings = len(admin.asked("ListReplicas"))
        assert listings < 25
        await asyncio.sleep(1.0)
        assert (await known(watch, 6), len(admin.asked("ListReplicas")) - listings) == (watch.pool, 1)


async def test_a_fault_of_ours_is_no_registry_that_is_away():
    """R12."""

    def broken() -> AdminCalls:
        raise KeyError

    with pytest.raises(KeyError):
        await PoolWatch("p", broken).run()


async def test_an_unknown_pool_is_named_and_waited_for():
    admin = FakeAdmin()
    none = Refusal(grpc.StatusCode.NOT_FOUND, "POOL_NOT_FOUND", "there is no pool 'p'")
    admin.answers["WatchResidency"] = [none, none, [state(5, 1), Hold()]]
    with structlog.testing.capture_logs() as logged:
        async with watching(admin) as watch:
            await eventually(lambda: watch.trouble == "there is no pool 'p'" and watch.pool is None)
            await known(watch)
    told = [(one["event"], one.get("reason")) for one in logged]
    assert told == [("registry_away", "POOL_NOT_FOUND"), ("registry_followed", None)], "once, from the start on"


async def test_who_may_see_residency_alone_knows_adapters_and_no_base():
    """A2 deny-by-default: the role router is enough for adapters."""
    admin = FakeAdmin()
    admin.answers["WatchResidency"] = [[state(5, 1), Hold()]]
    no = Refusal(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", "no")
    admin.answers["GetPool"] = [no]
    with structlog.testing.capture_logs() as logged:
        async with watching(admin) as watch:
            await eventually(lambda: len(admin.asked("GetPool")) > 2)
            assert ((await known(watch)).bases, watch.away_seconds, len(admin.channels)) == (frozenset(), 0.0, 1)
            admin.answers["GetPool"] = [pb.Pool(name="p", base_models=["tiny"]), no]
            await eventually(lambda: len([one for one in logged if one["event"] == "base_not_known"]) >= 2)
            assert watch.pool.bases == {"tiny"}
    assert [one["event"] for one in logged] == ["base_not_known", "registry_followed", "base_not_known"], "once each"


async def test_hosts_of_engines_are_looked_up(monkeypatch):
    admin = FakeAdmin()
    admin.answers["WatchResidency"] = [[state(5, 1, url="http://localhost:8000"), Hold()]]
    admin.answers["ListReplicas"] = [
        pb.ListReplicasResponse(replicas=[replica(engine={"url": "http://no.such.host.invalid:1"})])
    ]
    monkeypatch.setattr(following, "_RESOLVE_SECONDS", 0.5)
    async with watching(admin) as watch:
        await eventually(lambda: watch.pool is not None and watch.pool.resolved)
        assert set((await known(watch)).resolved) == {"localhost"}


READY = replica().status_json


@pytest.mark.parametrize(
    ("one", "url"),
    [
        (pb.Replica(name="r1"), None),
        (pb.Replica(name="r1", status_json="{"), None),
        (pb.Replica(name="r1", status_json="[]"), None),
        (replica(ready="yes"), None),
        (replica(stale=True), None),
        (replica(engine=None), None),
        (pb.Replica(name="r1", leaving=True, status_json=READY), None),
        (pb.Replica(name="r1", withheld_engine_url="http://x", status_json=READY), None),
        (pb.Replica(name="r1", engine_url="http://1.2.3.4:1", status_json=READY), "http://1.2.3.4:1"),
    ],
)
def test_a_replica_that_is_not_ready_or_nowhere_gets_no_requests_for_its_base(one, url):
    """The URL for routers counts before the sidecar's own."""
    found = ready_replica(one)
    assert (found and found.url) == url


async def test_it_ends_though_the_registry_goes_away_at_that_moment():
    """Else a picker that is told to stop together with its admin service would follow on for ever."""
    is_gone = asyncio.Event()

    class Leaving:
        async def unary(self, *_: object, **__: object) -> None:
            await asyncio.Event().wait()

        async def stream(self, *_: object) -> AsyncIterator[pb.WatchResidencyResponse]:
            await is_gone.wait()
            raise Unavailable(Reason.ADMIN_UNAVAILABLE, "gone")
            yield

        async def aclose(self) -> None:
            pass

    following = asyncio.create_task(PoolWatch("p", Leaving).run())  # type: ignore[arg-type] # what is called of it
    for _ in range(5):
        await asyncio.sleep(0)
    is_gone.set()
    following.cancel()
    ended, _ = await asyncio.wait({following}, timeout=60)
    following.cancel()
    assert ended == {following}
