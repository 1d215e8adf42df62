"""ECDSA keys and certificates that sign bundles. Pure.

Curves and hashes are those of `model-signing`: P-256 with SHA-256, P-384 with SHA-384, P-521 with SHA-512.

A certificate counts only while it is valid: `model-signing` looks at the moment at which it began, since nothing tells
when a signature was made, but then whoever comes by the key of a certificate that ended long ago could sign on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512, HashAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID

from registry.lora.ed25519 import BadKey
from registry.lora.signing.bundle import SignedBundle, signed_content, write_bundle

_HASHES: dict[str, HashAlgorithm] = {"secp256r1": SHA256(), "secp384r1": SHA384(), "secp521r1": SHA512()}
_CURVES = "P-256, P-384 or P-521; make one with openssl ecparam -genkey -name prime256v1 -noout"
_CHAIN_DEPTH = 6
# What a certificate that somebody made up raises; not all of it is a ValueError.
_UNREADABLE = (
    *(ValueError, TypeError, UnsupportedAlgorithm),
    *(x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType),
)
Certificates = tuple[x509.Certificate, ...]
Extension = TypeVar("Extension", bound=x509.ExtensionType)


class BadChain(ValueError):
    """Certificates do not lead to an authority, or not now; the message says why."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key that bundles are signed with; `hint` is its sha256 as bundles have it."""

    key: ec.EllipticCurvePublicKey
    hint: str

    def made(self, bundle: SignedBundle) -> bool:
        """True if the bundle was signed with this key's private half."""
        try:
            self.key.verify(bundle.signature, signed_content(bundle.payload), ec.ECDSA(_HASHES[self.key.curve.name]))
        except InvalidSignature:
            return False
        return True


def read_signing_key(pem: str) -> SigningKey:
    """A public key in PEM.

    Raises:
        BadKey: it is none of these curves.
    """
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadKey("it is no public key in PEM; openssl pkey -in key.pem -pubout prints one") from error
    return _signing_key(key)


def _signing_key(key: object) -> SigningKey:
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _HASHES:
        curve = f"of the curve {key.curve.name}" if isinstance(key, ec.EllipticCurvePublicKey) else "of another kind"
        raise BadKey(f"it is a key {curve}, expected ECDSA on {_CURVES}")
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return SigningKey(key, hashlib.sha256(pem).hexdigest())


def is_ec_key(private_pem: bytes) -> bool:
    """True for a private key of an elliptic curve, on whichever curve; False for what is none, or cannot be read."""
    try:
        return isinstance(load_pem_private_key(private_pem, password=None), ec.EllipticCurvePrivateKey)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def sign_statement(payload: bytes, private_pem: bytes, chain_pem: bytes = b"") -> bytes:
    """The bundle of a statement. `chain_pem`: the signer's certificate and those above it; empty: it has none.

    Raises:
        BadKey: `private_pem` is no key of these curves, or not that of the first certificate.
    """
    private = load_pem_private_key(private_pem, password=None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise BadKey(f"it is a key of another kind, expected ECDSA on {_CURVES}")
    public = _signing_key(private.public_key())
    try:
        chain = x509.load_pem_x509_certificates(chain_pem) if chain_pem else []
    except _UNREADABLE as error:
        raise BadKey("the certificates are not in PEM") from error
    if chain and chain[0].public_key() != public.key:
        raise BadKey("the first certificate is of another key; put the signer's own first")
    signature = private.sign(signed_content(payload), ec.ECDSA(_HASHES[public.key.curve.name]))
    ders = tuple(one.public_bytes(Encoding.DER) for one in chain)
    return write_bundle(SignedBundle(payload, signature, public.hint, ders))


@dataclass(frozen=True, slots=True)
class CertifiedSigner:
    """Signer that an authority vouches for: its key, and its names of the kinds that certificates have."""

    key: SigningKey
    names: tuple[str, ...]


def read_authorities(pem: str) -> Certificates:
    """Certificates of authorities in PEM.

    Raises:
        BadKey: there is none, or one cannot be read.
    """
    try:
        return tuple(x509.load_pem_x509_certificates(pem.encode()))
    except _UNREADABLE as error:
        raise BadKey("it holds no certificates in PEM") from error


def certified_signer(chain: Sequence[bytes], authorities: Certificates, now: datetime) -> CertifiedSigner:
    """The signer of a bundle with certificates, if an authority vouches for it now.

    Raises:
        BadChain: it does not, or the certificate is not for signing.
    """
    try:
        leaf, *others = (x509.load_der_x509_certificate(one) for one in chain)
        _check_time(leaf, now)
        verifier = _builder().store(verification.Store(list(authorities))).time(now).build_client_verifier()
        verifier.verify(leaf, others)
        _check_usage(leaf.extensions)
        key, names = _signing_key(leaf.public_key()), _names(leaf)
    except (*_UNREADABLE, verification.VerificationError) as error:
        raise BadChain(str(error)) from error
    return CertifiedSigner(key, names)


def _check_time(leaf: x509.Certificate, now: datetime) -> None:
    begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if not begin <= now <= end:
        raise ValueError(f"the signer's certificate was valid from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC")


def _builder() -> verification.PolicyBuilder:
    """Rules for chains of any authority: those of the web ask for names of servers, and for what few others write."""
    anything = verification.ExtensionPolicy.permit_all()
    either = verification.Criticality.AGNOSTIC
    authority = anything.require_present(x509.BasicConstraints, either, None).may_be_present(
        x509.KeyUsage, either, _may_certify
    )
    builder = verification.PolicyBuilder().max_chain_depth(_CHAIN_DEPTH)
    return builder.extension_policies(ca_policy=authority, ee_policy=anything)


def _may_certify(_policy: object, _certificate: object, found: x509.KeyUsage | None) -> None:
    if found is not None and not found.key_cert_sign:
        raise ValueError("a certificate above the signer's may not certify others")


def _extension(found: x509.Extensions, kind: type[Extension]) -> Extension | None:
    try:
        return found.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _check_usage(extensions: x509.Extensions) -> None:
    """As `model-signing` has it: for digital signatures, or for the signing of code."""
    usage = _extension(extensions, x509.KeyUsage)
    extended = _extension(extensions, x509.ExtendedKeyUsage)
    if (usage is None or not usage.digital_signature) and ExtendedKeyUsageOID.CODE_SIGNING not in (extended or ()):
        raise ValueError("the signer's certificate is not for signing: keyUsage digitalSignature, or codeSigning")


def _names(leaf: x509.Certificate) -> tuple[str, ...]:
    """Alternative names, or else the common name."""
    alternative = _extension(leaf.extensions, x509.SubjectAlternativeName)
    if alternative is not None:
        kinds = (x509.UniformResourceIdentifier, x509.RFC822Name, x509.DNSName)
        return tuple(str(name) for kind in kinds for name in alternative.get_values_for_type(kind))
    return tuple(str(one.value) for one in leaf.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME))
