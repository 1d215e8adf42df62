"""Troubles of TLS with a service are told from a service that is away, of which gRPC says the same."""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from registry.client import admin_api as api
from registry.client import handshake, transport
from registry.client.address import Tls
from registry.client.handshake import (
    HandshakeTrouble,
    Party,
    admin_service,
    etcd_member,
    found_trouble,
    handshake_trouble,
)
from registry.client.transport import AdminCalls
from registry.etcd3.options import TlsFiles
from registry.model.errors import Reason, Unavailable
from registry.v1 import registry_pb2 as pb
from tests.support.tls import Authority

PARTY = Party("S", "--tls", "--own")


@dataclass(frozen=True)
class Files:
    """Certificates of two authorities that know nothing of each other."""

    ours: TlsFiles
    expired: TlsFiles
    other_name: TlsFiles
    theirs: TlsFiles

    @property
    def without(self) -> TlsFiles:
        return TlsFiles(self.ours.ca)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    ours, theirs = (Authority(tmp_path_factory.mktemp(name), name) for name in ("ours", "theirs"))
    return Files(
        ours=ours.issue("good"),
        expired=ours.issue("expired", days=-1),
        other_name=ours.issue("other", host="DNS:other"),
        theirs=theirs.issue("foreign"),
    )


@contextmanager
def service(server: TlsFiles | None, *, asks: bool = False) -> Iterator[str]:
    """The address of a service that greets who comes in. None: it speaks no TLS; `asks`: for a client certificate."""
    context = None
    if server is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server.certificate, server.key)
        context.load_verify_locations(server.ca)
        context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])

    class Greeting(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(60)
            with suppress(OSError):
                if context is None:
                    self.request.sendall(b"settings")
                    return
                with context.wrap_socket(self.request, server_side=True) as secure:
                    if secure.selected_alpn_protocol() == "h2":  # gRPC takes nobody else
                        secure.sendall(b"settings")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greeting) as listening:
        serving = threading.Thread(target=listening.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield f"127.0.0.1:{listening.server_address[1]}"
        finally:
            listening.shutdown()
            serving.join()


@pytest.mark.parametrize(
    ("server", "asks", "client", "told"),
    [
        ("ours", False, "without", None),
        ("ours", True, "ours", None),
        (None, False, None, None),
        ("ours", False, None, "S speaks TLS, and this side does not: give --tls-ca with its CA, and --tls-cert and"),
        ("ours", True, None, "S speaks TLS, and this side does not: give --tls-ca"),
        (
            "ours",
            True,
            "without",
            "S asks for a client certificate: give --tls-cert and --tls-key (cert and key of Tls)",
        ),
        ("ours", True, "expired", "expired.pem of '127.0.0.1' expired on 20"),
        ("ours", True, "foreign client", "foreign.pem (unknown ca): give --tls-cert and --tls-key of an authority"),
        ("expired", False, "without", "the certificate of S has expired: put a new one in its place (--own)"),
        ("theirs", False, "without", "the certificate of S is of none of the authorities in "),
        ("theirs", False, "no ca", "the certificate of S is of none of the authorities of this host: name the CA that"),
        ("other_name", False, "without", "the certificate of S is not for 127.0.0.1: name it as its certificate does"),
        (None, False, "ours", "S speaks no TLS: start it with --own, or leave out --tls-ca, --tls-cert and --tls-key"),
    ],
)
async def test_what_keeps_a_client_out_is_told(files, server, asks, client, told):
    """Foreign: of another authority."""
    made: dict[str | None, TlsFiles | None] = {
        None: None,
        "no ca": replace(files.ours, ca=None),
        "foreign client": replace(files.theirs, ca=files.ours.ca),
    }
    given = made[client] if client in made else getattr(files, client)
    with service(server and getattr(files, server), asks=asks) as address:
        trouble = await found_trouble(address, given, PARTY)
    assert (trouble is None) == (told is None)
    assert told is None or told in str(trouble)
    assert "\n" not in str(trouble)


def test_a_refusal_that_says_no_more_is_told_as_that(files):
    told = str(handshake._refused(files.ours, PARTY, ""))
    assert told.startswith(f"S refuses the certificate {files.ours.certificate}: give --tls-cert and --tls-key of")


async def test_names_that_resolve_slowly_hold_nobody_up(files, monkeypatch):
    """R19 not-held-up: the system's resolver may take a minute, and takes no time limit."""
    resolved = threading.Event()
    monkeypatch.setattr(handshake, "_STEP_SECONDS", 0.01)
    monkeypatch.setattr(socket, "create_connection", lambda *_: resolved.wait(60))
    assert await found_trouble("slow.example:7600", files.ours, PARTY) is None
    assert not resolved.is_set()
    resolved.set()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "unix:/nowhere", "dns:///127.0.0.1:1", "nobody.invalid:7600"])
def test_of_a_service_that_is_away_nothing_is_told(files, address):
    assert handshake_trouble(address, files.ours, PARTY) is None


async def test_files_that_are_gone_tell_nothing(files):
    """The reader of these files says so itself, and goes on with those that it had."""
    gone = TlsFiles(files.ours.ca, Path("/nowhere.pem"), Path("/nowhere.key"))
    with service(files.ours) as address:
        assert await found_trouble(address, gone, PARTY) is None


def test_the_words_are_those_of_each_service():
    assert admin_service("a:1") == Party(
        "the admin service at a:1",
        "--tls",
        "loraplane-admin --tls-cert",
        ", or, for a token, the address of its --token-listen",
    )
    assert etcd_member("e:2") == Party("etcd at e:2", "--etcd-tls", "its --cert-file")


@pytest.mark.parametrize("timeout_seconds", [600.0, 0.8])
async def test_a_call_says_it_instead_of_waiting(files, timeout_seconds):
    """Within two seconds where the machine is not busy; well before its time is up in any case."""
    begun = time.monotonic()
    with service(files.expired) as address:
        calls = AdminCalls(address, Tls(ca=files.ours.ca), timeout_seconds)
        with pytest.raises(Unavailable) as told:
            await calls.unary(api.LIST_POOLS, pb.ListPoolsRequest())
        await calls.aclose()
    assert told.value.reason is Reason.ADMIN_UNAVAILABLE
    assert told.value.message.startswith(f"the certificate of the admin service at {address} has expired: ")
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize(
    ("trouble", "looked"), [(HandshakeTrouble("found", "remedy"), [2, 3, 4]), (None, [2])], ids=["trouble", "none"]
)
async def test_files_that_fit_again_within_a_second_fail_no_call(monkeypatch, files, trouble, looked):
    """A6 rotates: while both sides get new files, one has them before the other. Where none is, it is looked once."""
    looks: list[int] = []
    tries = 0

    async def look(address: str, _files: TlsFiles | None, _party: Party) -> HandshakeTrouble | None:
        assert address == "127.0.0.1:1"
        looks.append(tries)
        return trouble

    monkeypatch.setattr(transport, "found_trouble", look)
    monkeypatch.setattr(transport, "_ROTATION_SECONDS", 600.0)
    calls = AdminCalls("127.0.0.1:1", Tls(ca=files.ours.ca), 600.0)

    async def attempt(_seconds: float) -> str:
        nonlocal tries
        tries += 1
        if tries < 5:
            raise Unavailable(Reason.ADMIN_UNAVAILABLE, "away")
        return "answer"

    assert await calls.repeated(attempt) == "answer"
    assert looks == looked
    await calls.aclose()
