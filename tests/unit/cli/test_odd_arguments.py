"""Numbers that no message takes, bytes that are no text, and what is empty: one line and an exit code each."""

from __future__ import annotations

import pytest

from registry.cli.session import Session
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import applied


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("tenant set acme --max-adapters 99999999999999999999", "--max-adapters"),
        ("pool create p --base-model b --max-adapters 9999999999", "--max-adapters"),
        ("pool create p --base-model b --max-rank 9999999999", "--max-rank"),
        ("pool update p --max-rank 9999999999", "--max-rank"),
        ("pool confirm-removals dev --revision 99999999999999999999", "--revision"),
        ("rollback sql --to 99999999999999999999", "--to"),
        ("rollout promote sql --generation 99999999999999999999", "--generation"),
    ],
)
def test_a_number_that_is_too_large(cli, line, flag):
    ran = cli(*line.split())
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert f"Invalid value for '{flag}'" in ran.err


@pytest.mark.parametrize(
    ("flag", "value", "field"),
    [
        ("--priority", "99999999999", "add: spec.priority"),
        ("--replicas", "99999999999", "add: spec.placement.replicas"),
    ],
)
def test_a_number_that_no_record_takes(cli, admin, flag, value, field):
    admin.answers["ApplyAdapters"] = [applied]
    ran = cli("-o", "json", "add", "sql", "--source", "s3://b/sql", flag, value)
    assert (ran.code, ran.error["reason"], ran.error["field"]) == (4, "INVALID_MANIFEST", field)


@pytest.mark.parametrize("arguments", [["get", "adapters", "\udcff"], ["add", "a\udcff", "--source", "s3://b/sql"]])
def test_an_argument_that_is_no_text(cli, arguments):
    ran = cli(*arguments)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "not text in UTF-8" in ran.err


def test_an_empty_source_is_not_the_working_directory(cli, admin):
    ran = cli("add", "sql", "--source", "")
    assert ran.code == 2
    assert "--source is empty" in ran.err
    assert admin.asked("ApplyAdapters") == []


@pytest.mark.parametrize(
    "line",
    [
        "add sql --source s3://b/sql",
        "delete adapter sql",
        "rollout sql",
        "rollback sql",
        "history sql",
        "check . --pool dev",
    ],
)
def test_a_timeout_is_kept_by_what_is_read_before_too(cli, admin, monkeypatch, line):
    given = []
    client = Session.client
    monkeypatch.setattr(Session, "client", lambda self, seconds: given.append(seconds) or client(self, seconds))
    admin.answers["ListPools"] = [pb.ListPoolsResponse()]
    cli(*line.split(), "--timeout", "0.5")
    assert given == [0.5]
