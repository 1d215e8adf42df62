"""Failures of adapters on this replica, and when each is tried again. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from registry.etcd3.backoff import Backoff, Uniform
from registry.model.replica_reasons import LONGEST_PAUSE_SECONDS, RetryClass, retry_rule
from registry.sources.base import ArtifactError, SourceUnchanged
from sidecar.artifacts.types import ArtifactRef
from sidecar.engines.observed import (
    AlreadyThere,
    Done,
    EngineGone,
    EnginePaused,
    NoEffect,
    NotAsExpected,
    NotThere,
    Outcome,
    PathMissing,
    Refused,
    Transient,
    Unknown,
)

ENGINE_REFUSED = "engine_refused"
NOT_LISTED = "not_listed"
NO_EFFECT = "no_effect"
NOT_AS_EXPECTED = "not_as_expected"
EXPECT_HINT = (
    "; make spec.expect anew with loraplane expect if it is of other files or another base, else this engine applies "
    "the adapter wrongly: serve it on another release of it"
)
# For causes that pass by themselves: files that come, sources and engines that come back.
RETRY = Backoff(base_seconds=1.0, cap_seconds=15.0)
# What has lasted long is tried so much rarer, up to `LONGEST_PAUSE_SECONDS`: a source that was away for a minute is
# asked within seconds, one that has been for an hour within minutes.
SHARE_OF_AGE = 0.1
# Where refused files may have been replaced is looked at so often at first: a directory, and another host.
LOOK_SECONDS = 15.0
LOOK_AWAY_SECONDS = 120.0
# vLLM answers 500 for what is wrong with the files as well as for a shortage that passes, so a refusal is never final.
# A refused load costs an engine something: the longer it lasts, the rarer, at first at most so long apart, then a share
# of the time that it has lasted, and never further apart than the last.
REFUSED_CAP_SECONDS = 60.0
# Whatever number of adapters is refused, an engine gets one such load in so long once each was tried a few times.
REFUSED_PACE_SECONDS = 2.0
TRIES_UNPACED = 3
# An engine that lists nothing of so many loads that it said to have done contradicts itself: what it lists or what it
# does is not as it says. It gets a load ever more rarely, until one is listed.
CONTRADICTIONS_UNPACED = 8
# A replica does not wait longer than this many tries of one adapter before it calls itself ready.
TRIES_UNTIL_READY = 3
# A rollout waits for so long too before it takes a refusal for an answer: engines that warm up refuse for a while.
SETTLED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an adapter could not be staged or loaded.

    Attributes:
        ref: what was asked for, another ref is another matter; None: an unload.
        incarnation: of the engine that refused it; None where the engine had no part in it.
        reason: stable.
        message: one sentence for people.
        attempts: how often it was tried.
        retry_at: monotonic seconds; None: not before `ref` or `incarnation` change, or the files do.
        since: monotonic seconds of the first of these tries.
        others_succeed: since then another adapter was loaded, or brought from the same place, so that the fault is
            likely to be its own.
        look_at: monotonic seconds when the source is looked at for other files; None: it is not.
        version: of the source, whose files were refused; empty: it is not known.
    """

    ref: ArtifactRef | None
    incarnation: str | None
    reason: str
    message: str
    attempts: int
    retry_at: float | None
    since: float = 0.0
    others_succeed: bool = False
    look_at: float | None = None
    version: str = ""

    @property
    def due_at(self) -> float | None:
        """Time of the next try or look; None: not by itself."""
        return self.look_at if self.retry_at is None else self.retry_at

    @property
    def refused(self) -> str | None:
        """The version of the source whose files were refused, see `Stage`; None: they were not."""
        return None if self.look_at is None else self.version

    def is_about(self, ref: ArtifactRef | None, incarnation: str) -> bool:
        """True if it is of this ref, and of this engine if an engine had part in it."""
        return self.ref == ref and self.incarnation in (None, incarnation)

    def forbids(self, ref: ArtifactRef | None, incarnation: str, now: float) -> bool:
        """True while this ref must not be tried again on this engine."""
        return self.is_about(ref, incarnation) and (self.due_at is None or now < self.due_at)

    @property
    def is_engines(self) -> bool:
        """True if the engine would not load it."""
        return self.incarnation is not None and self.ref is not None

    def is_settled(self) -> bool:
        """True if waiting for it would not be worth a replica's readiness."""
        is_answer = self.retry_at is None or retry_rule(self.reason).is_answer
        return is_answer or self.attempts >= TRIES_UNTIL_READY

    @property
    def final_at(self) -> float:
        """From when on a rollout takes it for an answer although it is tried again."""
        if self.retry_at is None or retry_rule(self.reason).is_answer:
            return self.since
        is_refused = self.reason == ENGINE_REFUSED and self.is_settled()
        return self.since + SETTLED_SECONDS if is_refused else math.inf


@dataclass(frozen=True, slots=True)
class Decline:
    """An adapter's generation that a replica refuses for good, why, and by which limit of its own, as a digest.

    `asked`: the request by which another try of it was asked for last; None: not known yet, after a restart.
    `since`: when it was refused, in monotonic seconds.
    """

    reason: str
    by: str
    asked: str | None
    since: float = field(default=0.0, compare=False)


