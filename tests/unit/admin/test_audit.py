"""What readers of the audit are shown, on virtual time with an etcd."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from registry.access.roles import AccessRole
from registry.etcd3.ops import Put, Txn
from registry.model.audit import DenialRecord
from registry.store import audits
from registry.v1 import registry_pb2 as pb
from tests.simulation.links import Way
from tests.support.admin import change_set, drop, put
from tests.support.played_admin import Aborted, Context, Served, served
from tests.support.records import KEYS
from tests.unit.admin.conftest import ANN, Guarded, binding, guarded, play_guarded, who

DENIED = DenialRecord(
    at="2026-01-01T00:00:00.000Z",
    principal="eve",
    credential="token",
    fingerprint="sha256:00",
    peer="ipv4:10.0.0.9:1",
    user_agent="curl",
    method="ApplyAdapters",
    reason="PERMISSION_DENIED",
    message="you may not",
)


async def store(served: Served, key: bytes, value: bytes) -> None:
    await served.client.txn(Txn((), (Put(key, value),)))


async def pages_of(served: Served, context: Context | None = None, **asked: object) -> list[pb.ListAuditResponse]:
    """All pages of a listing."""
    found, token = [], None
    while token != "":
        request = pb.ListAuditRequest(page_token=token or "", **asked)
        found.append(await served.call("ListAudit", request, context))
        token = found[-1].next_page_token
    return found


async def listed(served: Served, context: Context | None = None, **asked: object) -> list[pb.AuditEntry]:
    return [entry for page in await pages_of(served, context, **asked) for entry in page.entries]


async def told(served: Served, context: Context | None = None, **asked: object) -> list[tuple[str, str]]:
    """Pool and names of the entries of a listing."""
    return [
        (one.pool, " ".join(change.name for change in one.changes) or f"no {one.denial.tenant}")
        for one in await listed(served, context, **asked)
    ]


async def fill(served: Served, context: Context | None = None) -> None:
    """Two pools with adapters of two tenants each, a quota, and two refusals."""
    for pool in ("p", "q"):
        await served.make_pool(pool, context)
        await served.call("ApplyAdapters", change_set(put("acme/a"), put("other/b"), pool=pool), context)
    await served.call("SetTenant", pb.SetTenantRequest(tenant=pb.Tenant(name="acme", max_adapters=9)), context)
    await store(served, KEYS.denied("1"), DENIED.to_bytes())
    await store(served, KEYS.denied("2"), DENIED.model_copy(update={"pool": "p", "tenant": "acme"}).to_bytes())


ALL = [("", "acme"), ("", "no "), ("p", "no acme"), ("p", "p"), ("p", "acme/a other/b"), ("q", "q")]
ALL += [("q", "acme/a other/b")]


@served
async def test_an_entry_has_who_by_what_from_where_and_what_changed(served):
    """W7 audit-complete, A5 tamper-evident: old and new value, as they stand in etcd."""
    await served.make_pool()
    await served.call("ApplyAdapters", change_set(put("acme/a"), request_id="one"))
    reply = await served.call("ApplyAdapters", change_set(put("acme/a", priority=7), request_id="two"), who("ann"))
    entry = (await listed(served, about="ACME/A"))[-1]
    assert (entry.revision, entry.principal, entry.credential) == (reply.revision, "ann", "certificate")
    assert (entry.role, entry.method, entry.request_id) == ("operator", "ApplyAdapters", "two")
    assert entry.peer == "ipv4:10.0.0.1:1"
    [change] = entry.changes
    before, after = json.loads(change.before_json), json.loads(change.after_json)
    assert (change.kind, change.name, change.action) == ("adapter", "acme/a", "updated")
    assert (before["spec"]["priority"], after["spec"]["priority"]) == (0, 7)
    assert entry.fingerprint.startswith("sha256:")
    assert not entry.HasField("denial")
    first = (await listed(served, about="acme/a"))[0].changes[0]
    assert (first.before_json, first.action) == ("", "created")
    await served.call("ApplyAdapters", change_set(drop("acme/a")))
    assert (await listed(served, about="acme/a"))[-1].changes[0].after_json == ""


@served
async def test_everything_is_listed_or_what_is_asked_for(served):
    await fill(served)
    assert sorted(await told(served)) == sorted(ALL)
    assert await told(served, pool="q") == ALL[5:]
    assert sorted(await told(served, pool="p")) == sorted(ALL[2:5])
    assert await told(served, about="other/b") == [("p", "other/b"), ("q", "other/b")]
    assert await told(served, about="acme") == [("", "acme"), ("p", "no acme")]
    assert await told(served, principal="eve") == ALL[1:3]
    assert await told(served, pool="none") == []
    [denied, _] = await listed(served, principal="eve")
    assert (denied.denial.reason, denied.denial.message, denied.denial.times) == ("PERMISSION_DENIED", "you may not", 1)
    assert (denied.credential, denied.fingerprint, denied.user_agent) == ("token", "sha256:00", "curl")


@served
async def test_pages_hold_everything_once_however_short_they_are(served, monkeypatch):
    await fill(served)
    whole = await told(served)
    for size in (1, 2, 3):
        assert await told(served, page_size=size) == whole
    first = await served.call("ListAudit", pb.ListAuditRequest(page_size=2))
    await store(served, KEYS.denied("3"), DENIED.to_bytes())
    rest = await served.call("ListAudit", pb.ListAuditRequest(page_token=first.next_page_token))
    assert (rest.revision, len([*first.entries, *rest.entries])) == (first.revision, len(whole)), "all of one revision"
    whole = await told(served)
    for limit in ("_PAGE_BYTES", "_SCANNED_BYTES", "_RANGES_AT_MOST"):
        with monkeypatch.context() as patch:
            patch.setattr(audits, limit, 1)
            assert await told(served) == whole
            assert len(await pages_of(served, principal="eve")) > 1, "also of what is not asked for, little is read"
            if limit == "_RANGES_AT_MOST":
                assert len(await pages_of(served, since="2100-01-01T00:00:00Z")) > 2, "also of what is jumped over"
    for number in range(2 * audits._RANGES_AT_MOST):
        await store(served, KEYS.denied(f"x{number:03}"), DENIED.to_bytes())
    assert [len(page.entries) for page in await pages_of(served, page_size=100)] == [100, len(whole)]


@served
async def test_what_is_older_is_jumped_over_in_each_pool(served):
    await fill(served)
    for pool, number in (("p", 1), ("p", 2), ("_", 3), ("q", 4)):
        await store(served, KEYS.audit(pool, f"20200101T00000{number}.000000Z-ab"), b"{}")
    await store(served, KEYS.denied("20200101T000000.000000Z-ab"), b"{}")
    pages = await pages_of(served, since="2020-01-01T00:00:03Z")
    unreadable = [one for page in pages for one in page.unreadable]
    assert unreadable == ["20200101T000003.000000Z-ab", "20200101T000004.000000Z-ab"]
    assert len(await told(served, since="2020-01-01T00:00:03Z")) == len(ALL) - 2, "refusals have ids of their time, too"
    refused = await served.refusal("ListAudit", pb.ListAuditRequest(since="yesterday"))
    assert refused.told[2] == "since"


@served
async def test_a_token_is_of_its_own_listing(served):
    await fill(served)
    page = await served.call("ListAudit", pb.ListAuditRequest(page_size=1))
    for other in ({"pool": "p"}, {"about": "acme"}, {"principal": "eve"}, {"since": "2026-01-01T00:00:00Z"}):
        refused = await served.refusal("ListAudit", pb.ListAuditRequest(page_token=page.next_page_token, **other))
        assert refused.told[2] == "page_token"


@asynccontextmanager
async def filled(served: Guarded) -> AsyncIterator[None]:
    await fill(served, who("root"))
    yield


@pytest.mark.parametrize(
    ("more", "seen"),
    [
        ("", ALL),
        (", pools: [q]", [("", "acme"), *ALL[5:]]),
        (", tenants: [acme]", [*ALL[0:1], *ALL[2:4], ("p", "acme/a"), ALL[5], ("q", "acme/a")]),
        (", tenants: [other], pools: [p]", [("p", "p"), ("p", "other/b")]),
    ],
)  # fmt: skip
def test_an_auditor_sees_what_its_binding_is_about(more, seen):
    """A2 deny-by-default: also in the audit nobody learns of another tenant's adapters, or of another pool."""

    async def scene(served: Served) -> None:
        assert sorted(await told(served, ANN)) == sorted(seen)
        for size in (1, 2):
            assert sorted(await told(served, ANN, page_size=size)) == sorted(seen)

    play_guarded(binding(AccessRole.AUDITOR, "ann", more), scene, filled)


