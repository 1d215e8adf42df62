"""Ed25519 keys in PEM. Pure."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from registry.lora.signatures import signed_bytes


class BadKey(ValueError):
    """Something is no key in PEM that signs adapters; the message says what is asked for, and never holds the key."""


@dataclass(frozen=True, slots=True)
class Ed25519Key:
    """A public key. Implements `registry.lora.signatures.PublicKey`."""

    key: Ed25519PublicKey

    def made(self, signature: bytes, content: bytes) -> bool:
        try:
            self.key.verify(signature, content)
        except InvalidSignature:
            return False
        return True


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


def read_public_key(pem: str) -> Ed25519Key:
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
    return Ed25519Key(key)
