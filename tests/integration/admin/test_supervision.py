"""An admin service one part of which fails: it says so, the others go on, and the part is run again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import httpx

from registry.v1 import registry_pb2 as pb
from tests.support.admin import change_set, put
from tests.support.http_client import http_client
from tests.support.residency_world import Replicas, among, members
from tests.support.waiting import eventually

CANARY = pb.Strategy(canary_replicas="1", promote="auto", soak_seconds=0)


@contextmanager
def broken(target: str) -> Iterator[None]:
    """Nothing that this function is asked comes to an end, as with a value that nobody foresaw."""

    def fail(*_: Any, **__: Any) -> None:
        raise OverflowError("int too large to convert to float")

    with mock.patch(target, fail):
        yield


async def failing(admin) -> set[str]:
    async with http_client(timeout=60) as client:
        return set((await client.get(f"{admin.http}/readyz")).json()["failing"])


async def residency(admin) -> httpx.Response:
    async with http_client(timeout=60) as client:
        return await client.get(f"{admin.http}/v1/residency", params={"pool": "p"})


async def test_a_pool_that_cannot_be_derived_costs_its_readers_an_answer_and_nobody_else_anything(ledger, admin):
    """X2 unbreakable: the service says what fails, and answers again once it is gone."""
    await admin.stub.ApplyAdapters(change_set(put("a")))
    with broken("registry.residency.follower.renew_view"):
        assert (await residency(admin)).status_code == 503

        async def is_told() -> bool:
            return "residency of p" in await failing(admin)

        await eventually(is_told)
        assert (await admin.stub.GetAdapter(pb.GetAdapterRequest(pool="p", name="a"))).name == "a"

    async def answers() -> bool:
        return (await residency(admin)).status_code == 200

    await eventually(answers)


async def test_rollouts_go_on_when_what_broke_them_is_gone(ledger, admin):
    """X2: a pool's controller that fails is run again, and promotes what its canaries serve."""
    replicas = Replicas(ledger.client, ledger.keys)
    await replicas.alive("r1")
    await admin.stub.ApplyAdapters(change_set(put("a", strategy=CANARY)))
    with broken("registry.rollout.controller.derive_rollout"):
        change = change_set(put("a", uri="file:///other", strategy=CANARY))
        revision = (await admin.stub.ApplyAdapters(change)).revision
        await replicas.says("r1", revision, **among(members("r1")))

        async def is_told() -> bool:
            return "rollouts of p" in await failing(admin)

        await eventually(is_told)

    async def is_promoted() -> bool:
        found = await admin.stub.GetAdapter(pb.GetAdapterRequest(pool="p", name="a"))
        assert found.generation == 2
        return not found.HasField("rollout")

    await eventually(is_promoted)


async def test_an_informer_that_fails_lists_anew(ledger, admin):
    """X2: its readers never wait for what nobody follows any more."""
    replicas = Replicas(ledger.client, ledger.keys)
    revision = (await admin.stub.ApplyAdapters(change_set(put("a")))).revision
    await replicas.alive("r1")
    with broken("registry.etcd3.informer.SharedInformer.apply"):
        assert (await residency(admin)).status_code == 503
    await replicas.says("r1", revision)

    async def answers() -> bool:
        reply = await residency(admin)
        return reply.status_code == 200 and reply.json()["adapters"][0]["replicas"][0]["state"] == "serving"

    await eventually(answers)
