"""What a store's history is exported from, and what it begins with: on a real etcd, by the command."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

from registry.model.keys import Keys
from registry.tools.verify.fold import Fold
from registry.tools.verify.history import HistoryBase
from registry.tools.verify.main import app, decode, read_history
from registry.v1 import registry_pb2 as pb
from tests.support.admin import admin_with_pool, change_set, drop, put
from tests.support.etcd import compact, make_cluster, running_etcd

PREFIX = "/exported"
CANARIES = pb.Strategy(canary_replicas="50%", promote="manual")


async def test_a_history_may_begin_anywhere_and_begins_right_behind_what_is_compacted(tmp_path, capsys):
    """W2, W5, W6, W7: what stood before is known, so nothing is found missing that is only older."""
    cluster = make_cluster(tmp_path / "etcd")

    async def exported(out: Path, *flags: str) -> int:
        arguments = ("export", "--etcd", cluster.endpoints[0], "--prefix", PREFIX, "--out", str(out), *flags)
        return await asyncio.to_thread(app, args=arguments, standalone_mode=False) or 0

    async with (
        running_etcd(cluster),
        aclosing(cluster.patient()) as client,
        admin_with_pool(cluster.endpoints, PREFIX) as admin,
    ):
        changes = [put("acme/a", "file:///a/1"), put("acme/b"), put("acme/a", "file:///a/2", strategy=CANARIES)]
        changes += [put("acme/a", "file:///a/3", strategy=CANARIES), drop("acme/b"), put("acme/b")]
        revisions = [(await admin.stub.ApplyAdapters(change_set(one))).revision for one in changes]
        for number, first in enumerate([1, *revisions, revisions[-1] + 1]):
            out = tmp_path / f"{number}.jsonl"
            assert await exported(out, "--from-revision", str(first)) == 0
            fold = Fold(Keys(PREFIX)).replay(decode(out.read_text().splitlines()))
            assert (fold.findings, fold.revision >= revisions[-1]) == ([], True), first
            assert [at for at in revisions if at in fold.changing] == [at for at in revisions if at >= first]
        assert await exported(tmp_path / "h", "--from-revision", "99999") == 6
        assert "no revision 99999 yet" in capsys.readouterr().err
        await compact(client, revisions[3])
        for first in (1, revisions[3]):
            steps = await read_history(client, PREFIX, from_revision=first, seconds=60)
            assert isinstance(steps[0], HistoryBase)
            assert [step.revision for step in steps] == revisions[3:]
            assert Fold(Keys(PREFIX)).replay(steps).findings == []
