"""TLS on the admin service's own port: who calls is the common name of the certificate."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from ssl import PEM_cert_to_DER_cert, get_server_certificate

import grpc
import pytest
from grpc import StatusCode
from structlog.testing import capture_logs

from registry.admin import server
from registry.client.address import Tls
from registry.client.transport import AdminCalls
from registry.model.errors import Unavailable
from registry.tools.devstack.processes import free_ports
from registry.v1 import registry_pb2 as pb
from registry.v1 import registry_pb2_grpc
from tests.support.admin import admin_inside, change_set, put, refusal
from tests.support.etcd import make_cluster
from tests.support.http_client import http_client
from tests.support.tls import Authority, server_flags
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("stranger"), "theirs")


def channel(address: str, ca, own=None) -> grpc.aio.Channel:
    chain = own.certificate.read_bytes() if own else None
    key = own.key.read_bytes() if own else None
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca.read_bytes(), key, chain))


async def works(stub) -> bool:
    try:
        await stub.ListPools(pb.ListPoolsRequest())
    except grpc.RpcError:
        return False
    return True


async def test_mutual_tls(etcd, ledger, authority, stranger):
    """W7 audit-complete: the audit record names the certificate's common name; without one nobody comes in."""
    host = authority.issue("server")
    files = {"tls_ca": host.ca, "tls_cert": host.certificate, "tls_key": host.key}
    async with admin_inside(etcd.endpoints, etcd.prefix, **files) as admin:
        async with channel(admin.address, host.ca, authority.issue("alice")) as alice:
            stub = registry_pb2_grpc.AdapterRegistryStub(alice)
            await eventually(lambda: works(stub))
            await stub.CreatePool(pb.CreatePoolRequest(pool=pb.Pool(name="p", base_models=["b"])))
            reply = await stub.ApplyAdapters(change_set(put("acme/a")))
        assert reply.results[0].adapter.updated_by == "alice"
        for certificate in (None, stranger.issue("mallory")):
            async with channel(admin.address, host.ca, certificate) as other:
                told = await refusal(registry_pb2_grpc.AdapterRegistryStub(other).ListPools(pb.ListPoolsRequest()))
                assert told.code is StatusCode.UNAVAILABLE
    listing = await ledger.client.list_prefix(ledger.keys.audits())
    assert {(one["principal"], one["role"]) for one in map(_audit, listing.kvs)} == {("alice", "operator")}
    await ledger.check()


def _audit(kv) -> dict:
    return json.loads(kv.value)


async def test_a_rotated_certificate(etcd, authority, stranger, tmp_path):
    """A new certificate is used from the next connection on, without a restart; an unreadable one changes nothing."""
    old, new = authority.issue("server"), stranger.issue("server")
    cert, key = tmp_path / "cert", tmp_path / "key"
    shutil.copy(old.certificate, cert)
    shutil.copy(old.key, key)
    async with admin_inside(etcd.endpoints, etcd.prefix, tls_cert=cert, tls_key=key) as admin:
        for ca, change in ((old.ca, cert.unlink), (old.ca, lambda: _replace(new, cert, key)), (new.ca, lambda: None)):
            async with channel(admin.address, ca) as fresh:
                stub = registry_pb2_grpc.AdapterRegistryStub(fresh)
                await eventually(lambda stub=stub: works(stub))
            change()


async def test_half_a_rotation_changes_nothing(etcd, authority, tmp_path):
    """R13 static-stable: the service goes on with the pair that it had, tells so once, and takes the new one whole."""
    old, new = authority.issue("server"), authority.issue("renewed")
    cert, key = tmp_path / "cert", tmp_path / "key"
    _replace(old, cert, key)
    async with admin_inside(etcd.endpoints, etcd.prefix, tls_cert=cert, tls_key=key) as admin:
        shutil.copy(new.certificate, cert)
        with capture_logs() as logged:
            for _ in range(3):
                async with channel(admin.address, old.ca) as fresh:
                    await eventually(partial(works, registry_pb2_grpc.AdapterRegistryStub(fresh)))
        assert [one["file"] for one in logged if one["event"] == "certificate_unreadable"] == [str(cert)]
        shutil.copy(new.key, key)
        assert await shown(admin.address) == PEM_cert_to_DER_cert(new.certificate.read_text())


async def shown(address: str) -> bytes:
    """The certificate that a new connection is shown."""
    host, _, port = address.rpartition(":")
    return PEM_cert_to_DER_cert(await asyncio.to_thread(get_server_certificate, (host, int(port))))


async def test_a_client_in_half_a_rotation_of_its_own(authority, tmp_path, caplog):
    """R13 static-stable: it connects anew with the pair that it had, tells so once, and takes the new one whole."""
    own = Tls(authority.certificate, tmp_path / "cert", tmp_path / "key")
    _replace(authority.issue("alice"), own.cert, own.key)
    (port,) = free_ports(1)
    renewed = authority.issue("renewed")
    calls = AdminCalls(f"127.0.0.1:{port}", own, 120)
    try:
        for name, new, file in (
            ("alice", renewed.certificate, own.cert),
            ("alice", renewed.key, own.key),
            ("renewed", None, None),
        ):
            async with asking_for_certificates(authority, port) as callers:
                await calls.unary("ListPools", pb.ListPoolsRequest(), pb.ListPoolsResponse)
            assert callers == [name]
            if new is not None:
                shutil.copy(new, file)
                with pytest.raises(Unavailable):
                    await calls.unary("ListPools", pb.ListPoolsRequest(), pb.ListPoolsResponse, timeout_seconds=1)
        assert len([one for one in caplog.messages if str(own.cert) in one]) == 1
    finally:
        await calls.aclose()


