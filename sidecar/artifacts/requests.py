"""Requests to stage: references, their pins, and the ids they decide."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache

import structlog

from registry.lora.base import BaseModules
from registry.lora.digest import canonical_json, prepared_id
from registry.lora.policy import Policy, policy_of
from registry.model.stored import read_json
from registry.runtime.local_files import NotAFile, read_file
from registry.sources.base import ArtifactError, Source, SourceUnchanged, Stop
from sidecar.artifacts.files import write_atomic
from sidecar.artifacts.layout import StoreLayout
from sidecar.artifacts.types import ArtifactRef

_log = structlog.get_logger()
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def pin_name(ref: ArtifactRef) -> str:
    """Name of the pin and of its lock. The URI is a part, in case the same generation was made twice, in two etcds."""
    return "pin-" + hashlib.sha256(canonical_json([ref.pin_key, ref.uri])).hexdigest()


class Pins:
    """The pins of a host, shared by its replicas."""

    def __init__(self, layout: StoreLayout) -> None:
        self._layout = layout

    def digest(self, ref: ArtifactRef) -> str | None:
        """The digest that the reference says, or else came to mean here; None if it was never read."""
        if ref.digest is not None:
            return ref.digest
        file = self._layout.pin(pin_name(ref))
        try:
            digest = read_json(read_file(file))["digest"]
        except FileNotFoundError:
            return None
        except (NotAFile, ValueError, TypeError, KeyError) as error:
            _log.warning("pin_damaged", file=str(file), error=str(error))
            return None
        return digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else None

    def put(self, ref: ArtifactRef, digest: str) -> None:
        """Writes the pin. The caller holds the lock of that name."""
        name = pin_name(ref)
        content = canonical_json({"schema": 1, "pin_key": ref.pin_key, "digest": digest})
        write_atomic(self._layout.pin(name), content, temporary=self._layout.temporary(name, "json"))


# Each is asked for several times while its artifact is staged.
MAX_IDS = 1024
# A disk on which so many copies of one artifact were damaged, each while an engine read it, needs a hand.
MAX_COPIES = 16


@dataclass(frozen=True, slots=True)
class StageRequest:
    """A reference with its policy, the base that it is prepared for, and which artifacts are known to be damaged."""

    ref: ArtifactRef
    policy: Policy
    base: BaseModules | None
    damaged: AbstractSet[str] = frozenset()

    @property
    def fingerprint(self) -> str | None:
        """Of the base; None: it is not known."""
        return self.base.fingerprint if self.base else None

    def artifact(self, digest: str) -> str:
        """The prepared id that the source `digest` gets by this order; if that is damaged, the next copy's."""
        artifact = _prepared_id(digest, self.policy, self.base.prepared_for if self.base else None)
        for _ in range(MAX_COPIES):
            if artifact not in self.damaged:
                break
            artifact = copy_after(artifact)
        return artifact


def copy_after(artifact: str) -> str:
    """The id of the copy that is fetched where `artifact` was found damaged while an engine read it."""
    return hashlib.sha256(canonical_json({"copy_after": artifact})).hexdigest()


@lru_cache(MAX_IDS)
def _prepared_id(digest: str, policy: Policy, base: str | None) -> str:
    return prepared_id(digest, policy.as_dict(), base)


def stage_request_of(
    ref: ArtifactRef, base: BaseModules | None, damaged: AbstractSet[str] = frozenset()
) -> StageRequest:
    """The order that a reference means for a base.

    Raises:
        ArtifactError: ``unsupported_policy``.
    """
    try:
        return StageRequest(ref, policy_of(read_json(ref.prepare or "{}")), base, damaged)
    except ValueError as error:
        raise ArtifactError("unsupported_policy", f"{error}; upgrade this sidecar") from error


def other_version(source: Source, refused: str, stop: Stop) -> str:
    """The version that a source has now, whose files were refused at another; empty: it does not tell.

    It is asked for before they are fetched, so that no change is missed.

    Raises:
        SourceUnchanged: it is the same, or cannot be told now.
        ArtifactError: ``staging_stopped``.
    """
    try:
        version = source.version(stop)
    except ArtifactError as error:
        stop.check()
        raise SourceUnchanged from error
    if version and version == refused:
        raise SourceUnchanged
    return version


def mismatch(ref: ArtifactRef, found: str, expected: str) -> ArtifactError:
    """Error for a source that holds other files than those that a reference means; both are digests."""
    if ref.digest is not None:
        remedy = (
            "put the right files there, which is tried again by itself, or at once with loraplane retry adapter NAME; "
            "or apply the digest of those that are"
        )
    else:
        remedy = "the source changed after this generation was first read here; apply the new digest to serve it"
    message = f"the files have the digest {found}, expected {expected}; {remedy}"
    return ArtifactError("digest_mismatch", message)
