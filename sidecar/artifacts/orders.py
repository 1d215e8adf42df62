"""What exactly is to be staged: a reference, and what everything that decides its id was when the staging began."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from registry.lora.base import BaseModules
from registry.lora.manifest import prepared_id
from registry.lora.policy import Policy, policy_of
from registry.sources.errors import ArtifactError
from sidecar.artifacts.types import ArtifactRef

# Each is asked for several times while its artifact is staged.
MAX_IDS = 1024


@dataclass(frozen=True, slots=True)
class Order:
    """A reference with its policy and the base that it is prepared for."""

    ref: ArtifactRef
    policy: Policy
    base: BaseModules | None

    @property
    def fingerprint(self) -> str | None:
        """Of the base; None: it is not known."""
        return self.base.fingerprint if self.base else None

    def artifact(self, digest: str) -> str:
        """The prepared id that the source `digest` gets by this order."""
        return _prepared_id(digest, self.policy, self.fingerprint)


@lru_cache(MAX_IDS)
def _prepared_id(digest: str, policy: Policy, base: str | None) -> str:
    return prepared_id(digest, policy.as_dict(), base)


def order_of(ref: ArtifactRef, base: BaseModules | None) -> Order:
    """The order that a reference means for a base.

    Raises:
        ArtifactError: ``unsupported_policy``.
    """
    try:
        return Order(ref, policy_of(json.loads(ref.prepare or "{}")), base)
    except ValueError as error:
        raise ArtifactError("unsupported_policy", f"{error}; upgrade this sidecar", permanent=True) from error


def mismatch(ref: ArtifactRef, found: str, expected: str) -> ArtifactError:
    """What it is when a source holds other files than those that a reference means; both are digests."""
    if ref.digest is not None:
        remedy = "put the right files there, or apply the digest of those that are"
    else:
        remedy = "the source changed after this generation was first read here; apply the new digest to serve it"
    message = f"the files have the digest {found}, expected {expected}; {remedy}"
    return ArtifactError("digest_mismatch", message, permanent=True)
