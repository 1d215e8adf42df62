"""Looks at every part of an installation, for the doctor."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from registry.cli.client import AdminClient
from registry.cli.commands.etcd_access import excess_found
from registry.cli.doctor.diagnosis import AccessSeen, Miscount, PoolSeen, Survey, methods_differ, miscounts
from registry.cli.doctor.findings import (
    CheckedPart,
    DoctorFinding,
    EtcdGrowth,
    error,
    etcd_findings,
    expiry_findings,
    growth_findings,
    info,
    warning,
)
from registry.cli.failure import CliError
from registry.cli.session import request_id_or_new
from registry.cli.views.replica_view import missing_view, replica_view
from registry.client import admin_api as api
from registry.client.address import Tls
from registry.client.handshake import etcd_member, found_trouble
from registry.etcd3.client import Client as EtcdClient
from registry.etcd3.client import MemberStatus
from registry.etcd3.errors import Compacted, EtcdError, EtcdPermissionDenied, NoSpace
from registry.etcd3.ops import Range, prefix_end
from registry.model.errors import Reason
from registry.model.keys import Keys, last_part
from registry.runtime.program import release_version
from registry.runtime.settings import DaemonSettings
from registry.v1 import registry_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["AdapterRegistry"]
_REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
_CALL_SECONDS = 5.0
# The shortest lease that etcd gives: what is asked for is whether it gives one.
_LEASE_SECONDS = 5
# So few say nothing. More than an hour's, the usual time between compactions, of a few hundred busy replicas.
_FEW_REVISIONS, _KEPT_REVISIONS, _FIRST_REVISION = 10_000, 200_000, 2


def collect(client: AdminClient) -> Survey:
    """All pools, replicas and tenants.

    Raises:
        CliError: the admin service does not answer.
    """
    pools = client.whole(api.LIST_POOLS, pb.ListPoolsRequest(show_unknown=True, show_etcd=True))
    tenants = client.whole(api.LIST_TENANTS)
    return Survey(
        pools=[_pool(client, one) for one in pools.pools],
        unreadable_pools=pools.unreadable,
        tenants=tenants.tenants,
        unreadable_tenants=tenants.unreadable,
        version_here=release_version(),
        version_admin=pools.admin_version,
        insecure_admin=list(dict.fromkeys(pools.admin_insecure)),
        unknown_pools=pools.unknown,
        etcd=pools.etcd,
    )


def _pool(client: AdminClient, pool: pb.Pool) -> PoolSeen:
    listed = client.whole(api.LIST_ADAPTERS, pb.ListAdaptersRequest(pool=pool.name))
    found = client.all_replicas(pool.name)
    return PoolSeen(
        pool.name,
        listed.adapters,
        listed.unreadable,
        [replica_view(one) for one in found.replicas],
        [missing_view(pool.name, one) for one in found.missing],
        pool.limits.expected_replicas,
        pool.limits,
        found.lacking,
        found.groups,
    )


def look_at_counters(client: AdminClient, seen: Survey, *, repair: bool) -> list[DoctorFinding]:
    """Tenants whose counter the admin service finds wrong; repaired if asked for.

    Raises:
        CliError: a repair that was asked for is refused.
    """
    look = _repaired if repair else _miscounted
    return [finding for one in miscounts(seen) if (finding := look(client, one))]


def _miscounted(client: AdminClient, one: Miscount) -> DoctorFinding | None:
    told = f"its counter says {one.counter}, and it has {one.adapters} adapters"
    try:
        reply = client.unary(api.REPAIR_TENANT, pb.RepairTenantRequest(name=one.tenant, validate_only=True))
    except CliError as problem:
        if problem.failure.reason == Reason.PERMISSION_DENIED:
            told = f"its counter says {one.counter}, and {one.adapters} adapters are seen: of others you may not know"
            remedy = f"nothing; whoever has the role tenant-admin for {one.tenant} is told whether the counter is wrong"
            return info(CheckedPart.TENANT, one.tenant, "counter_differs", told, remedy)
        told += f"; the admin service cannot say more: {problem.failure.message}"
    else:
        if not reply.changed:
            return None
        told += "".join(f"; history lacks {_generation(adapter)}" for adapter in reply.retired)
    return error(CheckedPart.TENANT, one.tenant, "counter_differs", told, "loraplane doctor --repair")


def _repaired(client: AdminClient, one: Miscount) -> DoctorFinding | None:
    retired: list[pb.Adapter] = []
    is_changed = False
    # As often as one transaction takes no more.
    while (reply := _repair(client, one.tenant)).changed:
        is_changed = True
        retired += reply.retired
    if not is_changed:
        return None
    told = f"repaired: its counter said {one.counter}, and says {reply.tenant.adapters} now"
    told += "".join(f"; history has {_generation(adapter)}" for adapter in retired)
    remedy = "nothing more; loraplane history shows what was deleted"
    return warning(CheckedPart.TENANT, one.tenant, "counter_repaired", told, remedy)


def _repair(client: AdminClient, tenant: str) -> pb.RepairTenantResponse:
    return client.unary(api.REPAIR_TENANT, pb.RepairTenantRequest(name=tenant, request_id=request_id_or_new(None)))


def _generation(adapter: pb.Adapter) -> str:
    return f"generation {adapter.generation} of {adapter.name} in pool {adapter.pool}"


def look_at_admin(client: AdminClient) -> list[DoctorFinding]:
    """Findings on the admin service: that it works, and that it is of our release.

    Raises:
        CliError: it does not answer.
    """
    return client.inspect(_look_at_admin)


def access_of(client: AdminClient, admin: str) -> AccessSeen | None:
    """Access file of an admin service; None: it is of a release that does not tell, which another finding says.

    Raises:
        CliError: it does not answer.
    """
    try:
        told = client.unary(api.WHO_AM_I, pb.WhoAmIRequest())
    except CliError as problem:
        if problem.failure.reason == Reason.UNSUPPORTED:
            return None
        raise
    unknown = [f"binding {one.binding} names the {one.kind} {one.name!r}" for one in told.access_unknown]
    return AccessSeen(admin, told.access_digest, told.access_trouble, unknown)


async def _look_at_admin(channel: grpc.aio.Channel, address: str) -> list[DoctorFinding]:
    findings = await _health(channel, address)
    there = await _methods(channel)
    return findings if there is None else findings + methods_differ(address, _methods_here(), there)


async def _health(channel: grpc.aio.Channel, address: str) -> list[DoctorFinding]:
    request = health_pb2.HealthCheckRequest(service=_SERVICE.full_name)
    reply = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=_CALL_SECONDS)
    if reply.status == health_pb2.HealthCheckResponse.SERVING:
        return []
    remedy = "see that etcd has a majority and that its --etcd is right; its log and /readyz say why"
    return [error(CheckedPart.ADMIN, address, "not_serving", "it answers, but cannot work", remedy)]


def _methods_here() -> list[str]:
    return [method.name for method in _SERVICE.methods]


async def _methods(channel: grpc.aio.Channel) -> list[str] | None:
    """The methods that the admin service knows, by its reflection; None: it tells nobody, as with an access file."""
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=_SERVICE.full_name)
    # Sent with the beginning of the call: a request of its own may come after the refusal, whose status is then lost.
    ask = channel.unary_stream(
        _REFLECTION,
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    try:
        replies = [reply async for reply in ask(request, timeout=_CALL_SECONDS)]
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return None
        raise
    files = [
        FileDescriptorProto.FromString(file)
        for reply in replies
        for file in reply.file_descriptor_response.file_descriptor_proto
    ]
    services = [service for file in files for service in file.service if service.name == _SERVICE.name]
    return [method.name for service in services for method in service.method]


def look_at_certificates(address: str, tls: Tls, now: datetime) -> list[DoctorFinding]:
    """Certificates of the connection to the admin service that end soon: that of the service, its authorities, ours."""
    return expiry_findings(address, _certificates(address, tls) | _own_certificate(tls), now)


def _own_certificate(tls: Tls) -> dict[str, Mapping[str, object]]:
    """The certificate that the caller shows, by what it is; none where its file has none, which the call says."""
    from cryptography import x509  # noqa: PLC0415 - for those alone who show one

    if tls.cert is None:
        return {}
    try:
        found = x509.load_pem_x509_certificate(tls.cert.read_bytes())
    except (OSError, ValueError):
        return {}
    ends = {"notBefore": found.not_valid_before_utc, "notAfter": found.not_valid_after_utc}
    return {f"your certificate {tls.cert}": {name: f"{at:%b %d %H:%M:%S %Y} GMT" for name, at in ends.items()}}


def _certificates(address: str, tls: Tls) -> dict[str, Mapping[str, object]]:
    """Certificates by what they are; none where no handshake of ours succeeds, since gRPC's own says why."""
    host, _, port = address.rpartition(":")
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        found: dict[str, Mapping[str, object]] = {}
        if tls.ca is not None:
            found = {f"certificate {place} of {tls.ca}": one for place, one in enumerate(context.get_ca_certs(), 1)}
        context.check_hostname = False  # which gRPC did
        context.set_alpn_protocols(["h2"])
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
        with (
            socket.create_connection((host.strip("[]"), int(port)), _CALL_SECONDS) as plain,
            context.wrap_socket(plain) as wrapped,
        ):
            return found | {"the certificate of the admin service": wrapped.getpeercert() or {}}
    except (OSError, ValueError):
        return {}


