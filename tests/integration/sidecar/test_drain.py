"""R20 drain: a replica is taken out of use by hand and by the hooks of its pod."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from registry.etcd3.ops import Range
from registry.model.status import Presence
from registry.v1 import registry_pb2 as pb
from tests.support.admin import Admin, admin_inside, wait_ready
from tests.support.etcd import PATIENCE_SECONDS
from tests.support.fleet import POOL, Hand, Sidecar
from tests.support.waiting import eventually

# Several sidecars start at once, beside whatever else the machine does.
STARTED_SECONDS = 180
HOOK = {"x-loraplane-control": "preStop"}
# Whether a presence leaves, whether its replica is ready, and how many replicas residency names.
SERVES, DRAINS = (False, True, ""), (True, False, "leaving")


@pytest.fixture
async def admin(etcd) -> AsyncIterator[Admin]:
    async with admin_inside(etcd.endpoints, etcd.prefix) as admin:
        await wait_ready(admin)
        yield admin


async def test_an_operator_drains_a_replica_and_takes_it_back(etcd, hand: Hand, admin, engine, sidecar):
    """R20 drain, R24: readiness, presence and residency follow at once; what the engine has stays, and is told of."""
    replica_key = hand.keys.replica(POOL, "r1")
    await hand.pool()
    await hand.put(hand.record("a", "v1"))
    sidecar.change("unhurried")  # its end is told, also by an etcd that stands still for a moment
    sidecar.program.start()
    await comes_to_serve(sidecar, hand, replica_key)

    async def order(**fields: object) -> bool:
        request = pb.DrainReplicaRequest(pool=POOL, name="r1", **fields)  # type: ignore[arg-type]
        return (await admin.stub.DrainReplica(request)).changed

    async def said() -> tuple[bool, bool, str]:
        replica = await admin.stub.GetReplica(pb.GetReplicaRequest(pool=POOL, name="r1"))
        async for response in admin.stub.WatchResidency(pb.WatchResidencyRequest(pool=POOL)):
            return replica.leaving, await sidecar.is_ready(), response.adapters[0].replicas[0].reason
        raise AssertionError("no snapshot")

    async def comes_to(wanted: tuple[bool, bool, str]) -> None:
        async def is_so() -> bool:
            found = await said()
            assert found == wanted, found
            return True

        await eventually(is_so)

    await comes_to(SERVES)
    assert not await order(undrain=True), "it does not drain"
    assert await order()
    await comes_to(DRAINS)
    assert "loraplane undrain" in (await sidecar.status())["note"]
    assert not await order(), "it was ordered before"
    assert set(await engine.listing()) == {"a"}
    assert await order(undrain=True)
    await comes_to(SERVES)

    code, answer = await sidecar.get("/drain?wait=1")
    assert (code, "curl -sf -H" in answer["error"]["message"], await sidecar.is_ready()) == (403, True, True), (
        "an old hook"
    )
    code, answer = await sidecar.get("/drain", **HOOK)
    assert (code, answer["draining"], answer["done"]) == (200, True, False)
    assert (await sidecar.get("/readyz"))[0] == 503, "at once"

    async def is_alone() -> bool:
        code, answer = await sidecar.get("/drain?wait=1", **HOOK)
        assert (code, answer["done"]) == (200, False)
        return answer["needed"] == "no other replica can serve all that it serves"

    await eventually(is_alone)
    await comes_to(DRAINS)
    assert await order(undrain=True), "also of a drain that an operator did not begin"
    await comes_to(SERVES)


async def stands(hand: Hand, key: bytes) -> bytes:
    """The value of a key of etcd; empty: there is none."""
    found = (await hand.client.range(Range(key))).kvs
    return found[0].value if found else b""


async def comes_to_serve(sidecar: Sidecar, hand: Hand, presence: bytes) -> None:
    async def serves() -> bool:
        value = await stands(hand, presence)
        return bool(value) and not Presence.parse(value).leaving and await sidecar.is_ready()

    await eventually(serves, timeout_seconds=STARTED_SECONDS)


def documented_hooks() -> list[list[str]]:
    """The commands of the preStop hooks in the page for operators."""
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    blocks = re.findall(r"^ {4}lifecycle:\n(?:(?: {4}.*)?\n)+", text, re.MULTILINE)
    hooks = [yaml.safe_load(textwrap.dedent(block)) for block in blocks]
    return [one["lifecycle"]["preStop"]["exec"]["command"] for one in hooks]


async def test_the_hooks_that_are_documented_drain_a_replica(hand: Hand, engine, sidecar):
    """R20 drain: each is obeyed, and tells whose it was; it ends well."""
    await hand.pool()
    sidecar.program.start()
    await eventually(sidecar.is_ready)
    port, hooks = sidecar.http.rpartition(":")[2], documented_hooks()
    assert [command[0] for command in hooks] == ["sh", "python"]
    for command in hooks:
        if command[0] == "sh" and shutil.which("curl") is None:
            continue  # as the image of a sidecar
        changed = [one.replace("7602", port).replace("wait=30", "wait=0").replace("; sleep 5", "") for one in command]
        program = sys.executable if command[0] == "python" else command[0]
        await asyncio.to_thread(subprocess.run, [program, *changed[1:]], check=True, timeout=PATIENCE_SECONDS)
        assert (await sidecar.get("/readyz"))[0] == 503
    begun = [one for one in sidecar.program.logged() if one["event"] == "drain_begun"]
    assert [one["cause"] for one in begun] == ["request"], "the second changes nothing"
    assert begun[0]["by"] in {"127.0.0.1, 'engine'", "127.0.0.1, 'sidecar'"}
    assert begun[0]["by"] in (await sidecar.status())["note"]
