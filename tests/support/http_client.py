"""Clients of our own pages and of engines, which have no TLS."""

from __future__ import annotations

import ssl
from typing import Any

import httpx

# httpx makes one for each client, also for one that speaks plain HTTP, and that takes 30 ms: a test that waits would
# spend more on its clients than the process that it waits for.
CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def http_client(**options: Any) -> httpx.AsyncClient:
    """A client with these options of httpx's, for addresses with ``http://`` unless `verify` is given."""
    return httpx.AsyncClient(**{"verify": CONTEXT, **options})
