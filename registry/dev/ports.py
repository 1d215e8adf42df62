"""Ports for servers that take a while to listen, so that nobody else has them by then."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from contextlib import ExitStack

# Below those that systems give to whoever asks for any port: one of these would often be somebody's before we listen.
FIRST, LAST = 10_000, 32_000
_TRIES = 1_000


def free_ports(count: int, taken: Collection[int] = ()) -> list[int]:
    """Ports of the loopback that were free a moment ago, all different.

    Raises:
        OSError: too few are free.
    """
    chance = random.SystemRandom()
    with ExitStack() as stack:
        found: list[int] = []
        for _ in range(_TRIES):
            if len(found) == count:
                return found
            port = chance.randint(FIRST, LAST)
            one = stack.enter_context(socket.socket())
            if port not in taken and _binds(one, port):
                found.append(port)
    raise OSError(f"no {count} ports from {FIRST} to {LAST} are free")


def _binds(one: socket.socket, port: int) -> bool:
    try:
        one.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True
