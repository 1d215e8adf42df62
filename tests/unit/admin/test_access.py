"""What callers of an admin service may do and see once it has an access file, on virtual time with an etcd."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode

from registry.access.control import AccessControl
from registry.access.methods import METHODS
from registry.access.questions import Resource, Verb
from registry.access.roles import OF_POOLS, OF_TENANTS, ROLES, AccessRole
from registry.admin.rpc.service import DESCRIPTOR
from registry.etcd3.ops import Put, Txn
from registry.model.audit import AuditRecord
from registry.store.pages import PageToken
from registry.v1 import registry_pb2 as pb
from tests.support.admin import change_set, drop, put
from tests.support.played_admin import Aborted, Context, Served
from tests.support.played_etcd import play
from tests.support.records import KEYS

HEAD = "apiVersion: loraplane/v1\nkind: Access\nauthentication: {certificateNames: [commonName]}\nbindings:\n"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def binding(role: AccessRole | str, name: str, more: str = "") -> str:
    tenants = ', tenants: ["*"]' if role in OF_TENANTS and "tenants" not in more else ""
    return f"  - {{role: {role}, users: [{name}]{tenants}{more}}}\n"


ROOT = "".join(
    binding(role, "root", ', credentials: ["*"]' if role is AccessRole.PUBLISHER else "") for role in AccessRole
)


def who(name: str) -> Context:
    return Context(names={"x509_pem_cert": [b"PEM"], "x509_common_name": [name.encode()]})


ANN = who("ann")
Scene = Callable[[Served], Awaitable[None]]


def secured(tmp_path, bindings: str, scene: Scene) -> AccessControl:
    """Plays a scene with a service of two pools, in each of which two tenants have an adapter."""
    file = tmp_path / "access.yaml"
    file.write_text(HEAD + ROOT + bindings)
    access = AccessControl(file, lambda: NOW)

    async def work(etcd: Any) -> None:
        served = Served(etcd, access)
        for pool in ("p", "q"):
            await served.make_pool(pool, who("root"))
            await served.call("ApplyAdapters", change_set(put("acme/a"), put("other/b"), pool=pool), who("root"))
        await scene(served)

    play(work)
    return access


def request_of(method: str, pool: str, tenant: str) -> Message:
    """A request of a method about a pool, or a tenant in it, as far as the method is about either."""
    kind = GetMessageClass(DESCRIPTOR.methods_by_name[method].input_type)
    match METHODS[method]:
        case Verb.APPLY, _:
            return change_set(put(f"{tenant}/a"), pool=pool, validate_only=True)
        case _, Resource.POOLS:
            request = (
                kind()
                if method == "ListPools"
                else kind(name=pool)
                if method not in {"CreatePool", "UpdatePool"}
                else kind(pool=pb.Pool(name=pool))
            )
        case _, Resource.TENANTS:
            request = (
                kind()
                if method == "ListTenants"
                else kind(tenant=pb.Tenant(name=tenant))
                if method == "SetTenant"
                else kind(name=tenant)
            )
        case _, Resource.BACKUPS:
            request = kind()
        case _, Resource.ACCESS:
            request = kind() if method == "WhoAmI" else kind(verb="get", resource="pools")
        case _, (Resource.REPLICAS | Resource.CHANGES | Resource.AUDIT):
            request = kind(pool=pool)
        case _:
            request = (
                kind(pool=pool, name=f"{tenant}/a")
                if method not in {"ListAdapters", "WatchAdapters"}
                else kind(pool=pool)
            )
    if "validate_only" in request.DESCRIPTOR.fields_by_name:
        request.validate_only = True
    return request


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


# Bits of a role's scope that a caller may lack.
@pytest.mark.parametrize("role", AccessRole)
def test_each_role_may_call_its_methods_in_its_scope_and_no_others(tmp_path, role):
    """A2 deny-by-default: each method, in the own pool and a foreign one, about the own tenant and a foreign one."""
    more = (", tenants: [acme]" if role in OF_TENANTS else "") + (", pools: [p]" if role in OF_POOLS else "")
    allowed = {"WhoAmI", "CheckAccess"} | {method for method, action in METHODS.items() if action in ROLES[role]}
    if (Verb.RETRY, Resource.ADAPTERS) in ROLES[role]:
        allowed -= {"ApplyAdapters"} if (Verb.APPLY, Resource.ADAPTERS) not in ROLES[role] else set()
    if (Verb.REQUIRE, Resource.POOLS) in ROLES[role]:
        allowed |= {"UpdatePool"}
    told: dict[tuple[str, str, str], bool] = {}

    async def scene(served: Served) -> None:
        before = dict(served.etcd.store.kvs)
        for method in METHODS:
            for pool in ("p", "q"):
                for tenant in ("acme", "other"):
                    refused = await is_refused(served, method, request_of(method, pool, tenant), ANN)
                    told[method, pool, tenant] = not refused
        assert served.etcd.store.kvs == before, "nothing but dry runs, and refusals"

    secured(tmp_path, binding(role, "ann", more), scene)
    for (method, pool, tenant), is_allowed in told.items():
        of_pool, of_tenant = is_about(method)
        in_pool = pool == "p" or not of_pool or role not in OF_POOLS
        in_tenant = tenant == "acme" or not of_tenant or role not in OF_TENANTS
        assert is_allowed == (method in allowed and in_pool and in_tenant), (method, pool, tenant)


@pytest.mark.parametrize("method", METHODS)
def test_nobody_who_is_not_known_may_call_anything(tmp_path, method):
    """A1 named: neither without a credential, nor with one that names nobody."""
    contexts = (
        Context(),
        Context(names={"x509_pem_cert": [b"PEM"], "x509_common_name": [b""]}),
        Context(metadata=(("authorization", "Bearer x"),)),
    )

    async def scene(served: Served) -> None:
        for context in contexts:
            refused = await served.refusal(method, request_of(method, "p", "acme"), context)
            assert refused.told == (StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", "")

    secured(tmp_path, binding(AccessRole.VIEWER, "ann"), scene)


def test_whoever_is_known_and_has_no_role_is_refused_the_same_whether_or_not_there_is_something(tmp_path):
    """A2 deny-by-default: a refusal shows nothing of others' adapters."""

    async def scene(served: Served) -> None:
        told = []
        for pool, name in (("p", "other/b"), ("p", "other/none"), ("none", "other/b")):
            refused = await served.refusal("GetAdapter", pb.GetAdapterRequest(pool=pool, name=name), ANN)
            assert (refused.code, refused.info.metadata["roles"].split(",")[-1]) == (
                StatusCode.PERMISSION_DENIED,
                "restorer",
            )
            told.append(refused.message.replace(repr(pool), "POOL"))
        assert len(set(told)) == 1

    secured(tmp_path, binding(AccessRole.VIEWER, "ann", ", tenants: [acme]"), scene)


