"""Verification of bearer tokens: JSON Web Tokens of several issuers.

A token is verified once in five minutes, and known by its hash meanwhile, so that one of a key that its issuer withdrew
is not believed for much longer. Nothing of a token stands in a message.

Keys of issuers come from a file or an address, and are read anew as they rotate. An issuer that does not answer, or
lies, takes nothing away: its last good keys count for an hour. A key that is not known is looked for at once, but not
more often than every ten seconds, however many tokens name one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import jwt
import structlog

from registry.access.file import Issuer
from registry.access.principal import Credential, Principal
from registry.model.errors import Reason, Unauthenticated
from registry.runtime.local_files import read_followed

MAX_TOKEN_CHARACTERS = 16 << 10
LEEWAY_SECONDS = 30
MAX_KNOWN = 4096
KNOWN_SECONDS = 300.0
_MAX_GROUPS = 256
_CLAIMS = ("iss", "aud", "exp", "sub")
# The public key of an issuer by its id, "" for a token without one; None: there is no such key.
KeyOf = Callable[[Issuer, str], Awaitable[jwt.PyJWK | None]]


@dataclass(frozen=True, slots=True)
class Known:
    """Principal of a token.

    Attributes:
        expires: until when it is believed, in seconds since 1970, the leeway included.
        verify_at: when its signature is looked at again.
    """

    principal: Principal
    expires: float
    verify_at: float


class Tokens:
    """Verifier of tokens.

    Args:
        issuers: whose tokens are believed.
        key_of: finds their keys.
        wall: the time.
    """

    def __init__(self, issuers: Sequence[Issuer], key_of: KeyOf, wall: Callable[[], datetime]) -> None:
        self._issuers = {one.issuer: one for one in issuers}
        self._key_of = key_of
        self._wall = wall
        self._known: OrderedDict[bytes, Known] = OrderedDict()

    def known(self, token: str) -> Known | None:
        """The principal of a token that was verified lately; None: it has to be."""
        known, now = self._known.get(_digest(token)), self._wall().timestamp()
        return known if known is not None and now < min(known.verify_at, known.expires) else None

    async def verify(self, token: str) -> Known:
        """The principal of a token.

        Raises:
            Unauthenticated: it is not believed; the message says why.
        """
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise _refused(f"it has more than {MAX_TOKEN_CHARACTERS} characters")
        digest = _digest(token)
        known, now = self._known.pop(digest, None), self._wall().timestamp()
        if known is None or known.verify_at <= now < known.expires:
            known = await self._verified(token)
        if now < known.expires:
            self._known[digest] = known
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
            return known
        raise _refused("it has expired; take a new one")

    async def _verified(self, token: str) -> Known:
        issuer, key_id = self._claimed(token)
        key = await self._key_of(issuer, key_id)
        if key is None:
            raise _refused(f"{issuer.issuer} has no key {key_id[:64]!r} by which it could be signed")
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=list(issuer.algorithms),
                audience=list(issuer.audiences),
                issuer=issuer.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": list(_CLAIMS), "verify_exp": False, "verify_nbf": False, "verify_iat": False},
            )
            return self._known_by(issuer, claims)
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise _refused(_why(error, issuer)) from error

    def _claimed(self, token: str) -> tuple[Issuer, str]:
        """Issuer and id of the key, as the token says before anything is verified."""
        try:
            header = jwt.get_unverified_header(token)
            claims = jwt.decode(token, options={"verify_signature": False})
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise _refused("it is no JSON Web Token") from error
        claimed = claims.get("iss")
        issuer = self._issuers.get(claimed) if isinstance(claimed, str) else None
        if issuer is None:
            raise _refused("no issuer in the access file is that of it")
        if header.get("alg") not in issuer.algorithms:
            raise _refused(f"it is not signed by {' or '.join(issuer.algorithms)}, which {issuer.issuer} has to use")
        key_id = header.get("kid", "")
        return issuer, key_id if isinstance(key_id, str) else ""

    def _known_by(self, issuer: Issuer, claims: Mapping[str, Any]) -> Known:
        """Principal by claims whose signature is right. Raises ValueError: they are not believed."""
        now, expires = self._wall().timestamp(), _seconds(claims, "exp")
        if "nbf" in claims and now < _seconds(claims, "nbf") - LEEWAY_SECONDS:
            raise ValueError("it is not valid yet; compare the clocks")
        for name, value in issuer.require.items():
            if type(claims.get(name)) is not type(value) or claims[name] != value:
                raise ValueError(f"its claim {name!r} is not what the access file requires")
        subject = claims["sub"]
        if not _is_text(subject) or not subject:
            raise ValueError("its claim 'sub' is empty, or no text that can be shown")
        groups = claims.get(issuer.groups, [])
        if not isinstance(groups, list) or len(groups) > _MAX_GROUPS or not all(map(_is_text, groups)):
            raise ValueError(f"its claim {issuer.groups!r} is no list of at most {_MAX_GROUPS} texts")
        named = frozenset(issuer.prefix + one for one in groups)
        principal = Principal(issuer.prefix + subject, Credential.TOKEN, named)
        return Known(principal, expires + LEEWAY_SECONDS, now + KNOWN_SECONDS)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token[: MAX_TOKEN_CHARACTERS + 1].encode(errors="replace")).digest()


def _is_text(value: object) -> bool:
    """True for a text that can be shown, and so encoded."""
    return isinstance(value, str) and value.isprintable()


def _seconds(claims: Mapping[str, Any], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1 << 53:
        raise ValueError(f"its claim {name!r} is no time")
    return float(value)


def _why(error: Exception, issuer: Issuer) -> str:
    match error:
        case jwt.MissingRequiredClaimError(claim=claim):
            return f"it lacks the claim {claim!r}"
        case jwt.InvalidAudienceError():
            return f"it is for another service: its audience has to be {' or '.join(issuer.audiences)}"
        case jwt.InvalidSignatureError() | jwt.InvalidKeyError() | jwt.InvalidAlgorithmError():
            return f"it is not signed by a key of {issuer.issuer}"
        case ValueError():
            return str(error)
    return "it is no JSON Web Token of the form that is needed"


def _refused(why: str) -> Unauthenticated:
    return Unauthenticated(Reason.UNAUTHENTICATED, f"the token is not believed: {why}")


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
        self._held: dict[tuple[str, frozenset[str]], _Held] = {}  # by address, and algorithms of the keys that are kept

    async def key_of(self, issuer: Issuer, key_id: str) -> jwt.PyJWK | None:
        """The key of an id; None: the issuer has none, or cannot be asked."""
        held = self._held.setdefault((issuer.jwks, frozenset(issuer.algorithms)), _Held())
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
    """Content at an address; redirects are not followed, and no proxy is asked. SSL_CERT_FILE names its authorities.

    Raises:
        TimeoutError: not all of it within `FETCH_SECONDS`.
        httpx.HTTPError: nobody answers, or not with it.
        ValueError: it is too large.
    """
    body = bytearray()
    async with (
        asyncio.timeout(FETCH_SECONDS),
        httpx.AsyncClient(trust_env=False, verify=httpx.create_ssl_context(), timeout=FETCH_SECONDS) as client,
        client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as reply,
    ):
        reply.raise_for_status()
        async for chunk in reply.aiter_raw():
            body += chunk
            if len(body) > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES} bytes")
    return bytes(body)
