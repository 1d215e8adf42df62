"""Bundles of Sigstore, of one statement that a key or certificates signed. Pure.

Nothing is believed here: reading a bundle only takes it apart. Of the three ways in which `model-signing` signs, those
with a key and with certificates are read. The third, without a key of one's own, needs a transparency log to verify.
"""

from __future__ import annotations

import base64
import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.lora.signing.forms import SIGN_ANEW, BadBundle, list_of, object_of, other, whole
from registry.lora.signing.statement import GIT_PATHS, MAX_FILES, SIGNATURE_FILE, SignedFiles, read_statement

MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
# Thousands of files have less.
MAX_BUNDLE_BYTES = 1 << 20
MAX_CHAIN = 8


@dataclass(frozen=True, slots=True)
class SignedBundle:
    """A bundle, taken apart.

    Attributes:
        payload: the statement as it was signed.
        signature: over `signed_content` of it, in DER.
        hint: sha256 of the signer's public key in PEM, in hexadecimal; empty: it has certificates, or does not say.
        chain: certificates in DER, that of the signer first; empty: it was signed with a key.
    """

    payload: bytes
    signature: bytes
    hint: str = ""
    chain: tuple[bytes, ...] = ()


def signed_content(payload: bytes) -> bytes:
    """Bytes that a signature of a statement is made over: DSSE's encoding of its type and content."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def write_bundle(bundle: SignedBundle) -> bytes:
    """The bundle in JSON, as `model-signing` writes it."""
    material: dict[str, object] = {"publicKey": {"hint": bundle.hint}}
    if bundle.chain:
        material = {"x509CertificateChain": {"certificates": [{"rawBytes": _base64(one)} for one in bundle.chain]}}
    envelope = {
        "payload": _base64(bundle.payload),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"sig": _base64(bundle.signature), "keyid": ""}],
    }
    whole = {"mediaType": MEDIA_TYPE, "verificationMaterial": {**material, "tlogEntries": []}, "dsseEnvelope": envelope}
    return json.dumps(whole, separators=(",", ":")).encode()


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def read_bundle(content: bytes) -> SignedBundle:
    """A bundle as it was found beside the files.

    Raises:
        BadBundle: it is none, or of a way of signing that is not verified here.
    """
    if len(content) > MAX_BUNDLE_BYTES:
        raise BadBundle(f"it has more than {MAX_BUNDLE_BYTES} bytes; {SIGN_ANEW}")
    bundle = whole(content, "the bundle")
    if bundle.get("mediaType") != MEDIA_TYPE:
        raise other("mediaType", bundle.get("mediaType"), MEDIA_TYPE)
    envelope = object_of(bundle.get("dsseEnvelope"), "dsseEnvelope")
    if envelope.get("payloadType") != PAYLOAD_TYPE:
        raise other("payloadType", envelope.get("payloadType"), PAYLOAD_TYPE)
    signature = object_of(list_of(envelope.get("signatures"), "signatures", 1, 1)[0], "signatures")
    hint, chain = _signer(object_of(bundle.get("verificationMaterial"), "verificationMaterial"))
    payload = _bytes(envelope.get("payload"), "payload")
    return SignedBundle(payload, _bytes(signature.get("sig"), "sig"), hint, chain)


def _signer(material: dict[str, Any]) -> tuple[str, tuple[bytes, ...]]:
    """The hint, and the chain; just one of them."""
    if "certificate" in material or material.get("tlogEntries"):
        raise BadBundle(
            "it was signed without a key of one's own (keyless), which is not verified here; sign it with `loraplane "
            "sign --key`, `model_signing sign key` or `model_signing sign certificate`"
        )
    if "x509CertificateChain" in material:
        chain = object_of(material["x509CertificateChain"], "x509CertificateChain").get("certificates")
        found = list_of(chain, "x509CertificateChain.certificates", 1, MAX_CHAIN)
        return "", tuple(_bytes(object_of(one, "certificates").get("rawBytes"), "rawBytes") for one in found)
    hint = object_of(material.get("publicKey"), "publicKey").get("hint") or ""
    if not isinstance(hint, str):
        raise other("hint", hint, "a text")
    return hint, ()


def _bytes(value: object, field: str) -> bytes:
    try:
        found = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except ValueError:
        found = b""
    if not found:
        raise other(field, value, "base64")
    return found


IGNORED = (*GIT_PATHS, SIGNATURE_FILE)


class UnsignableFolder(ValueError):
    """A folder has what cannot be signed; the message names it, and what to do."""


def folder_sha256(folder: Path) -> dict[str, str]:
    """The sha256 of each file below a folder by its path there, but of the bundle and of git's files.

    Raises:
        UnsignableFolder: there is a link, or there are too many files.
        OSError: a file cannot be read.
    """
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if name.parts[0] in IGNORED:
            continue
        if path.is_symlink():
            raise UnsignableFolder(f"{path} is a link, and where it leads may change; put a copy there (cp -L)")
        if path.is_file():
            found[name.as_posix()] = _sha256_of(path)
        if len(found) > MAX_FILES:
            raise UnsignableFolder(f"{folder} has more than {MAX_FILES} files; sign a folder with the adapter alone")
    return found


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bundle_in(folder: Path) -> bytes | None:
    """The bundle beside an adapter's files; None: there is none. Raises OSError."""
    with suppress(FileNotFoundError), (folder / SIGNATURE_FILE).open("rb") as file:
        return file.read(MAX_BUNDLE_BYTES + 1)
    return None


def statement_in(content: bytes) -> SignedFiles:
    """Statement of a bundle, whoever signed it. Raises BadBundle."""
    return read_statement(read_bundle(content).payload)
