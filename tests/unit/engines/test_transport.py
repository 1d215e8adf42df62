"""The way to an engine with TLS."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.engines.transport import GetRequest, NotSent, Reply, Transport
from tests.support.tls import Authority
from tests.support.web import Site, serving


async def answer_of(transport: Transport) -> Reply | NotSent:
    """The answer; NotSent: there was no connection."""
    found = await transport.send([GetRequest("/a")], {}, timeout_seconds=60)
    if isinstance(found, NotSent):
        return found
    (one,) = found
    assert isinstance(one, Reply)
    return one


@pytest.mark.parametrize(
    ("url", "port"),
    [("http://engine", 80), ("https://engine", 443), ("http://engine:8000/base", 8000), ("https://engine:8", 8)],
)
async def test_without_a_port_it_is_that_of_the_scheme(monkeypatch, url, port):
    """As for any other client; an identity is looked for at the same one."""
    called: list[tuple[object, ...]] = []

    async def refused(*address: object, **_: object) -> None:
        called.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio, "open_connection", refused)
    assert isinstance(await answer_of(Transport(url)), NotSent)
    assert called == [("engine", port)]


async def test_authorities_are_read_again(tmp_path, monkeypatch):
    """R13 static-stable: a new one counts from the next call on; what is no authority, or gone, changes nothing."""
    old, new = (Authority(tmp_path / name, name).issue("engine") for name in ("old", "new"))
    file = tmp_path / "authorities"
    file.write_bytes(old.ca.read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with serving(Site({"/a": b"a"}), old) as engine, serving(Site({"/a": b"b"}), new) as other:
        transport, replaced = Transport(engine.url), Transport(other.url)
        assert await answer_of(transport) == Reply(200, b"a")
        assert isinstance(await answer_of(replaced), NotSent)
        for content in (b"?", None, new.ca.read_bytes()):
            file.unlink() if content is None else file.write_bytes(content)
            expected = NotSent if content == new.ca.read_bytes() else Reply
            assert isinstance(await answer_of(transport), expected)
        assert await answer_of(replaced) == Reply(200, b"b")