def look_at_etcd(settings: DaemonSettings, told: EtcdGrowth) -> tuple[list[DoctorFinding], bool]:
    """Findings on etcd, and whether any member answers. `told`: retention and quota."""
    return asyncio.run(_look_at_etcd(settings, told))


async def _look_at_etcd(settings: DaemonSettings, told: EtcdGrowth) -> tuple[list[DoctorFinding], bool]:
    client = EtcdClient(settings.client_options())
    try:
        members = await client.status(timeout_seconds=_CALL_SECONDS)
        is_up = any(isinstance(one, MemberStatus) or isinstance(one.error, EtcdPermissionDenied) for one in members)
        findings = etcd_findings(members, is_full=is_up and await _is_full(client))
        findings = [await _with_handshake(one, settings) for one in findings]
        if is_up:
            findings += await _growth(client, Keys(settings.prefix), told) + await _excess(settings)
        return findings, is_up
    finally:
        await client.aclose()


async def _with_handshake(finding: DoctorFinding, settings: DaemonSettings) -> DoctorFinding:
    """The finding, or where it is that a member does not answer, what keeps us from it, if TLS does."""
    if finding.reason != "member_down":
        return finding
    member = finding.subject
    trouble = await found_trouble(member, settings.client_options().tls, etcd_member(member))
    return (
        finding if trouble is None else error(CheckedPart.ETCD, member, "no_handshake", trouble.finding, trouble.remedy)
    )


