"""An address at which nobody answers, for as long as a test needs it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def nobody_listens() -> Iterator[str]:
    """HOST:PORT where whoever connects is refused: the port is held, so that no other test's server gets it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"
