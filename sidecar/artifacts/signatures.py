"""Proves signatures, as the pool asks for it, with the keys that this sidecar was given."""

from __future__ import annotations

from pathlib import Path

from registry.lora.signatures import PublicKeys, objection
from registry.model.records import PoolSpec
from registry.sources.errors import ArtifactError, StoreError
from sidecar.artifacts.types import ArtifactRef

MAX_FILE_BYTES = 1 << 20


class Signatures:
    """The policy of one replica. Only the event loop changes it."""

    def __init__(self, keys: PublicKeys) -> None:
        """`keys` are public keys by name; none: nothing can be proven."""
        self._keys = keys
        self._is_required = False

    def follow(self, pool: PoolSpec | None) -> bool:
        """Takes up a pool's record. True if what was allowed before has to be looked at anew."""
        before = self._is_required
        self._is_required = pool is not None and pool.limits.require_signature
        return before != self._is_required

    def check(self, ref: ArtifactRef, digest: str) -> None:
        """Lets an artifact pass whose files, as they were fetched, have that manifest digest.

        Raises:
            ArtifactError: ``signature_missing``, ``signature_invalid`` or ``signature_keys_missing``, for good.
        """
        found = objection(digest, ref.signature, self._keys, is_required=self._is_required)
        if found is not None:
            raise ArtifactError(found[0], found[1], permanent=True)


def read_keys(file: Path) -> PublicKeys:
    """Reads the file behind --signature-keys: YAML, public keys in PEM by name.

    Raises:
        StoreError: it cannot be read or is of another form; the message names the file, the key and the remedy.
    """
    import yaml  # noqa: PLC0415 - it and the next take megabytes, and few sidecars have such a file

    from registry.lora.ed25519 import BadKey, read_public_key  # noqa: PLC0415 - see above

    try:
        with file.open("rb") as opened:
            content = yaml.safe_load(opened.read(MAX_FILE_BYTES + 1)[:MAX_FILE_BYTES])
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise StoreError(f"--signature-keys {file} cannot be read: {error}") from error
    if not isinstance(content, dict) or not content:
        raise StoreError(f"--signature-keys {file}: write one or more public keys as NAME: PEM")
    keys = {}
    for name, pem in content.items():
        try:
            keys[str(name)] = read_public_key(str(pem))
        except BadKey as error:
            raise StoreError(f"--signature-keys {file}: {name}: {error}") from error
    return keys
