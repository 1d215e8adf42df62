"""What a sidecar counts and measures: each figure that is promised shows what happened."""

from __future__ import annotations

from datetime import UTC, datetime

from registry.model.keys import Keys
from tests.support.fleet import Hand, Sidecar
from tests.support.waiting import eventually

TIMED = ("reconcile", "stage", "engine_call", "propagation")


async def test_what_is_served_what_is_not_and_what_had_to_be_done_again(own_etcd, engine, tmp_path):
    """R9 status-truth, in figures; then an engine that is another process, and a connection to etcd that broke."""
    (tmp_path / "sources").mkdir()
    client = own_etcd.patient()
    hand, sidecar = (
        Hand(client, Keys("/x"), tmp_path / "sources"),
        Sidecar(tmp_path, own_etcd.endpoints, "/x", engine.url),
    )

    async def shows(wanted: dict[str, float]) -> dict[str, float]:
        """Waits until these are the values of its metrics; all of them."""

        async def are_so() -> dict[str, float]:
            found = await sidecar.metrics()
            assert {name: found.get(name) for name in wanted} == wanted
            return found

        return await eventually(are_so, timeout_seconds=60)

    try:
        await hand.pool()
        sidecar.program.start()
        await eventually(sidecar.is_ready)
        now = {"updated_at": datetime.now(UTC).isoformat(timespec="milliseconds")}
        bad = hand.record("b", "v2", digest="sha256:" + "0" * 64)
        revision = await hand.put(hand.record("a", "v1").model_copy(update=now), bad.model_copy(update=now))
        gauges = {"desired": 2, "served": 1, "failed": 1}
        found = await shows(
            {
                **{f"loraplane_{name}_adapters": count for name, count in gauges.items()},
                'loraplane_failed_adapters{reason="digest_mismatch"}': 1,
                "loraplane_ready": 1,
                "loraplane_stale": 0,
                'loraplane_engine_swap{strategy="pipelined"}': 1,
                'lora_syncer_adapter_status{adapter_name="a"}': 1,
                'lora_syncer_adapter_status{adapter_name="b"}': 0,
                'loraplane_engine_call_seconds_count{call="load",outcome="done"}': 1,
                "loraplane_propagation_seconds_count": 1,
                "loraplane_engine_restarts_total": 0,
            },
        )
        assert found["loraplane_observed_revision"] >= revision
        assert all(found[f"loraplane_{name}_seconds_sum"] > 0 for name in TIMED)
        engine.program.kill()
        await engine.start()
        await shows({"loraplane_engine_restarts_total": 1})
        own_etcd.stop()
        await shows({"loraplane_stale": 1, "loraplane_ready": 1})
        own_etcd.start()
        again = await shows({"loraplane_stale": 0})
        assert again["loraplane_etcd_reconnects_total"] > found["loraplane_etcd_reconnects_total"]
        assert again["loraplane_relists_total"] >= 1
    finally:
        sidecar.program.kill()
        await client.aclose()
