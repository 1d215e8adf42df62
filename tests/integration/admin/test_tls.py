"""TLS on the admin service's own port: who calls is the common name of the certificate."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from ssl import PEM_cert_to_DER_cert, get_server_certificate

import grpc
import pytest
from grpc import StatusCode
from grpc.experimental import session_cache
from structlog.testing import capture_logs

from registry.access.control import Shown
from registry.admin import server
from registry.model.errors import Unauthenticated
from registry.v1 import registry_pb2 as pb
from registry.v1 import registry_pb2_grpc
from tests.support.admin import admin_inside, admin_program, change_set, put, refusal, works
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


async def test_many_handshakes_at_once_do_not_end_the_service(etcd, authority, tmp_path):
    """Nobody has to be known for one. Where each replaces the certificate, gRPC frees what another one uses."""
    host = authority.issue("server")
    flags = ("--tls-ca", host.ca, "--tls-cert", host.certificate, "--tls-key", host.key)
    service = admin_program(tmp_path, etcd.endpoints, etcd.prefix, *map(str, flags))
    service.program.start()
    try:
        await eventually(service.is_ready)
        with ThreadPoolExecutor(32) as threads:
            for done in [threads.submit(_shake_hands, service.address, host) for _ in range(32)]:
                done.result()
        assert service.program.stop() == 0
    finally:
        service.program.kill()


def _shake_hands(address: str, own) -> None:
    """Fifty times; one that is refused is an error."""
    context = ssl.create_default_context(cafile=own.ca)
    context.load_cert_chain(own.certificate, own.key)
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    for _ in range(50):
        with socket.create_connection((host, int(port))) as connection:
            context.wrap_socket(connection, server_hostname=host).close()


async def test_a_certificate_that_has_ended_since_is_told_from_one_of_a_new_session(etcd, authority):
    """X1: what the handshake looked at once, a session that is taken up again brings unseen."""
    # gRPC keeps sessions by the name of a host, and none of an address.
    host, own = authority.issue("local", host="DNS:localhost"), authority.issue("alice")
    facts = []

    def noted(shown, _now) -> None:
        facts.append([*shown.facts.get("ssl_session_reused", ())])

    options = [("grpc.ssl_session_cache", session_cache.ssl_session_cache_lru(1))]
    pem = [file.read_bytes() for file in (host.ca, own.key, own.certificate)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Shown, "check_resumed", noted)
        files = {"tls_ca": host.ca, "tls_cert": host.certificate, "tls_key": host.key}
        async with admin_inside(etcd.endpoints, etcd.prefix, **files) as admin:
            for _ in range(2):
                credentials = grpc.ssl_channel_credentials(*pem)
                address = admin.address.replace("127.0.0.1", "localhost")
                async with grpc.aio.secure_channel(address, credentials, options=options) as fresh:
                    await eventually(partial(works, registry_pb2_grpc.AdapterRegistryStub(fresh)))
    assert (facts[0], facts[-1]) == ([b"false"], [b"true"])


@pytest.mark.parametrize(
    ("days", "is_reused", "passes"),
    [(2, [b"true"], True), (-1, [b"false"], True), (-1, [b"true"], False), (-1, [], True)],
)
def test_a_session_ends_with_its_certificate(authority, days, is_reused, passes):
    """X1."""
    pem = authority.issue("ends", days=days).certificate.read_bytes()
    shown = Shown("ipv4:127.0.0.1:1", {"x509_pem_cert": [pem], "ssl_session_reused": is_reused})
    with nullcontext() if passes else pytest.raises(Unauthenticated, match="your certificate has expired; renew it"):
        shown.check_resumed(time.time())


def _replace(new, cert, key) -> None:
    shutil.copy(new.certificate, cert)
    shutil.copy(new.key, key)
