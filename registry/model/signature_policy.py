"""Signature policy of a host: signers by tenant, and limits to bind. Pure.

    apiVersion: loraplane/v1
    kind: SignaturePolicy
    keys:
      release: |
        -----BEGIN PUBLIC KEY-----
        …
    authorities:
      acme:
        certificates: |
          -----BEGIN CERTIFICATE-----
          …
        names: [release@acme.example]
    rules:
      - tenants: [acme, "ml-*"]
        signers: [release, acme]
        bind: [name, notAfter]
        ed25519Until: 2027-06-30
      - tenants: ["*"]
        unsigned: true

The first rule that names a tenant decides; a tenant that none names is served nothing. What stands in etcd can only
add to this: a pool that asks for signatures asks for those of the rule's signers where the rule asks for none. So who
may write records or pools cannot loosen it (guarantee A3), and the file is the host's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from registry.lora.ed25519 import BadKey
from registry.lora.signing.keys import Certificates, SigningKey, read_authorities, read_signing_key
from registry.lora.signing.statement import read_moment
from registry.model.names import NamePatterns, tenant_of
from registry.model.operator_yaml import OperatorFileInvalid, read_operator_yaml

MAX_BYTES = 1 << 20
Bound = Literal["name", "pool", "base", "notAfter"]
Word = Annotated[str, StringConstraints(min_length=1, max_length=512)]


def _end(value: object) -> object:
    """A day of YAML's is a date, and means its end."""
    return read_moment(value.isoformat() if isinstance(value, date) else str(value))


class _PolicyPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


class _Authority(_PolicyPart):
    certificates: str
    names: Annotated[tuple[Word, ...], Field(min_length=1)]


class _Rule(_PolicyPart):
    tenants: Annotated[tuple[Word, ...], Field(min_length=1)]
    signers: tuple[Word, ...] = ()
    bind: frozenset[Bound] = frozenset()
    unsigned: bool = False
    ed25519_until: Annotated[datetime | None, BeforeValidator(_end)] = Field(default=None, alias="ed25519Until")

    @model_validator(mode="after")
    def _says_who(self) -> Self:
        if not self.signers and not self.unsigned:
            raise ValueError("name the signers that count, or write unsigned: true if none is asked for")
        return self


class _Policy(_PolicyPart):
    api_version: Literal["loraplane/v1"]
    kind: Literal["SignaturePolicy"]
    keys: dict[Word, str] = {}
    authorities: dict[Word, _Authority] = {}
    rules: Annotated[tuple[_Rule, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if twice := sorted(self.keys.keys() & self.authorities.keys()):
            raise ValueError(f"{twice[0]} is both a key and an authority; give one another name")
        known = self.keys.keys() | self.authorities.keys()
        for number, rule in enumerate(self.rules):
            if unknown := sorted(set(rule.signers) - known):
                raise ValueError(f"rules.{number}.signers: {unknown[0]} is neither in keys nor in authorities")
        return self


@dataclass(frozen=True, slots=True)
class Authority:
    """Authority whose certificates sign, and the names in them that count."""

    certificates: Certificates
    names: NamePatterns


@dataclass(frozen=True, slots=True)
class SigningRule:
    """Rule for the tenants that it names.

    Attributes:
        tenants: of adapters' names.
        keys: by name, whose signatures count.
        authorities: by name, whose certificates count.
        bind: what a signature has to limit.
        unsigned: none is asked for here; a pool may still ask.
        ed25519_until: until when the record's own signature is taken in place of a bundle; None: never.
    """

    tenants: NamePatterns
    keys: Mapping[str, SigningKey]
    authorities: Mapping[str, Authority]
    bind: frozenset[Bound] = frozenset()
    unsigned: bool = False
    ed25519_until: datetime | None = None

    @property
    def signers(self) -> str:
        """Their names, for messages."""
        return ", ".join(sorted((*self.keys, *self.authorities))) or "nobody"


@dataclass(frozen=True, slots=True)
class SignaturePolicy:
    """A policy that can be used; `digest` tells it apart, ``sha256:`` and 64 hex digits."""

    rules: tuple[SigningRule, ...]
    digest: str

    def rule(self, name: str) -> SigningRule | None:
        """The rule for an adapter of that name; None: there is none, so that it may not be served."""
        tenant = tenant_of(name)
        return next((one for one in self.rules if one.tenants.match(tenant)), None)


def read_policy(content: bytes, place: str) -> SignaturePolicy:
    """Reads a policy; `place` names it in messages.

    Raises:
        OperatorFileInvalid: it is too large, no YAML, or not of the form, or a key or certificate cannot be used.
    """
    found = read_operator_yaml(content, place, _Policy, MAX_BYTES)
    keys: dict[str, SigningKey] = {}
    authorities: dict[str, Authority] = {}
    for name, pem in found.keys.items():
        with _told(f"{place}: keys: {name}"):
            keys[name] = read_signing_key(pem)
    for name, one in found.authorities.items():
        with _told(f"{place}: authorities: {name}"):
            authorities[name] = Authority(read_authorities(one.certificates), NamePatterns(one.names, any_case=True))
    rules = tuple(_compiled(one, keys, authorities) for one in found.rules)
    return SignaturePolicy(rules, "sha256:" + hashlib.sha256(content).hexdigest())


@contextmanager
def _told(field: str) -> Iterator[None]:
    try:
        yield
    except BadKey as error:
        raise OperatorFileInvalid(f"{field}: {error}") from error


def _compiled(rule: _Rule, keys: Mapping[str, SigningKey], authorities: Mapping[str, Authority]) -> SigningRule:
    return SigningRule(
        NamePatterns(rule.tenants, any_case=True),
        {name: keys[name] for name in rule.signers if name in keys},
        {name: authorities[name] for name in rule.signers if name in authorities},
        rule.bind,
        rule.unsigned,
        rule.ed25519_until,
    )
