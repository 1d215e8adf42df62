"""What each call asks for, and the hook before all of them."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode

from registry.access.methods import METHODS, PAGES
from registry.access.principal import ANONYMOUS, operator
from registry.access.questions import Resource, Verb
from registry.admin.rpc.calls import Asked, asked_of, check
from registry.admin.rpc.service import DESCRIPTOR
from registry.model.errors import InvalidArgument, PermissionDenied, Reason
from registry.v1 import registry_pb2 as pb
from tests.support.admin import change_set, drop, put
from tests.support.played_admin import Context, served
from tests.support.records import KEYS

ANN = operator("ann")


def asked(method: str, **fields: object) -> Asked:
    request = GetMessageClass(DESCRIPTOR.methods_by_name[method].input_type)(**fields)
    return asked_of(METHODS[method], request, ANN)


def refuses(_: Asked) -> None:
    raise PermissionDenied(Reason.ETCD_PERMISSION, "not for you")


def test_each_method_has_one_verb_and_one_resource():
    """What no row names nobody could be kept from, or given."""
    assert set(METHODS) == {one.name for one in DESCRIPTOR.methods}
    assert len(set(METHODS.values())) == len(METHODS), "two methods of one verb could not be told apart"
    rows = {*METHODS.values(), *PAGES.values()}
    by_outcome = {Verb.RETRY, Verb.REQUIRE}
    assert ({verb for verb, _ in rows} | by_outcome, {resource for _, resource in rows}) == ({*Verb}, {*Resource})


@pytest.mark.parametrize("method", METHODS)
@served
async def test_no_call_goes_past_the_hook(served, method):
    """It sees who asks for what, and is heard before anything is done: also before a dry run."""

    await served.make_pool()
    served.asked.clear()
    served.hook, before = refuses, dict(served.etcd.store.kvs)
    request: Any = GetMessageClass(DESCRIPTOR.methods_by_name[method].input_type)()
    if "validate_only" in request.DESCRIPTOR.fields_by_name:
        request.validate_only = True
    refused = await served.refusal(method, request, Context(names={"x509_common_name": [b"ann"]}))
    assert refused.code is StatusCode.PERMISSION_DENIED
    [seen] = served.asked
    assert ((seen.verb, seen.resource), seen.principal, seen.request) == (METHODS[method], ANN, request)
    assert served.etcd.store.kvs == before


UPDATE = pb.AdapterChange(update=pb.Adapter(name="c"))


@pytest.mark.parametrize("path", PAGES)
@served
async def test_no_page_goes_past_the_hook(served, path):
    """It sees the same of a page as of a call, and what it refuses is told as such."""

    served.hook = refuses
    told = await served.page(f"{path}?pool=p&name=a")
    assert (told.status_code, told.json()["error"]["message"]) == (403, "not for you")
    about = ("p", {"name": "a"}) if path not in {"/livez", "/readyz", "/metrics"} else (None, {})
    await served.page(f"{path}?pool=")
    one, of_none = served.asked
    assert ((one.verb, one.resource), one.principal, (one.pool, one.names)) == (PAGES[path], ANONYMOUS, about)
    assert (of_none.pool, of_none.names) == (None, {}), "whoever sees a part of the pools may ask for all of them"


@served
async def test_the_hook_is_asked_again_once_what_takes_long_is_prepared(served):
    """Who may do something no more is kept from it; nothing is prepared for who never might."""
    await served.make_pool()
    assert [one.verb for one in served.asked] == [Verb.CREATE] * 2
    assert {one.principal for one in served.asked} == {ANONYMOUS}
    assert KEYS.pool("p") in served.etcd.store.kvs


@pytest.mark.parametrize(
    ("seen", "pool", "names"),
    [
        (asked("GetAdapter", pool="p", name="a/b"), "p", {"name": "a/b"}),
        (asked("ListAdapters", pool="p"), "p", {}),
        (asked("WatchResidency", pool="p"), "p", {}),
        (asked("WatchResidency", pool="p", name="a"), "p", {"name": "a"}),
        (asked("GetPool", name="p"), None, {"name": "p"}),
        (asked("CreatePool", pool=pb.Pool(name="p")), None, {"pool.name": "p"}),
        (asked("UpdatePool", pool=pb.Pool(name="p")), None, {"pool.name": "p"}),
        (asked("SetTenant", tenant=pb.Tenant(name="t")), None, {"tenant.name": "t"}),
        (asked("ReadBackup"), None, {}),
        (
            asked_of(METHODS["ApplyAdapters"], change_set(put("a"), pb.AdapterChange(), drop("b"), UPDATE), ANN),
            "p",
            {"changes[0].upsert.name": "a", "changes[2].delete": "b", "changes[3].update.name": "c"},
        ),
    ],
)
def test_what_a_request_is_about(seen, pool, names):
    """Each name that it has, with the field that has it."""
    assert (seen.pool, seen.names) == (pool, names)
    check(seen)


@pytest.mark.parametrize(
    ("seen", "field"),
    [
        (asked("GetAdapter", pool="p", name=""), "name"),
        (asked("GetAdapter", pool="", name="a"), "pool"),
        (asked("GetReplica", pool="p", name="a/b"), "name"),
        (asked("DeletePool", name="p", request_id="a b"), "request_id"),
        (asked("GetAdapter", pool="p", name="Text"), "name"),
        (asked("RestoreHistory", pool="p", name="a,b"), "name"),
        (asked("PromoteRollout", pool="a/b", name="a"), "pool"),
        (asked("DrainReplica", pool="p", name="a/b"), "name"),
        (asked("RepairTenant", name="a/b"), "name"),
        (asked("SetTenant", tenant=pb.Tenant(name="a/b")), "tenant.name"),
        (asked("CreatePool", pool=pb.Pool(name="a/b")), "pool.name"),
        (asked_of(METHODS["ApplyAdapters"], change_set(put("a"), put("a b")), ANN), "changes[1].upsert.name"),
        (asked_of(METHODS["ApplyAdapters"], change_set(put("a"), drop("..")), ANN), "changes[1].delete"),
    ],
)
def test_what_cannot_be_a_name_is_refused_with_its_field(seen, field):
    """X2: it would be part of a key."""
    with pytest.raises(InvalidArgument) as refused:
        check(seen)
    assert refused.value.field == field
