"""Refusals in the audit: what a record of one holds, and what a flood of them costs etcd."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from registry.access.control import Shown
from registry.access.denials import AT_START
from registry.access.principal import Credential, Principal
from registry.access.roles import AccessRole
from registry.admin.rpc.calls import Asked
from registry.etcd3.errors import NoSpace
from registry.model.audit import DenialRecord
from registry.model.errors import PermissionDenied, Reason, Unauthenticated
from registry.store.txn import DAY_SECONDS, DENIAL_DAYS
from registry.v1 import registry_pb2 as pb
from tests.support.admin import change_set, put
from tests.support.played_admin import Aborted, Context, Served
from tests.support.records import KEYS
from tests.unit.admin.conftest import ANN, Guarded, binding, guarded, who

MAX_RECORD_BYTES = 8 << 10
OF_OTHERS = change_set(put("other/a"))


@asynccontextmanager
async def recording(served: Guarded) -> AsyncIterator[None]:
    """With one pool, and refusals that are recorded."""
    await served.make_pool("p", who("root"))
    task = asyncio.ensure_future(served.service.denials.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def records(served: Served) -> list[DenialRecord]:
    return [DenialRecord.parse(kv.value) for kv in stored(served)]


def stored(served: Served) -> list:
    return [kv for key, kv in sorted(served.etcd.store.kvs.items()) if key.startswith(KEYS.denied())]


MORE = ", tenants: [acme], pools: [p], sources: ['s3://acme/']"


@guarded(binding(AccessRole.PUBLISHER, "ann", MORE), recording)
async def test_a_refusal_is_recorded_with_who_and_what(served):
    """A5 tamper-evident: also one that only the outcome shows, and one of a page."""
    ann = Context(names=ANN.names, metadata=(("user-agent", "loraplane/1"),))
    await served.refusal("ApplyAdapters", OF_OTHERS, ann)
    await served.refusal("WatchAdapters", pb.WatchAdaptersRequest(pool="q"), ann)
    await served.refusal("ApplyAdapters", change_set(put("acme/a", uri="s3://other/a")), ann)
    await asyncio.sleep(1)
    first, stream = records(served)
    assert (first.principal, first.credential, first.method) == ("ann", "certificate", "ApplyAdapters")
    assert (first.reason, first.pool, first.tenant, first.times) == ("PERMISSION_DENIED", "p", "other", 1)
    assert (first.peer, first.user_agent) == ("ipv4:10.0.0.1:1", "loraplane/1")
    assert first.fingerprint == f"sha256:{hashlib.sha256(b'PEM').hexdigest()}"
    assert "you may not apply adapters in pool 'p' of tenant 'other'" in first.message
    assert (stream.method, stream.pool, stream.tenant) == ("WatchAdapters", "q", "")
    await asyncio.sleep(70)
    outcome = records(served)[-1]
    assert (outcome.method, outcome.tenant, outcome.times) == ("ApplyAdapters", "acme", 1)
    assert "from s3://other/a" in outcome.message


@pytest.mark.parametrize(
    ("context", "credential", "shown"),
    [
        (Context(), "", b""),
        (Context(metadata=(("authorization", "Bearer x.y.z"),)), "token", b"x.y.z"),
        (who(""), "certificate", b"PEM"),
    ],
)
@guarded("", recording)
async def test_a_failed_authentication_is_recorded_with_what_was_shown(served, context, credential, shown):
    """A5 tamper-evident. X1 secret-free: nothing of a token is in it."""
    await served.refusal("ListPools", pb.ListPoolsRequest(), context)
    await asyncio.sleep(1)
    [record] = records(served)
    fingerprint = f"sha256:{hashlib.sha256(shown).hexdigest()}" if shown else ""
    assert (record.principal, record.credential, record.fingerprint) == ("", credential, fingerprint)
    assert (record.reason, record.method) == ("UNAUTHENTICATED", "ListPools")
    assert b"x.y.z" not in stored(served)[0].value


@guarded("", recording)
async def test_a_refusal_is_recorded_with_the_credential_that_the_caller_is_known_by(served):
    """A5 tamper-evident: beside a certificate that names nobody a token may have counted."""
    shown, ann = Shown("ipv4:1.2.3.4:5", who("").names, "Bearer x.y.z"), Principal("ci:ann", Credential.TOKEN)
    served.service.denials.note("ListPools", shown, ann, PermissionDenied(Reason.PERMISSION_DENIED, "you may not"))
    await asyncio.sleep(1)
    [record] = records(served)
    assert (record.principal, record.credential) == ("ci:ann", "token")
    assert record.fingerprint == f"sha256:{hashlib.sha256(b'x.y.z').hexdigest()}"


@guarded(binding(AccessRole.ROUTER, "ann"), recording)
async def test_a_flood_costs_etcd_no_more_than_its_bound(served):
    """R16 bounded: 1,000 refusals of one caller are three records, which tell their number; of very many callers 20."""
    for _ in range(10):
        for _ in range(100):
            await served.refusal("ApplyAdapters", OF_OTHERS, ANN)
        await asyncio.sleep(20)
    told = [one.times for one in records(served)]
    assert len(told) == 3
    assert sum(told) > 800
    revision = served.etcd.store.revision
    for number in range(300):
        with pytest.raises(Aborted):
            await served.call("ListPools", pb.ListPoolsRequest(), who(f"c{number}"))
    await asyncio.sleep(1)
    assert served.etcd.store.revision - revision <= AT_START


@guarded("", recording)
async def test_no_record_is_longer_than_its_bound_and_all_go_with_a_lease_of_their_own(served):
    """R16 bounded: whatever a stranger writes into a call."""
    long = "\U0001f600" * 5_000
    context = Context(names=who(long).names, metadata=(("user-agent", '"' * 5_000),))
    await served.refusal("GetAdapter", pb.GetAdapterRequest(pool=long, name=f"{long}/{long}"), context)
    await asyncio.sleep(1)
    [kv] = stored(served)
    assert len(kv.value) <= MAX_RECORD_BYTES
    others = {one.lease for key, one in served.etcd.store.kvs.items() if not key.startswith(KEYS.denied())}
    assert kv.lease
    assert kv.lease not in others
    left = await served.client.lease_keepalive(kv.lease)
    assert left == pytest.approx((DENIAL_DAYS + 1) * DAY_SECONDS, abs=5)


@guarded("", recording)
async def test_a_refused_call_waits_for_no_record_and_one_that_is_lost_is_counted(served):
    """R19 not-held-up."""

    async def fails(*_: object, **__: object) -> None:
        raise NoSpace("full")

    write = served.client.txn
    served.client.txn = fails
    refused = await served.refusal("ListPools", pb.ListPoolsRequest(), Context())
    assert refused.info.reason == "UNAUTHENTICATED"
    await asyncio.sleep(1)
    assert served.metrics.denials_lost._value.get() == 1
    served.client.txn = write
    await served.client.lease_revoke(await served.service.denials._lease.current(1))
    await served.refusal("ListPools", pb.ListPoolsRequest(), who(""))
    await served.refusal("GetPool", pb.GetPoolRequest(name="p"), who(""))
    await asyncio.sleep(1)
    assert [one.method for one in records(served)] == ["GetPool"], "under a new lease"


@pytest.mark.parametrize(
    "error",
    [
        Unauthenticated(Reason.UNAUTHENTICATED, "your token has expired"),
        PermissionDenied(Reason.ETCD_PERMISSION, "not for the service"),
    ],
    ids=["who was known and is not any more", "what etcd refuses us"],
)
@guarded("", recording)
async def test_what_is_no_refusal_of_a_caller_is_not_recorded(served, error):
    """A stream that ends with its token was allowed."""

    def refuses(_: Asked) -> None:
        raise error

    served.hook = refuses
    assert (await served.refusal("ListPools", pb.ListPoolsRequest(), who("root"))).info.reason == error.reason
    await asyncio.sleep(1)
    assert records(served) == []
