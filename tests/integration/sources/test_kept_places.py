"""Where a kept connection may be used: at the place that was judged for it, and not for long."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest

from registry.sources import connections
from registry.sources.base import ArtifactError, SourceLimits, Stop
from registry.sources.connections import ConnectionPool, SourceRequests
from registry.sources.urls import Reach
from tests.support.web import Site, serving


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site({"/a": b"content"})) as site:
        yield site


@pytest.fixture
def kept() -> Iterator[ConnectionPool]:
    kept = ConnectionPool(httpx.create_ssl_context, SourceLimits())
    yield kept
    kept.close()


def ask(kept: ConnectionPool, url: str, reach: Reach) -> bytes:
    requests = SourceRequests(kept, Stop())
    try:
        return b"".join(requests.get(f"{url}/a", reach, [("Host", "host")]).iter_stream())
    finally:
        requests.close()


@pytest.fixture
def addresses(monkeypatch) -> list[str]:
    """What a name server says, one answer after another."""
    answers: list[str] = []

    def resolve(_: object, port: int, **__: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers.pop(0), port))]

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    # `create_connection` would resolve the number too.
    monkeypatch.setattr("socket.create_connection", connected)
    return answers


def connected(address: tuple[str, int], timeout: float, **_: object) -> socket.socket:
    made = socket.socket()
    made.settimeout(timeout)
    made.connect(address)
    return made


@pytest.mark.parametrize("kept_seconds", [60.0, -1.0])
def test_a_name_is_judged_anew_for_each_new_connection(kept, site, addresses, monkeypatch, kept_seconds):
    """Fault 28: a connection that is kept leads to where it led; one that is not goes to no other address unjudged."""
    monkeypatch.setattr(connections, "KEPT_SECONDS", kept_seconds)
    addresses += ["127.0.0.1", "169.254.169.254"]
    named = site.url.replace("127.0.0.1", "rebind.test")
    assert ask(kept, named, Reach.LOCALHOST) == b"content"
    if kept_seconds > 0:
        assert ask(kept, named, Reach.LOCALHOST) == b"content"
        assert (len(site.accepted), addresses) == (1, ["169.254.169.254"])
    else:
        with pytest.raises(ArtifactError) as refused:
            ask(kept, named, Reach.LOCALHOST)
        assert (refused.value.reason, addresses) == ("address_not_allowed", [])


def test_what_was_judged_for_the_operators_own_is_not_used_for_what_a_redirect_names(kept, site):
    """Fault 28."""
    assert ask(kept, site.url, Reach.LITERAL) == b"content"
    with pytest.raises(ArtifactError) as refused:
        ask(kept, site.url, Reach.PUBLIC)
    assert refused.value.reason == "address_not_allowed"
    assert len(site.seen) == 1
