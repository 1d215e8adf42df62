"""What people get wrong about a sidecar: one clear error that names the remedy, and it recovers where it can."""

from __future__ import annotations

import pytest

from registry.model.keys import Keys
from tests.support.etcd import make_cluster
from tests.support.fleet import Hand, Sidecar
from tests.support.processes import Program
from tests.support.waiting import eventually


async def note(sidecar: Sidecar, *words: str) -> None:
    """Waits until /readyz is 503 and says all these words."""

    async def says_so() -> bool:
        code, body = await sidecar.get("/readyz")
        return code == 503 and all(word in body["note"] for word in words)

    await eventually(says_so)


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--pool", "a/b", "--pool: 'a/b' is not a name"),
        ("--store", "/proc/store", "/proc/store"),
        ("--http", "", "Address already in use"),
    ],
)
def test_a_wrong_flag_is_one_line_that_names_it(etcd, tmp_path, flag, value, says):
    """Of those of tests/unit/sidecar/test_settings.py one, and what is known when the parts are made."""
    flags = {"--etcd": "127.0.0.1:1", "--pool": "p", "--replica": "r1", "--engine": "http://127.0.0.1:1"}
    flags |= {"--store": str(tmp_path / "store"), "--http": "127.0.0.1:0", flag: value or etcd.endpoints[0]}
    program = Program("sidecar.main", [part for pair in flags.items() for part in pair], tmp_path / "log")
    program.start()
    assert program.wait() == 2
    (line,) = program.log.read_text().splitlines()
    assert (line.startswith("loraplane-sidecar: "), flag in line, says in line) == (True, True, True), line


async def test_what_is_not_there_or_not_right_is_named_and_waited_for(engine, tmp_path):
    """R18, X1: etcd, another base, the engine, what it lacks; what goes unencrypted is told to everybody."""
    (tmp_path / "sources").mkdir()
    (tmp_path / "key").write_text("k")
    cluster = make_cluster(tmp_path / "etcd")
    sidecar, client = Sidecar(tmp_path, cluster.endpoints, "/x", engine.url), cluster.patient()
    wrong = Sidecar(tmp_path, cluster.endpoints, "/x", sidecar.http, replica="r2")
    flags = ["--engine-api-key-file", str(tmp_path / "key"), "--insecure"]
    open_one = Sidecar(tmp_path, cluster.endpoints, "/x", "http://engine.invalid:8000", replica="r3", extra=flags)
    hand, right = Hand(client, Keys("/x"), tmp_path / "sources"), engine.program.environment

    async def is_served() -> bool:
        return set(await engine.listing()) == {"a"} and await sidecar.is_ready()

    async def is_told() -> bool:
        (said,) = (await open_one.status())["insecure"]
        return "unencrypted to engine.invalid:8000" in said

    try:
        sidecar.program.start()
        await note(sidecar, "etcd was not reached", "no snapshot")
        cluster.start()
        await cluster.ready()
        await hand.pool("other")
        await hand.put(hand.record("a", "v1"))
        await note(sidecar, "base", "other", "--pool")
        assert await engine.listing() == {}
        await hand.pool()
        await eventually(is_served)
        engine.program.kill()
        await note(sidecar, engine.url)
        engine.program.environment = {}
        await engine.start()
        await note(sidecar, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "--enable-lora")
        engine.program.kill()
        engine.program.environment = right
        await engine.start()
        await eventually(is_served)
        wrong.program.start()
        open_one.program.start()
        await note(wrong, sidecar.http, "not a vLLM server", "--engine")
        await eventually(is_told)
    finally:
        for program in (sidecar.program, wrong.program, open_one.program):
            program.kill()
        await client.aclose()
        cluster.stop()
