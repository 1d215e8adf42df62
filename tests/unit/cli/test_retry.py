"""retry: who is asked to try again, and who has nothing to try."""

from __future__ import annotations

import json

import pytest

from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import applied

SQL = pb.Adapter(name="Sql", pool="dev", generation=3, etag="9", spec=pb.AdapterSpec(priority=4))


def replica(name: str, status: object) -> pb.Replica:
    return pb.Replica(name=name, pool="dev", status_json=json.dumps(status) if status is not None else "")


def failed(*names: str, **more: object) -> dict[str, object]:
    return {"failed": [{"name": name, "reason": "x"} for name in names], **more}


@pytest.fixture
def fleet(admin):
    """Lays down the statuses of replicas."""

    def lay_down(*statuses: object, gone: bool = False) -> None:
        live = [replica(f"r{number}", status) for number, status in enumerate(statuses, 1)]
        missing = [pb.MissingReplica(name="r9")] if gone else []
        admin.answers |= {"GetAdapter": [SQL], "ApplyAdapters": [applied], "GetReplica": live[:1]}
        admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=live, missing=missing)]

    return lay_down


@pytest.mark.parametrize(
    "statuses",
    [
        [failed("sql")],
        [{"ready": True}, failed("other", "SQL")],
        [failed(omitted=2)],
        [None],
    ],
)
@pytest.mark.parametrize("flags", [[], ["--replica", "r1"]])
def test_what_may_have_failed_is_tried_again(cli, admin, fleet, statuses, flags):
    """R17: as it stands, and only if it still stands so; also where a status does not say which failed."""
    fleet(*(statuses[-1:] if flags else statuses))
    ran = cli("retry", "adapter", "sql", "--request-id", "q1", *flags)
    assert (ran.code, ran.err) == (0, "")
    (request,) = admin.asked("ApplyAdapters")
    assert (request.pool, request.request_id, request.validate_only) == ("dev", "q1", False)
    assert (request.retry, request.retry_replica) == (True, "r1" if flags else "")
    (change,) = request.changes
    assert (change.etag, change.upsert.name, change.upsert.spec.priority) == ("9", "Sql", 4)


@pytest.mark.parametrize("statuses", [[], [{"ready": True}, failed("other")], [failed(omitted=0)]])
def test_what_has_not_failed_is_left_alone(cli, admin, fleet, statuses):
    """Replicas that do not live have nothing that failed."""
    fleet(*statuses, gone=True)
    ran = cli("retry", "adapters", "sql")
    assert (ran.code, admin.asked("ApplyAdapters")) == (0, [])
    assert "adapter 'sql' has not failed on any replica of pool 'dev'; nothing is tried again" in ran.err


def test_where_it_has_not_failed_is_told(cli, admin, fleet):
    fleet({"ready": True})
    ran = cli("retry", "adapter", "sql", "--replica", "r1")
    assert (ran.code, admin.asked("ApplyAdapters")) == (0, [])
    assert "has not failed on replica 'r1'" in ran.err


@pytest.mark.parametrize("line", ["retry pool sql", "retry sql sql"])
def test_nothing_but_adapters_is_tried_again(cli, admin, fleet, line):
    fleet(failed("sql"))
    ran = cli(*line.split())
    assert (ran.code, admin.requests) == (2, [])
    assert "loraplane retry adapter NAME" in ran.err
