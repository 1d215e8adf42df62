"""What went wrong with an adapter on this replica, and when it is tried again. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from registry.sources.errors import ArtifactError
from sidecar.artifacts.types import ArtifactRef
from sidecar.observed import AlreadyThere, Done, Gone, NotThere, Outcome, PathMissing, Refused, Transient, Unknown

BACKOFF_BASE_SECONDS = 0.5
BACKOFF_CAP_SECONDS = 60.0
# vLLM answers 500 for what is wrong with the files as well as for a passing shortage, so it is asked a few times.
REFUSALS_UNTIL_PERMANENT = 3
# A replica does not wait longer than this many tries of one adapter before it calls itself ready.
TRIES_UNTIL_READY = 3

Uniform = Callable[[float, float], float]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an adapter could not be staged or loaded.

    Attributes:
        ref: what was asked for, another ref is another matter; None: an unload.
        incarnation: of the engine that refused it; None where the engine had no part in it.
        reason: stable.
        message: one sentence for people.
        attempts: how often it was tried.
        retry_at: monotonic seconds; None: not before `ref` or `incarnation` change.
    """

    ref: ArtifactRef | None
    incarnation: str | None
    reason: str
    message: str
    attempts: int
    retry_at: float | None

    def forbids(self, ref: ArtifactRef | None, incarnation: str, now: float) -> bool:
        """True while this ref must not be tried again on this engine."""
        is_same = self.ref == ref and self.incarnation in (None, incarnation)
        return is_same and (self.retry_at is None or now < self.retry_at)

    def is_settled(self) -> bool:
        """True if waiting for it would not be worth a replica's readiness."""
        return self.retry_at is None or self.attempts >= TRIES_UNTIL_READY


def backoff_seconds(attempts: int, uniform: Uniform) -> float:
    """Full jitter: anything up to the exponential bound, which has a cap."""
    return uniform(0.0, min(BACKOFF_CAP_SECONDS, BACKOFF_BASE_SECONDS * 2.0 ** min(attempts, 16)))


def after_staging(
    error: ArtifactError, ref: ArtifactRef, previous: Failure | None, *, now: float, uniform: Uniform
) -> Failure:
    """The failure that a failed staging leaves."""
    attempts = _attempts(previous, ref, None)
    retry_at = None if error.permanent else now + backoff_seconds(attempts, uniform)
    return Failure(ref, None, error.reason, error.message, attempts, retry_at)


def after_call(
    outcome: Outcome,
    ref: ArtifactRef | None,
    incarnation: str,
    previous: Failure | None,
    *,
    now: float,
    uniform: Uniform,
) -> Failure | None:
    """The failure that a call leaves; None where only the next listing can tell, or the engine is gone."""
    attempts = _attempts(previous, ref, incarnation)
    retry_at: float | None = now + backoff_seconds(attempts, uniform)
    match outcome:
        case Done() | AlreadyThere() | NotThere() | Unknown() | Gone():
            return None
        case PathMissing(message):
            return Failure(ref, incarnation, "engine_cannot_see_store", message, attempts, retry_at)
        case Transient(message):
            return Failure(ref, incarnation, "engine_busy", message, attempts, retry_at)
        case Refused(message):
            # What is deleted has to go, however often it takes (guarantee R6).
            permanent = ref is not None and attempts >= REFUSALS_UNTIL_PERMANENT
            return Failure(ref, incarnation, "engine_refused", message, attempts, None if permanent else retry_at)
    assert_never(outcome)


def not_borne_out(
    ref: ArtifactRef | None, incarnation: str, previous: Failure | None, *, now: float, uniform: Uniform
) -> Failure:
    """The failure of a call that was acknowledged, or timed out, and that the engine's listing does not show."""
    attempts = _attempts(previous, ref, incarnation)
    retry_at = now + backoff_seconds(attempts, uniform)
    if ref is None:
        message = "the engine still lists the adapter after its unload"
        return Failure(ref, incarnation, "still_listed", message, attempts, retry_at)
    message = "the engine does not list the adapter as it was loaded; something else may drive the engine too"
    return Failure(ref, incarnation, "not_listed", message, attempts, retry_at)


def _attempts(previous: Failure | None, ref: ArtifactRef | None, incarnation: str | None) -> int:
    if previous is None or previous.ref != ref or previous.incarnation != incarnation:
        return 1
    return previous.attempts + 1
