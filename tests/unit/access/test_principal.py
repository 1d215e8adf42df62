"""Principals: whose request ids are whose, and the role of whom no access file knows."""

from __future__ import annotations

import base64
import hashlib

import pytest

from registry.access.principal import (
    ANONYMOUS,
    CallTrace,
    Credential,
    Principal,
    address_of,
    clipped,
    operator,
    trace_of,
)


@pytest.mark.parametrize(
    ("principal", "space", "role"),
    [
        (ANONYMOUS, "", "unauthenticated"),
        (operator("ann"), "operator:ann", "operator"),
        (Principal("ci:a/b", Credential.TOKEN), "token:ci%3Aa%2Fb", "token"),
        (Principal("loraplane-admin", Credential.SERVICE), "conductor:loraplane-admin", "conductor"),
    ],
)
def test_request_ids_belong_to_a_name_as_its_credential_has_it(principal, space, role):
    """W3 idempotent: nobody is answered with what somebody else asked."""
    assert (principal.space, principal.usual_role) == (space, role)


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_a_certificate_is_marked_as_all_tools_mark_it():
    """A5 tamper-evident: the hash of its bytes, not of the text around them."""
    body = base64.encodebytes(b"certificate" * 20)
    pem = b"Bag Attributes\n-----BEGIN CERTIFICATE-----\n" + body + b"-----END CERTIFICATE-----\n"
    expected = CallTrace(sha256(b"certificate" * 20), "ipv6:[::1]:5", "loraplane/1")
    assert trace_of("ipv6:%5B::1%5D:5", pem, "loraplane/1") == expected


@pytest.mark.parametrize(
    "shown", [b"a.token.x", b"-----BEGIN CERTIFICATE-----\n-----END", b"-----BEGIN CERTIFICATE-----A-----END"]
)
def test_what_is_no_certificate_is_marked_as_it_stands(shown):
    """X1 secret-free: nothing of a token can be read from its mark."""
    assert trace_of("", shown, "").fingerprint == sha256(shown)


def test_what_a_client_says_of_itself_is_short_and_has_no_power_over_a_terminal():
    assert trace_of("p" * 500, b"", "\x1b[2J" + "a" * 500) == CallTrace("", "p" * 128, "?[2J" + "a" * 196)
    assert clipped("abc", 2) == "ab"


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.1:5000", "10.0.0.1"),
        ("ipv6:%5B::1%5D:5000", "::1"),
        ("ipv6:[2001:db8::1]:5000", "2001:db8::1"),
        ("ipv6:[::ffff:10.0.0.1]:5000", "10.0.0.1"),
        ("ipv6:%5B::ffff:10.0.0.1%5D:5000", "10.0.0.1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5000", "fe80::1%eth0"),
        ("unix:", "unix"),
        ("unix:/tmp/socket", "unix"),
        ("unix-abstract:name", "unix-abstract:name"),
        ("vsock:1:2", "vsock:1:2"),
    ],
)
def test_a_peer_is_known_by_its_address(peer, address):
    """X3 given-back: whoever opens another connection is the same caller, with the same places."""
    assert address_of(peer) == address
