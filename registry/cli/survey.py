"""Looks at every part of an installation, for the doctor."""

from __future__ import annotations

import asyncio
from itertools import chain

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from registry.cli.client import Client, open_channel
from registry.cli.diagnosis import PoolSeen, Seen, methods_differ
from registry.cli.etcd_findings import etcd_findings
from registry.cli.failure import CliError
from registry.cli.finding import Finding, Part, error
from registry.cli.replica_view import replica_view
from registry.cli.rpc_errors import rpc_failure
from registry.cli.session import Session
from registry.daemon.settings import DaemonSettings
from registry.etcd3.client import Client as EtcdClient
from registry.etcd3.client import MemberStatus
from registry.etcd3.errors import EtcdError, NoSpace
from registry.v1 import registry_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["AdapterRegistry"]
_CALL_SECONDS = 5.0
# The shortest lease that etcd gives: what is asked for is whether it gives one.
_LEASE_SECONDS = 5


def survey(client: Client) -> Seen:
    """All pools, replicas and tenants.

    Raises:
        CliError: the admin service does not answer.
    """
    pools, tenants = list(client.pool_pages()), list(client.tenant_pages())
    return Seen(
        pools=[_pool(client, one.name) for page in pools for one in page.pools],
        unreadable_pools=list(chain.from_iterable(page.unreadable for page in pools)),
        tenants=list(chain.from_iterable(page.tenants for page in tenants)),
        unreadable_tenants=list(chain.from_iterable(page.unreadable for page in tenants)),
    )


def _pool(client: Client, name: str) -> PoolSeen:
    pages = list(client.adapter_pages(name))
    return PoolSeen(
        name,
        list(chain.from_iterable(page.adapters for page in pages)),
        list(chain.from_iterable(page.unreadable for page in pages)),
        [replica_view(one) for one in client.list_replicas(name)],
    )


def look_at_admin(session: Session) -> list[Finding]:
    """Whether the admin service says that it works, and whether it is of our release.

    Raises:
        CliError: it does not answer.
    """
    with open_channel(session.admin, session.tls) as channel:
        try:
            return [
                *_health(channel, session.admin),
                *methods_differ(session.admin, _methods_here(), _methods(channel)),
            ]
        except grpc.RpcError as failure:
            raise CliError(rpc_failure(failure, session.admin)) from failure


def _health(channel: grpc.Channel, address: str) -> list[Finding]:
    request = health_pb2.HealthCheckRequest(service=_SERVICE.full_name)
    reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_CALL_SECONDS)
    if reply.status == health_pb2.HealthCheckResponse.SERVING:
        return []
    remedy = "see that etcd has a majority and that its --etcd is right; its log and /readyz say why"
    return [error(Part.ADMIN, address, "not_serving", "it answers, but cannot work", remedy)]


def _methods_here() -> list[str]:
    return [method.name for method in _SERVICE.methods]


def _methods(channel: grpc.Channel) -> list[str]:
    """The methods that the admin service knows, by its reflection."""
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=_SERVICE.full_name)
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    replies = list(stub.ServerReflectionInfo(iter([request]), timeout=_CALL_SECONDS))
    files = [
        FileDescriptorProto.FromString(file)
        for reply in replies
        for file in reply.file_descriptor_response.file_descriptor_proto
    ]
    services = [service for file in files for service in file.service if service.name == _SERVICE.name]
    return [method.name for service in services for method in service.method]


def look_at_etcd(settings: DaemonSettings) -> tuple[list[Finding], bool]:
    """What is wrong with etcd, and whether any member answers."""
    return asyncio.run(_look_at_etcd(settings))


async def _look_at_etcd(settings: DaemonSettings) -> tuple[list[Finding], bool]:
    client = EtcdClient(settings.client_options())
    try:
        members = await client.status(timeout_seconds=_CALL_SECONDS)
        is_up = any(isinstance(one, MemberStatus) for one in members)
        return etcd_findings(members, is_full=is_up and await _is_full(client)), is_up
    finally:
        await client.aclose()


async def _is_full(client: EtcdClient) -> bool:
    """True if etcd refuses a lease for want of space, as it then does every write."""
    try:
        await client.lease_revoke(await client.lease_grant(_LEASE_SECONDS))
    except NoSpace:
        return True
    except EtcdError:
        return False  # what is wrong then is told of its members
    return False
