"""Public keys of issuers, from a file or an address, read anew as they rotate.

An issuer that does not answer, or lies, takes nothing away: its last good keys count for an hour. A key that is not
known is looked for at once, but not more often than every ten seconds, however many tokens name one.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import jwt
import structlog

from registry.access.file import Issuer
from registry.runtime.local_files import read_followed

MAX_BYTES = 256 << 10
GOOD_SECONDS = 3600.0
FRESH_SECONDS = 300.0
PAUSE_SECONDS = 10.0
FETCH_SECONDS = 1.5
_log = structlog.get_logger()
# Of a private key the factors are searched for, which may hold the event loop for minutes.
_PUBLIC = ("kty", "use", "kid", "alg", "n", "e", "crv", "x", "y")
# How what is no set of keys fails as one.
_NO_KEYS = (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, RecursionError)
Fetch = Callable[[str], Awaitable[bytes]]


@dataclass(slots=True)
class _Held:
    """Keys of one issuer by id; when they were read, and last looked for, by the loop's clock."""

    keys: dict[str, jwt.PyJWK] = field(default_factory=dict)
    read_at: float = -math.inf
    looked_at: float = -math.inf
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class KeySets:
    """Keys of all issuers. `fetch` gives the content at an https address within a time of its own, or raises."""

    def __init__(self, fetch: Fetch | None = None) -> None:
        self._fetch = fetch or fetched
        self._held: dict[str, _Held] = {}

    async def key_of(self, issuer: Issuer, key_id: str) -> jwt.PyJWK | None:
        """The key of an id; None: the issuer has none, or cannot be asked."""
        held = self._held.setdefault(issuer.jwks, _Held())
        known = held.keys.get(key_id)
        if known and held.lock.locked() and asyncio.get_running_loop().time() - held.read_at < GOOD_SECONDS:
            return known  # somebody asks the issuer, which may hang: nobody else waits for that
        async with held.lock:
            now = asyncio.get_running_loop().time()
            is_due = now - held.read_at >= FRESH_SECONDS or key_id not in held.keys
            if is_due and now - held.looked_at >= PAUSE_SECONDS:
                held.looked_at = now
                await self._read(issuer, held)
            if asyncio.get_running_loop().time() - held.read_at >= GOOD_SECONDS:
                held.keys.clear()
            return held.keys.get(key_id)

    async def _read(self, issuer: Issuer, held: _Held) -> None:
        try:
            if issuer.jwks.startswith("/"):
                content = await asyncio.to_thread(read_followed, Path(issuer.jwks), max_bytes=MAX_BYTES)
            else:
                content = await self._fetch(issuer.jwks)
            held.keys = _keys(content, issuer)
        except (OSError, httpx.HTTPError, TimeoutError, jwt.PyJWTError, *_NO_KEYS) as error:
            _log.warning(
                "keys_not_read", issuer=issuer.issuer, jwks=issuer.jwks, reason=str(error) or type(error).__name__
            )
            return
        held.read_at = asyncio.get_running_loop().time()


def _keys(content: bytes, issuer: Issuer) -> dict[str, jwt.PyJWK]:
    """Keys of a set that are for the issuer's algorithms. Raises what jwt raises: none is."""
    given = json.loads(content)["keys"]
    found = jwt.PyJWKSet([{field: one[field] for field in _PUBLIC if field in one} for one in given])
    keys = {one.key_id or "": one for one in found.keys if one.algorithm_name in issuer.algorithms}
    if not keys:
        raise ValueError(f"no key of it is for {' or '.join(issuer.algorithms)}")
    return keys


async def fetched(url: str) -> bytes:
    """Content at an address; redirects are not followed, and no proxy is asked.

    Raises:
        TimeoutError: not all of it within `FETCH_SECONDS`.
        httpx.HTTPError: nobody answers, or not with it.
        ValueError: it is too large.
    """
    body = bytearray()
    async with (
        asyncio.timeout(FETCH_SECONDS),
        httpx.AsyncClient(trust_env=False, timeout=FETCH_SECONDS) as client,
        client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as reply,
    ):
        reply.raise_for_status()
        async for chunk in reply.aiter_raw():
            body += chunk
            if len(body) > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES} bytes")
    return bytes(body)
