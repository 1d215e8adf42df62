"""What a store's history is exported from, and what it begins with: on a real etcd, by the command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from registry.etcd3.client import Client
from registry.model.keys import Keys
from registry.tools.verify.history import HistoryBase
from registry.tools.verify.main import app, decode, read_history
from registry.tools.verify.replay import replay
from registry.v1 import registry_pb2 as pb
from tests.support.admin import admin_inside, change_set, drop, make_pool, put, wait_ready
from tests.support.etcd import Cluster, compact, make_cluster

PREFIX = "/exported"
CANARIES = pb.Strategy(canary_replicas="50%", promote="manual")


@pytest.fixture
async def store(tmp_path) -> AsyncIterator[tuple[Cluster, Client, list[int]]]:
    """A store of this test's own, and the revisions of the changes that were made in it."""
    cluster = make_cluster(tmp_path / "etcd", flags={"unsafe-no-fsync": "true"})
    cluster.start()
    await cluster.ready()
    client = cluster.patient()
    try:
        async with admin_inside(cluster.endpoints, PREFIX) as admin:
            await wait_ready(admin)
            await make_pool(admin)
            changes = [put("acme/a", "file:///a/1"), put("acme/b"), put("acme/a", "file:///a/2", strategy=CANARIES)]
            changes += [put("acme/a", "file:///a/3", strategy=CANARIES), drop("acme/b"), put("acme/b")]
            replies = [await admin.stub.ApplyAdapters(change_set(change)) for change in changes]
            yield cluster, client, [reply.revision for reply in replies]
    finally:
        await client.aclose()
        cluster.stop()


async def exported(cluster: Cluster, out: Path, *flags: str) -> int:
    """The exit code of ``loraplane-verify export``."""
    arguments = ("export", "--etcd", cluster.endpoints[0], "--prefix", PREFIX, "--out", str(out), *flags)
    return await asyncio.to_thread(app, args=arguments, standalone_mode=False) or 0


async def test_a_history_may_begin_anywhere(store, tmp_path):
    """W2, W5, W6, W7: what stood before is known, so nothing is found missing that is only older."""
    cluster, _, revisions = store
    for number, first in enumerate([1, *revisions, revisions[-1] + 1]):
        out = tmp_path / f"{number}.jsonl"
        assert await exported(cluster, out, "--from-revision", str(first)) == 0
        fold = replay(Keys(PREFIX), decode(out.read_text().splitlines()))
        assert (fold.findings, fold.revision >= revisions[-1]) == ([], True), first
        assert [at for at in revisions if at in fold.changing] == [at for at in revisions if at >= first]


async def test_where_it_is_compacted_it_begins_right_behind(store):
    """Also if somebody asks for a revision of which only the keys that were written since are left."""
    _, client, revisions = store
    await compact(client, revisions[3])
    for first in (1, revisions[1], revisions[3]):
        steps = await read_history(client, PREFIX, from_revision=first, seconds=60)
        assert isinstance(steps[0], HistoryBase)
        assert [step.revision for step in steps] == revisions[3:]
        assert replay(Keys(PREFIX), steps).findings == []
    later = await read_history(client, PREFIX, from_revision=revisions[5], seconds=60)
    assert [step.revision for step in later] == [revisions[5] - 1, revisions[5]]


async def test_what_cannot_be_exported_is_one_line(store, tmp_path, capsys):
    cluster, _, _ = store
    assert await exported(cluster, tmp_path / "h", "--from-revision", "99999") == 6
    assert "no revision 99999 yet" in capsys.readouterr().err
    assert await exported(cluster, tmp_path / "h", "--prefix", "/nothing") == 2
    assert "nothing below '/nothing'" in capsys.readouterr().err
    assert await exported(cluster, tmp_path / "no" / "h") == 2
    assert f"--out {tmp_path / 'no' / 'h'}: No such file or directory\n" in capsys.readouterr().err
