"""Signatures of adapters: signed bytes, signers, objections. Pure.

What is signed is the manifest's digest in canonical JSON, so that a signature can be made and proven without the files.
Keys are in `registry.lora.ed25519`, which only those import who have some.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Literal, Protocol

from registry.lora.digest import canonical_json

SIGNATURE_PATTERN = r"^[A-Za-z0-9+/]{85}[AQgw]==$"
# Stable. Programs may depend on them.
SignatureReason = Literal[
    "bundle_invalid",
    "bundle_missing",
    "signature_expired",
    "signature_invalid",
    "signature_keys_missing",
    "signature_missing",
    "signed_for_other",
    "signed_other_files",
    "signer_untrusted",
]


class PublicKey(Protocol):
    """Proves signatures."""

    def made(self, signature: bytes, content: bytes) -> bool:
        """True if the signature was made over the content with this key's private half."""
        ...


PublicKeys = Mapping[str, PublicKey]


def signed_bytes(digest: str) -> bytes:
    """Bytes that a signature of the manifest `digest` is made over."""
    return canonical_json({"schema": "lora-signature/1", "digest": digest})


def signer(digest: str, signature: str, keys: PublicKeys) -> str | None:
    """The name of the key that the signature was made with; None: of none of these, or not over this digest."""
    try:
        content = base64.b64decode(signature, validate=True)
    except ValueError:
        return None
    return next((name for name, key in keys.items() if key.made(content, signed_bytes(digest))), None)


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