def test_lists_streams_and_pages_show_only_what_is_ones_own(tmp_path):
    """A2 deny-by-default: nobody learns by the registry that another tenant's adapter is there."""

    async def scene(served: Served) -> None:
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
        pools = await served.call("ListPools", pb.ListPoolsRequest(show_unknown=True), ANN)
        assert [one.name for one in pools.pools] == ["p"]
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

    secured(tmp_path, binding(AccessRole.VIEWER, "ann", ", tenants: [acme], pools: [p]"), scene)


def test_a_page_of_a_list_ends_at_nothing_of_somebody_else(tmp_path):
    """A2 deny-by-default: the token of the next page names what stands before it."""

    async def scene(served: Served) -> None:
        for method, kind, ours in (
            ("ListTenants", pb.ListTenantsRequest, ["other"]),
            ("ListPools", pb.ListPoolsRequest, ["q"]),
            ("ListAdapters", partial(pb.ListAdaptersRequest, pool="q"), ["other/b"]),
        ):
            reply = await served.call(method, kind(page_size=1), ANN)
            found = {"ListTenants": "tenants", "ListPools": "pools", "ListAdapters": "adapters"}[method]
            assert [one.name for one in getattr(reply, found)] == ours
            assert reply.next_page_token == ""

    secured(tmp_path, binding(AccessRole.VIEWER, "ann", ", tenants: [other], pools: [q]"), scene)


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
def test_a_token_that_somebody_made_leads_out_of_no_listing(tmp_path, method, listing, more):
    """A2 deny-by-default: what it names is where the caller says that the page before ended."""
    kind = GetMessageClass(DESCRIPTOR.methods_by_name[method].input_type)

    async def scene(served: Served) -> None:
        for after in (b"", KEYS.adapters("p"), KEYS.audit("p", "")):
            token = PageToken(served.etcd.store.revision, after).encode(listing)
            refused = await served.refusal(method, kind(page_token=token, **more), ANN)
            assert refused.told == (StatusCode.INVALID_ARGUMENT, "INVALID_PAGE_TOKEN", "page_token"), after
        for after in (b"", b"\xff"):
            token = PageToken(served.etcd.store.revision, after).encode("backup")
            refused = await served.refusal("ReadBackup", pb.ReadBackupRequest(page_token=token), who("root"))
            assert refused.info.reason == "INVALID_PAGE_TOKEN"

    secured(tmp_path, binding(AccessRole.VIEWER, "ann", ", tenants: [other], pools: [q]"), scene)


