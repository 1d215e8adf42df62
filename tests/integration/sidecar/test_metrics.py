"""What a sidecar counts and measures: each figure that is promised shows what happened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from registry.model.keys import Keys
from registry.model.records import AdapterRecord
from tests.support.fleet import Hand, Sidecar, SimulatedEngine
from tests.support.waiting import eventually

PREFIX = "/x"
TIMED = ("reconcile", "stage", "engine_call", "propagation")


@pytest.fixture
async def hand(own_etcd, tmp_path) -> AsyncIterator[Hand]:
    (tmp_path / "sources").mkdir()
    client = own_etcd.patient()
    yield Hand(client, Keys(PREFIX), tmp_path / "sources")
    await client.aclose()


@pytest.fixture
async def sidecar(own_etcd, engine, hand, tmp_path) -> AsyncIterator[Sidecar]:
    """Ready, with nothing to serve."""
    sidecar = Sidecar(tmp_path, own_etcd.endpoints, PREFIX, engine.url)
    await hand.pool()
    sidecar.program.start()
    await eventually(sidecar.is_ready)
    yield sidecar
    sidecar.program.kill()


def just_now(record: AdapterRecord, **source: str) -> AdapterRecord:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    spec = record.spec.model_copy(update={"source": record.spec.source.model_copy(update=source)})
    return record.model_copy(update={"updated_at": now, "spec": spec})


async def shows(sidecar: Sidecar, wanted: dict[str, float]) -> dict[str, float]:
    """Waits until these are the values of its metrics; all of them."""

    async def do() -> dict[str, float]:
        found = await sidecar.metrics()
        assert {name: found.get(name) for name in wanted} == wanted
        return found

    return await eventually(do, timeout_seconds=60)


async def test_what_is_served_and_what_is_not(hand: Hand, sidecar: Sidecar):
    """R9 status-truth, in figures: one adapter is served, of another there are no files."""
    records = just_now(hand.record("a", "v1")), just_now(hand.record("b", "v2"), uri="file:///elsewhere/")
    revision = await hand.put(*records)
    gauges = {"desired": 2, "served": 1, "failed": 1}
    found = await shows(
        sidecar,
        {
            **{f"loraplane_{name}_adapters": count for name, count in gauges.items()},
            'loraplane_failed_adapters{reason="source_not_allowed"}': 1,
            "loraplane_ready": 1,
            "loraplane_stale": 0,
            'loraplane_engine_swap{strategy="pipelined"}': 1,
            'lora_syncer_adapter_status{adapter_name="a"}': 1,
            'lora_syncer_adapter_status{adapter_name="b"}': 0,
            'loraplane_engine_call_seconds_count{call="load",outcome="done"}': 1,
            "loraplane_stage_seconds_count": 2,
            "loraplane_propagation_seconds_count": 1,
        },
    )
    assert found["loraplane_observed_revision"] >= revision
    assert all(found[f"loraplane_{name}_seconds_sum"] > 0 for name in TIMED)


async def test_what_had_to_be_done_again(hand: Hand, sidecar: Sidecar, engine: SimulatedEngine, own_etcd):
    """A connection to etcd that broke, an engine that is another process, a list that was read."""
    before = await shows(sidecar, {"loraplane_engine_restarts_total": 0})
    engine.program.kill()
    await engine.start()
    await shows(sidecar, {"loraplane_engine_restarts_total": 1})
    own_etcd.stop()
    await shows(sidecar, {"loraplane_stale": 1, "loraplane_ready": 1})
    own_etcd.start()
    found = await shows(sidecar, {"loraplane_stale": 0})
    assert found["loraplane_etcd_reconnects_total"] > before["loraplane_etcd_reconnects_total"]
    assert found["loraplane_relists_total"] >= 1
