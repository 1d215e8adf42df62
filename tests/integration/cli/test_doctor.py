"""The doctor before real parts: well, ill, and out of reach."""

from __future__ import annotations

import asyncio

import pytest

from registry.cli.doctor import collect
from registry.etcd3.ops import Delete, Txn
from registry.model.keys import Keys
from registry.tools.devstack.processes import free_ports, wait_until
from tests.integration.cli.conftest import Cli
from tests.support.etcd import PATIENCE_SECONDS
from tests.support.fleet import Sidecar, SimulatedEngine
from tests.support.ran import Ran
from tests.support.residency_world import Replicas, engine_status
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def _patient(monkeypatch) -> None:
    """What answers late on a slow machine is well all the same."""
    monkeypatch.setattr(collect, "_CALL_SECONDS", 60.0)


def examined(cli: Cli, *arguments: str) -> Ran:
    """What a command says that asks the admin service how it is, once that has heard of etcd in time."""

    ran = cli(*arguments)

    def is_heard() -> bool:
        nonlocal ran
        if is_slow := "not_serving" in ran.out or "it answers, but cannot work" in ran.out:
            ran = cli(*arguments)
        return not is_slow

    assert wait_until(is_heard, PATIENCE_SECONDS), ran.out
    return ran


@pytest.fixture
def reasons(cli):
    """The findings of a run, by their reasons, and its exit code."""

    def look(*arguments: str) -> tuple[int, set[str]]:
        ran = examined(cli, "-o", "json", "doctor", *arguments)
        return ran.code, {one["reason"] for one in ran.json["findings"]}

    return look


def write(etcd, *statuses: tuple[str, dict]) -> None:
    """Has replicas live and say something."""

    async def carry_out() -> None:
        client = etcd.patient()
        try:
            replicas = Replicas(client, Keys(etcd.prefix), "dev")
            for name, fields in statuses:
                await replicas.alive(name)
                await replicas.says(name, 1 << 40, **fields)
        finally:
            await client.aclose()

    asyncio.run(carry_out())


WELL = {"engine": engine_status(swap="plugin")}


def test_what_is_well_and_what_was_deleted_past_the_admin_service(cli, etcd, reasons):
    """W5, W6: nothing to say, a member that is down, and counters, which are made good where that is asked for."""
    write(etcd, ("r1", WELL))
    told = examined(cli, "doctor").out
    assert told.startswith("nothing is wrong; looked at: the admin service at ")
    assert ("1 pools, 1 replicas, 0 adapters, " in told, "not etcd" in told) == (True, True)
    (dead,) = free_ports(1)
    code, found = reasons("--etcd", f"{etcd.endpoints[0]},127.0.0.1:{dead}")
    assert (code, found - {"etcd_version"}) == (4, {"member_down"})
    assert cli("apply", "-f", cli.manifest("acme/a", "acme/b")).code == 0

    async def delete_raw() -> None:
        """As etcdctl deletes: no counter, history or audit record follows."""
        client = etcd.patient()
        try:
            await client.txn(Txn((), (Delete(Keys(etcd.prefix).adapter("dev", "acme/a")),)))
        finally:
            await client.aclose()

    asyncio.run(delete_raw())
    assert reasons() == (4, {"counter_differs"})
    (told,) = [row for row in examined(cli, "doctor").out.splitlines() if "acme" in row]
    assert "its counter says 2, and it has 1 adapters; history lacks generation 1 of acme/a in pool dev" in told
    repaired = examined(cli, "-o", "json", "doctor", "--repair")
    assert [one["finding"] for one in repaired.json["findings"] if one["subject"] == "acme"] == [
        "repaired: its counter said 2, and says 1 now; history has generation 1 of acme/a in pool dev"
    ]
    assert "counter_differs" not in reasons("--repair")[1]
    assert "1" in cli("history", "acme/a").out.splitlines()[1].split()


def test_a_real_replica(cli, etcd, tmp_path):
    """A sidecar before an engine with the plugin: only that no base is known; then the engine ends."""
    assert (cli("pool", "create", "p", "--base-model", "base").code, cli("pool", "delete", "dev").code) == (0, 0)
    engine = SimulatedEngine(tmp_path, plugin=True)
    sidecar = Sidecar(tmp_path, etcd.endpoints, etcd.prefix, engine.url)
    try:
        asyncio.run(engine.start())
        sidecar.program.start()

        def said(*reasons: str) -> bool:
            ran = cli("-o", "json", "doctor")
            assert {one["reason"] for one in ran.json["findings"]} == {*reasons}
            return True

        asyncio.run(eventually(lambda: said("base_unknown")))
        engine.program.kill()
        asyncio.run(eventually(lambda: said("engine_unreachable")))
    finally:
        sidecar.program.kill()
        engine.program.kill()
