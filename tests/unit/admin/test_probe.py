"""When the admin service is healthy, on virtual time with an etcd; and two of its metrics."""

from __future__ import annotations

import asyncio
from typing import Never

import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2

from registry.admin.health import AdminMetrics
from registry.admin.rpc.service import SERVICE
from registry.etcd3.errors import EtcdUnauthenticated, TlsFailed
from registry.v1 import registry_pb2 as pb
from tests.simulation.links import Way
from tests.support.played_admin import Served, serve
from tests.support.records import KEYS


def statuses(served: Served) -> set[int]:
    """What those who ask for the service's health are told, with and without its name."""
    return {served.health._server_status[name] for name in ("", SERVICE)}


SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def test_the_service_is_healthy_while_etcd_answers():
    """R18: whoever balances calls sends none where none can be answered; and what is written is refused meanwhile."""

    async def scene(served: Served) -> None:
        probing = asyncio.create_task(served.probe.run())
        await asyncio.sleep(0)
        assert (statuses(served), served.probe.readiness.ready) == ({NOT_SERVING}, False)
        await asyncio.sleep(1)
        assert (statuses(served), served.metrics.etcd_up._value.get()) == ({SERVING}, 1)
        assert served.probe.readiness.reason == ""
        assert KEYS.meta() in served.etcd.store.kvs
        for way in (Way.HUNG, Way.REFUSED):
            served.etcd.links["m0"].set_way(way)
            await asyncio.sleep(10)
            assert (statuses(served), served.metrics.etcd_up._value.get()) == ({NOT_SERVING}, 0)
            assert "etcd does not answer" in served.probe.readiness.reason
            served.etcd.links["m0"].set_way(Way.OPEN)
            await asyncio.sleep(10)
            assert statuses(served) == {SERVING}
        served.etcd.store.put(KEYS.meta(), b"?")
        await asyncio.sleep(5)
        assert (statuses(served), served.probe.readiness.ready) == ({NOT_SERVING}, False)
        assert "forbids writing" in served.probe.readiness.reason
        refused = await served.refusal("DeletePool", pb.DeletePoolRequest(name="p"))
        assert refused.code is StatusCode.FAILED_PRECONDITION
        served.etcd.store.delete(KEYS.meta())
        await asyncio.sleep(5)
        assert statuses(served) == {SERVING}
        await served.make_pool()
        assert not probing.done()

    serve(scene)


@pytest.mark.parametrize(
    "refusal", [EtcdUnauthenticated("who are you"), TlsFailed("no certificate", maybe_applied=False)]
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_wrong_password_ends_the_service_only_at_its_start(refusal, is_first, monkeypatch):
    """R13: later it may be a rotation under way."""

    async def scene(served: Served) -> None:
        async def refused(*_: object, **__: object) -> Never:
            raise refusal

        probing = asyncio.create_task(served.probe.run())
        if not is_first:
            await asyncio.sleep(1)
        monkeypatch.setattr(served.client, "range", refused)
        await asyncio.sleep(3)
        assert (probing.done(), statuses(served)) == (is_first, {NOT_SERVING})
        if is_first:
            assert probing.exception() is refusal
        else:
            assert "refuses the admin service's certificate, user or password" in served.probe.readiness.reason

    serve(scene)


def test_missing_replicas_are_shown_of_the_pools_that_there_are():
    metrics = AdminMetrics()
    for missing in ({"p": 2, "q": 0}, {"q": 1}):
        metrics.show_missing(missing)
        [family] = list(metrics.missing.collect())
        assert {sample.labels["pool"]: sample.value for sample in family.samples} == missing
    metrics.count_internal_error("rollouts of p")
    assert metrics.internal_errors.labels("rollouts")._value.get() == 1
