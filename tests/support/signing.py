"""Keys and certificates for signing adapters."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID


def make_key(folder: Path, name: str = "key") -> tuple[bytes, str]:
    """A private Ed25519 key in PEM, which is written to `folder` too, and its public key in PEM."""
    file = folder / f"{name}.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", file], check=True, capture_output=True)
    private = file.read_bytes()
    return private, public_pem(private)


def public_pem(private: bytes) -> str:
    """The public key of a private one."""
    done = subprocess.run(["openssl", "pkey", "-pubout"], input=private, check=True, capture_output=True)
    return done.stdout.decode()


P256 = ec.SECP256R1()


def make_ec_key(curve: ec.EllipticCurve = P256) -> tuple[bytes, str]:
    """A private ECDSA key in PEM, and its public key in PEM."""
    private = ec.generate_private_key(curve)
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem, private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


BEGIN, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
FOR_SIGNING = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)
FOR_CODE = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])
_FOR_CERTIFYING = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # noqa: FBT003 - as the standard has them


class SigningAuthority:
    """An authority whose certificates sign adapters, itself certified by another or by nobody."""

    def __init__(
        self,
        name: str = "acme",
        above: SigningAuthority | None = None,
        *,
        is_one: bool = True,
        usage: x509.KeyUsage | None = None,
    ) -> None:
        """`is_one`: it says that it is an authority. `usage`: of its key; None: to certify others."""
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name, self._above = _called(name), above
        extensions = (x509.BasicConstraints(ca=is_one, path_length=None), usage or _FOR_CERTIFYING)
        key, issuer = (above._key, above._name) if above else (self._key, self._name)
        self.certificate = _certificate(self._name, self._key, issuer, key, extensions, (BEGIN, END))

    @property
    def pem(self) -> str:
        """Its certificate."""
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def issue(
        self,
        *names: x509.GeneralName,
        usage: x509.ExtensionType | None = FOR_SIGNING,
        curve: ec.EllipticCurve = P256,
        valid: tuple[datetime, datetime] = (BEGIN, END),
    ) -> tuple[bytes, bytes]:
        """A private key in PEM, and its certificate with those above it but for the first, as signers have them."""
        key = ec.generate_private_key(curve)
        extensions: list[x509.ExtensionType] = [x509.SubjectAlternativeName(names)] if names else []
        extensions += [usage] if usage is not None else []
        leaf = _certificate(_called("signer"), key, self._name, self._key, extensions, valid)
        chain = leaf.public_bytes(Encoding.PEM) + (self.pem.encode() if self._above else b"")
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), chain


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    extensions: Iterable[x509.ExtensionType],
    valid: tuple[datetime, datetime],
) -> x509.Certificate:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(valid[0]).not_valid_after(valid[1])
    for one in extensions:
        builder = builder.add_extension(one, critical=isinstance(one, x509.BasicConstraints | x509.KeyUsage))
    return builder.sign(issuer_key, SHA256())
