"""What callers of an admin service may do and see once it has an access file, on virtual time with an etcd."""

from __future__ import annotations

import asyncio
import hashlib
import json
from contextlib import aclosing
from functools import partial
from itertools import product
from unittest.mock import AsyncMock

import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode
from starlette.requests import Request
from starlette.responses import Response

from registry.access.control import Shown
from registry.access.methods import METHODS
from registry.access.questions import Resource, Verb
from registry.access.roles import OF_POOLS, OF_TENANTS, ROLES, AccessRole
from registry.admin.pages import endpoint
from registry.admin.rpc.calls import CallContext, call_of, permit
from registry.admin.rpc.service import DESCRIPTOR
from registry.admin.rpc.visible import seen_status
from registry.etcd3.ops import Put, Txn
from registry.model.audit import AuditRecord
from registry.model.errors import Reason, Unavailable
from registry.runtime.http import CERTIFICATE
from registry.store.pages import PageToken
from registry.store.reader import Reader
from registry.v1 import registry_pb2 as pb
from tests.support.admin import change_set, drop, put
from tests.support.played_admin import Aborted, Context, Served, served
from tests.support.records import KEYS
from tests.support.residency_world import Replicas
from tests.unit.admin.conftest import ANN, HEAD, ROOT, binding, guarded, play_guarded, who


def request_of(method: str, pool: str, tenant: str) -> Message:
    """A request of a method about a pool, or a tenant in it, as far as the method is about either."""
    if method == "ApplyAdapters":
        return change_set(put(f"{tenant}/a"), pool=pool, validate_only=True)
    kind, (_, resource) = GetMessageClass(DESCRIPTOR.methods_by_name[method].input_type), METHODS[method]
    if resource is Resource.ACCESS:
        return kind() if method == "WhoAmI" else kind(verb="get", resource="pools")
    names = {Resource.POOLS: pool, Resource.TENANTS: tenant, Resource.REPLICAS: ""}
    about = {
        "pool": pb.Pool(name=pool) if resource is Resource.POOLS else pool,
        "tenant": pb.Tenant(name=tenant),
        "name": names.get(resource, f"{tenant}/a"),
        "validate_only": True,
    }
    return kind(**{field: value for field, value in about.items() if field in kind.DESCRIPTOR.fields_by_name})


def is_about(method: str) -> tuple[bool, bool]:
    """Whether a request of it is about a pool, and about a tenant."""
    _, resource = METHODS[method]
    of_pool = resource not in {Resource.TENANTS, Resource.BACKUPS, Resource.ACCESS} and method != "ListPools"
    by_name = resource in {Resource.ADAPTERS, Resource.HISTORY, Resource.ROLLOUTS, Resource.RESIDENCY, Resource.TENANTS}
    return of_pool, by_name and method not in {"ListAdapters", "WatchAdapters", "ListTenants"}


async def is_refused(served: Served, method: str, request: Message, context: Context) -> bool:
    """True if access control refuses a call; whatever else becomes of it."""
    try:
        if DESCRIPTOR.methods_by_name[method].server_streaming:
            async with aclosing(served.watch(method, request, context)) as answers:
                await asyncio.wait_for(anext(answers), 5)
        else:
            await served.call(method, request, context)
    except (TimeoutError, StopAsyncIteration):
        return False
    except Aborted as error:
        return error.info.reason == "PERMISSION_DENIED"
    return False


@pytest.mark.parametrize("role", AccessRole)
def test_each_role_may_call_its_methods_in_its_scope_and_no_others(role):
    """A2 deny-by-default: each method, in the own pool and a foreign one, about the own tenant and a foreign one."""
    more = (", tenants: [acme]" if role in OF_TENANTS else "") + (", pools: [p]" if role in OF_POOLS else "")
    allowed = {"WhoAmI", "CheckAccess"} | {method for method, action in METHODS.items() if action in ROLES[role]}
    if (Verb.REQUIRE, Resource.POOLS) in ROLES[role]:
        allowed |= {"UpdatePool"}

    async def scene(served: Served) -> None:
        before = dict(served.etcd.store.kvs)
        for method, pool, tenant in product(METHODS, ("p", "q"), ("acme", "other")):
            of_pool, of_tenant = is_about(method)
            in_pool = pool == "p" or not of_pool or role not in OF_POOLS
            in_tenant = tenant == "acme" or not of_tenant or role not in OF_TENANTS
            is_allowed = method in allowed and in_pool and in_tenant
            refused = await is_refused(served, method, request_of(method, pool, tenant), ANN)
            assert refused is not is_allowed, (method, pool, tenant)
        assert served.etcd.store.kvs == before, "nothing but dry runs, and refusals"

    play_guarded(binding(role, "ann", more), scene)


