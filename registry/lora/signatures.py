"""Who vouches for an adapter: Ed25519 over its manifest. Pure.

What is signed is the manifest's digest in canonical JSON, so that a signature can be made and proven without the files.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from registry.lora.manifest import canonical_json

SIGNATURE_PATTERN = r"^[A-Za-z0-9+/]{85}[AQgw]==$"
# Stable. Programs may depend on them.
SignatureReason = Literal["signature_invalid", "signature_keys_missing", "signature_missing"]
PublicKeys = Mapping[str, Ed25519PublicKey]


class BadKey(ValueError):
    """Something is no Ed25519 key in PEM; the message says what is asked for, and never holds the key."""


def signed_bytes(digest: str) -> bytes:
    """What a signature of the manifest `digest` is made over."""
    return canonical_json({"schema": "lora-signature/1", "digest": digest})


def sign(digest: str, private_pem: bytes) -> str:
    """The signature, 64 bytes in base64, of the manifest with that digest.

    Raises:
        BadKey: `private_pem` is no private key.
    """
    try:
        key = load_pem_private_key(private_pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadKey("it is no unencrypted private key in PEM") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BadKey("it is a key of another kind; make one with openssl genpkey -algorithm ed25519")
    return base64.b64encode(key.sign(signed_bytes(digest))).decode()


def read_public_key(pem: str) -> Ed25519PublicKey:
    """A public key.

    Raises:
        BadKey: it is none.
    """
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadKey("it is no public key in PEM; openssl pkey -in key.pem -pubout prints one") from error
    if not isinstance(key, Ed25519PublicKey):
        raise BadKey("it is a key of another kind than Ed25519")
    return key


def signer(digest: str, signature: str, keys: PublicKeys) -> str | None:
    """The name of the key that the signature was made with; None: of none of these, or not over this digest."""
    try:
        content = base64.b64decode(signature, validate=True)
    except binascii.Error:
        return None
    return next((name for name, key in keys.items() if _is_of(key, content, digest)), None)


def _is_of(key: Ed25519PublicKey, signature: bytes, digest: str) -> bool:
    try:
        key.verify(signature, signed_bytes(digest))
    except InvalidSignature:
        return False
    return True


def objection(
    digest: str, signature: str | None, keys: PublicKeys, *, is_required: bool
) -> tuple[SignatureReason, str] | None:
    """Why an adapter may not be served, as a stable reason and a sentence; None: nothing speaks against it.

    A signature that is given is proven wherever there are keys, whether or not one is required.
    """
    if not is_required and (signature is None or not keys):
        return None
    if not keys:
        message = "the pool asks for signatures and this sidecar has no keys; start it with --signature-keys FILE"
        return "signature_keys_missing", message
    if signature is None:
        message = f"the pool asks for signatures and the record has none; loraplane sign makes one of {digest}"
        return "signature_missing", message
    if signer(digest, signature, keys) is None:
        message = f"the signature was not made of {digest} with one of the keys {', '.join(sorted(keys))}; sign it anew"
        return "signature_invalid", message
    return None
