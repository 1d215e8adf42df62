"""One replica on real etcd: what is written is served, whatever happens to the parts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from registry.etcd3.ops import Delete, Put, Range, prefix_end
from registry.model.keys import last_part
from sidecar.desired.informer import record_hash
from tests.support.adapters import digest_of
from tests.support.fleet import POOL, Hand, serves, settled
from tests.support.waiting import eventually


async def test_what_is_written_is_served_and_what_is_deleted_is_not(hand: Hand, engine, sidecar):
    """R2 replay-equal, R3 converge, R4 digest-true, R6 unload-eventual, R9 status-truth; also when the engine restarts.

    A change can be followed by its request id to the engine's calls, and how long it took is measured.
    """
    await hand.pool()
    digest = digest_of(hand.source("v1"))
    await hand.put(hand.record("a", "v1", digest=digest), hand.record("acme/b", "v2"))
    sidecar.program.start()
    first = await serves(engine, sidecar, "a", "acme/b")
    assert digest_of(Path(first["a"])) == digest
    now = datetime.now(UTC).isoformat()
    revision = await hand.put(hand.record("a", "v3", generation=2).model_copy(update={"updated_at": now}))

    async def is_swapped() -> bool:
        return (await engine.listing()).get("a") not in (None, first["a"])

    await eventually(is_swapped)
    status = await settled(sidecar, revision)
    assert (status["served"]["count"], status["last_request_id"]) == (2, "req-a-2")
    calls = [line["request_id"] for line in sidecar.program.logged() if line["event"] == "engine_call"]
    assert {"req-a-1", "req-acme-b-1", "req-a-2"} <= set(calls)
    assert (await sidecar.metrics())["loraplane_propagation_seconds_count"] == 1, "nobody waited here for the first"
    engine.program.kill()

    async def is_not_ready() -> bool:
        return (await sidecar.get("/readyz"))[0] == 503

    await eventually(is_not_ready)
    await engine.start()
    await serves(engine, sidecar, "a", "acme/b")
    assert (await settled(sidecar, 0))["engine"]["incarnation"] != status["engine"]["incarnation"]
    revision = await hand.delete("a")
    await serves(engine, sidecar, "acme/b")
    assert (await settled(sidecar, revision))["served"]["count"] == 1
    prefix = hand.keys.adapters(POOL)
    plans = [line for line in sidecar.program.logged() if line["event"] == "plan_made" and line["revision"]]
    assert plans
    for line in plans:
        found = await hand.client.range(Range(prefix, prefix_end(prefix), revision=line["revision"]))
        total = sum(record_hash(last_part(kv.key), kv.mod_revision, kv.value) for kv in found.kvs) % (1 << 256)
        assert line["state_hash"] == f"{total:064x}"


async def test_foreign_adapters_are_left_alone_and_drift_is_repaired(hand, engine, sidecar, tmp_path):
    """R11 foreign-safe, R3: what somebody else loads stays, what somebody else unloads comes back."""
    await hand.pool()
    await engine.load("foreign", str(hand.source("foreign")))
    await engine.load("taken", str(hand.source("taken")))
    await hand.put(hand.record("a", "v1"), hand.record("taken", "v2"))
    sidecar.change("attentive")
    sidecar.program.start()

    async def conflict() -> bool:
        return await sidecar.failed() == {"taken": "name_conflict"} and "a" in await engine.listing()

    await eventually(conflict)
    assert await engine.unload("a") == 200

    async def is_back() -> bool:
        return "a" in await engine.listing()

    await eventually(is_back)
    listing = await engine.listing()
    assert listing["foreign"] == str(hand.source("foreign"))
    assert listing["taken"] == str(hand.source("taken"))


async def test_what_is_wrong_is_refused_by_name_and_delays_no_other(hand, engine, sidecar):
    """R4, R5 no-silent-base, R8 isolation, R14 nack: the last good generation is kept, through a restart."""
    good, wrong = digest_of(hand.source("v1")), "sha256:" + "0" * 64
    await hand.pool()
    (hand.sources / "bad").mkdir()
    (hand.sources / "bad" / "adapter_config.json").write_text("{}")
    (hand.sources / "bad" / "adapter_model.safetensors").write_bytes(b"x" * 100)
    names = ["a", *(f"n{number}" for number in range(10))]
    bad = [hand.record("base", "v1"), hand.record("poison", "bad", priority=100)]
    await hand.put(*(hand.record(name, "v1") for name in names), *bad, hand.record("other", "v1", digest=wrong))
    sidecar.program.start()
    before = await serves(engine, sidecar, *names)
    await hand.commit(
        Put(hand.keys.adapter(POOL, "a"), b"\xff\x00{"),
        Put(hand.keys.adapter(POOL, "never"), b'{"schema": 99}'),
        Put(hand.keys.adapter(POOL, "c"), hand.record("c", "v2").to_bytes()),
    )
    after = await serves(engine, sidecar, *names, "c")
    assert after["a"] == before["a"]

    async def is_told() -> dict[str, dict]:
        failed = {one["name"]: one for one in (await sidecar.status())["failed"]}
        assert {name: one["reason"] for name, one in failed.items()} == {
            "a": "unreadable_record",
            "never": "future_schema",
            "base": "name_is_base_model",
            "other": "digest_mismatch",
            "poison": "wrong_peft_type",
        }
        return failed

    told = await eventually(is_told)
    assert (good in told["other"]["message"], wrong in told["other"]["message"]) == (True, True)
    sidecar.program.kill()
    sidecar.program.start()
    await eventually(sidecar.is_ready)
    assert await engine.listing() == after
    await eventually(is_told)


async def test_twenty_thousand_deletes_at_once_arrive(hand, engine, sidecar):
    """Fault 14: one revision with very many deletions; no message-size death, R15 not tripped."""
    await hand.pool()
    for start in range(0, 20_000, 1000):
        record = hand.record("x", "v1", load="lazy")
        values = [record.model_copy(update={"name": f"n{i}"}) for i in range(start, start + 1000)]
        await hand.put(*values)
    await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await serves(engine, sidecar, "a")
    await eventually(sidecar.is_ready)
    assert (await sidecar.status())["lazy"]["count"] == 20_000
    prefix = hand.keys.adapter(POOL, "n")
    revision = await hand.commit(Delete(prefix, prefix_end(prefix)))
    status = await settled(sidecar, revision)
    assert status["lazy"]["count"] == 0
    assert set(await engine.listing()) == {"a"}