async def _excess(settings: DaemonSettings) -> list[DoctorFinding]:
    """Users who may do more than they need; none where etcd asks for no user, or ours may not read them."""
    try:
        found, is_on = await excess_found(settings)
    except EtcdError:
        return []
    remedy = "loraplane etcd-access apply where it is a role of ours; else etcdctl user revoke-role, or user delete"
    told = found if is_on else ()
    return [warning(CheckedPart.ETCD, one.user, "excess_permission", str(one), remedy) for one in told]


async def _growth(client: EtcdClient, keys: Keys, told: EtcdGrowth) -> list[DoctorFinding]:
    """Growth of etcd; None where it cannot be read, which the members' findings tell."""
    try:
        found = await client.range(Range(keys.meta(), keys_only=True), timeout_seconds=_CALL_SECONDS)
        changes, old = await _changes_of_a_day(client, keys), found.revision - _KEPT_REVISIONS
        if found.revision > _FEW_REVISIONS and await _is_kept(client, keys, max(old, _FIRST_REVISION)):
            told = replace(told, old_revision=max(old, _FIRST_REVISION))
    except EtcdError:
        return []
    return list(growth_findings(replace(told, changes=changes)))


async def _changes_of_a_day(client: EtcdClient, keys: Keys) -> int:
    """Audit records of the last day, by their ids, which sort by time."""
    since = f"{datetime.now(UTC) - timedelta(days=1):%Y%m%dT%H%M%S}"
    pools = (await client.range(Range(keys.pools(), prefix_end(keys.pools()), keys_only=True))).kvs
    changes = 0
    for scope in ["_", *(last_part(kv.key) for kv in pools)]:
        span = Range(keys.audit(scope, since), prefix_end(keys.audit(scope, "")), count_only=True)
        changes += (await client.range(span, timeout_seconds=_CALL_SECONDS)).count
    return changes


async def _is_kept(client: EtcdClient, keys: Keys, revision: int) -> bool:
    try:
        await client.range(Range(keys.meta(), revision=revision, keys_only=True), timeout_seconds=_CALL_SECONDS)
    except Compacted:
        return False
    return True


async def _is_full(client: EtcdClient) -> bool:
    """True if etcd refuses a lease for want of space, as it then does every write."""
    try:
        await client.lease_revoke(await client.lease_grant(_LEASE_SECONDS))
    except NoSpace:
        return True
    except EtcdError:
        return False  # what is wrong then is told of its members
    return False
