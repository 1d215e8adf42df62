"""The doctor before real parts: well, ill, and out of reach."""

from __future__ import annotations

import asyncio

import pytest

from registry.cli import survey
from registry.dev.ports import free_ports
from registry.keys import Keys
from registry.model.status import Failed
from tests.integration.cli.conftest import Cli, make_admin, with_pool
from tests.support.fleet import Sidecar, SimulatedEngine
from tests.support.replicas import Replicas, engine_status
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def _patient(monkeypatch) -> None:
    """What answers late on a slow machine is well all the same."""
    monkeypatch.setattr(survey, "_CALL_SECONDS", 60.0)


@pytest.fixture
def reasons(cli):
    """The findings of a run, by their reasons, and its exit code."""

    def look(*arguments: str) -> tuple[int, set[str]]:
        ran = cli("-o", "json", "doctor", *arguments)
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
    assert cli("doctor").out == "nothing is wrong\n"
    assert reasons() == (0, set())
    assert cli("-o", "name", "doctor").out == ""


def test_warnings_need_no_action(etcd, reasons):
    write(etcd, ("r1", {"engine": engine_status(swap="pipelined")}))
    assert reasons() == (0, {"plugin_absent"})


def test_errors_do(cli, etcd, reasons):
    failed = Failed(name="a", generation=1, reason="source_not_allowed", message="", attempts=1, retry_at=None)
    write(etcd, ("r1", {**WELL, "failed": [failed]}), ("r2", {"stale": True, "engine": engine_status(url="http://2")}))
    assert reasons() == (4, {"adapters_failed", "stale"})
    header, *rows = cli("doctor").out.splitlines()
    assert header.split() == ["SEVERITY", "PART", "SUBJECT", "FINDING", "REMEDY"]
    assert any("dev/r1" in row and "--allow-source" in row for row in rows)


def test_an_empty_pool(cli, reasons):
    assert reasons() == (0, {"no_replicas"})
    assert cli("apply", "-f", cli.manifest("a")).code == 0
    assert reasons() == (4, {"no_replicas"})


def test_etcd_is_looked_at_where_it_is_named(etcd, reasons):
    """Its members answer for themselves; one that is down is a finding, and none at all is out of reach."""
    write(etcd, ("r1", WELL))
    (dead,) = free_ports(1)
    code, found = reasons("--etcd", f"{etcd.endpoints[0]},127.0.0.1:{dead}")
    assert (code, found - {"etcd_version"}) == (4, {"member_down"})
    code, found = reasons("--etcd", f"127.0.0.1:{dead}")
    assert (code, found) == (6, {"member_down"})


def test_options_that_do_not_fit(cli):
    for arguments in (("--etcd-user", "me"), ("--etcd", "e:1", "--etcd-user", "me")):
        assert cli("doctor", *arguments).code == 2


def test_out_of_reach(cli, reasons):
    cli.admin.program.kill()
    assert reasons("--timeout", "1") == (6, {"unreachable"})


def test_etcd_is_away(own_etcd, tmp_path):
    admin = make_admin(tmp_path, own_etcd)
    admin.start()
    try:
        cli = with_pool(Cli(admin, tmp_path))
        own_etcd.cluster.stop()
        ran = cli("-o", "json", "doctor", "--timeout", "2", "--etcd", own_etcd.endpoints[0])
        assert ran.code == 6
        assert {one["reason"] for one in ran.json["findings"]} >= {"unreachable", "member_down"}
    finally:
        admin.program.kill()


def test_a_real_replica(cli, etcd, tmp_path):
    """A sidecar before an engine with the plugin: only that no base is known; then the engine ends."""
    assert cli("pool", "create", "p", "--base-model", "base").code == 0
    assert cli("pool", "delete", "dev").code == 0
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
