"""Export for routers at the command line: once, and into a file that is kept."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest
import yaml

from registry.cli.failure import CliError
from registry.cli.views import router_config
from registry.cli.views.router_config import replace_file
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import BUSY, FakeAdmin, Hold, Refusal
from tests.unit.cli.conftest import Cli

ENOUGH = Refusal(grpc.StatusCode.PERMISSION_DENIED, "ETCD_PERMISSION", "enough")
AWAY = Refusal(grpc.StatusCode.UNAVAILABLE, "ADMIN_UNAVAILABLE", "away")


def replica(name: str, *, ready: bool = True, **more: str | bool) -> pb.Replica:
    status = {"ready": ready, "engine": {"url": f"http://10.0.0.{name[1:]}:8000"}}
    return pb.Replica(name=name, pool="dev", status_json=json.dumps(status), **more)


def served(*replicas: str, **more: bool) -> pb.WatchResidencyResponse:
    parts = [pb.Residence(replica=one, model="a@2", generation=2, state=pb.RolloutReplica.SERVING) for one in replicas]
    adapter = pb.AdapterResidency(name="a", generation=2, replicas=parts)
    return pb.WatchResidencyResponse(snapshot=True, adapters=[adapter], **more)


@pytest.fixture
def fleet(admin) -> FakeAdmin:
    """One that serves, one that is not ready, one that drains, and one whose address the pool does not allow."""
    replicas = [
        replica("r2", ready=False),
        replica("r3", leaving=True),
        replica("r4", withheld_engine_url="http://evil"),
        replica("r1", engine_url="http://10.0.0.9:80"),
    ]
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=replicas)]
    admin.answers["WatchResidency"] = [[served("r1"), Hold()]]
    return admin


def test_a_format_is_written_once(fleet, cli: Cli):
    """Of replicas that requests may go to: ready, not draining, at an address that the pool allows."""
    ran = cli("export", "llm-d-endpoints")
    assert ran.code == 0
    assert [one["address"] for one in yaml.safe_load(ran.out)["endpoints"]] == ["10.0.0.9"]
    rules = yaml.safe_load(cli("export", "inferencemodelrewrite").out)["spec"]["rules"]
    assert rules[0]["targets"] == [{"modelRewrite": "a@2", "weight": 1}]


def test_a_file_is_kept_and_changed_as_a_whole(fleet, cli: Cli, monkeypatch, tmp_path):
    """Also over a time without the admin service; nothing is written while nothing changes."""
    monkeypatch.setattr(router_config, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(router_config, "QUIET_SECONDS", 0.01)
    file, written = tmp_path / "models.yaml", list[str]()
    real = replace_file

    def noted(path: Path, text: str) -> None:
        written.append(text)
        real(path, text)

    monkeypatch.setattr(router_config, "replace_file", noted)
    fleet.answers["WatchAdapters"] = [[Hold()], [Hold()], [ENOUGH]]
    fleet.answers["WatchResidency"] = [[served("r1"), served("r1"), AWAY], [served(), BUSY], [Hold()]]
    ran = cli("export", "ipp-configmap", "--watch", str(file))
    assert (ran.code != 0, len(fleet.asked("WatchResidency"))) == (True, 3)
    assert [yaml.safe_load(yaml.safe_load(one)["data"]["adapters"]) for one in written] == [["a@2"], []]
    assert file.read_text() == written[-1]
    assert list(tmp_path.glob(".models*")) == []
    assert ran.err.count("changed") == 1


def test_what_a_router_cannot_be_told_is_noted_once(fleet, cli: Cli, monkeypatch, tmp_path):
    """And once more where it was so no longer."""
    monkeypatch.setattr(router_config, "AGAIN_SECONDS", 0.0)
    named = pb.ListReplicasResponse(replicas=[replica("r1", engine_url="http://a.name:80")])
    fleet.answers["ListReplicas"] = [named, named, pb.ListReplicasResponse(replicas=[replica("r2")]), named]
    fleet.answers["WatchAdapters"] = [[Hold()], [ENOUGH]]
    fleet.answers["WatchResidency"] = [[served("r1"), served(), served("r1"), served(), AWAY], [Hold()]]
    ran = cli("export", "llm-d-endpoints", "--watch", str(tmp_path / "endpoints.yaml"))
    assert (ran.code != 0, ran.err.count("has no IPv4 address")) == (True, 2)
    assert ran.err.index("has no IPv4 address") < ran.err.index("endpoints.yaml: written")


def test_a_file_is_not_waited_for_without_a_first_state(fleet, cli: Cli, tmp_path):
    """Whoever starts it is told that the service is away."""
    fleet.answers["WatchAdapters"] = [[Hold()], [ENOUGH]]
    fleet.answers["WatchResidency"] = [[AWAY], [Hold()]]
    assert cli("export", "ipp-configmap", "--watch", str(tmp_path / "models.yaml")).code == 6
    assert not (tmp_path / "models.yaml").exists()


def test_standard_output_is_no_file_that_is_replaced(cli, fleet):
    """And no file is made that is called so."""
    ran = cli("export", "ipp-configmap", "--watch", "-")
    assert (ran.code, "leave it out for standard output" in ran.err, Path("-").exists()) == (2, True, False)


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "f"
    file.write_text("before")
    file.chmod(0o640)
    replace_file(file, "after")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("after", 0o640)
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CliError, match="No space left"):
        replace_file(file, "never")
    assert (file.read_text(), len(list(tmp_path.iterdir()))) == ("after", 1)
