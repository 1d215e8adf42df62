"""The doctor before real parts: well, ill, and out of reach."""

from __future__ import annotations

import asyncio

import pytest

from registry.cli.doctor import collect, command
from registry.etcd3.ops import Delete, Txn
from registry.model.keys import Keys
from registry.tools.devstack.processes import free_ports, wait_until
from tests.conftest import EtcdForTest
from tests.integration.cli.conftest import Cli, make_admin, with_pool
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
def admin_is_well(monkeypatch) -> None:
    """Whatever the admin service says of itself, for tests that look at something else once."""
    monkeypatch.setattr(command, "look_at_admin", lambda _client: [])


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


def test_a_healthy_installation(cli, etcd, reasons):
    """Exit 0 and a word, where there is nothing to say."""
    write(etcd, ("r1", WELL))
    told = examined(cli, "doctor").out
    assert told.startswith("nothing is wrong; looked at: the admin service at ")
    assert ("1 pools, 1 replicas, 0 adapters, " in told, "not etcd" in told) == (True, True)
    assert reasons() == (0, set())
    assert examined(cli, "-o", "name", "doctor").out == ""


def test_etcd_is_looked_at_where_it_is_named(etcd, reasons):
    """Its members answer for themselves; one that is down is a finding, and none at all is out of reach."""
    write(etcd, ("r1", WELL))
    (dead,) = free_ports(1)
    code, found = reasons("--etcd", f"{etcd.endpoints[0]},127.0.0.1:{dead}")
    assert (code, found - {"etcd_version"}) == (4, {"member_down"})
    code, found = reasons("--etcd", f"127.0.0.1:{dead}")
    assert (code, found) == (6, {"member_down"})


def delete_raw(etcd, *keys: bytes) -> None:
    """As etcdctl deletes: no counter, history or audit record follows."""

    async def carry_out() -> None:
        client = etcd.patient()
        try:
            await client.txn(Txn((), tuple(map(Delete, keys))))
        finally:
            await client.aclose()

    asyncio.run(carry_out())


def test_counters_are_repaired_where_that_is_asked_for(cli, etcd, reasons, admin_is_well):
    """W5, W6: deletions past the admin service are named, then made good, and nothing is left to be named."""
    write(etcd, ("r1", WELL))
    assert cli("apply", "-f", cli.manifest("acme/a", "acme/b", "c")).code == 0
    delete_raw(etcd, Keys(etcd.prefix).adapter("dev", "acme/a"), Keys(etcd.prefix).adapter("dev", "c"))
    before = cli.json("get", "tenants")
    code, found = reasons()
    assert (code, found, cli.json("get", "tenants")) == (4, {"counter_differs"}, before)
    (told,) = [row for row in cli("doctor").out.splitlines() if "acme" in row]
    assert "its counter says 2, and it has 1 adapters; history lacks generation 1 of acme/a in pool dev" in told
    assert "loraplane doctor --repair" in told
    repaired = cli("-o", "json", "doctor", "--repair")
    assert (repaired.code, {one["severity"] for one in repaired.json["findings"]}) == (0, {"warning"})
    assert [one["finding"] for one in repaired.json["findings"] if one["subject"] == "acme"] == [
        "repaired: its counter said 2, and says 1 now; history has generation 1 of acme/a in pool dev"
    ]
    assert "counter_differs" not in reasons("--repair")[1] | reasons()[1]
    assert "1" in cli("history", "acme/a").out.splitlines()[1].split()


def test_etcd_is_away(own_etcd, tmp_path):
    admin = make_admin(tmp_path, own_etcd)
    admin.start()
    try:
        cli = with_pool(Cli(admin, tmp_path))
        own_etcd.cluster.stop()
        assert wait_until(lambda: is_told_of_etcd(cli, own_etcd), PATIENCE_SECONDS)
    finally:
        admin.program.kill()


def is_told_of_etcd(cli: Cli, etcd: EtcdForTest) -> bool:
    """An admin service that takes longer than those two seconds to say so is not there itself."""
    ran = cli("-o", "json", "doctor", "--timeout", "2", "--etcd", etcd.endpoints[0])
    assert ran.code == 6
    found = {(one["part"], one["reason"]) for one in ran.json["findings"]}
    assert ("etcd", "member_down") in found
    return ("etcd", "unreachable") in found and "admin" not in {part for part, _ in found}


def test_a_real_replica(cli, etcd, tmp_path):
    """A sidecar before an engine with the plugin: only that no base is known; then the engine ends."""
    assert (cli("pool", "create", "p", "--base-model", "base").code, cli("pool", "delete", "dev").code) == (0, 0)
    engine = SimulatedEngine(tmp_path)
    plugin = {"VLLM_PLUGINS": "loraplane", "LORAPLANE_PLUGIN": "1"}
    engine.program.environment = {**engine.program.environment, **plugin}
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
