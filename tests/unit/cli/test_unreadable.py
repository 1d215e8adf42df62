"""What stands in etcd and cannot be read, or should not be shown as it is: said, and never in the way of the rest."""

from __future__ import annotations

import grpc

from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import Refusal

SQL = pb.Adapter(name="sql", pool="dev", generation=2, etag="9")


def test_a_pool_that_cannot_be_read_is_replaced_whole_or_not_at_all(cli, admin):
    admin.answers["GetPool"] = [Refusal(grpc.StatusCode.FAILED_PRECONDITION, "UNREADABLE_RECORD", "it is broken")]
    admin.answers["UpdatePool"] = [pb.Pool(name="dev", base_models=["tiny"])]
    ran = cli("pool", "update", "dev", "--max-rank", "16")
    assert (ran.code, admin.asked("UpdatePool")) == (4, [])
    assert "it is broken; give --base-model and every limit" in ran.err
    assert cli("pool", "update", "dev", "--max-rank", "16", "--base-model", "tiny").code == 0
    [sent] = admin.asked("UpdatePool")
    assert sent.pool == pb.Pool(name="dev", base_models=["tiny"], limits=pb.PoolLimits(max_rank=16))
    assert not sent.HasField("update_mask")
    admin.answers["GetPool"] = [Refusal(grpc.StatusCode.FAILED_PRECONDITION, "FUTURE_SCHEMA", "upgrade")]
    assert cli("pool", "update", "dev", "--base-model", "tiny").code == 4


def test_what_cannot_be_read_is_not_left_out_in_silence(cli, admin):
    """A value that somebody wrote by hand hides nothing else, and does not hide itself."""
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="dev")], unreadable=["bad"])]
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[SQL], unreadable=[f"n{i}" for i in range(11)])]
    admin.answers["ListTenants"] = [pb.ListTenantsResponse(unreadable=["acme"])]
    ran = cli("-o", "name", "get", "adapters")
    assert (ran.code, ran.out) == (0, "sql\n")
    pools, adapters = ran.err.splitlines()
    assert pools == "note: 1 pools cannot be read, and are left out: bad; see loraplane doctor"
    assert adapters.startswith("note: 11 adapters of pool dev cannot be read, and are left out: n0, n1, ")
    assert adapters.endswith("n9, …; see loraplane doctor")
    assert cli("get", "pools").err.splitlines() == [pools]
    assert "1 tenants cannot be read, and are left out: acme" in cli("get", "tenants").err


def test_the_only_pool_is_there_although_it_cannot_be_read(cli, admin):
    admin.answers["ListPools"] = [pb.ListPoolsResponse(unreadable=["dev"])]
    admin.answers["ListAdapterHistory"] = [Refusal(grpc.StatusCode.FAILED_PRECONDITION, "UNREADABLE_RECORD", "why")]
    ran = cli("history", "sql")
    assert (ran.code, ran.err) == (4, "error: UNREADABLE_RECORD: why\n")


def test_nothing_that_was_written_by_others_commands_the_terminal(cli, admin):
    evil = pb.Adapter(name="a\n\x1b[31mb\u202e", pool="dev", updated_by="中 [red]")
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[evil], unreadable=["\x1b[2J"])]
    ran = cli("get", "adapters", "-o", "wide")
    assert len(ran.out.splitlines()) == 2
    assert (ran.out + ran.err).replace("\n", "").isprintable()
    assert r"a\n\x1b[31mb\u202e" in ran.out
    assert "中 [red]" in ran.out
    admin.answers["GetAdapter"] = [Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", "no \x1b[2J")]
    assert cli("get", "adapters", "a").err.startswith("error: ADAPTER_NOT_FOUND: no \\x1b[2J; ")
    assert cli("-o", "json", "get", "adapters").json["items"][0]["name"] == evil.name


def test_a_pool_that_cannot_be_read_is_no_choice_beside_one_that_can(cli, admin):
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="dev")], unreadable=["bad"])]
    admin.answers["ListAdapterHistory"] = [pb.ListAdapterHistoryResponse(generations=[SQL])]
    assert cli("-o", "name", "history", "sql").out == "2\n"


def test_generations_that_cannot_be_read_are_noted(cli, admin):
    admin.answers["ListAdapterHistory"] = [pb.ListAdapterHistoryResponse(generations=[SQL], unreadable=[4, 3])]
    ran = cli("-o", "name", "history", "sql")
    assert (ran.out, ran.err) == ("2\n", "note: generations that cannot be read, and are left out: 4, 3\n")
