"""How long each command waits for the admin service: by its kind, or as --timeout says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from registry.cli import client as of_client
from registry.cli import session as of_session
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import FakeAdmin, applied

READ, WRITE, ROLLOUT = 10.0, 30.0, 300.0
ADAPTER = pb.Adapter(
    name="sql", pool="dev", generation=3, etag="7", spec=pb.AdapterSpec(source=pb.Source(uri="s3://b/sql"))
)


def served(request: pb.WatchRolloutRequest) -> list[pb.Rollout]:
    return [pb.Rollout(name=request.name, generation=3, done=True)]


@pytest.fixture
def store(admin) -> FakeAdmin:
    """A service that answers every question and carries out every change."""
    one = pb.ApplyAdaptersResponse(results=[pb.AdapterResult(adapter=ADAPTER)], revision=9)
    pool = pb.Pool(name="dev", base_models=["tiny"])
    admin.answers |= {
        "ApplyAdapters": [applied],
        "RollbackAdapter": [one],
        "PromoteRollout": [one],
        "AbortRollout": [one],
        "GetAdapter": [ADAPTER],
        "ListAdapters": [pb.ListAdaptersResponse(adapters=[ADAPTER])],
        "ListAdapterHistory": [pb.ListAdapterHistoryResponse(generations=[ADAPTER])],
        "WatchRollout": [served],
        "GetPool": [pool],
        "CreatePool": [pool],
        "UpdatePool": [pool],
        "ConfirmRemovals": [pool],
        "DeletePool": [pb.DeletePoolResponse(revision=8)],
        "SetTenant": [pb.Tenant(name="acme")],
        "ListTenants": [pb.ListTenantsResponse()],
        "DrainReplica": [pb.DrainReplicaResponse(changed=True, revision=8)],
        "ForgetReplica": [pb.ForgetReplicaResponse()],
        "GetReplica": [pb.Replica(name="r1", pool="dev", status_json='{"ready": true}')],
        "ListReplicas": [pb.ListReplicasResponse(replicas=[pb.Replica(name="r1", pool="dev", status_json="{}")])],
        "ReadBackup": [pb.ReadBackupResponse(revision=12)],
    }
    return admin


@pytest.fixture
def given(monkeypatch) -> Iterator[list[float]]:
    """How long each connection that is opened waits, in their order; after them what is left for each rollout."""
    monkeypatch.delenv("LORAPLANE_TIMEOUT")
    found: list[float] = []

    class Client(of_client.AdminClient):
        def __init__(self, *arguments: object, timeout_seconds: float, **more: object) -> None:
            found.append(timeout_seconds)
            super().__init__(*arguments, timeout_seconds=120.0, **more)

        def watch_rollout(self, request: pb.WatchRolloutRequest, timeout_seconds: float) -> Iterator[pb.Rollout]:
            found.append(timeout_seconds)
            return super().watch_rollout(request, 120.0)

    monkeypatch.setattr(of_session, "AdminClient", Client)
    return found


# Of each command what its connections wait for, in the order in which they are opened.
WAITS = {
    "get adapters": [READ],
    "get pools": [READ],
    "describe pool dev": [READ],
    "history sql": [READ],
    "export": [READ],
    "events": [READ],
    "backup b.jsonl": [READ],
    "doctor": [READ],
    "add sql --source s3://b/sql --look-seconds 0": [READ, WRITE],
    "set sql --priority 3 --look-seconds 0": [READ, WRITE],
    "label sql team=x": [READ, WRITE],
    "retry adapter sql": [READ, WRITE],
    "delete sql": [READ, WRITE],
    "delete sql --ignore-not-found": [READ, READ, WRITE],
    "rollback sql": [WRITE],
    "rollout promote sql": [WRITE],
    "rollout abort sql": [WRITE],
    "apply -f adapters.yaml": [WRITE],
    "diff -f adapters.yaml": [WRITE],
    "pool create dev --base-model tiny": [WRITE],
    "pool update dev --max-rank 8": [WRITE],
    "pool confirm-removals dev --revision 7": [WRITE],
    "pool delete dev": [WRITE],
    "tenant set acme --max-adapters 3": [WRITE],
    "replica forget r1": [WRITE],
    "drain r1": [WRITE],
    "undrain r1": [WRITE],
    "rollout sql": [READ, ROLLOUT],
    "add sql --source s3://b/sql --look-seconds 0 --wait": [READ, WRITE, ROLLOUT],
    "rollback sql --wait": [WRITE, ROLLOUT],
}


def rounded(seconds: list[float]) -> list[float]:
    """Of a rollout a little is gone since it began to be waited for, however slow the machine is."""
    return [ROLLOUT if 60 < one <= ROLLOUT else one for one in seconds]


@pytest.mark.parametrize("line", WAITS)
def test_what_only_reads_gives_up_sooner_than_what_changes(cli, store, given, manifest, line):
    """A change waits 30 s, a rollout 300 s, what is only asked 10 s: so long an outage is passed over."""
    manifest("sql")
    ran = cli(*line.split())
    assert (ran.code, rounded(given)) == (4 if line == "doctor" else 0, WAITS[line]), ran.err


@pytest.mark.parametrize("line", WAITS)
def test_who_says_how_long_is_waited_for_so_long_by_every_call(cli, store, given, manifest, line):
    manifest("sql")
    ran = cli(*line.split(), "--timeout", "1000")
    assert ran.code == (4 if line == "doctor" else 0), ran.err
    assert all(800 < one <= 1000 for one in given), given
    assert len(given) == len(WAITS[line])
