"""ECDSA keys and certificates: which sign, and which are believed."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from registry.lora.ed25519 import BadKey
from registry.lora.signing.bundle import read_bundle
from registry.lora.signing.keys import (
    BadChain,
    certified_signer,
    is_ec_key,
    read_authorities,
    read_signing_key,
    sign_statement,
)
from tests.support.signing import BEGIN, END, FOR_CODE, FOR_SIGNING, SigningAuthority, make_ec_key, make_key

NOW = datetime(2026, 11, 1, tzinfo=UTC)
MAIL = x509.RFC822Name("release@acme.example")
# A name of a kind that nobody reads.
X400 = x509.UnrecognizedExtension(x509.ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes.fromhex("3002a300"))


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()])
def test_a_key_proves_what_its_private_half_signed(curve):
    private, public = make_ec_key(curve)
    bundle, key = read_bundle(sign_statement(b"{}", private)), read_signing_key(public)
    assert (key.made(bundle), bundle.hint) == (True, key.hint)
    assert not key.made(replace(bundle, payload=b"{ }"))
    assert not key.made(replace(bundle, signature=b"none"))
    assert not read_signing_key(make_ec_key(curve)[1]).made(bundle)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda _: "no key", "no public key in PEM"),
        (lambda _: make_ec_key(ec.SECP256K1())[1], "of the curve secp256k1, expected ECDSA on P-256"),
        (lambda folder: make_key(folder)[1], "of another kind"),
    ],
)
def test_other_public_keys_are_refused(make, why, tmp_path):
    with pytest.raises(BadKey, match=why):
        read_signing_key(make(tmp_path))


def test_a_private_key_of_another_curve_or_kind_signs_nothing(tmp_path):
    ed25519 = make_key(tmp_path)[0]
    for private, why in ((make_ec_key(ec.SECP256K1())[0], "secp256k1"), (ed25519, "of another kind")):
        with pytest.raises(BadKey, match=why):
            sign_statement(b"{}", private)
    assert [is_ec_key(one) for one in (make_ec_key()[0], ed25519, b"no key")] == [True, False, False]


def test_an_encrypted_key_is_none():
    command = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-aes-128-cbc"]
    made = subprocess.run([*command, "-pass", "pass:x"], check=True, capture_output=True)
    assert not is_ec_key(made.stdout)


def chain_of(_: bytes, chain: bytes) -> tuple[bytes, ...]:
    return tuple(one.public_bytes(Encoding.DER) for one in x509.load_pem_x509_certificates(chain))


@pytest.mark.parametrize("usage", [None, x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3"), b"\5\0")])
def test_a_certificate_leads_to_its_authority_over_one_between(usage):
    """Which says that its key certifies others, or nothing of its use."""
    root = SigningAuthority()
    middle = SigningAuthority("releases", root, usage=usage)
    private, chain = middle.issue(MAIL, x509.DNSName("ci.acme.example"), usage=FOR_CODE)
    bundle = read_bundle(sign_statement(b"{}", private, chain))
    found = certified_signer(bundle.chain, read_authorities(root.pem), NOW)
    assert (found.names, found.key.made(bundle), bundle.hint) == (("release@acme.example", "ci.acme.example"), True, "")
    with pytest.raises(BadChain):
        certified_signer(bundle.chain[:1], read_authorities(root.pem), NOW)


def test_without_alternative_names_the_common_name_is_the_signers():
    root = SigningAuthority()
    found = certified_signer(chain_of(*root.issue()), read_authorities(root.pem), NOW)
    assert found.names == ("signer",)


@pytest.mark.parametrize(
    ("certify", "why"),
    [
        (lambda _: SigningAuthority("acme").issue(MAIL), "candidates exhausted|no authority|unknown"),
        (lambda root: root.issue(MAIL, usage=None), "not for signing"),
        (
            lambda root: root.issue(MAIL, usage=x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])),
            "not for signing",
        ),
        (lambda root: root.issue(usage=X400), "not supported types"),
        (lambda root: root.issue(MAIL, curve=ec.SECP256K1()), "secp256k1|algorithm"),
        (lambda root: root.issue(MAIL, valid=(BEGIN, BEGIN + timedelta(days=1))), "was valid from 2026-01-01 00:00 to"),
        (lambda root: root.issue(MAIL, valid=(NOW + timedelta(days=1), END)), "was valid from 2026-11-02"),
        (lambda root: SigningAuthority("no authority", root, is_one=False).issue(MAIL), "cA must be asserted"),
        (lambda root: SigningAuthority("for no more", root, usage=FOR_SIGNING).issue(MAIL), "may not certify others"),
    ],
)
def test_a_certificate_counts_only_now_for_signing_and_by_its_authority(certify, why):
    root = SigningAuthority()
    with pytest.raises(BadChain, match=f"(?i){why}"):
        certified_signer(chain_of(*certify(root)), read_authorities(root.pem), NOW)


def of_version_5(der: bytes) -> bytes:
    """The certificate with a version that there is not."""
    before, mark, after = der.partition(bytes.fromhex("a0030201"))
    return before + mark + b"\4" + after[1:]


def of_a_broken_name(der: bytes) -> bytes:
    """The certificate with a name that its own complaint cannot show: of an algorithm that does not fit the key."""
    before, _, after = der.replace(b"\x0c\6signer", b"\3\6\0igner").rpartition(bytes.fromhex("2a8648ce3d0403"))
    return before + bytes.fromhex("028648ce3d0403") + after


def test_what_is_no_certificate_leads_nowhere():
    """R8: whoever may write to a source may put anything there."""
    root = SigningAuthority()
    der = root.certificate.public_bytes(Encoding.DER)
    (leaf,) = chain_of(*root.issue(MAIL))
    for chain in ((b"none",), (of_version_5(der),), (leaf, of_version_5(der)), (of_a_broken_name(leaf),)):
        with pytest.raises(BadChain):
            certified_signer(chain, read_authorities(root.pem), NOW)
    with pytest.raises(BadKey, match="no certificates"):
        read_authorities(ssl.DER_cert_to_PEM_cert(of_version_5(der)))


def test_a_signer_brings_its_own_certificate():
    root = SigningAuthority()
    private, chain = root.issue(MAIL)
    broken = ssl.DER_cert_to_PEM_cert(of_version_5(chain_of(private, chain)[0])).encode()
    for other, why in ((root.issue(MAIL)[1], "of another key"), (b"none", "not in PEM"), (broken, "not in PEM")):
        with pytest.raises(BadKey, match=why):
            sign_statement(b"{}", private, other)
    with pytest.raises(BadKey, match="no certificates"):
        read_authorities("none")
    assert chain