def test_a_full_pool_does_not_tell_whose_adapter_it_has(tmp_path):
    """A2 deny-by-default: an error message is an answer too."""

    async def scene(served: Served) -> None:
        pool = pb.Pool(name="one", base_models=["base"], engine="axolotl")
        await served.call("CreatePool", pb.CreatePoolRequest(pool=pool), who("root"))
        for owner in ("other/secret", "acme/a"):
            await served.call("ApplyAdapters", change_set(put(owner), pool="one"), who("root"))
            with pytest.raises(Aborted) as refused:
                await served.call("ApplyAdapters", change_set(put("acme/n"), pool="one"), ANN)
            assert refused.value.info.reason == "POOL_FULL"
            told = f"{refused.value.message} {refused.value.info.metadata}"
            assert (owner in told) is owner.startswith("acme/")
            await served.call("ApplyAdapters", change_set(drop(owner), pool="one"), who("root"))

    secured(tmp_path, binding(AccessRole.PUBLISHER, "ann", ", tenants: [acme]"), scene)


def test_the_page_of_residency_asks_for_a_token_and_health_for_nothing(tmp_path):
    """A1 named: the other port too."""

    async def scene(served: Served) -> None:
        for path, status in (
            ("/livez", 200),
            ("/readyz", 503),
            ("/metrics", 401),
            ("/v1/residency?pool=p", 401),
            ("/v1/models", 401),
        ):
            assert (await served.page(path)).status_code == status, path
        told = (await served.page("/readyz")).json()["access"]
        assert (told["digest"][:7], told["trouble"], told["failed"]) == ("sha256:", "", 0)
        assert told["loaded_at"].endswith("Z")
        (tmp_path / "access.yaml").write_text("bindings: [{role: publisher, sources: [s3//payroll]}]")
        following = asyncio.create_task(served.service.ports.access.run())
        await asyncio.sleep(3)
        following.cancel()
        told = (await served.page("/readyz")).json()["access"]
        assert "say why" in told["trouble"]
        assert "payroll" not in told["trouble"], "it asks nobody who they are"

    secured(tmp_path, binding(AccessRole.VIEWER, "ann"), scene)


def test_a_caller_makes_no_more_calls_than_the_file_allows(tmp_path):
    """R16 bounded: the refusal says when to try again; others are not held up; streams count while they run."""
    limits = "limits: {callsPerSecond: 8, callsAtOnce: 2}\n"

    async def scene(served: Served) -> None:
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

    secured(tmp_path, binding(AccessRole.VIEWER, "ann") + binding(AccessRole.VIEWER, "bob") + limits, scene)


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


