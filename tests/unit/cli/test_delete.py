"""delete: by name and by file."""

from __future__ import annotations

import grpc
import pytest

from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import Refusal, applied


def test_delete_by_name_with_an_etag(cli, admin):
    """W4 etag: the condition reaches the service."""
    admin.answers["ApplyAdapters"] = [applied]
    ran = cli("delete", "adapter", "sql", "--etag", "12")
    assert ran.code == 0
    [change] = admin.asked("ApplyAdapters")[0].changes
    assert (change.delete, change.etag) == ("sql", "12")
    assert "deleted  sql" in ran.out


def test_delete_by_file(cli, admin, manifest):
    admin.answers["ApplyAdapters"] = [applied]
    assert cli("delete", "-f", manifest("a", "b")).code == 0
    assert [change.delete for change in admin.asked("ApplyAdapters")[0].changes] == ["a", "b"]


@pytest.mark.parametrize("line", ["delete", "delete adapter", "delete pool dev", "delete adapter a -f x"])
def test_delete_must_be_told_exactly_what(cli, admin, line):
    ran = cli(*line.split())
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert admin.asked("ApplyAdapters") == []


@pytest.mark.parametrize(("flags", "named"), [(["--etag", "12"], "--etag"), (["--pool", "other"], "--pool")])
def test_delete_by_file_passes_over_no_condition(cli, admin, manifest, flags, named):
    """W4 etag: a condition that cannot be kept is refused, not forgotten."""
    ran = cli("delete", "-f", manifest("a"), *flags)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert f"{named} goes with adapter NAME" in ran.err
    assert admin.asked("ApplyAdapters") == []


def test_the_pool_of_other_commands_does_not_hinder_a_deletion_by_file(cli, admin, manifest, monkeypatch):
    monkeypatch.setenv("LORAPLANE_POOL", "other")
    admin.answers["ApplyAdapters"] = [applied]
    assert cli("delete", "-f", manifest("a")).code == 0


@pytest.mark.parametrize("where", ["", "changes[7].delete"])
def test_what_is_not_there_and_is_none_of_those_that_were_named_is_told(cli, admin, where):
    """X2: a service that says so of another adapter would be asked for ever."""
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[pb.Adapter(name="a"), pb.Adapter(name="b")])]
    admin.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", "none", where=where)]
    ran = cli("delete", "a", "b", "--ignore-not-found")
    assert (ran.code, len(admin.asked("ApplyAdapters"))) == (3, 1)


def test_what_is_not_there_refuses_the_rest_unless_it_may_be_passed_over(cli, admin):
    """W2 atomic-set."""
    gone = Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", "none", where="changes[0].delete")
    admin.answers["ApplyAdapters"] = [gone, applied]
    assert (cli("delete", "a", "b").code, len(admin.asked("ApplyAdapters"))) == (3, 1)
