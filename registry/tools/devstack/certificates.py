"""Maker of the certificates of an installation, on the operator's own machine.

The authorities' keys stay in the folder, beside what they signed: whoever reads it may make further certificates.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from registry.runtime.own_paths import write_whole
from registry.tools.devstack.secure import AuthorityName, SecretFolder, WantedCertificate, access_file, authority_file

_AUTHORITY_LIFE, _LIFE = timedelta(days=3650), timedelta(days=365)
# One that ends sooner is made anew.
_LEFT = timedelta(days=30)
# Clocks of hosts differ.
_BEFORE = timedelta(minutes=5)


class CertificateMaker:
    """Maker of the certificates in a folder, as of a time."""

    def __init__(self, folder: SecretFolder, now: datetime) -> None:
        self._folder = folder
        self._now = now

    def make(self, wanted: Sequence[WantedCertificate]) -> list[str]:
        """Makes what is missing, or ends soon.

        Returns:
            The files that were made, without the ending.

        Raises:
            OSError: the folder cannot be read or written.
            ValueError: a file in it is no key or certificate.
        """
        self._folder.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = [authority_file(name) for name in AuthorityName if self._make_authority(name)]
        for one in wanted:
            if authority_file(one.authority) in made or not self._is_good(one):
                self._issue(one)
                made.append(one.file)
        return made

    def _make_authority(self, name: AuthorityName) -> bool:
        file = authority_file(name)
        if self._is_there(file):
            return False
        key, subject = ec.generate_private_key(ec.SECP256R1()), _name(f"LoraPlane {name}")
        built = (
            _built(subject, subject, key.public_key(), self._now, _AUTHORITY_LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        self._write(file, key, built)
        return True

    def _is_there(self, file: str) -> bool:
        return self._folder.certificate(file).exists() and self._folder.key(file).exists()

    def _is_good(self, one: WantedCertificate) -> bool:
        if not self._is_there(one.file):
            return False
        found = x509.load_pem_x509_certificate(self._folder.certificate(one.file).read_bytes())
        try:
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            names = x509.SubjectAlternativeName([])
        return found.not_valid_after_utc - self._now > _LEFT and [*names] == _general_names(one.hosts)

    def _issue(self, one: WantedCertificate) -> None:
        authority = x509.load_pem_x509_certificate(self._folder.authority(one.authority).read_bytes())
        signer = serialization.load_pem_private_key(
            self._folder.key(authority_file(one.authority)).read_bytes(), password=None
        )
        key = ec.generate_private_key(ec.SECP256R1())
        built = (
            _built(_name(one.common_name), authority.subject, key.public_key(), self._now, _LIFE)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
        )
        if one.hosts:
            built = built.add_extension(x509.SubjectAlternativeName(_general_names(one.hosts)), critical=False)
        self._write(one.file, key, built.sign(signer, hashes.SHA256()))  # type: ignore[arg-type] # one that we made

    def _write(self, file: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        plain = serialization.NoEncryption()
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        write_whole(self._folder.key(file), pem)
        write_whole(self._folder.certificate(file), certificate.public_bytes(serialization.Encoding.PEM))


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _built(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    return [_general_name(one) for one in hosts]


def _general_name(host: str) -> x509.GeneralName:
    if "://" in host:
        return x509.UniformResourceIdentifier(host)
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def make_secrets(folder: SecretFolder, certificates: Sequence[WantedCertificate]) -> list[str]:
    """Makes what is missing in a folder.

    Returns:
        The names of what was made.

    Raises:
        OSError: the folder cannot be written.
        ValueError: a file in it is no key or certificate.
    """
    made = CertificateMaker(folder, datetime.now(UTC)).make(certificates)
    if not folder.access.exists():
        write_whole(folder.access, access_file().encode())
        made.append(folder.access.name)
    return made


def make_token(file: Path) -> bool:
    """Makes a file with a new token, where there is none. True: it was made. Raises OSError: it cannot be written."""
    if file.exists():
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, f"{secrets.token_urlsafe()}\n".encode())
    return True