def test_a_publisher_takes_adapters_only_from_its_sources_and_with_its_credentials(tmp_path):
    """A2 deny-by-default: also by a roll-back to what came from elsewhere."""

    async def scene(served: Served) -> None:
        mine = put("acme/n", uri="s3://acme/v1")
        assert await _change(served, "ApplyAdapters", change_set(mine)) == ""
        assert await _change(served, "ApplyAdapters", change_set(mine)) == ""
        for other in (
            put("acme/n", uri="s3://other/v1"),
            put("acme/n", uri="s3://acme/v1", credentials="team"),
            put("other/n", uri="s3://acme/v1"),
        ):
            assert await _change(served, "ApplyAdapters", change_set(other)) == "PERMISSION_DENIED"
        assert (
            await _change(served, "ApplyAdapters", change_set(put("acme/n", uri="s3://acme/v2", credentials="mine")))
            == ""
        )
        await served.call("ApplyAdapters", change_set(put("acme/n", uri="s3://other/v3")), who("root"))
        assert (
            await _change(served, "ApplyAdapters", change_set(put("acme/n", uri="s3://other/v3", priority=7))) == ""
        ), "the source stays"
        assert (
            await _change(
                served, "RollbackAdapter", pb.RollbackAdapterRequest(pool="p", name="acme/n", to_generation=1)
            )
            == ""
        )
        assert (
            await _change(
                served, "RollbackAdapter", pb.RollbackAdapterRequest(pool="p", name="acme/n", to_generation=3)
            )
            == "PERMISSION_DENIED"
        )
        assert await _change(served, "ApplyAdapters", change_set(drop("acme/n"))) == ""

    secured(
        tmp_path,
        binding(AccessRole.PUBLISHER, "ann", ", tenants: [acme], sources: ['s3://acme/'], credentials: [mine]"),
        scene,
    )


def test_an_operator_may_have_things_tried_again_and_change_nothing(tmp_path):
    async def scene(served: Served) -> None:
        assert await _change(served, "ApplyAdapters", change_set(put("acme/a"), retry=True)) == ""
        for changed in (put("acme/a", priority=3), put("acme/new"), drop("acme/a")):
            assert await _change(served, "ApplyAdapters", change_set(changed, retry=True)) == "PERMISSION_DENIED"
        assert await _change(served, "ApplyAdapters", change_set(put("acme/a"))) == "PERMISSION_DENIED"

    secured(tmp_path, binding(AccessRole.OPERATOR, "ann"), scene)


def test_what_holds_others_back_is_changed_by_security_alone(tmp_path):
    """A3 no-self-loosening: a pool's operator cannot, and security can do nothing else."""

    def update(**limits: object) -> pb.UpdatePoolRequest:
        fields = [f"limits.{name}" for name in limits]
        request = pb.UpdatePoolRequest(pool=pb.Pool(name="p", limits=pb.PoolLimits(**limits)))
        request.update_mask.paths.extend(fields)
        return request

    async def scene(served: Served) -> None:
        for name, required, other, both in (
            ("sec", "", "PERMISSION_DENIED", "PERMISSION_DENIED"),
            ("ops", "PERMISSION_DENIED", "", "PERMISSION_DENIED"),
        ):
            assert await _change(served, "UpdatePool", update(require_signature=name == "sec"), who(name)) == (
                "" if name == "sec" else required
            )
            assert await _change(served, "UpdatePool", update(max_rank=8 if name == "sec" else 16), who(name)) == other
            assert await _change(served, "UpdatePool", update(require_digest=True, max_rank=32), who(name)) == both

    secured(tmp_path, binding(AccessRole.SECURITY, "sec") + binding(AccessRole.POOL_OPERATOR, "ops"), scene)


