"""TLS on the admin service's own port: who calls is the common name of the certificate."""

from __future__ import annotations

import json
import shutil

import grpc
import pytest
from grpc import StatusCode

from registry.v1 import registry_pb2 as pb
from registry.v1 import registry_pb2_grpc
from tests.support.admin import admin_inside, change_set, put, refusal
from tests.support.tls import Authority
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
    server = authority.issue("server")
    files = {"tls_ca": server.ca, "tls_cert": server.certificate, "tls_key": server.key}
    async with admin_inside(etcd.endpoints, etcd.prefix, **files) as admin:
        async with channel(admin.address, server.ca, authority.issue("alice")) as alice:
            stub = registry_pb2_grpc.AdapterRegistryStub(alice)
            await eventually(lambda: works(stub))
            await stub.CreatePool(pb.CreatePoolRequest(pool=pb.Pool(name="p", base_models=["b"])))
            reply = await stub.ApplyAdapters(change_set(put("acme/a")))
        assert reply.results[0].adapter.updated_by == "alice"
        for certificate in (None, stranger.issue("mallory")):
            async with channel(admin.address, server.ca, certificate) as other:
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


def _replace(new, cert, key) -> None:
    shutil.copy(new.certificate, cert)
    shutil.copy(new.key, key)
