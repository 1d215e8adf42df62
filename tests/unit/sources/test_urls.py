"""Which addresses a source may be at, and what a URL may lead to."""

from __future__ import annotations

import pytest

from registry.model.source_uri import parse_prefix
from registry.sources.urls import Reach, check_redirect, parse_url
from tests.unit.sources.conftest import refused

MACHINE = "169.254.169.254 169.254.1.1 168.63.129.16 100.100.100.200 192.0.0.192 fd00:ec2::254 fe80::1%eth0".split()
MACHINE += "224.0.0.1 ff02::1 0.0.0.0 :: 255.255.255.255 ::ffff:169.254.169.254 64:ff9b::a9fe:a9fe".split()
LOOPBACK = "127.0.0.1 127.0.1.1 ::1 ::ffff:127.0.0.1 64:ff9b::7f00:1".split()
PRIVATE = "10.1.2.3 172.16.0.1 192.168.1.1 100.64.0.1 fd00::1 ::ffff:10.0.0.1 64:ff9b::a01:203".split()
ODD = "2002:7f00:1:: 2001:0:7f00:1:: 2001:db8::1 192.0.2.1 198.18.0.1 192.88.99.1 4000::1".split()
PUBLIC = "93.184.216.34 8.8.8.8 2606:4700::1111 ::ffff:8.8.8.8 64:ff9b::808:808".split()


NOBODY, NAMED = frozenset[Reach](), frozenset({Reach.NAMED})
OURSELVES = frozenset({Reach.LOCALHOST, Reach.LITERAL})
ALLOWED = [(MACHINE, NOBODY), (LOOPBACK, OURSELVES), (PRIVATE, NAMED), (PUBLIC, NAMED | {Reach.PUBLIC})]


@pytest.mark.parametrize(("address", "by"), [(address, by) for addresses, by in ALLOWED for address in addresses])
def test_who_reaches_an_address(address, by):
    """Fault 28: by a name neither the machine nor what only it should ask, also where the operator allowed the name.

    Somebody else may run its name server.
    """
    looked_at = [Reach.PUBLIC, Reach.NAMED, Reach.LOCALHOST] + ([Reach.LITERAL] if by is OURSELVES else [])
    assert {reach for reach in looked_at if reach.allows(address)} == by


@pytest.mark.parametrize("address", ODD)
def test_what_is_not_the_internet_is_not_public(address):
    assert not Reach.PUBLIC.allows(address)


def test_an_address_that_the_operator_wrote_himself_is_reached():
    named = [parse_prefix("http://169.254.169.254/adapters"), parse_prefix("https://host/a")]
    assert parse_url("http://169.254.169.254/adapters/x").reach(named) is Reach.LITERAL
    assert Reach.LITERAL.allows("169.254.169.254")
    assert parse_url("http://169.254.169.254/latest").reach(named) is Reach.PUBLIC
    assert parse_url("https://host/a/x?signature=1").reach(named) is Reach.NAMED
    assert parse_url("http://localhost:80/a").reach([parse_prefix("http://localhost:80/a")]) is Reach.LOCALHOST
    assert parse_url("http://localhost/a").reach(named) is Reach.PUBLIC
    assert parse_url("http://127.1/a").reach([parse_prefix("http://127.1/a")]) is Reach.NAMED
    assert parse_url("https://host/a/../b").reach(named) is Reach.PUBLIC
    assert parse_url("https://host/a/%2e%2e/b").reach(named) is Reach.PUBLIC


@pytest.mark.parametrize("path", ["/a b", "/a\x7f", "/\u00e9", "/a?q=b c"])
def test_a_path_with_what_must_be_escaped_is_no_url(path):
    """It would stand in the line of a request as it is."""
    with pytest.raises(ValueError, match="must be escaped"):
        parse_url(f"https://host{path}")
    assert parse_url("https://host/%20?q=%C3%A9").target == "/%20?q=%C3%A9"


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        ("https://cdn.example/x", True),
        ("https://[2001:db8::1]/x", True),
        ("https://[2001:db8::1]:8443/x", False),
        ("http://cdn.example/x", False),
        ("https://cdn.example:8443/x", False),
        ("http://own.test/a/x", True),
        ("https://own.test:8443/b/x", True),
        ("https://own.test:8443/c", False),
        ("http://own.test/b/x", False),
    ],
)
def test_a_redirect_leads_to_https_at_its_usual_port_or_to_what_was_named(url, is_allowed):
    """Fault 28: below one of the operator's prefixes is enough."""
    named = [parse_prefix("http://own.test/a/"), parse_prefix("https://own.test:8443/b/")]
    if is_allowed:
        check_redirect(parse_url(url), named)
        return
    error = refused(check_redirect, parse_url(url), named)
    assert (error.reason, error.permanent) == ("redirect_not_allowed", True)