def test_a_pool_that_holds_others_back_is_not_made_anew_without(tmp_path):
    """A3 no-self-loosening: a pool's operator cannot delete it, nor make one that proves less."""

    async def scene(served: Served) -> None:
        for name, required in (("r", True), ("s", False)):
            pool = pb.Pool(name=name, base_models=["base"], limits=pb.PoolLimits(require_signature=required))
            assert await _change(served, "CreatePool", pb.CreatePoolRequest(pool=pool), who("ops")) == ""
            told = await _change(served, "DeletePool", pb.DeletePoolRequest(name=name), who("ops"))
            assert told == ("PERMISSION_DENIED" if required else "")
        pool = pb.Pool(name="t", base_models=["base"], limits=pb.PoolLimits(prove="off"))
        assert await _change(served, "CreatePool", pb.CreatePoolRequest(pool=pool), who("ops")) == "PERMISSION_DENIED"

    secured(tmp_path, binding(AccessRole.POOL_OPERATOR, "ops"), scene)


def test_an_operator_cannot_delete_what_cannot_be_read(tmp_path):
    """A2 deny-by-default: it has no spec before and none after, and that is no retry."""

    async def scene(served: Served) -> None:
        await served.client.txn(Txn((), (Put(KEYS.adapter("p", "acme/a"), b"rubbish"),)))
        assert await _change(served, "ApplyAdapters", change_set(drop("acme/a"), retry=True)) == "PERMISSION_DENIED"

    secured(tmp_path, binding(AccessRole.OPERATOR, "ann"), scene)


def test_the_audit_names_role_and_binding_and_what_the_caller_can_be_found_by(tmp_path):
    """W7 audit-complete, A5 tamper-evident."""

    async def scene(served: Served) -> None:
        ann = Context(names=ANN.names, metadata=(("user-agent", "loraplane/1 grpc"),))
        await served.call("ApplyAdapters", change_set(put("acme/n"), put("other/n"), request_id="mine"), ann)
        stored = [
            AuditRecord.parse(kv.value) for key, kv in served.etcd.store.kvs.items() if key.startswith(KEYS.audits())
        ]
        [told] = [one for one in stored if one.request_id == "mine"]
        assert (told.principal, told.role, told.bindings) == ("ann", "publisher,restorer", [12, 13])
        assert (told.credential, told.peer, told.user_agent) == ("certificate", "ipv4:10.0.0.1:1", "loraplane/1 grpc")
        assert told.fingerprint == f"sha256:{hashlib.sha256(b'PEM').hexdigest()}"

    secured(
        tmp_path, binding(AccessRole.PUBLISHER, "ann", ", tenants: [acme]") + binding(AccessRole.RESTORER, "ann"), scene
    )


def test_a_stream_ends_when_the_file_takes_away_what_its_reader_may_see(tmp_path):
    async def scene(served: Served) -> None:
        access = served.service.ports.access
        assert access is not None
        following = asyncio.ensure_future(access.run())
        file = tmp_path / "access.yaml"
        for text, is_ended in (
            (HEAD + ROOT + binding(AccessRole.VIEWER, "ann") + "# the same\n", False),
            (HEAD + ROOT, True),
        ):
            async with aclosing(served.watch("WatchAdapters", pb.WatchAdaptersRequest(pool="p"), ANN)) as answers:
                await anext(answers)
                coming = asyncio.ensure_future(anext(answers))
                file.write_text(text)
                await asyncio.sleep(3)
                assert coming.done() is is_ended
                if is_ended:
                    with pytest.raises(Aborted, match="what you may do has changed"):
                        await coming
                coming.cancel()
                await asyncio.wait([coming])
        following.cancel()

    secured(tmp_path, binding(AccessRole.VIEWER, "ann"), scene)


