"""The access file: believed credentials, and bindings of roles. Pure.

    apiVersion: loraplane/v1
    kind: Access
    authentication:
      trustDomains: [ops.example]
      certificateNames: [dns]
      issuers:
        - issuer: https://token.actions.githubusercontent.com
          audiences: [loraplane]
          prefix: "github:"
          algorithms: [RS256]
          jwks: https://token.actions.githubusercontent.com/.well-known/jwks
          require: {repository: acme/training}
    bindings:
      - role: publisher
        groups: ["ml-{tenant}-publishers"]
        tenants: ["{tenant}"]
        sources: ["s3://adapters/{tenant}/"]

A word with ``{tenant}`` in users or groups stands for all words of that form; the tenant that it names may then stand
in the other fields of the binding.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from registry.access.principal import RESERVED_PREFIX, SPIFFE
from registry.access.roles import OF_POOLS, OF_TENANTS, AccessRole
from registry.access.scope import PLACEHOLDER, check_pattern, source_prefix
from registry.model.operator_yaml import OperatorFileInvalid, read_operator_yaml

MAX_BYTES = 1 << 20
_DOMAIN = re.compile(r"[a-z0-9._-]{1,255}")


class AccessInvalid(Exception):
    """An access file cannot be used; the message has its line, the field at fault, and what to write there."""


def _domain(text: str) -> str:
    if not _DOMAIN.fullmatch(text):
        raise ValueError("write a trust domain without spiffe://, as ops.example")
    return text


def _pattern(text: str) -> str:
    check_pattern(text)
    return text


def _prefix(text: str) -> str:
    source_prefix(text.replace(PLACEHOLDER, "tenant"))
    return text


def _unreserved(text: str) -> str:
    if text.startswith(RESERVED_PREFIX) and text != EVERYBODY:
        raise ValueError(
            f"names that begin with {RESERVED_PREFIX} are LoraPlane's own; of them only {EVERYBODY} is for bindings"
        )
    if text.count(PLACEHOLDER) > 1 or "{" in text.replace(PLACEHOLDER, ""):
        raise ValueError(f"of braces, only one {PLACEHOLDER} is read")
    return text


# Group of all that are known.
EVERYBODY = RESERVED_PREFIX + "authenticated"
Word = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Who = Annotated[Word, AfterValidator(_unreserved)]
Pattern = Annotated[Word, AfterValidator(_pattern)]
Prefix = Annotated[Word, AfterValidator(_prefix)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, strict=False)


def _overlap(one: str, other: str) -> bool:
    """True if a name may begin with both."""
    return one.startswith(other) or other.startswith(one)


class Issuer(_Part):
    """Issuer of tokens.

    Attributes:
        prefix: begins the names and groups of its principals, so that no two issuers can name the same one.
        jwks: its keys: an absolute path, or an https URL.
        groups: claim that holds the groups.
        require: claims that a token has to have, with these values.
    """

    issuer: Word
    audiences: Annotated[tuple[Word, ...], Field(min_length=1)]
    prefix: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    algorithms: Annotated[tuple[Literal["RS256", "ES256", "EdDSA"], ...], Field(min_length=1)]
    jwks: Annotated[str, StringConstraints(pattern=r"^(/|https://|http://(127\.0\.0\.1|\[::1\]|localhost)[:/])")]
    groups: Word = "groups"
    require: dict[Word, str | bool | int] = {}

    @model_validator(mode="after")
    def _not_reserved(self) -> Self:
        for own in (RESERVED_PREFIX, SPIFFE):
            if _overlap(self.prefix, own):
                raise ValueError(f"prefix: no token may name somebody whose name begins with {own}")
        return self


class Authentication(_Part):
    """Credentials that are believed, and by which name of theirs.

    Attributes:
        trust_domains: of SPIFFE ids in the certificates of operators and services.
        certificate_names: kinds of names of a certificate without a SPIFFE id that count, the first that it has.
        issuers: of tokens.
    """

    trust_domains: tuple[Annotated[str, AfterValidator(_domain)], ...] = ()
    certificate_names: tuple[Literal["dns", "email", "commonName"], ...] = ("dns", "email")
    issuers: tuple[Issuer, ...] = ()

    @model_validator(mode="after")
    def _apart(self) -> Self:
        for one, other in combinations(self.issuers, 2):
            if one.issuer == other.issuer:
                raise ValueError("issuers: two have the same issuer; give each its own")
            if _overlap(one.prefix, other.prefix):
                raise ValueError("issuers: two have the same prefix, or one begins with the other; end each with :")
        return self


class Binding(_Part):
    """Role of users and groups, and what it is about.

    Attributes:
        tenants: of which tenants, with ``*``; for roles that are about adapters.
        pools: in which pools, with ``*``.
        sources: URIs below which new adapters have to be; empty: anywhere.
        credentials: names of the credentials that they may be fetched with, with ``*``; empty: none.
    """

    role: AccessRole
    users: tuple[Who, ...] = ()
    groups: tuple[Who, ...] = ()
    tenants: tuple[Pattern, ...] = ()
    pools: tuple[Pattern, ...] = ("*",)
    sources: tuple[Prefix, ...] = ()
    credentials: tuple[Pattern, ...] = ()

    @model_validator(mode="after")
    def _fits_role(self) -> Self:
        if not self.users and not self.groups:
            raise ValueError("a binding needs users or groups")
        if self.role in OF_TENANTS and not self.tenants:
            raise ValueError(f'say of which tenants the role {self.role} is, as tenants: [acme] or tenants: ["*"]')
        if self.role not in OF_TENANTS and self.tenants:
            raise ValueError(f"the role {self.role} is about all tenants; leave tenants out")
        if self.role not in OF_POOLS and self.pools != ("*",):
            raise ValueError(f"the role {self.role} is about all pools; leave pools out")
        if self.role is not AccessRole.PUBLISHER and (self.sources or self.credentials):
            raise ValueError("sources and credentials are for the role publisher")
        self._check_placeholders()
        return self

    def _check_placeholders(self) -> None:
        filled = PLACEHOLDER in "".join((*self.tenants, *self.pools, *self.sources, *self.credentials))
        if filled and not all(PLACEHOLDER in word for word in (*self.users, *self.groups)):
            raise ValueError(f"each user and group has to hold {PLACEHOLDER}, since another field of the binding does")


class RequestLimits(_Part):
    """Calls that each caller may make; None: any number. The host's socket has none.

    Attributes:
        calls_per_second: as many also at once, of one who was quiet for a second.
        calls_at_once: under way, streams included.
    """

    calls_per_second: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    calls_at_once: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


NO_LIMITS = RequestLimits()


class _Access(_Part):
    api_version: Literal["loraplane/v1"]
    kind: Literal["Access"]
    authentication: Authentication = Authentication()
    limits: RequestLimits = NO_LIMITS
    bindings: tuple[Binding, ...]

    @model_validator(mode="after")
    def _has_security(self) -> Self:
        if not any(one.role is AccessRole.SECURITY for one in self.bindings):
            raise ValueError("bindings: name somebody with the role security, who may change what holds others back")
        return self


@dataclass(frozen=True, slots=True)
class Access:
    """An access file that can be used; `digest` tells it apart, ``sha256:`` and 64 hex digits."""

    authentication: Authentication
    bindings: tuple[Binding, ...]
    digest: str
    limits: RequestLimits = NO_LIMITS

    def named(self) -> Iterator[tuple[int, str, str]]:
        """Number of the binding, ``pool`` or ``tenant``, and name, for each name that stands for one thing alone."""
        for number, binding in enumerate(self.bindings, 1):
            for kind, words in (("pool", binding.pools), ("tenant", binding.tenants)):
                yield from ((number, kind, word) for word in words if "*" not in word and PLACEHOLDER not in word)


def read_access(content: bytes, place: str) -> Access:
    """Reads an access file; `place` names it in messages.

    Raises:
        AccessInvalid: it is too large, no YAML, or not of the form.
    """
    try:
        found = read_operator_yaml(content, place, _Access, MAX_BYTES)
    except OperatorFileInvalid as error:
        raise AccessInvalid(str(error)) from error
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    return Access(found.authentication, found.bindings, digest, found.limits)
