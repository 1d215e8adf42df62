"""Verification of bearer tokens: JSON Web Tokens of several issuers.

A token is verified once in five minutes, and known by its hash meanwhile, so that one of a key that its issuer withdrew
is not believed for much longer. Nothing of a token stands in a message.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jwt

from registry.access.file import Issuer
from registry.access.principal import Credential, Principal
from registry.model.errors import Reason, Unauthenticated

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