def test_a_status_is_shown_without_others_adapters_and_sentences(tmp_path):
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

    async def scene(served: Served) -> None:
        from registry.access.control import Shown
        from registry.admin.rpc.calls import call_of
        from registry.admin.rpc.visible import seen_status

        for name, seen in (
            ("root", status),
            (
                "ann",
                {
                    "pending": status["pending"][:1],
                    "serves": status["serves"][:1],
                    "lazy": {"count": 2, "resident": [{"name": "acme/c"}]},
                    "served": {"count": 2, "hash": ""},
                    "events": [{"name": "acme/a"}],
                    "note": "",
                    "ready": True,
                },
            ),
        ):
            call = await call_of("GetReplica", Shown("p", who(name).names), 5, access=served.service.ports.access)
            shown = seen_status(call, pb.Replica(pool="p", name="r", status_json=json.dumps(status)))
            assert json.loads(shown.status_json) == seen
            assert seen_status(call, pb.Replica(pool="p", status_json="")).status_json == ""
            broken = seen_status(call, pb.Replica(pool="p", status_json="[")).status_json
            assert broken == ("[" if name == "root" else "")

    secured(tmp_path, binding(AccessRole.VIEWER, "ann", ", tenants: [acme]"), scene)


def test_callers_learn_who_they_are_and_what_they_may_do(tmp_path):
    async def scene(served: Served) -> None:
        told = await served.call("WhoAmI", pb.WhoAmIRequest(), ANN)
        [role] = told.roles
        assert (told.principal, told.credential, told.access_digest[:7]) == ("ann", "certificate", "sha256:")
        assert (role.role, role.binding, role.tenants, role.pools, role.sources) == (
            "publisher",
            12,
            ["acme"],
            ["*"],
            ["s3://acme/x"],
        )
        for fields, is_allowed in (
            ({"name": "acme/a"}, True),
            ({"name": "other/a"}, False),
            ({"name": "acme/a", "source": "s3://other/x"}, False),
            ({}, True),
        ):
            asked = pb.CheckAccessRequest(verb="apply", resource="adapters", pool="p", **fields)
            answer = await served.call("CheckAccess", asked, ANN)
            assert (answer.allowed, answer.role, answer.roles) == (
                is_allowed,
                "publisher" if is_allowed else "",
                ["publisher", "restorer"],
            ), fields

    secured(tmp_path, binding(AccessRole.PUBLISHER, "ann", ", tenants: [acme], sources: ['s3://acme/x']"), scene)


def test_only_security_asks_about_somebody_else(tmp_path):
    """A2 deny-by-default: what others may do is not everybody's."""
    asked = pb.CheckAccessRequest(verb="delete", resource="pools", name="p", user="ann", groups=["g"])

    async def scene(served: Served) -> None:
        refused = await served.refusal("CheckAccess", asked, ANN)
        assert (refused.info.reason, refused.info.metadata["roles"]) == ("PERMISSION_DENIED", "security")
        answer = await served.call("CheckAccess", asked, who("root"))
        assert (answer.allowed, answer.role, answer.binding) == (True, "pool-operator", 12)

    secured(tmp_path, binding(AccessRole.POOL_OPERATOR, "ann"), scene)


@pytest.mark.parametrize("field", ["verb", "resource"])
def test_what_is_no_verb_or_resource_is_refused(tmp_path, field):
    async def scene(served: Served) -> None:
        asked = pb.CheckAccessRequest(**({"verb": "get", "resource": "pools"} | {field: "x"}))
        refused = await served.refusal("CheckAccess", asked, ANN)
        assert refused.told == (StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", field)

    secured(tmp_path, binding(AccessRole.VIEWER, "ann"), scene)


def test_names_in_bindings_of_what_is_not_there_are_told_to_who_looks_after_access(tmp_path):
    """A2 deny-by-default: nobody else learns from it which pools and tenants there are."""

    async def scene(served: Served) -> None:
        told = await served.call("WhoAmI", pb.WhoAmIRequest(), who("root"))
        first = len(AccessRole) + 1
        assert [(one.binding - first, one.kind, one.name) for one in told.access_unknown] == [
            (0, "pool", "gone"),
            (0, "tenant", "nobody"),
            (1, "tenant", "Lost"),
        ]
        assert not (await served.call("WhoAmI", pb.WhoAmIRequest(), ANN)).access_unknown

    bound = binding(AccessRole.VIEWER, "ann", ", tenants: [acme, ACME, nobody, 'ac*'], pools: [p, gone, 'x*']")
    secured(tmp_path, bound + binding(AccessRole.AUDITOR, "ann", ", tenants: [Lost]"), scene)
