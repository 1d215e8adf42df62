"""How the reading of an adapter fails, at a replica or at the desk. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from registry.lora.findings import Finding, FindingReason, summary
from registry.lora.signatures import SignatureReason

# Stable names of why an artifact could not be staged. Programs may depend on them, not on the sentences beside them.
SourceReason = Literal[
    "address_not_allowed",
    "artifact_damaged",
    "bad_archive",
    "credential_not_bound",
    "credential_unavailable",
    "digest_mismatch",
    "disk_full",
    "internal_error",
    "invalid_source",
    "not_a_regular_file",
    "redirect_not_allowed",
    "source_changed",
    "source_denied",
    "source_io",
    "source_is_html",
    "source_missing",
    "source_not_allowed",
    "source_timeout",
    "source_untrusted",
    "staging_stopped",
    "staging_timeout",
    "store_full",
    "store_io",
    "too_large",
    "unsupported_policy",
    "unknown_credential",
    "unsupported_scheme",
]
ArtifactReason = SourceReason | FindingReason | SignatureReason


class ArtifactError(Exception):
    """An artifact could not be staged. `reason` is stable, `permanent`: repeating cannot help.

    The message says what was found, what was expected, and what to do; never a secret.
    """

    def __init__(self, reason: ArtifactReason, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.reason: ArtifactReason = reason
        self.message = message
        self.permanent = permanent


def unfit(findings: Sequence[Finding]) -> ArtifactError:
    """An adapter that cannot be served: the first finding's reason, and how many there are beside it."""
    return ArtifactError(findings[0].reason, summary(findings), permanent=any(one.permanent for one in findings))


class StoreError(Exception):
    """The store cannot be used at all, or was configured wrongly; the message names the path and the remedy."""