# By name key and generation, the oldest first.
Declines = Mapping[tuple[str, int], Decline]


def after_staging(
    error: ArtifactError | SourceUnchanged, ref: ArtifactRef, previous: Failure | None, *, now: float, uniform: Uniform
) -> Failure | None:
    """The failure that a failed staging leaves; None: none, since what was looked at is judged by other terms now."""
    if isinstance(error, SourceUnchanged):
        return _looked_at(previous, now, uniform) if previous is not None and previous.ref == ref else None
    failure = _again(previous, Failure(ref, None, error.reason, error.message, 1, None, since=now))
    match retry_rule(error.reason).retry:
        case RetryClass.CHANGE:
            return _looked_at(replace(failure, version=error.version), now, uniform)
        case RetryClass.LATER:
            pause = replace(RETRY, cap_seconds=_cap(RETRY.cap_seconds, failure, now)).delay(failure.attempts, uniform)
        case RetryClass.AT_ONCE:
            pause = RETRY.delay(failure.attempts, uniform)
        case never:
            assert_never(never)
    return replace(failure, retry_at=now + pause + error.pause_seconds)


def _looked_at(failure: Failure, now: float, uniform: Uniform) -> Failure:
    """A failure whose source is looked at again after a while."""
    is_here = failure.ref is not None and failure.ref.uri.startswith("file:")
    pause = _cap(LOOK_SECONDS if is_here else LOOK_AWAY_SECONDS, failure, now)
    return replace(failure, look_at=now + uniform(pause / 2, pause))


def _cap(at_first: float, failure: Failure, now: float) -> float:
    """The longest pause, given how long it has lasted."""
    return min(max(at_first, SHARE_OF_AGE * (now - failure.since)), LONGEST_PAUSE_SECONDS)


def after_call(
    outcome: Outcome,
    ref: ArtifactRef | None,
    incarnation: str,
    previous: Failure | None,
    *,
    now: float,
    uniform: Uniform,
) -> Failure | None:
    """The failure that a call leaves; None where only the next listing can tell, or the engine is gone or paused."""
    match outcome:
        case Done() | AlreadyThere() | NotThere() | Unknown() | EngineGone() | EnginePaused():
            return None
        case PathMissing(message):
            reason = "engine_cannot_see_store"
        case Transient(message):
            reason = "engine_busy"
        case Refused(message):
            reason = ENGINE_REFUSED
        case NoEffect(message):
            return _again(previous, Failure(ref, incarnation, NO_EFFECT, message, 1, None, since=now))
        case NotAsExpected(message):
            said = f"{message}{EXPECT_HINT}"
            return _again(previous, Failure(ref, incarnation, NOT_AS_EXPECTED, said, 1, None, since=now))
        case _:
            assert_never(outcome)
    return _retried(Failure(ref, incarnation, reason, message, 1, None, since=now), previous, now=now, uniform=uniform)


def not_borne_out(
    ref: ArtifactRef | None,
    incarnation: str,
    previous: Failure | None,
    *,
    now: float,
    uniform: Uniform,
    listed_as: str = "",
) -> Failure:
    """The failure of a call that was acknowledged, or timed out, and that the engine's listing does not show.

    `listed_as`: the name that the listing has for the same files; empty: none.
    """
    if ref is None:
        reason, message = "still_listed", "the engine still lists the adapter after its unload"
    else:
        reason = NOT_LISTED
        message = "the engine does not list the adapter as it was loaded; something else may drive the engine too"
        if listed_as:
            message = (
                f"the engine lists its files under the name {listed_as!r}, under which nobody asks for it: have the "
                "engine, and what stands before it, leave names as they are"
            )
    return _retried(Failure(ref, incarnation, reason, message, 1, None, since=now), previous, now=now, uniform=uniform)


def _retried(failure: Failure, previous: Failure | None, *, now: float, uniform: Uniform) -> Failure:
    failure = _again(previous, failure)
    backoff = RETRY
    if failure.reason == ENGINE_REFUSED and failure.ref is not None:  # what is deleted has to go (guarantee R6)
        backoff = replace(RETRY, cap_seconds=_cap(REFUSED_CAP_SECONDS, failure, now))
    return replace(failure, retry_at=now + backoff.delay(failure.attempts, uniform))


def _again(previous: Failure | None, failure: Failure) -> Failure:
    """The newest of several failures of the same in a row."""
    if previous is None or (previous.ref, previous.incarnation) != (failure.ref, failure.incarnation):
        return failure
    attempts, since = previous.attempts + 1, previous.since
    return replace(failure, attempts=attempts, since=since, others_succeed=previous.others_succeed)


def pace_of(failure: Failure, contradictions: int) -> float:
    """Seconds that its next try has to keep from those of all others; 0: none.

    `contradictions`: so many loads in a row were said to be done and are not listed.
    """
    if failure.ref is None:
        return 0.0
    if failure.reason == ENGINE_REFUSED and failure.attempts >= TRIES_UNPACED:
        return REFUSED_PACE_SECONDS
    if failure.reason == NOT_LISTED and contradictions > CONTRADICTIONS_UNPACED:
        return min(RETRY.cap_seconds, REFUSED_PACE_SECONDS * 2.0 ** min(contradictions - CONTRADICTIONS_UNPACED, 10))
    return 0.0