@guarded(binding(AccessRole.AUDITOR, "ann", ", pools: [q]"), filled)
async def test_a_token_names_no_pool_that_its_reader_does_not_see(served, monkeypatch):
    """A2 deny-by-default."""
    monkeypatch.setattr(audits, "_RANGES_AT_MOST", 1)
    for page in await pages_of(served, ANN):
        assert len(page.entries) <= 1, "R16 bounded: behind what is jumped over, too"
        _, after, _ = json.loads(base64.urlsafe_b64decode(page.next_page_token or base64.b64encode(b'["", "", ""]')))
        assert b"/p" not in bytes.fromhex(after)


@guarded(
    binding(AccessRole.AUDITOR, "x")
    + binding(AccessRole.AUDITOR, "y", ", pools: [p]")
    + binding(AccessRole.AUDITOR, "z", ", tenants: [acme]"),
    filled,
)
async def test_what_cannot_be_read_is_told_to_those_who_see_everything_of_its_pool(served):
    """A2 deny-by-default: it may be about anybody."""
    for key in (KEYS.audit("p", "2"), KEYS.audit("_", "3"), KEYS.denied("4")):
        await store(served, key, b"rubbish")
    unread = [sorted(one for page in await pages_of(served, who(name)) for one in page.unreadable) for name in "xyz"]
    assert unread == [["2", "3", "4"], ["2"], []]


