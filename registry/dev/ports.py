"""Ports for servers that take a while to listen, so that nobody else has them by then."""

from __future__ import annotations

import random
import socket
from collections import deque
from collections.abc import Collection

# Below those that systems give to whoever asks for any port: one of these would often be somebody's before we listen.
FIRST, LAST = 10_000, 32_000
_TRIES = 1_000
# As long as one of us is bound to a port and does not listen, nobody is given it here; its server, which reuses
# addresses as servers do, gets it all the same. So it is nobody else's before its server listens, or while it restarts.
_MAX_HELD = 64
_held: deque[socket.socket] = deque()


def free_ports(count: int, taken: Collection[int] = ()) -> list[int]:
    """Ports of the loopback that are free, all different; no process of this machine is told one of them again soon.

    Raises:
        OSError: too few are free.
    """
    chance = random.SystemRandom()
    found: list[int] = []
    for _ in range(_TRIES):
        if len(found) == count:
            return found
        port = chance.randint(FIRST, LAST)
        if port not in taken and _hold(port):
            found.append(port)
    raise OSError(f"no {count} ports from {FIRST} to {LAST} are free")


def _hold(port: int) -> bool:
    """Binds it; False if it is somebody's."""
    one = socket.socket()
    try:
        one.bind(("127.0.0.1", port))
    except OSError:
        one.close()
        return False
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not before: it would be bound to what others hold
    _held.append(one)
    if len(_held) > _MAX_HELD:
        _held.popleft().close()
    return True
