"""Signatures that a replica asks for: of records, or of bundles beside files.

The host's policy comes first. Where it has a rule for an adapter's tenant, the rule decides whose bundle counts, what
it has to bind, and until when the record's own Ed25519 signature is taken instead. The pool's record can ask for a
signature where the rule does not, and never take back what the rule asks for (guarantee A3). Without a policy, the pool
and the keys of --signature-keys decide, as in earlier releases.

A bundle is looked at three times: before the weights are fetched, with the files as this process hashed them, and, from
what is kept, whenever the artifact is about to be handed out (guarantee R21).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from registry.lora.base import BaseModules
from registry.lora.digest import FileEntry
from registry.lora.signatures import PublicKeys, objection
from registry.model.records import PoolSpec
from registry.runtime.local_files import read_followed
from registry.sources.base import ArtifactError, Source, Stop, StoreError
from sidecar.artifacts.signing.kept_bundles import KeptBundle, KeptBundles
from sidecar.artifacts.types import ArtifactRef

if TYPE_CHECKING:  # with cryptography, megabytes that few sidecars need
    from registry.model.signature_policy import SignaturePolicy, SigningRule

MAX_KEYS_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class _SignatureTerms:
    """All that decides, as it was last looked at. What was read anew is another, whatever it says."""

    pool_asks: bool
    keys: PublicKeys
    policy: SignaturePolicy | None
    bases: frozenset[str]

    def differ(self, other: _SignatureTerms) -> bool:
        is_same_file = self.keys is other.keys and self.policy is other.policy
        return not is_same_file or (self.pool_asks, self.bases) != (other.pool_asks, other.bases)


class Signatures:
    """The policy of one replica. Only the event loop has it followed; checks are made in any thread."""

    def __init__(self, keys: PublicKeys, kept: KeptBundles, wall: Callable[[], float] = time.time) -> None:
        """`keys` are public keys by name; none: nothing can be proven. `wall` counts seconds since 1970."""
        self._keys = keys
        self._kept = kept
        self._wall = wall
        self._policy: SignaturePolicy | None = None
        self._pool_name = ""
        self._pool: PoolSpec | None = None
        self._base: BaseModules | None = None
        self._looked_at = self._terms()
        self._ends = math.inf

    def use(self, keys: PublicKeys) -> None:
        """Proves signatures of records with these from now on. Safe for threads."""
        self._keys = keys

    def enforce(self, policy: SignaturePolicy, pool: str) -> None:
        """Goes by this policy from now on, as a replica of that pool. Safe for threads."""
        self._policy, self._pool_name = policy, pool

    @property
    def has_policy(self) -> bool:
        """True if bundles may be asked for."""
        return self._policy is not None

    @property
    def are_required(self) -> bool:
        """True if nothing may be handed out whose bytes were not hashed."""
        return self._policy is not None or self._pool_asks

    @property
    def _pool_asks(self) -> bool:
        return self._pool is not None and self._pool.limits.require_signature

    def _terms(self) -> _SignatureTerms:
        return _SignatureTerms(
            self._pool_asks, self._keys, self._policy, self._bases() if self._policy else frozenset()
        )

    def follow(self, pool: PoolSpec | None, base: BaseModules | None = None) -> bool:
        """Takes up a pool's record and base, and new keys. True if what was allowed before has to be looked at anew."""
        self._pool, self._base = pool, base
        has_ended = self._wall() > self._ends
        if has_ended:
            self._ends = math.inf
        before, self._looked_at = self._looked_at, self._terms()
        return has_ended or before.differ(self._looked_at)

    def _bases(self) -> frozenset[str]:
        names = self._pool.base_models if self._pool else []
        return frozenset((*names, *self._base.names, self._base.fingerprint)) if self._base else frozenset(names)

    def check(self, ref: ArtifactRef, digest: str) -> None:
        """Lets an artifact pass whose files, as they were fetched, have that manifest digest.

        Raises:
            ArtifactError: one of `registry.lora.signatures.SignatureReason`.
            OSError: what is kept cannot be read.
        """
        rule = self._rule(ref)
        if rule is None or not self._needs_bundle(rule, ref):
            self._check_record(ref, digest, rule)
            return
        kept = self._kept.read(ref.uri, digest)
        self._check_bundle(rule, ref, kept.content if kept else None, kept.entries if kept else ())

    def _rule(self, ref: ArtifactRef) -> SigningRule | None:
        """The rule for an adapter; None: there is no policy. Raises ArtifactError: none of the policy's is."""
        policy = self._policy
        if policy is None:
            return None
        from registry.model.signature_check import without_rule  # noqa: PLC0415 - see above

        rule = policy.rule(ref.name)
        if rule is None:
            refused = without_rule(ref.name)
            raise ArtifactError(refused.reason, refused.message)
        return rule

    def _needs_bundle(self, rule: SigningRule, ref: ArtifactRef) -> bool:
        """False: the record's own signature decides, or nobody asks for one."""
        if ref.signature is not None and rule.ed25519_until is not None and self._now() <= rule.ed25519_until:
            return False
        return not rule.unsigned or self._pool_asks

    def _check_record(self, ref: ArtifactRef, digest: str, rule: SigningRule | None) -> None:
        is_required = self._pool_asks or (rule is not None and not rule.unsigned)
        found = objection(digest, ref.signature, self._keys, is_required=is_required)
        if found is not None:
            raise ArtifactError(found[0], found[1])
        if rule is not None and rule.ed25519_until is not None:
            self._ends = min(self._ends, rule.ed25519_until.timestamp())

    def _check_bundle(
        self, rule: SigningRule, ref: ArtifactRef, content: bytes | None, entries: Iterable[FileEntry]
    ) -> None:
        from registry.model.signature_check import (  # noqa: PLC0415 - see above
            SignatureRefused,
            Use,
            absent,
            check_files,
            vouched,
        )

        try:
            if content is None:
                raise absent(ref.name)
            found = vouched(rule, content, Use(ref.name, self._pool_name, self._bases()), self._now())
            check_files(found.signed, entries)
        except SignatureRefused as error:
            raise ArtifactError(error.reason, error.message) from error
        if found.not_after is not None:
            self._ends = min(self._ends, found.not_after.timestamp())

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._wall(), UTC)

    def ask(self, source: Source, ref: ArtifactRef, stop: Stop) -> bytes | None:
        """The bundle of a source, looked at as far as it can be without the files; None: none is needed.

        Raises:
            ArtifactError: it cannot be had, or does not count.
        """
        rule = self._rule(ref)
        if rule is None or not self._needs_bundle(rule, ref):
            return None
        content = source.signature(stop)
        self._check_bundle(rule, ref, content, ())
        return content

    def take(self, ref: ArtifactRef, digest: str, entries: Iterable[FileEntry], content: bytes | None) -> None:
        """Compares files with a bundle that was asked for, and keeps it. Raises as `check`."""
        rule, files = self._rule(ref), tuple(entries)
        if content is not None and rule is not None:
            self._check_bundle(rule, ref, content, files)
            self._kept.write(ref.uri, digest, KeptBundle(content, files))
        self.check(ref, digest)

    def renew(self, source: Callable[[], Source], ref: ArtifactRef, digest: str, stop: Stop) -> bool:
        """Asks for the bundle of an artifact anew if the kept one does not count; False: no file list is kept.

        Raises:
            ArtifactError: it does not count either.
            OSError: what is kept cannot be read or written.
        """
        try:
            self.check(ref, digest)
        except ArtifactError:
            kept = self._kept.read(ref.uri, digest)
            content = self.ask(source(), ref, stop)
            if content is None:
                raise
            if kept is None:
                return False
            self.take(ref, digest, kept.entries, content)
        return True


