"""TLS against a real etcd: certificates that fit, that do not, and that are replaced."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import aclosing

import pytest

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdUnavailable, Timeout, TlsFailed
from registry.etcd3.ops import Range
from registry.etcd3.options import ClientOptions, TlsFiles
from registry.etcd3.reflector import Reflector
from registry.etcd3.stream import Connected, Disconnected
from tests.contract.etcd3.mirror import mirroring, put
from tests.support.etcd import PATIENCE_SECONDS, make_cluster, running_etcd
from tests.support.tls import Authority, server_flags
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("stranger"), "theirs")


@pytest.fixture
async def secured(tmp_path, authority):
    """One member that asks clients for certificates."""
    flags = server_flags(authority.issue("server"), client_certificates=True)
    async with running_etcd(make_cluster(tmp_path / "etcd", flags=flags, tls=authority.issue("client"))) as cluster:
        yield cluster


async def ask(options: ClientOptions) -> int:
    client = Client(options)
    try:
        return (await client.range(Range(b"a"))).revision
    finally:
        await client.aclose()


async def test_calls_and_watches_over_tls_and_whom_either_side_refuses(secured, authority, stranger, rng, tmp_path):
    """What no repetition makes right is told at once, and named; what may be a member that dies is unavailable.

    A client without certificate is told in the handshake or by hanging up after it, by the version of TLS.
    """
    client = secured.patient()
    async with aclosing(client), mirroring(Reflector(client, b"/a/", b"/a0", rng=rng)) as mirror:
        await mirror.first(Connected)
        written = await client.txn(put((b"/a/1", b"x")))
        await eventually(lambda: mirror.revision == written.revision)
    options = secured.options(tls=TlsFiles(ca=stranger.certificate), call_timeout_seconds=100 * PATIENCE_SECONDS)
    with pytest.raises(TlsFailed, match=r"(?i)certificate") as caught:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ask(options)
    assert caught.value.certainly_not_applied
    theirs = stranger.issue("mallory")
    files = TlsFiles(ca=authority.certificate, certificate=theirs.certificate, key=theirs.key)
    with pytest.raises(TlsFailed, match=r"(?i)certificate"):
        await ask(secured.options(tls=files, call_timeout_seconds=60))
    with pytest.raises(TlsFailed, match=r"absent\.pem"):
        await ask(secured.options(tls=TlsFiles(ca=tmp_path / "absent.pem")))
    for without in (TlsFiles(ca=authority.certificate), None):
        hasty = secured.options(tls=without, call_timeout_seconds=1)
        await eventually(lambda hasty=hasty: _is_turned_away(hasty))


async def test_tls_to_a_plain_port_is_unavailable(etcd, authority):
    """etcd hangs up in the middle of the handshake, as a dying server would; so it is not called hopeless."""
    options = etcd.options(tls=TlsFiles(ca=authority.certificate), call_timeout_seconds=1)
    error = await eventually(lambda: _is_turned_away(options))
    assert not isinstance(error, TlsFailed)


async def test_a_certificate_for_another_name_is_refused(tmp_path, authority):
    server = authority.issue("elsewhere", host="DNS:etcd.example")
    flags = server_flags(server, client_certificates=False)
    cluster = make_cluster(tmp_path / "etcd", flags=flags, tls=TlsFiles(ca=authority.certificate))
    cluster.start()
    try:
        await eventually(lambda: _is_tls_failure(cluster.options()))
    finally:
        cluster.stop()


async def _is_turned_away(options: ClientOptions) -> EtcdUnavailable | None:
    """None: it is not known, since the machine was busy for all of the deadline."""
    try:
        await ask(options)
    except EtcdUnavailable as error:
        return error
    except Timeout:
        return None
    raise AssertionError("answered")


async def test_rotated_files_are_read_at_the_next_connection(secured, authority, stranger, tmp_path, rng):
    """A client with useless files does not give up, and comes up when right ones are put in their place."""
    files = TlsFiles(ca=tmp_path / "ca.pem", certificate=tmp_path / "client.pem", key=tmp_path / "client.key")
    _install(stranger, stranger.issue("client"), files)
    client = Client(secured.options(tls=files, call_timeout_seconds=PATIENCE_SECONDS))
    try:
        async with mirroring(Reflector(client, b"/a/", b"/a0", rng=rng)) as mirror:
            await eventually(lambda: [one for one in mirror.of(Disconnected) if "ertificate" in one.message])
            _install(authority, authority.issue("renewed"), files)
            await mirror.first(Connected)
        await client.txn(put((b"/a/1", b"x")))
    finally:
        await client.aclose()


async def test_half_a_rotation_is_waited_out(secured, authority, tmp_path, rng):
    """R13 static-stable: between the new certificate and the new key, connections are made with the old pair."""
    files = TlsFiles(ca=tmp_path / "ca.pem", certificate=tmp_path / "client.pem", key=tmp_path / "client.key")
    _install(authority, authority.issue("client"), files)
    client = Client(secured.options(tls=files, call_timeout_seconds=PATIENCE_SECONDS))
    member = secured.members[0]
    try:
        async with mirroring(Reflector(client, b"/a/", b"/a0", rng=rng)) as mirror:
            await mirror.first(Connected)
            shutil.copy(authority.issue("renewed").certificate, files.certificate)
            member.kill()
            await mirror.first(Disconnected)
            member.start()
            await eventually(lambda: len(mirror.of(Connected)) > 1)
        await client.txn(put((b"/a/1", b"x")))
    finally:
        await client.aclose()


def _install(authority: Authority, issued: TlsFiles, files: TlsFiles) -> None:
    shutil.copy(authority.certificate, files.ca)
    shutil.copy(issued.certificate, files.certificate)
    shutil.copy(issued.key, files.key)


async def _is_tls_failure(options: ClientOptions) -> bool:
    try:
        await ask(options)
    except TlsFailed as error:
        return "Hostname" in str(error) or "peer certificate" in str(error)
    except EtcdUnavailable:
        return False
    raise AssertionError("a certificate for another name was taken")
