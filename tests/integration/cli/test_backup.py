"""backup and restore through the real admin service: into an empty store, and into one that went on."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from registry.etcd3.ops import Put, Range, Txn
from registry.model.keys import Keys
from registry.tools.verify.fold import Fold
from registry.tools.verify.main import read_history
from tests.conftest import EtcdForTest
from tests.integration.cli.conftest import Cli, make_admin

CARED_FOR = ("name", "pool", "spec")


def filled(cli: Cli) -> None:
    """Two pools, a quota, five generations of a, one deleted adapter, and one that only canaries have."""
    assert cli("pool", "create", "ops", "--base-model", "tiny", "--max-rank", "8").code == 0
    assert cli("tenant", "set", "acme", "--max-adapters", "2").code == 0
    for priority in range(5):
        cli.json("apply", "-f", cli.manifest("a", "acme/b", priority=priority))
    cli.json("apply", "-f", cli.manifest("gone"))
    cli.json("delete", "gone", "--pool", "dev")
    cli.json("add", "x", "--pool", "ops", "--source", "s3://b/x", "--label", "team=z", "--look-seconds", "0")


def shown(cli: Cli) -> list[dict[str, object]]:
    return [{field: one[field] for field in CARED_FOR} for one in cli.json("get", "adapters")["items"]]


def pools(cli: Cli) -> list[dict[str, object]]:
    left = ("etag", "removals_confirmed_revision", "status")
    return [{key: one[key] for key in one if key not in left} for one in cli.json("get", "pools")["items"]]


def violations(etcd: EtcdForTest) -> list[str]:
    """What the replay checker finds in the whole history of a store."""

    async def found() -> list[str]:
        client = etcd.patient()
        try:
            steps = await read_history(client, etcd.prefix, from_revision=1)
        finally:
            await client.aclose()
        return [str(one) for one in Fold(Keys(etcd.prefix)).replay(steps).findings]

    return asyncio.run(found())


@pytest.fixture
def empty(etcd, tmp_path):
    """The command line of an admin service on an empty store, and that store."""
    store = EtcdForTest(etcd.cluster, f"/test/{uuid.uuid4().hex}")
    folder = tmp_path / "other"
    folder.mkdir()
    admin = make_admin(folder, store)
    admin.start()
    yield Cli(admin, folder), store
    admin.program.kill()


def test_into_an_empty_store_and_into_one_that_went_on(cli, empty, etcd, tmp_path):
    """W4 etag, W6 one-digest, W7 audit-complete: generations go on; the replay finds every change explained.

    What the backup does not have stays unless it is named, and then goes as it was seen.
    """
    filled(cli)
    file, (other, store), before = str(tmp_path / "b.jsonl"), empty, shown(cli)
    assert "2 pools, 2 tenants, 3 adapters, 9 earlier generations" in cli("backup", file).out
    planned = other.json("restore", file, "--dry-run")
    assert planned["summary"] == {"created": 3, "updated": 0, "deleted": 0, "unchanged": 0}
    assert (other.json("get", "pools")["items"], other("restore", file, "--yes").code) == ([], 0)
    assert (shown(other), pools(other)) == (before, pools(cli))
    assert other.json("get", "tenants")["items"][0]["max_adapters"] == 2
    items = other.json("history", "a", "--pool", "dev")["items"]
    assert {one["generation"]: one["spec"]["priority"] for one in items} == {6: 4, 5: 4, 4: 3, 3: 2, 2: 1, 1: 0}
    assert [one["generation"] for one in other.json("history", "gone", "--pool", "dev")["items"]] == [1]
    assert other.json("restore", file, "--dry-run")["plan"] == []
    ran = other("rollback", "a", "--pool", "dev", "--to", "2")
    assert (ran.code, "GENERATION_RESTORED" in ran.err, "give --restored" in ran.err) == (4, True, True)
    assert other("rollback", "a", "--pool", "dev", "--to", "2", "--restored").code == 0
    assert "generation 5, 4, 3, 2, 1 by anonymous at" in other("describe", "adapter", "a", "--pool", "dev").out

    cli.json("apply", "-f", cli.manifest("a", priority=99))
    cli.json("delete", "acme/b", "--pool", "dev")
    cli.json("apply", "-f", cli.manifest("new"))
    cli("pool", "update", "ops", "--max-rank", "16")
    ran = cli("restore", file, "--yes")
    assert (ran.code, "1 adapters that the backup does not have stay" in ran.err) == (0, True)
    assert [one for one in shown(cli) if one["name"] != "new"] == before
    assert next(one for one in pools(cli) if one["name"] == "ops")["limits"]["max_rank"] == 8
    assert (cli("restore", file, "--yes", "--delete-others").code, shown(cli)) == (0, before)
    assert [*violations(store), *violations(etcd)] == []


async def play_kind(etcd: EtcdForTest, pool: str, kind: bytes) -> None:
    """Writes a pool's record as if its engines were of another kind."""
    client, key = etcd.patient(), Keys(etcd.prefix).pool(pool)
    try:
        [found] = (await client.range(Range(key))).kvs
        value = found.value.replace(b'"engine":"vllm"', b'"engine":"%s"' % kind)
        assert value != found.value
        await client.txn(Txn((), (Put(key, value),)))
    finally:
        await client.aclose()


def test_a_pool_of_engines_that_nobody_drives_any_more_survives(cli, empty, etcd, tmp_path):
    """Whoever makes one by hand is refused; a record that there was comes back, and becomes what it was."""
    asyncio.run(play_kind(etcd, "dev", b"dynamo"))
    file, (other, store), before = str(tmp_path / "b.jsonl"), empty, pools(cli)
    assert cli("backup", file).code == 0
    ran = other("pool", "create", "dev", "--base-model", "tiny", "--engine-kind", "dynamo")
    assert (ran.code, "'dynamo'" in ran.err) == (4, True)
    assert (other("restore", file, "--yes").code, pools(other)) == (0, before)
    cli.json("pool", "update", "dev", "--max-rank", "8", "--engine-kind", "vllm")
    assert (cli("restore", file, "--yes").code, pools(cli)) == (0, before)
    assert violations(store) == []