@pytest.mark.parametrize("method", METHODS)
@guarded(binding(AccessRole.VIEWER, "ann"))
async def test_nobody_who_is_not_known_may_call_anything(served, method):
    """A1 named: neither without a credential, nor with one that names nobody."""
    for context in (Context(), who(""), Context(metadata=(("authorization", "Bearer x"),))):
        refused = await served.refusal(method, request_of(method, "p", "acme"), context)
        assert refused.told == (StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", "")


@guarded(binding(AccessRole.VIEWER, "ann", ", tenants: [acme]"))
async def test_whoever_is_known_and_has_no_role_is_refused_the_same_whether_or_not_there_is_something(served):
    """A2 deny-by-default: a refusal shows nothing of others' adapters."""
    told = []
    for pool, name in (("p", "other/b"), ("p", "other/none"), ("none", "other/b")):
        refused = await served.refusal("GetAdapter", pb.GetAdapterRequest(pool=pool, name=name), ANN)
        assert refused.code is StatusCode.PERMISSION_DENIED
        assert refused.info.metadata["roles"].endswith(",restorer")
        told.append(refused.message.replace(repr(pool), "POOL"))
    assert len(set(told)) == 1


@guarded(binding(AccessRole.VIEWER, "ann", ", tenants: [acme], pools: [p]"))
async def test_lists_streams_and_pages_show_only_what_is_ones_own(served):
    """A2 deny-by-default: nobody learns by the registry that another tenant's adapter is there."""
    listed = await served.call("ListAdapters", pb.ListAdaptersRequest(pool="p"), ANN)
    assert [one.name for one in listed.adapters] == ["acme/a"]
    for method, request, names in (
        ("WatchAdapters", pb.WatchAdaptersRequest(pool="p"), lambda reply: [one.put.name for one in reply.events]),
        ("WatchResidency", pb.WatchResidencyRequest(pool="p"), lambda reply: [one.name for one in reply.adapters]),
    ):
        async with aclosing(served.watch(method, request, ANN)) as answers:
            assert names(await anext(answers)) == ["acme/a"], method
            await served.call("ApplyAdapters", change_set(put("other/c")), who("root"))
            await served.call("ApplyAdapters", change_set(put("acme/c")), who("root"))
            seen: list[str] = []
            while not seen:
                seen = names(await anext(answers))
            assert seen == ["acme/c"], method
        await served.call("ApplyAdapters", change_set(drop("acme/c"), drop("other/c")), who("root"))
    await Replicas(served.client, KEYS, "nowhere").alive("x1")
    for caller, pools, unknown in ((ANN, ["p"], []), (who("root"), ["p", "q"], ["nowhere"])):
        told = await served.call("ListPools", pb.ListPoolsRequest(show_unknown=True), caller)
        assert ([one.name for one in told.pools], [one.name for one in told.unknown]) == (pools, unknown)
    for caller, members in ((ANN, 0), (who("root"), 1)):
        asked = await served.call("ListPools", pb.ListPoolsRequest(show_etcd=True), caller)
        assert len(asked.etcd) == members, "of etcd only those are told who see every pool"
    tenants = await served.call("ListTenants", pb.ListTenantsRequest(), ANN)
    assert [one.name for one in tenants.tenants] == ["acme"]
    served.etcd.store.put(KEYS.audit("p", "99991231T000000.000000Z-x"), b"?")
    changes = await served.call("ListChanges", pb.ListChangesRequest(pool="p"), ANN)
    assert {one.name for one in changes.changes if one.kind == "adapter"} == {"acme/a", "acme/c"}
    assert list(changes.unreadable) == [], "it may be about anybody's"
    whole = await served.call("ListChanges", pb.ListChangesRequest(pool="p"), who("root"))
    assert list(whole.unreadable) == ["99991231T000000.000000Z-x"]


@guarded(binding(AccessRole.VIEWER, "ann", ", tenants: [other], pools: [q]"))
async def test_a_page_of_a_list_ends_at_nothing_of_somebody_else(served):
    """A2 deny-by-default: the token of the next page names what stands before it."""
    for method, kind, ours in (
        ("ListTenants", pb.ListTenantsRequest, ["other"]),
        ("ListPools", pb.ListPoolsRequest, ["q"]),
        ("ListAdapters", partial(pb.ListAdaptersRequest, pool="q"), ["other/b"]),
    ):
        reply = await served.call(method, kind(page_size=1), ANN)
        found = {"ListTenants": "tenants", "ListPools": "pools", "ListAdapters": "adapters"}[method]
        assert [one.name for one in getattr(reply, found)] == ours
        assert reply.next_page_token == ""


@pytest.mark.parametrize(
    ("method", "listing", "more"),
    [
        ("ListReplicas", "replicas\0q", {"pool": "q"}),
        ("ListChanges", "changes\0q\0", {"pool": "q"}),
        ("ListAdapters", "adapters\0q\0", {"pool": "q"}),
        ("ListPools", "pools", {}),
        ("ListTenants", "tenants", {}),
    ],
)
@guarded(binding(AccessRole.VIEWER, "ann", ", tenants: [other], pools: [q]"))
async def test_a_token_that_somebody_made_leads_out_of_no_listing(served, method, listing, more):
    """A2 deny-by-default: what it names is where the caller says that the page before ended."""
    kind = GetMessageClass(DESCRIPTOR.methods_by_name[method].input_type)
    for after in (b"", KEYS.adapters("p"), KEYS.audit("p", "")):
        token = PageToken(served.etcd.store.revision, after).encode(listing)
        refused = await served.refusal(method, kind(page_token=token, **more), ANN)
        assert refused.told == (StatusCode.INVALID_ARGUMENT, "INVALID_PAGE_TOKEN", "page_token"), after
    for after in (b"", b"\xff"):
        token = PageToken(served.etcd.store.revision, after).encode("backup")
        refused = await served.refusal("ReadBackup", pb.ReadBackupRequest(page_token=token), who("root"))
        assert refused.info.reason == "INVALID_PAGE_TOKEN"


@guarded(binding(AccessRole.PUBLISHER, "ann", ", tenants: [acme]"))
async def test_a_full_pool_does_not_tell_whose_adapter_it_has(served):
    """A2 deny-by-default: an error message is an answer too."""
    pool = pb.Pool(name="one", base_models=["base"], engine="axolotl")
    await served.call("CreatePool", pb.CreatePoolRequest(pool=pool), who("root"))
    for owner in ("other/secret", "acme/a"):
        await served.call("ApplyAdapters", change_set(put(owner), pool="one"), who("root"))
        with pytest.raises(Aborted) as refused:
            await served.call("ApplyAdapters", change_set(put("acme/n"), pool="one"), ANN)
        assert refused.value.info.reason == "POOL_FULL"
        told = f"{refused.value.message} {refused.value.info.metadata}"
        is_seen = owner.startswith("acme/")
        assert (owner in told, "there is one; ask whose it is" in told) == (is_seen, not is_seen)
        await served.call("ApplyAdapters", change_set(drop(owner), pool="one"), who("root"))


@guarded(binding(AccessRole.VIEWER, "ann"))
async def test_the_page_of_residency_asks_for_a_token_and_health_for_nothing(served):
    """A1 named: the other port too."""
    statuses = {"/livez": 200, "/readyz": 503, "/metrics": 401, "/v1/residency?pool=p": 401, "/v1/models": 401}
    for path, status in statuses.items():
        assert (await served.page(path)).status_code == status, path
    told = (await served.page("/readyz")).json()["access"]
    assert (told["digest"][:7], told["trouble"], told["failed"]) == ("sha256:", "", 0)
    assert told["loaded_at"].endswith("Z")
    served.file.write_text("bindings: [{role: publisher, sources: [s3//payroll]}]")
    following = asyncio.create_task(served.service.ports.access.run())
    await asyncio.sleep(3)
    following.cancel()
    told = (await served.page("/readyz")).json()["access"]
    assert "say why" in told["trouble"]
    assert "payroll" not in told["trouble"], "it asks nobody who they are"


LIMITS = "limits: {callsPerSecond: 8, callsAtOnce: 2}\n"


@guarded(binding(AccessRole.VIEWER, "ann") + binding(AccessRole.VIEWER, "bob") + LIMITS)
async def test_a_caller_makes_no_more_calls_than_the_file_allows(served):
    """R16 bounded: the refusal says when to try again; others are not held up; streams count while they run."""
    await asyncio.sleep(1)
    for _ in range(8):
        await served.call("ListPools", pb.ListPoolsRequest(), ANN)
    refused = await served.refusal("ListPools", pb.ListPoolsRequest(), ANN)
    assert refused.told == (StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS", "")
    assert 0 < refused.retry.retry_delay.ToMicroseconds() <= 130_000
    await served.call("ListPools", pb.ListPoolsRequest(), who("bob"))
    await asyncio.sleep(1)
    streams = [served.watch("WatchAdapters", pb.WatchAdaptersRequest(pool="p"), ANN) for _ in range(2)]
    for stream in streams:
        await anext(stream)
    assert (await served.refusal("ListPools", pb.ListPoolsRequest(), ANN)).told[1] == "TOO_MANY_CALLS"
    await streams[0].aclose()
    await served.call("ListPools", pb.ListPoolsRequest(), ANN)
    await streams[1].aclose()


@guarded(binding(AccessRole.VIEWER, "ann") + LIMITS)
async def test_a_caller_asks_for_no_more_pages_than_the_file_allows(served):
    """R16 bounded: by the same count; of health everybody may hear as often as they like."""

    async def page(_: Request, call: CallContext) -> Response:
        assert call.principal.name == "ann"
        return Response()

    certificate = {"pem": "PEM", "subject": ((("commonName", "ann"),),)}
    scope = {
        "type": "http",
        "query_string": b"",
        "headers": [],
        "client": None,
        "extensions": {CERTIFICATE: certificate},
    }
    for path, last in (("/v1/models", 429), ("/livez", 200)):
        ask = endpoint(path, page, permit, served.service.ports.access)
        replies = [await ask(Request(scope)) for _ in range(9)]
        assert [one.status_code for one in replies] == [*[200] * 8, last]
        assert replies[-1].headers.get("Retry-After") == ("1" if last == 429 else None)


@pytest.mark.parametrize(
    ("scheme", "client", "is_private"),
    [
        ("https", ("9.9.9.9", 1), True),
        ("http", ("9.9.9.9", 1), False),
        ("http", ("127.0.0.1", 1), True),
        ("http", ("::1", 1), True),
        ("http", None, True),
    ],
)
@guarded("")
async def test_a_page_takes_a_token_where_nobody_else_reads_it(served, scheme, client, is_private):
    """X1 secret-free: over TLS, or from this host alone."""

    async def page(*_: object) -> Response:
        raise AssertionError

    ask = endpoint("/v1/models", page, permit, served.service.ports.access)
    scope = {"scheme": scheme, "client": client, "query_string": b"", "headers": [(b"authorization", b"Bearer x")]}
    told = await ask(Request({"type": "http", **scope}))
    assert told.status_code == 401
    message = json.loads(bytes(told.body))["error"]["message"]
    assert ("no JSON Web Token" in message, "others could read it" in message) == (is_private, not is_private)


DENIED = "PERMISSION_DENIED"


async def _change(served: Served, method: str, request: Message, context: Context = ANN) -> str:
    """The reason of a refusal, the same for a dry run; empty: it is carried out."""
    request.validate_only = True
    reasons = []
    for _ in range(2):
        try:
            await served.call(method, request, context)
            reasons.append("")
        except Aborted as error:
            reasons.append(error.info.reason)
        request.validate_only = False
    assert reasons[0] == reasons[1], "W9: a dry run is refused alike"
    return reasons[0]


async def _apply(served: Served, *changes: pb.AdapterChange, **more: object) -> str:
    return await _change(served, "ApplyAdapters", change_set(*changes, **more))


@guarded(binding(AccessRole.PUBLISHER, "ann", ", tenants: [acme], sources: ['s3://acme/'], credentials: [mine]"))
async def test_a_publisher_takes_adapters_only_from_its_sources_and_with_its_credentials(served):
    """A2 deny-by-default: also by a roll-back to what came from elsewhere."""
    for _ in range(2):
        assert await _apply(served, put("acme/n", uri="s3://acme/v1")) == ""
    for other in (
        put("acme/n", uri="s3://other/v1"),
        put("acme/n", uri="s3://acme/v1", credentials="team"),
        put("other/n", uri="s3://acme/v1"),
    ):
        assert await _apply(served, other) == DENIED
    assert await _apply(served, put("acme/n", uri="s3://acme/v2", credentials="mine")) == ""
    await served.call("ApplyAdapters", change_set(put("acme/n", uri="s3://other/v3")), who("root"))
    assert await _apply(served, put("acme/n", uri="s3://other/v3", priority=7)) == "", "the source stays"
    for generation, reason in ((1, ""), (3, DENIED)):
        back = pb.RollbackAdapterRequest(pool="p", name="acme/n", to_generation=generation)
        assert await _change(served, "RollbackAdapter", back) == reason
    assert await _apply(served, drop("acme/n")) == ""


@guarded(binding(AccessRole.OPERATOR, "ann"))
async def test_an_operator_may_have_things_tried_again_and_change_nothing(served):
    """A2 deny-by-default: what cannot be read has no spec before its deletion and none after, and that is no retry."""
    assert await _apply(served, put("acme/a"), retry=True) == ""
    for changed in (put("acme/a", priority=3), put("acme/new"), drop("acme/a")):
        assert await _apply(served, changed, retry=True) == DENIED
    assert await _apply(served, put("acme/a")) == DENIED
    await served.client.txn(Txn((), (Put(KEYS.adapter("p", "acme/a"), b"rubbish"),)))
    assert await _apply(served, drop("acme/a"), retry=True) == DENIED


def _limits(**limits: object) -> pb.UpdatePoolRequest:
    request = pb.UpdatePoolRequest(pool=pb.Pool(name="p", limits=pb.PoolLimits(**limits)))
    request.update_mask.paths.extend(f"limits.{name}" for name in limits)
    return request


@guarded(binding(AccessRole.SECURITY, "sec") + binding(AccessRole.POOL_OPERATOR, "ops"))
async def test_what_holds_others_back_is_changed_by_security_alone(served):
    """A3 no-self-loosening: a pool's operator cannot, and security can do nothing else."""
    for name, limits, reason in (
        ("sec", {"require_signature": True}, ""),
        ("sec", {"max_rank": 8}, DENIED),
        ("sec", {"require_digest": True, "max_rank": 32}, DENIED),
        ("ops", {"require_signature": False}, DENIED),
        ("ops", {"max_rank": 16}, ""),
        ("ops", {"require_digest": True, "max_rank": 32}, DENIED),
    ):
        assert await _change(served, "UpdatePool", _limits(**limits), who(name)) == reason, (name, limits)


@guarded(binding(AccessRole.POOL_OPERATOR, "ann"))
async def test_a_pool_that_holds_others_back_is_not_made_anew_without(served):
    """A3 no-self-loosening: a pool's operator cannot delete it, nor make one that proves less."""
    for name, limits, of_creation, of_deletion in (
        ("r", {"require_signature": True}, "", DENIED),
        ("s", {"require_signature": False}, "", ""),
        ("t", {"prove": "off"}, DENIED, "POOL_NOT_FOUND"),
    ):
        pool = pb.Pool(name=name, base_models=["base"], limits=pb.PoolLimits(**limits))
        assert await _change(served, "CreatePool", pb.CreatePoolRequest(pool=pool)) == of_creation
        assert await _change(served, "DeletePool", pb.DeletePoolRequest(name=name)) == of_deletion


@guarded(binding(AccessRole.PUBLISHER, "ann", ", tenants: [acme]") + binding(AccessRole.RESTORER, "ann"))
async def test_the_audit_names_role_and_binding_and_what_the_caller_can_be_found_by(served):
    """W7 audit-complete, A5 tamper-evident."""
    ann = Context(names=ANN.names, metadata=(("user-agent", "loraplane/1 grpc"),))
    await served.call("ApplyAdapters", change_set(put("acme/n"), put("other/n"), request_id="mine"), ann)
    stored = [kv.value for key, kv in served.etcd.store.kvs.items() if key.startswith(KEYS.audits())]
    [told] = [one for one in map(AuditRecord.parse, stored) if one.request_id == "mine"]
    assert (told.principal, told.role, told.bindings) == ("ann", "publisher,restorer", [12, 13])
    assert (told.credential, told.peer, told.user_agent) == ("certificate", "ipv4:10.0.0.1:1", "loraplane/1 grpc")
    assert told.fingerprint == f"sha256:{hashlib.sha256(b'PEM').hexdigest()}"


@guarded(binding(AccessRole.VIEWER, "ann"))
async def test_a_stream_ends_when_the_file_takes_away_what_its_reader_may_see(served):
    following = asyncio.ensure_future(served.service.ports.access.run())
    for bindings, is_ended in ((binding(AccessRole.VIEWER, "ann") + "# the same\n", False), ("", True)):
        async with aclosing(served.watch("WatchAdapters", pb.WatchAdaptersRequest(pool="p"), ANN)) as answers:
            await anext(answers)
            coming = asyncio.ensure_future(anext(answers))
            served.file.write_text(HEAD + ROOT + bindings)
            await asyncio.sleep(3)
            assert coming.done() is is_ended
            if is_ended:
                with pytest.raises(Aborted, match="what you may do has changed"):
                    await coming
            coming.cancel()
            await asyncio.wait([coming])
    following.cancel()


@guarded(
    binding(AccessRole.VIEWER, "ann", ", tenants: [acme]") + binding(AccessRole.VIEWER, "bob", ", tenants: [default]")
)
async def test_a_status_is_shown_without_others_adapters_and_sentences(served):
    """A2 deny-by-default: statuses name what a replica serves."""
    status = {
        "pending": [{"name": "acme/a", "reason": "r"}, {"name": "other/b", "reason": "r"}, {"name": 3}],
        "serves": [["acme/a", 1], ["other/b", 2]],
        "lazy": {"count": 2, "resident": [{"name": "other/c"}, {"name": "acme/c"}]},
        "served": {"count": 2, "hash": "sha256:1"},
        "events": [{"name": "", "message": "other/b is gone"}, {"name": "other/b"}, {"name": "acme/a"}],
        "note": "other/b is too large",
        "ready": True,
    }
    hers = {
        "pending": status["pending"][:1],
        "serves": status["serves"][:1],
        "lazy": {"count": 2, "resident": [{"name": "acme/c"}]},
        "served": {"count": 2, "hash": ""},
        "events": [{"name": "acme/a"}],
        "note": "",
        "ready": True,
    }
    nobodys = hers | {"pending": [], "serves": [], "lazy": {"count": 2, "resident": []}, "events": []}
    for name, seen in (("root", status), ("ann", hers), ("bob", nobodys)):
        call = await call_of("GetReplica", Shown("p", who(name).names), 5, access=served.service.ports.access)
        shown = seen_status(call, pb.Replica(pool="p", name="r", status_json=json.dumps(status)))
        assert json.loads(shown.status_json) == seen
        assert seen_status(call, pb.Replica(pool="p", status_json="")).status_json == ""
        broken = seen_status(call, pb.Replica(pool="p", status_json="[")).status_json
        assert broken == ("[" if name == "root" else "")


PUBLISHES = binding(AccessRole.PUBLISHER, "ann", ", tenants: [acme], sources: ['s3://acme/x']")


@guarded(PUBLISHES + binding(AccessRole.VIEWER, "bob", ", tenants: [acme], pools: [p]"))
async def test_callers_learn_who_they_are_and_what_they_may_do(served):
    told = await served.call("WhoAmI", pb.WhoAmIRequest(), ANN)
    [role] = told.roles
    assert (told.principal, told.credential, told.access_digest[:7]) == ("ann", "certificate", "sha256:")
    assert (role.role, role.binding) == ("publisher", 12)
    assert (role.tenants, role.pools, role.sources) == (["acme"], ["*"], ["s3://acme/x"])
    for fields, is_allowed in (
        ({"name": "acme/a"}, True),
        ({"name": "other/a"}, False),
        ({"name": "acme/a", "source": "s3://other/x"}, False),
        ({}, True),
    ):
        asked = pb.CheckAccessRequest(verb="apply", resource="adapters", pool="p", **fields)
        answer = await served.call("CheckAccess", asked, ANN)
        assert (answer.allowed, answer.role) == (is_allowed, "publisher" if is_allowed else ""), fields
        assert answer.roles == ["publisher", "restorer"], fields
    for verb, resource, fields, is_allowed in (
        ("get", "pools", {}, True),
        ("get", "pools", {"name": "p"}, True),
        ("get", "pools", {"name": "q"}, False),
        ("list", "replicas", {}, True),
        ("list", "replicas", {"pool": "p"}, True),
        ("get", "adapters", {}, True),
        ("list", "replicas", {"pool": "q"}, False),
        ("list", "tenants", {}, True),
        ("list", "tenants", {"name": "acme"}, True),
        ("list", "tenants", {"name": "other"}, False),
        ("check", "access", {}, True),
    ):
        asked = pb.CheckAccessRequest(verb=verb, resource=resource, **fields)
        answer = await served.call("CheckAccess", asked, who("bob"))
        assert answer.allowed is is_allowed, (verb, resource, fields)
    for field in ("verb", "resource"):
        asked = pb.CheckAccessRequest(**({"verb": "get", "resource": "pools"} | {field: "x"}))
        refused = await served.refusal("CheckAccess", asked, ANN)
        assert refused.told == (StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", field)


@served
async def test_without_access_control_callers_learn_that_they_may_do_everything(served):
    answer = await served.call("CheckAccess", pb.CheckAccessRequest(verb="delete", resource="pools", user="ann"))
    assert (answer.allowed, answer.role, "pool-operator" in answer.roles) == (True, "", True)
    told = await served.call("WhoAmI", pb.WhoAmIRequest())
    assert (told.access_digest, told.access_trouble, [*told.roles]) == ("", "", [])


@guarded(binding(AccessRole.POOL_OPERATOR, "ann"))
async def test_only_security_asks_about_somebody_else(served):
    """A2 deny-by-default: what others may do is not everybody's."""
    asked = pb.CheckAccessRequest(verb="delete", resource="pools", name="p", user="ann", groups=["g"])
    refused = await served.refusal("CheckAccess", asked, ANN)
    assert (refused.info.reason, refused.info.metadata["roles"]) == ("PERMISSION_DENIED", "security")
    answer = await served.call("CheckAccess", asked, who("root"))
    assert (answer.allowed, answer.role, answer.binding) == (True, "pool-operator", 12)


UNKNOWN = ", tenants: [acme, ACME, nobody, 'ac*'], pools: [p, gone, 'x*']"


@guarded(binding(AccessRole.VIEWER, "ann", UNKNOWN) + binding(AccessRole.AUDITOR, "ann", ", tenants: [Lost]"))
async def test_names_in_bindings_of_what_is_not_there_are_told_to_who_looks_after_access(served):
    """A2 deny-by-default: nobody else learns from it which pools and tenants there are."""
    told = await served.call("WhoAmI", pb.WhoAmIRequest(), who("root"))
    first = len(AccessRole) + 1
    assert [(one.binding - first, one.kind, one.name) for one in told.access_unknown] == [
        (0, "pool", "gone"),
        (0, "tenant", "nobody"),
        (1, "tenant", "Lost"),
    ]
    assert not (await served.call("WhoAmI", pb.WhoAmIRequest(), ANN)).access_unknown
    for fault, outcome in ((Unavailable(Reason.ETCD_UNAVAILABLE, "away"), ""), (KeyError("ours"), "INTERNAL")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Reader, "is_named", AsyncMock(side_effect=fault))
            if outcome:
                assert (await served.refusal("WhoAmI", pb.WhoAmIRequest(), who("root"))).info.reason == outcome
            else:
                told = await served.call("WhoAmI", pb.WhoAmIRequest(), who("root"))
                assert (told.principal, [*told.access_unknown]) == ("root", [])
