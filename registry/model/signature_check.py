"""Decision whether a bundle vouches for an adapter under a host's policy. Pure.

In this order, so that the first thing that is wrong is said: the form, the signer, the statement, its limits, and at
last the files. All but the last is decided before a byte of the weights is fetched. Files are compared by the sha256
that this process found when it hashed them (guarantee R21); of what else the statement lists nothing is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from registry.lora.digest import FileEntry
from registry.lora.signatures import SignatureReason
from registry.lora.signing.bundle import SignedBundle, read_bundle
from registry.lora.signing.forms import BadBundle
from registry.lora.signing.keys import BadChain, certified_signer
from registry.lora.signing.statement import SIGNATURE_FILE, SignatureBinding, SignedFiles, read_statement, zulu
from registry.lora.text import printable
from registry.model.names import NamePatterns, tenant_of
from registry.model.signature_policy import SigningRule

_SIGN = "sign it anew with loraplane sign DIR --key KEY.pem"


class SignatureRefused(Exception):
    """Nobody who counts vouches for an adapter; `reason` is stable, the message has what was found and the remedy."""

    def __init__(self, reason: SignatureReason, message: str) -> None:
        super().__init__(message)
        self.reason: SignatureReason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Use:
    """Use that is asked for: under which name, in which pool, on which base.

    `bases`: the names of the pool's base model, and the fingerprint of its modules.
    """

    name: str
    pool: str
    bases: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Voucher:
    """Bundle that counts: whose it is, the files that it names, and how long it may be used."""

    signer: str
    signed: SignedFiles

    @property
    def not_after(self) -> datetime | None:
        """The last moment; None: it has none."""
        return self.signed.binding.not_after


def absent(name: str) -> SignatureRefused:
    """Refusal of an adapter of that name that has no bundle."""
    message = (
        f"there is no {SIGNATURE_FILE} beside the files, and the signature policy of this host asks for one of the "
        f"tenant {tenant_of(name)}; make it with loraplane sign DIR --key KEY.pem, or model_signing sign"
    )
    return SignatureRefused("bundle_missing", message)


def without_rule(name: str) -> SignatureRefused:
    """Refusal of an adapter whose tenant the policy does not know."""
    message = (
        f"the signature policy of this host has no rule for the tenant {tenant_of(name)}; "
        "add one to the file of --signature-policy"
    )
    return SignatureRefused("signer_untrusted", message)


def vouched(rule: SigningRule, content: bytes, use: Use, now: datetime) -> Voucher:
    """Voucher of a bundle, as far as it can be told without the files.

    Raises:
        SignatureRefused: nothing that counts, or not for this use.
    """
    try:
        bundle = read_bundle(content)
        signer = _certified(rule, bundle, now) if bundle.chain else _keyed(rule, bundle)
        signed = read_statement(bundle.payload)
    except BadBundle as error:
        raise SignatureRefused("bundle_invalid", f"{SIGNATURE_FILE} cannot be used: {error}") from error
    _check_binding(rule, signed.binding, use, now)
    return Voucher(signer, signed)


def _keyed(rule: SigningRule, bundle: SignedBundle) -> str:
    """The name of the key that it was signed with."""
    named = {name: key for name, key in rule.keys.items() if bundle.hint in {"", key.hint}}
    if (signer := next((name for name, key in named.items() if key.made(bundle)), None)) is not None:
        return signer
    if named and bundle.hint:
        raise _forged(f"the key {', '.join(named)}")
    by = f"the key {printable(bundle.hint)[:16]}…" if bundle.hint else "a key that it does not name"
    raise _untrusted(rule, f"was signed with {by}")


def _certified(rule: SigningRule, bundle: SignedBundle, now: datetime) -> str:
    """The name of the authority that its certificates lead to."""
    why = "no authority counts"
    for name, authority in rule.authorities.items():
        try:
            found = certified_signer(bundle.chain, authority.certificates, now)
        except BadChain as error:
            why = str(error)
            continue
        if any(map(authority.names.match, found.names)):
            if not found.key.made(bundle):
                raise _forged("its certificate")
            return name
        why = f"it is of {', '.join(map(printable, found.names))[:200] or 'nobody'}, whom the policy does not name"
    raise _untrusted(rule, f"was signed with a certificate that does not count: {why[:300]}")


def _forged(by: str) -> SignatureRefused:
    message = f"{SIGNATURE_FILE} was changed after it was signed: its statement is not what {by} signed; {_SIGN}"
    return SignatureRefused("bundle_invalid", message)


def _untrusted(rule: SigningRule, how: str) -> SignatureRefused:
    message = (
        f"{SIGNATURE_FILE} {how}; expected {rule.signers}, by the signature policy of this host: sign it with one of "
        "these, or have the signer added to the file of --signature-policy"
    )
    return SignatureRefused("signer_untrusted", message)


def _check_binding(rule: SigningRule, binding: SignatureBinding, use: Use, now: datetime) -> None:
    for what, flag, is_there in (
        ("name", "--name", binding.names),
        ("pool", "--pool", binding.pools),
        ("base", "--base", binding.base),
        ("notAfter", "--not-after", binding.not_after),
    ):
        if what in rule.bind and not is_there:
            message = f"{SIGNATURE_FILE} does not bind {what}, which the policy of this host asks for"
            raise SignatureRefused("signed_for_other", f"{message}; {_SIGN} {flag} …")
    if binding.not_after is not None and now > binding.not_after:
        message = f"what {SIGNATURE_FILE} allows ended at {zulu(binding.not_after)}"
        raise SignatureRefused("signature_expired", f"{message}; {_SIGN} --not-after …")
    if binding.names and not NamePatterns(binding.names, any_case=True).match(use.name):
        raise _for_other("names", binding.names, use.name, "--name")
    if binding.pools and not NamePatterns(binding.pools).match(use.pool):
        raise _for_other("pools", binding.pools, use.pool, "--pool")
    if binding.base is not None and binding.base not in use.bases:
        raise _for_other("base", (binding.base,), ", ".join(sorted(use.bases)) or "a base that is not known", "--base")


def _for_other(what: str, allowed: Iterable[str], found: str, flag: str) -> SignatureRefused:
    told = printable(", ".join(allowed))[:300]
    message = f"{SIGNATURE_FILE} allows the {what} {told}, and this is {printable(found)[:300]}; {_SIGN} {flag} …"
    return SignatureRefused("signed_for_other", message)


def check_files(signed: SignedFiles, entries: Iterable[FileEntry]) -> None:
    """Compares a statement with files as they were hashed.

    Raises:
        SignatureRefused: a file has other content than was signed, or was not signed at all.
    """
    for entry in entries:
        expected = signed.sha256.get(entry.path)
        if expected is None:
            message = f"{entry.path} is not among the files that {SIGNATURE_FILE} was made over"
        elif expected != entry.sha256:
            message = f"{entry.path} has the sha256 {entry.sha256}, {SIGNATURE_FILE} was made over {expected}"
        else:
            continue
        remedy = "put the files there that were signed, or sign these"
        raise SignatureRefused("signed_other_files", f"{message}; {remedy}")
