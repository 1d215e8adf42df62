"""One replica on real etcd: what is written is served, whatever happens to the parts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from registry.etcd3.ops import Delete, Put, Range, prefix_end
from registry.model.keys import last_part
from sidecar.desired.informer import record_hash
from tests.support.adapters import digest_of
from tests.support.fleet import POOL, Hand, Sidecar, serves, settled
from tests.support.waiting import eventually


async def test_what_is_written_is_served_and_what_is_deleted_is_not(hand: Hand, engine, sidecar):
    """R3 converge, R6 unload-eventual, R9 status-truth."""
    await hand.pool()
    await hand.put(hand.record("a", "v1"), hand.record("acme/b", "v2"))
    sidecar.program.start()
    first = await serves(engine, sidecar, "a", "acme/b")
    revision = await hand.put(hand.record("a", "v3", generation=2))

    async def swapped() -> bool:
        return (await engine.listing()).get("a") not in (None, first["a"])

    await eventually(swapped)
    status = await settled(sidecar, revision)
    assert status["served"]["count"] == 2
    revision = await hand.delete("a")
    await serves(engine, sidecar, "acme/b")
    assert (await settled(sidecar, revision))["served"]["count"] == 1


async def test_the_metric_tells_how_long_a_change_took(hand, engine, sidecar):
    """Only of changes made while it runs: nobody waited here for the others."""
    await hand.pool()
    await hand.put(hand.record("old", "v1"))
    sidecar.program.start()
    await serves(engine, sidecar, "old")
    now = datetime.now(UTC).isoformat()
    await settled(sidecar, await hand.put(hand.record("new", "v2").model_copy(update={"updated_at": now})))
    assert (await sidecar.metrics())["loraplane_propagation_seconds_count"] == 1


async def test_an_engine_that_restarts_gets_its_adapters_back(hand, engine, sidecar):
    """R3 converge: the restart is noticed by the engine's identity; the replica is not ready meanwhile."""
    await hand.pool()
    await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await serves(engine, sidecar, "a")
    status = await settled(sidecar, 0)
    engine.program.kill()

    async def is_not_ready() -> bool:
        return (await sidecar.get("/readyz"))[0] == 503

    await eventually(is_not_ready)
    await engine.start()
    await serves(engine, sidecar, "a")
    again = await settled(sidecar, 0)
    assert again["engine"]["incarnation"] != status["engine"]["incarnation"]


async def test_the_state_hash_is_that_of_the_history(hand, engine, sidecar):
    """R2 replay-equal: the hash logged for a revision is that of the records at that revision in etcd."""
    await hand.pool()
    sidecar.program.start()
    revision = 0
    for generation in range(1, 6):
        revision = await hand.put(hand.record("a", "v1", generation), hand.record(f"n{generation}", "v2"))
        await hand.delete("n1")
    await settled(sidecar, revision)
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

    await eventually(is_back, timeout_seconds=60)
    listing = await engine.listing()
    assert listing["foreign"] == str(hand.source("foreign"))
    assert listing["taken"] == str(hand.source("taken"))


async def test_arbitrary_bytes_in_etcd_are_refused_by_name(hand, engine, sidecar):
    """R14 nack: the last good generation is kept, all others proceed."""
    await hand.pool()
    await hand.put(hand.record("a", "v1"), hand.record("b", "v1"))
    sidecar.program.start()
    before = await serves(engine, sidecar, "a", "b")
    await hand.commit(
        Put(hand.keys.adapter(POOL, "a"), b"\xff\x00{"),
        Put(hand.keys.adapter(POOL, "never"), b'{"schema": 99}'),
        Put(hand.keys.adapter(POOL, "c"), hand.record("c", "v2").to_bytes()),
    )
    after = await serves(engine, sidecar, "a", "b", "c")
    assert after["a"] == before["a"]
    await fails(sidecar, a="unreadable_record", never="future_schema")
    sidecar.program.kill()
    sidecar.program.start()
    await eventually(sidecar.is_ready)
    assert await engine.listing() == after
    await fails(sidecar, a="unreadable_record", never="future_schema")


async def test_a_name_equal_to_the_base_model_is_never_loaded(hand, engine, sidecar):
    """R5 no-silent-base."""
    await hand.pool()
    await hand.put(hand.record("base", "v1"), hand.record("a", "v1"))
    sidecar.program.start()
    await serves(engine, sidecar, "a")
    await fails(sidecar, base="name_is_base_model")


async def test_files_in_the_store_have_the_digest_of_their_record(hand, engine, sidecar):
    """R4 digest-true: another digest than the record's is refused, both named; the right one is served."""
    good = digest_of(hand.source("v1"))
    await hand.pool()
    wrong = "sha256:" + "0" * 64
    await hand.put(hand.record("a", "v1", digest=good), hand.record("b", "v1", digest=wrong))
    sidecar.program.start()
    listing = await serves(engine, sidecar, "a")
    assert digest_of(Path(listing["a"])) == good

    async def refused() -> bool:
        return await sidecar.failed() == {"b": "digest_mismatch"}

    await eventually(refused)
    (entry,) = (await sidecar.status())["failed"]
    assert good in entry["message"]
    assert wrong in entry["message"]
    assert entry["settled"]


async def test_one_bad_adapter_delays_no_other(hand, engine, sidecar):
    """R8 isolation: one poison among many."""
    await hand.pool()
    records = [hand.record(f"n{i}", "v1") for i in range(20)]
    (hand.sources / "bad").mkdir()
    (hand.sources / "bad" / "adapter_config.json").write_text("{}")
    (hand.sources / "bad" / "adapter_model.safetensors").write_bytes(b"x" * 100)
    await hand.put(*records, hand.record("bad", "bad", priority=100))
    sidecar.program.start()
    await serves(engine, sidecar, *(record.name for record in records))

    async def is_refused() -> bool:
        return await sidecar.failed() == {"bad": "wrong_peft_type"}

    await eventually(is_refused)


async def test_a_request_can_be_followed_to_the_engine_calls(hand, engine, sidecar):
    """The request id of a change is that of the engine call it leads to, in status and log."""
    await hand.pool()
    revision = await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    status = await settled(sidecar, revision)
    (call,) = [line for line in sidecar.program.logged() if line["event"] == "engine_call"]
    assert call["request_id"] == "req-a-1"
    revision = await hand.put(hand.record("b", "v2"))
    status = await settled(sidecar, revision)
    assert status["last_request_id"] == "req-b-1"


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


async def fails(sidecar: Sidecar, **reasons: str) -> None:
    """Waits until these are the names that fail, each for its reason."""

    async def is_so() -> bool:
        found = await sidecar.failed()
        assert found == reasons, found
        return True

    await eventually(is_so)