@served
async def test_a_watch_tells_each_record_once_from_where_a_list_ended(served):
    await fill(served)
    revision = (await pages_of(served))[-1].revision
    await served.call("ApplyAdapters", change_set(put("acme/c")))
    request = pb.WatchAuditRequest(start_revision=revision + 1)
    async with aclosing(served.watch("WatchAudit", request)) as answers:
        assert (await anext(answers)).revision == revision
        told = await anext(answers)
        assert [one.changes[0].name for one in told.entries] == ["acme/c"]
        await served.call("SetTenant", pb.SetTenantRequest(tenant=pb.Tenant(name="acme", max_adapters=7)))
        told = await anext(answers)
        assert [one.changes[0].kind for one in told.entries] == ["tenant"]
        served.etcd.store.delete(KEYS.denied("1"))
        told = await anext(answers)
        assert (told.revision, list(told.entries)) == (served.etcd.store.revision, []), "whose time is over"


@served
async def test_a_watch_begins_now_and_tells_what_is_asked_for(served):
    await fill(served)
    async with aclosing(served.watch("WatchAudit", pb.WatchAuditRequest(pool="p", principal="eve"))) as answers:
        assert not (await anext(answers)).entries, "what was before is listed"
        await store(served, KEYS.denied("3"), DENIED.model_copy(update={"pool": "q"}).to_bytes())
        await store(served, KEYS.denied("4"), DENIED.model_copy(update={"pool": "p"}).to_bytes())
        assert not (await anext(answers)).entries
        assert [one.id for one in (await anext(answers)).entries] == ["4"]


@served
async def test_a_watch_from_what_etcd_does_not_keep_is_refused(served):
    await fill(served)
    revision = (await pages_of(served))[-1].revision
    served.etcd.store.compact(revision)
    async with aclosing(served.watch("WatchAudit", pb.WatchAuditRequest(start_revision=1))) as answers:
        assert (await anext(answers)).revision == 0
        with pytest.raises(Aborted) as caught:
            await asyncio.wait_for(anext(answers), 30)
    assert caught.value.info.reason == "REVISION_COMPACTED"
    assert "list what is kept" in caught.value.message
    refused = await served.refusal("WatchAudit", pb.WatchAuditRequest(start_revision=-1))
    assert refused.told[2] == "start_revision"


@served
async def test_a_watch_that_etcd_left_behind_is_told_from_where_it_did_not_hear(served):
    """R13: whoever lists anew knows from when."""
    await fill(served)
    link = served.etcd.links["m0"]
    async with aclosing(served.watch("WatchAudit", pb.WatchAuditRequest())) as answers:
        await anext(answers)
        await store(served, KEYS.denied("3"), DENIED.to_bytes())
        heard = (await anext(answers)).revision
        link.set_way(Way.REFUSED)
        served.etcd.store.put(KEYS.denied("4"), DENIED.to_bytes())
        served.etcd.store.put(KEYS.denied("5"), DENIED.to_bytes())
        served.etcd.store.compact(served.etcd.store.revision)
        link.set_way(Way.OPEN)
        with pytest.raises(Aborted, match=f"does not keep revision {heard + 1} "):
            await asyncio.wait_for(anext(answers), 60)
