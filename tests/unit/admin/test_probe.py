"""When the admin service is healthy, on virtual time with an etcd; and two of its metrics."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Never

import pytest
import structlog.testing
from grpc import StatusCode
from grpc_health.v1 import health_pb2
from prometheus_client import generate_latest

from registry.admin import health as health_module
from registry.admin.health import AdminMetrics
from registry.admin.rpc.service import SERVICE
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdUnauthenticated, TlsFailed
from registry.model.keys import Keys
from registry.model.records import Meta
from registry.v1 import registry_pb2 as pb
from tests.simulation.links import Way
from tests.support.played_admin import Served, served
from tests.support.played_etcd import now
from tests.support.records import KEYS


def statuses(served: Served) -> set[int]:
    """What those who ask for the service's health are told, with and without its name."""
    return {served.service.ports.health._server_status[name] for name in ("", SERVICE)}


SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@served
async def test_the_service_is_healthy_while_etcd_answers(served):
    """R18: whoever balances calls sends none where none can be answered; and what is written is refused meanwhile."""
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
    served.etcd.links["m0"].set_way(Way.REFUSED)
    await asyncio.sleep(10)
    served.etcd.store.put(KEYS.meta(), b"?")
    served.etcd.links["m0"].set_way(Way.OPEN)
    await asyncio.sleep(10)
    assert (statuses(served), served.probe.readiness.ready) == ({NOT_SERVING}, False)
    assert "forbids writing" in served.probe.readiness.reason
    refused = await served.refusal("DeletePool", pb.DeletePoolRequest(name="p"))
    assert refused.code is StatusCode.FAILED_PRECONDITION
    served.etcd.store.delete(KEYS.meta())
    await asyncio.sleep(5)
    assert statuses(served) == {SERVING}
    await served.make_pool()
    assert not probing.done()


@pytest.mark.parametrize(
    "refusal", [EtcdUnauthenticated("who are you"), TlsFailed("no certificate", maybe_applied=False)]
)
@pytest.mark.parametrize("is_first", [True, False])
@served
async def test_a_wrong_password_ends_the_service_only_at_its_start(served, refusal, is_first, monkeypatch):
    """R13: later it may be a rotation under way."""

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


def test_what_is_measured_has_names_that_dashboards_rely_on():
    """Each in a registry of its own, so that two services in one process count apart."""
    metrics, other = AdminMetrics(), AdminMetrics()
    metrics.requests.labels("GetPool", "OK").inc()
    metrics.seconds.labels("GetPool").observe(0.03)
    metrics.streams.labels("WatchAdapters").inc()
    metrics.no_space.inc()
    metrics.count_conducted("promoted")
    metrics.count_scaled("up")
    metrics.count_internal_error("rollouts of p")
    metrics.count_internal_error("probe")
    metrics.denials_lost.inc()
    for missing in ({"gone": 1}, {"p": 2}):
        metrics.show_missing(missing)
    metrics.etcd_up.set(1)
    ours = [line for line in generate_latest(metrics.registry).decode().splitlines() if line.startswith("loraplane")]
    told = {name: float(value) for name, _, value in (line.rpartition(" ") for line in ours) if "_created" not in name}
    buckets = ["0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0"]
    seconds = "loraplane_admin_request_seconds"
    assert told == {
        'loraplane_admin_requests_total{code="OK",method="GetPool"}': 1,
        **{
            f'{seconds}_bucket{{le="{bound}",method="GetPool"}}': float(float(bound) > 0.03)
            for bound in [*buckets, "+Inf"]
        },
        f'{seconds}_count{{method="GetPool"}}': 1,
        f'{seconds}_sum{{method="GetPool"}}': 0.03,
        'loraplane_admin_streams{method="WatchAdapters"}': 1,
        "loraplane_admin_no_space_total": 1,
        "loraplane_admin_expired_adapters_total": 0,
        'loraplane_admin_scaling_steps_total{direction="up"}': 1,
        'loraplane_admin_rollouts_total{verb="promoted"}': 1,
        'loraplane_admin_internal_errors_total{part="rollouts"}': 1,
        'loraplane_admin_internal_errors_total{part="probe"}': 1,
        "loraplane_admin_denials_lost_total": 1,
        'loraplane_admin_missing_replicas{pool="p"}': 2,
        "loraplane_admin_etcd_up": 1,
    }
    assert "process_" in generate_latest(metrics.registry).decode()
    assert "GetPool" not in generate_latest(other.registry).decode()


@served
async def test_etcd_is_looked_at_each_second_and_given_up_after_three(served):
    """R18: readiness follows within ten seconds; each change of it is told once, and what is so still is not."""
    looks: list[float] = []
    ensure = health_module.ensure_meta
    hangs = False

    async def looking(client: Client, keys: Keys) -> Meta:
        looks.append(now())
        if hangs:
            await asyncio.sleep(1000)
        return await ensure(client, keys)

    with pytest.MonkeyPatch.context() as patch, structlog.testing.capture_logs() as logged:
        patch.setattr(health_module, "ensure_meta", looking)
        probing = asyncio.create_task(served.probe.run())
        await asyncio.sleep(5.5)
        assert [round(at) for at in looks] == [0, 1, 2, 3, 4, 5]
        looks.clear()
        hangs = True
        await asyncio.sleep(12)
        assert [round(at) for at in looks] == [6, 10, 14]
        assert served.probe.readiness.reason == "etcd does not answer: no reply in time"
        hangs = False
        await asyncio.sleep(10)
        probing.cancel()
    told = [line["event"] for line in logged if line["event"] in {"ready", "not_ready"}]
    assert told == ["ready", "not_ready", "ready"]


@served
async def test_a_fault_of_ours_in_a_look_is_told_as_it_is(served, monkeypatch):
    """R12: whoever supervises the probe runs it again."""

    async def breaks(*_: object, **__: object) -> Never:
        raise KeyError("of ours")

    monkeypatch.setattr(served.client, "range", breaks)
    with pytest.raises(KeyError):
        await served.probe.run()


def test_metrics_tell_which_access_file_counts():
    """As it is when they are asked for."""
    metrics = AdminMetrics()
    access = SimpleNamespace(digest="sha256:1", trouble="", failed_reloads=0, loaded_at=datetime.fromtimestamp(7, UTC))
    metrics.show_access(access)  # type: ignore[arg-type]
    name = "loraplane_admin_access"

    def told() -> list[float | None]:
        value = metrics.registry.get_sample_value
        figures = [value(f"{name}_{one}") for one in ("stale", "failed_reloads_total", "loaded_timestamp_seconds")]
        return [*figures, value(f"{name}_info", {"digest": access.digest})]

    assert told() == [0, 0, 7, 1]
    access.trouble, access.failed_reloads, access.digest = "line 3", 2, "sha256:2"
    assert told() == [1, 2, 7, 1]
    assert metrics.registry.get_sample_value(f"{name}_info", {"digest": "sha256:1"}) is None
