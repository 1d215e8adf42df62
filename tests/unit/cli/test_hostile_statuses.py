"""The command line before replicas whose statuses are anything at all."""

from __future__ import annotations

import pytest

from registry.cli.doctor.diagnosis import PoolSeen, Survey, diagnose
from registry.cli.views.replica_view import replica_view
from registry.v1 import registry_pb2 as pb
from tests.support.hostile import spoiled
from tests.support.residency_world import engine_status, replica_status
from tests.unit.cli.test_diagnosis import NOW

STATUS = replica_status("r1", 7, engine=engine_status(), note="n")
VALUES = sorted({value.decode(errors="replace") for value in spoiled(STATUS.to_bytes())})


def replicas() -> list[pb.Replica]:
    """One for each."""
    return [pb.Replica(name=f"r{number}", pool="dev", status_json=value) for number, value in enumerate(VALUES)]


@pytest.mark.parametrize("form", ["table", "json", "yaml", "name"])
def test_one_bad_status_is_one_bad_status(cli, admin, form):
    """R14, X2: all replicas are listed, whatever one of them says."""
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=replicas())] * 2
    admin.answers["GetPool"] = [pb.Pool(name="dev", base_models=["tiny"])] * 2
    ran = cli("-o", form, "get", "replicas", "--pool", "dev")
    assert ran.code == 0, ran.err
    if form == "name":
        assert len(ran.out.splitlines()) == len(VALUES)
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse()]
    assert cli("-o", form, "describe", "pool", "dev").code == 0


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_each_can_be_looked_at(cli, admin, form):
    """X2."""
    for replica in replicas():
        admin.answers["GetReplica"] = [replica]
        ran = cli("-o", form, "describe", "replica", replica.name, "--pool", "dev")
        assert ran.code == 0, (replica.status_json[:200], ran.err)


def test_the_doctor_finds_something_or_nothing():
    """X2."""
    for replica in replicas():
        seen = PoolSeen("dev", [], [], [replica_view(replica)])
        assert all(one.finding for one in diagnose(Survey([seen], [], [], []), NOW))
    everybody = [replica_view(one) for one in replicas()]
    assert diagnose(Survey([PoolSeen("dev", [], [], everybody)], [], [], []), NOW)
