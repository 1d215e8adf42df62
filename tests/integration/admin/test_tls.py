"""TLS on the admin service's own port: who calls is the common name of the certificate."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from functools import partial
from ssl import PEM_cert_to_DER_cert, get_server_certificate

import grpc
import pytest
from grpc import StatusCode
from structlog.testing import capture_logs

from registry.admin import server
from registry.v1 import registry_pb2 as pb
from registry.v1 import registry_pb2_grpc
from tests.support.admin import admin_inside, change_set, put, refusal, works
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


async def test_mutual_tls(etcd, ledger, authority, stranger, tmp_path, monkeypatch):
    """W7 audit-complete: the record names the certificate's common name. X1: nobody else comes in, or stays in."""
    monkeypatch.setattr(server, "CONNECTION_AGE_SECONDS", 1.0)
    host, own, ca = authority.issue("server"), authority.issue("alice"), tmp_path / "ca"
    shutil.copy(host.ca, ca)
    files = {"tls_ca": ca, "tls_cert": host.certificate, "tls_key": host.key}
    async with (
        admin_inside(etcd.endpoints, etcd.prefix, **files) as admin,
        channel(admin.address, host.ca, own) as alice,
    ):
        stub = registry_pb2_grpc.AdapterRegistryStub(alice)
        await eventually(lambda: works(stub))
        await stub.CreatePool(pb.CreatePoolRequest(pool=pb.Pool(name="p", base_models=["b"])))
        reply = await stub.ApplyAdapters(change_set(put("acme/a")))
        assert reply.results[0].adapter.updated_by == "alice"
        for certificate in (None, stranger.issue("mallory")):
            async with channel(admin.address, host.ca, certificate) as other:
                told = await refusal(registry_pb2_grpc.AdapterRegistryStub(other).ListPools(pb.ListPoolsRequest()))
                assert told.code is StatusCode.UNAVAILABLE
        shutil.copy(stranger.issue("x").ca, ca)

        async def is_out() -> bool:
            return not await works(stub)

        await eventually(is_out)
    listing = await ledger.client.list_prefix(ledger.keys.audits())
    told = [json.loads(kv.value) for kv in listing.kvs]
    assert {(one["principal"], one["role"], one["credential"]) for one in told} == {
        ("alice", "operator", "certificate")
    }
    der = PEM_cert_to_DER_cert(own.certificate.read_text())
    assert {one["fingerprint"] for one in told} == {f"sha256:{hashlib.sha256(der).hexdigest()}"}
    assert all(one["peer"].startswith("ipv4:127.0.0.1:") and "grpc" in one["user_agent"] for one in told)
    await ledger.check()


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
        host, _, port = admin.address.rpartition(":")
        shown = await asyncio.to_thread(get_server_certificate, (host, int(port)))
        assert PEM_cert_to_DER_cert(shown) == PEM_cert_to_DER_cert(new.certificate.read_text())


def _replace(new, cert, key) -> None:
    shutil.copy(new.certificate, cert)
    shutil.copy(new.key, key)