def read_signature_policy(file: Path) -> SignaturePolicy:
    """Reads the file behind --signature-policy.

    Raises:
        StoreError: it cannot be read or is of another form; the message names the file, the line, the field and the
            remedy.
    """
    from registry.model.operator_yaml import OperatorFileInvalid  # noqa: PLC0415 - see above
    from registry.model.signature_policy import MAX_BYTES, read_policy  # noqa: PLC0415 - see above

    try:
        return read_policy(read_followed(file, max_bytes=MAX_BYTES), f"--signature-policy {file}")
    except OSError as error:
        raise StoreError(f"--signature-policy {file} cannot be read: {error.strerror}") from error
    except OperatorFileInvalid as error:
        raise StoreError(str(error)) from error


def read_keys(file: Path) -> PublicKeys:
    """Reads the file behind --signature-keys: YAML, public keys in PEM by name.

    Raises:
        StoreError: it cannot be read or is of another form; the message names the file, the key and the remedy.
    """
    import yaml  # noqa: PLC0415 - it and the next take megabytes, and few sidecars have such a file

    from registry.lora.ed25519 import BadKey, read_public_key  # noqa: PLC0415 - see above

    try:
        with file.open("rb") as opened:
            content = yaml.safe_load(opened.read(MAX_KEYS_BYTES + 1)[:MAX_KEYS_BYTES])
    except (OSError, yaml.YAMLError, RecursionError, ValueError) as error:  # a date without a month is a ValueError
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