@asynccontextmanager
async def asking_for_certificates(authority: Authority, port: int) -> AsyncIterator[list[str]]:
    """A service that answers ListPools and notes who called."""
    files, callers = authority.issue("server"), []

    class Pools(registry_pb2_grpc.AdapterRegistryServicer):
        async def ListPools(self, _request, context):  # noqa: N802 - as the service calls it
            callers.extend(name.decode() for name in context.auth_context()["x509_common_name"])
            return pb.ListPoolsResponse()

    server = grpc.aio.server()
    registry_pb2_grpc.add_AdapterRegistryServicer_to_server(Pools(), server)
    ours = [(files.key.read_bytes(), files.certificate.read_bytes())]
    server.add_secure_port(
        f"127.0.0.1:{port}", grpc.ssl_server_credentials(ours, files.ca.read_bytes(), require_client_auth=True)
    )
    await server.start()
    try:
        yield callers
    finally:
        await server.stop(0)


@pytest.fixture
def short_lived(monkeypatch) -> None:
    """Connections end after a second."""
    monkeypatch.setattr(server, "CONNECTION_AGE_SECONDS", 1.0)


async def test_who_is_no_longer_taken_goes(etcd, authority, stranger, tmp_path, short_lived):
    """X1 secret-free: a connection does not outlive what its certificate was taken for."""
    files, alice, ca = authority.issue("server"), authority.issue("alice"), tmp_path / "ca"
    shutil.copy(files.ca, ca)
    told = {"tls_ca": ca, "tls_cert": files.certificate, "tls_key": files.key}
    async with (
        admin_inside(etcd.endpoints, etcd.prefix, **told) as admin,
        channel(admin.address, files.ca, alice) as connected,
    ):
        stub = registry_pb2_grpc.AdapterRegistryStub(connected)
        await eventually(lambda: works(stub))
        shutil.copy(stranger.issue("x").ca, ca)

        async def is_out() -> bool:
            return not await works(stub)

        await eventually(is_out)


async def test_certificates_are_replaced_under_load(etcd, authority, stranger, tmp_path, short_lived):
    """R13 static-stable: on both sides, while connections end all the time; no call fails."""
    sides = [authority.issue("server"), authority.issue("alice")]
    places = [(tmp_path / f"cert{side}", tmp_path / f"key{side}") for side in range(2)]
    ca = tmp_path / "ca"
    shutil.copy(sides[0].ca, ca)
    for files, place in zip(sides, places, strict=True):
        _replace(files, *place)
    (cert, key), (own_cert, own_key) = places
    async with admin_inside(etcd.endpoints, etcd.prefix, tls_ca=ca, tls_cert=cert, tls_key=key) as admin:
        calls = AdminCalls(admin.address, Tls(ca, own_cert, own_key), 120)
        done, rotated = 0, asyncio.Event()

        async def load() -> None:
            nonlocal done
            while not rotated.is_set():
                await calls.unary("ListPools", pb.ListPoolsRequest(), pb.ListPoolsResponse)
                done += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(load())
            for by in (stranger, authority):
                before = done
                await eventually(lambda before=before: done > before + 100)
                ca.write_bytes(by.issue("server").ca.read_bytes())
                _replace(by.issue("alice"), own_cert, own_key)
                _replace(by.issue("server"), cert, key)
            before = done
            await eventually(lambda: done > before + 100)
            rotated.set()
        await calls.aclose()


def _replace(new, cert, key) -> None:
    shutil.copy(new.certificate, cert)
    shutil.copy(new.key, key)


async def test_files_for_etcd_that_are_being_replaced(authority, tmp_path, caplog):
    """R13 static-stable, X2: the service says which it cannot read, and goes on with those that it read last."""
    issued = authority.issue("admin")
    files = {"etcd_tls_ca": issued.ca, "etcd_tls_cert": issued.certificate, "etcd_tls_key": issued.key}
    own = {name: Path(shutil.copy(file, tmp_path / name)) for name, file in files.items() if file}
    flags = {"unsafe-no-fsync": "true", **server_flags(authority.issue("etcd"), client_certificates=True)}
    cluster = make_cluster(tmp_path / "etcd", flags=flags, tls=issued)
    try:
        async with admin_inside(cluster.endpoints, "/t", **own) as admin:
            await eventually(lambda: is_said(admin.http, "etcd does not answer"))
            for file in own.values():
                file.unlink()
            await eventually(lambda: [one for one in caplog.messages if f"cannot read {own['etcd_tls_ca']}" in one])
            cluster.start()
            await eventually(lambda: is_said(admin.http, ""))
    finally:
        cluster.stop()


async def is_said(http: str, reason: str) -> bool:
    """Whether /readyz begins its reason with this; without one it is ready."""
    async with http_client(timeout=60) as client:
        said = (await client.get(f"{http}/readyz")).json()["reason"]
    return said.startswith(reason) if reason else not said
