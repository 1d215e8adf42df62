"""break-glass delete: whatever becomes of the call, how the record stood is kept if it may have been deleted."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest

from registry.cli import receipts
from registry.model.records import AdapterRecord
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import Refusal

STOOD = pb.Adapter(
    name="acme/a",
    pool="dev",
    tenant="acme",
    generation=3,
    spec=pb.AdapterSpec(source=pb.Source(uri="file:///adapters/a"), load="eager", labels={"team": "bi"}),
    etag="41",
    updated_at="2026-01-01T00:00:00.000Z",
    updated_by="alice",
    request_id="r",
)
RECEIPT = pb.Removal(pool="dev", name="acme/a", record="{}", revision=44, removed_at="now", removed_by="bob")
LOST = Refusal(grpc.StatusCode.UNAVAILABLE, "", "the connection broke")
UNKNOWN = Refusal(grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN", "nobody knows")
GONE = Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", "there is no adapter")
DELETE = ("break-glass", "delete", "adapter", "acme/a", "--yes", "--request-id", "q1", "--receipt", "receipt.json")


@pytest.fixture
def path(tmp_path, admin) -> Path:
    admin.answers["GetAdapter"] = [STOOD]
    return tmp_path / "receipt.json"


def test_a_receipt_is_what_the_service_replied(cli, admin, path, tmp_path):
    admin.answers["BreakGlassDelete"] = [RECEIPT]
    assert cli(*DELETE).code == 0
    assert receipts.read(path) == RECEIPT
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "failure",
    [LOST, UNKNOWN, Refusal(grpc.StatusCode.DEADLINE_EXCEEDED), Refusal(grpc.StatusCode.INTERNAL, "INTERNAL")],
)
def test_how_the_record_stood_is_kept_when_nobody_knows(cli, admin, path, failure):
    """W7 audit-complete: what was deleted can be accounted for, though the reply was lost."""
    admin.answers["BreakGlassDelete"] = [failure]
    ran = cli(*DELETE)
    assert ran.code in {1, 6}
    assert "--receipt receipt.json --request-id q1" in ran.err
    begun = json.loads(path.read_text())
    record = AdapterRecord.parse(begun["record"].encode())
    assert (begun["pool"], record.name, record.generation, record.spec.labels) == ("dev", "acme/a", 3, {"team": "bi"})
    assert "revision" not in begun


def test_a_lost_reply_is_asked_for_again(cli, admin, path):
    """W3 idempotent: the same service replies with the same receipt, though there is no record any more."""
    admin.answers["BreakGlassDelete"] = [LOST, RECEIPT]
    assert cli(*DELETE).code == 6
    admin.answers["GetAdapter"] = [GONE]
    assert cli(*DELETE).code == 0
    assert receipts.read(path) == RECEIPT
    assert [request.request_id for request in admin.asked("BreakGlassDelete")] == ["q1", "q1"]


def test_a_service_that_knows_nothing_of_it_proves_nothing(cli, admin, path):
    """W7 audit-complete: "there is no such adapter" after a lost reply may mean that it was deleted then."""
    admin.answers["BreakGlassDelete"] = [LOST, GONE]
    assert cli(*DELETE).code == 6
    assert path.exists()
    assert cli(*DELETE).code == 3
    assert path.exists()


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (GONE, 3),
        (Refusal(grpc.StatusCode.FAILED_PRECONDITION, "SPACE_LEFT"), 4),
        (Refusal(grpc.StatusCode.ABORTED, "STALE_ETAG"), 5),
    ],
)
def test_nothing_stays_of_a_refusal(cli, admin, path, refusal, code):
    admin.answers["BreakGlassDelete"] = [refusal]
    assert cli(*DELETE).code == code
    assert not path.exists()


def test_nothing_is_deleted_whose_receipt_cannot_be_kept(cli, admin, path):
    admin.answers["BreakGlassDelete"] = [RECEIPT]
    for text in ("somebody's", json.dumps({"pool": "dev", "name": "acme/a", "revision": 7}), '{"name": "other"}'):
        path.write_text(text)
        assert cli(*DELETE).code == 2
        assert path.read_text() == text
    path.unlink()
    assert cli(*DELETE[:-1], "no/such/folder.json").code == 2
    assert admin.asked("BreakGlassDelete") == []


def test_a_receipt_that_cannot_be_written_in_the_end_is_told(cli, admin, path):
    (path.parent / "receipt.json.new").mkdir()
    admin.answers["BreakGlassDelete"] = [RECEIPT]
    ran = cli("-o", "json", *DELETE)
    assert ran.code == 2
    assert '"revision": "44"' in ran.error["message"]
    assert path.exists()


def test_what_was_only_begun_is_not_settled(cli, admin, path):
    receipts.begin(path, STOOD)
    ran = cli("break-glass", "settle", str(path))
    assert (ran.code, admin.asked("SettleRemoval")) == (2, [])
    assert "loraplane-check verify" in ran.err
