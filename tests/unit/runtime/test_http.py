"""Where a process listens."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from registry.runtime.http import CannotListen, listen, listen_as_told
from registry.runtime.settings import Address


@pytest.mark.parametrize(
    ("host", "family"), [("::1", socket.AF_INET6), ("::", socket.AF_INET6), ("127.0.0.1", socket.AF_INET)]
)
def test_an_address_of_either_kind_can_be_listened_at(monkeypatch, host, family):
    """On machines that have it: this one may have no IPv6."""
    made: list[tuple[Any, Any]] = []
    create = socket.create_server

    def created(address: tuple[str, int], *, family: int) -> socket.socket:
        made.append((address, family))
        return create(("127.0.0.1", 0))

    monkeypatch.setattr("socket.create_server", created)
    with listen(host, 80) as listener:
        assert made == [((host, 80), family)]
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_that_cannot_be_listened_at_is_told_with_its_flag():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen) as told:
            listen_as_told("--http", Address(host="127.0.0.1", port=port))
    assert str(told.value) == f"--http 127.0.0.1:{port}: Address already in use"
