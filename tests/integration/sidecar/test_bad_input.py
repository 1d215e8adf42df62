"""What people get wrong about a sidecar: one clear error that names the remedy, and it recovers where it can."""

from __future__ import annotations

import pytest

from tests.support.etcd import make_cluster
from tests.support.fleet import Sidecar, SimulatedEngine
from tests.support.processes import Program
from tests.support.waiting import eventually

REQUIRED = {
    "--etcd": "127.0.0.1:1",
    "--pool": "p",
    "--replica": "r1",
    "--engine": "http://127.0.0.1:1",
    "--http": "127.0.0.1:0",
}


async def note(sidecar: Sidecar, *words: str) -> None:
    """Waits until /readyz is 503 and says all these words."""

    async def says_so() -> bool:
        code, body = await sidecar.get("/readyz")
        return code == 503 and all(word in body["note"] for word in words)

    await eventually(says_so)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--pool": "a/b"}, ["--pool", "not a name"]),
        ({"--store": "/proc/store"}, ["/proc/store"]),
        ({"--allow-source": "/adapters"}, ["/adapters", "file:///"]),
        ({"--credentials": "/nowhere"}, ["--credentials", "/nowhere"]),
        ({"--hf-endpoint": "hub"}, ["--hf-endpoint", "https"]),
        ({"--resolver-socket": "/nowhere/s"}, ["--resolver-socket", "/nowhere"]),
    ],
)
def test_a_wrong_flag_is_one_line_that_names_it(tmp_path, changes, words):
    """Those of tests/unit/sidecar/test_settings.py are known when the flags are read, these when the parts are made."""
    flags = REQUIRED | {"--store": str(tmp_path / "store")} | changes
    program = Program("sidecar.main", [part for pair in flags.items() for part in pair], tmp_path / "log")
    program.start()
    assert program.wait() == 2
    (line,) = program.log.read_text().splitlines()
    assert all(word in line for word in words), line


async def test_a_taken_port_is_a_clear_error(tmp_path, engine):
    address = engine.url.removeprefix("http://")
    flags = REQUIRED | {"--store": str(tmp_path / "store"), "--http": address}
    program = Program("sidecar.main", [part for pair in flags.items() for part in pair], tmp_path / "log")
    program.start()
    assert program.wait() == 2
    assert program.log.read_text() == f"loraplane-sidecar: --http {address}: Address already in use\n"


async def test_etcd_down_at_start_is_waited_for(hand, engine, tmp_path):
    """It waits, says so, and comes up when etcd does."""
    from registry.model.keys import Keys
    from tests.support.fleet import Hand

    cluster = make_cluster(tmp_path / "etcd")
    sidecar = Sidecar(tmp_path, cluster.endpoints, "/x", engine.url)
    client = None
    try:
        sidecar.program.start()
        await note(sidecar, "etcd was not reached", "no snapshot")
        cluster.start()
        await cluster.ready()
        client = cluster.patient()
        own = Hand(client, Keys("/x"), hand.sources)
        await own.pool()
        await own.put(own.record("a", "v1"))

        async def is_served() -> bool:
            return set(await engine.listing()) == {"a"}

        await eventually(is_served)
    finally:
        sidecar.program.kill()
        if client:
            await client.aclose()
        cluster.stop()


async def test_an_engine_that_is_not_there_is_named_and_waited_for(hand, etcd, tmp_path):
    await hand.pool()
    engine = SimulatedEngine(tmp_path)
    sidecar = Sidecar(tmp_path, etcd.endpoints, etcd.prefix, engine.url)
    try:
        sidecar.program.start()
        await note(sidecar, engine.url)
        await engine.start()
        await eventually(sidecar.is_ready)
    finally:
        sidecar.program.kill()
        engine.program.kill()


async def test_a_key_that_goes_unencrypted_is_told_to_everybody(hand, etcd, tmp_path):
    """X1: with --insecure it is borne, and in the status that doctor reads."""
    key = tmp_path / "key"
    key.write_text("k")
    await hand.pool()
    url, flags = "http://engine.invalid:8000", ["--engine-api-key-file", str(key), "--insecure"]
    sidecar = Sidecar(tmp_path, etcd.endpoints, etcd.prefix, url, extra=flags)

    async def is_told() -> bool:
        (said,) = (await sidecar.status())["insecure"]
        return "unencrypted to engine.invalid:8000" in said

    try:
        sidecar.program.start()
        await note(sidecar, url)
        await eventually(is_told)
    finally:
        sidecar.program.kill()


async def test_something_that_is_no_engine_is_called_that(hand, etcd, sidecar, tmp_path):
    """A wrong engine URL: here, another sidecar's port."""
    await hand.pool()
    wrong = Sidecar(tmp_path / "w", etcd.endpoints, etcd.prefix, sidecar.http, replica="r2")
    try:
        sidecar.program.start()
        await eventually(sidecar.is_ready)
        wrong.program.start()
        await note(wrong, sidecar.http, "not a vLLM server", "--engine")
    finally:
        wrong.program.kill()


async def test_an_engine_without_runtime_lora_says_which_variable_to_set(hand, etcd, tmp_path):
    await hand.pool()
    engine = SimulatedEngine(tmp_path, runtime_lora=False)
    sidecar = Sidecar(tmp_path, etcd.endpoints, etcd.prefix, engine.url)
    try:
        await engine.start()
        sidecar.program.start()
        await note(sidecar, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "--enable-lora")
    finally:
        sidecar.program.kill()
        engine.program.kill()


async def test_an_engine_of_another_base_is_left_alone(hand, engine, sidecar):
    await hand.pool("other")
    await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await note(sidecar, "base", "other", "--pool")
    assert await engine.listing() == {}
    await hand.pool("base")
    await eventually(sidecar.is_ready)


@pytest.mark.parametrize(
    ("source", "reason"),
    [("absent", "source_missing"), ("empty", "source_incomplete"), ("outside", "source_not_allowed")],
)
async def test_a_bad_source_is_refused_by_name(hand, engine, sidecar, tmp_path, source, reason):
    """A source outside the allowed roots, missing, or empty; the others are served (R8)."""
    await hand.pool()
    (hand.sources / "empty").mkdir()
    record = hand.record("bad", "empty")
    uri = {
        "absent": (hand.sources / "absent").as_uri(),
        "empty": (hand.sources / "empty").as_uri(),
        "outside": (tmp_path / "secrets").as_uri(),
    }[source]
    spec = record.spec.model_copy(update={"source": record.spec.source.model_copy(update={"uri": uri})})
    await hand.put(record.model_copy(update={"spec": spec}), hand.record("good", "v1"))
    sidecar.program.start()

    async def is_refused() -> bool:
        return await sidecar.failed() == {"bad": reason} and set(await engine.listing()) == {"good"}

    await eventually(is_refused)
    await eventually(sidecar.is_ready)


async def test_an_unreadable_pool_record_leaves_the_last_good_one(hand, engine, sidecar):
    """R14 nack, for the pool's own record."""
    from registry.etcd3.ops import Put

    await hand.pool()
    await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await eventually(sidecar.is_ready)
    await hand.commit(Put(hand.keys.pool("p"), b"{"))
    await hand.put(hand.record("b", "v2"))

    async def are_served() -> bool:
        return set(await engine.listing()) == {"a", "b"}

    await eventually(are_served)
    assert any(line["event"] == "pool_record_refused" for line in sidecar.program.logged())
