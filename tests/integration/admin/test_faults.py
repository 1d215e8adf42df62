"""Guarantees of writes while connections break and etcd is killed."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing

import grpc

from registry.model.keys import Keys
from registry.v1 import registry_pb2 as pb
from tests.support.admin import Admin, admin_with_pool, change_set, put, refused
from tests.support.etcd import make_cluster, running_etcd
from tests.support.history_check import History, check_history, read_history
from tests.support.waiting import eventually

PREFIX = "/faults"


async def _tell(admin: Admin, request: pb.ApplyAdaptersRequest, timeout_seconds: float) -> int | str:
    """The revision of a reply, or the reason of a refusal."""
    try:
        return (await admin.stub.ApplyAdapters(request, timeout=timeout_seconds)).revision
    except grpc.RpcError as error:
        return refused(error).reason or refused(error).code.name


def _check_truth(keys: Keys, history: History, outcomes: dict[str, int | str]) -> None:
    """Each reply is in history at its revision, and nothing that was refused is."""
    check_history(keys, history)
    prefix = keys.request("")
    done = {
        event.key.removeprefix(prefix).decode(): revision
        for revision, events in history
        for event in events
        if event.key.startswith(prefix) and event.kv and b'"reply":null' not in event.kv.value
    }
    for name, outcome in outcomes.items():
        if isinstance(outcome, int):
            assert done.get(name) == outcome, f"W1: {name} was acknowledged at {outcome}"
        elif outcome not in {"OUTCOME_UNKNOWN", "DEADLINE_EXCEEDED"}:
            assert name not in done, f"W8: {name} was refused with {outcome}, and applied"


async def test_kill_nine_of_every_member(tmp_path):
    """W1 acked-durable, W8 no-false-fail: etcd, which writes to disk for real, is killed under writes."""
    outcomes: dict[str, int | str] = {}

    async def write(admin: Admin, writer: int) -> None:
        """One after the other, until it is cancelled; those in flight then tell nothing."""
        for number in itertools.count():
            name = f"w{writer}.{number}"
            request = change_set(put(f"t{writer}/a{number % 5}", f"file:///a/{number}"), request_id=name)
            outcomes[name] = await _tell(admin, request, 120)

    async def more_are_told() -> None:
        size = len(outcomes)
        await eventually(lambda: len(outcomes) >= size + 40)

    own = running_etcd(make_cluster(tmp_path / "etcd", syncs=True))
    async with own as cluster, aclosing(cluster.patient()) as client:
        async with admin_with_pool(cluster.endpoints, PREFIX) as admin:
            writers = [asyncio.create_task(write(admin, writer)) for writer in range(4)]
            for _ in range(2):
                await more_are_told()
                cluster.members[0].kill()
                cluster.members[0].start()
                await cluster.ready()
            await more_are_told()
            for writer in writers:
                writer.cancel()
            await asyncio.wait(writers)
        _check_truth(Keys(PREFIX), await read_history(client, PREFIX, 1), outcomes)
        assert sum(isinstance(one, int) for one in outcomes.values()) > 100
