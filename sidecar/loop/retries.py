"""Retry tracker: failures that delay a retry, and unsettled calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from registry.model.names import name_key
from registry.runtime.clock import Clock
from registry.sources.base import ArtifactError, SourceUnchanged
from sidecar.artifacts.types import ArtifactRef, Stage
from sidecar.desired.informer import DesiredAdapter
from sidecar.engines.observed import EngineGone, EnginePaused, Observed
from sidecar.loop.executor import Attempt
from sidecar.plan.backoff import NOT_LISTED, Failure, after_call, after_staging, not_borne_out, pace_of

# Where an engine cannot be asked to generate, a load whose answer was lost has ended after so long, its own deadline.
UNTOLD_SECONDS = 60.0
# For each adapter that is loaded after all, so many of those are tried at once that were refused while others loaded.
RELEASED_FOR_EACH = 2


class RetryTracker:
    """One engine's. Nothing of it is needed again after a restart.

    Attributes:
        failures: by name key.
    """

    def __init__(self, clock: Clock, replica: str = "") -> None:
        """`replica`: whose it is, as somebody who asks for another try names it."""
        self._clock = clock
        self._replica = replica
        self._asked: dict[str, tuple[int, str]] = {}
        self._attempts: dict[str, Attempt] = {}
        self._taken_up_at: dict[str, float] = {}
        self._paced_until = 0.0
        self._paced_for: str | None = None
        self._contradictions = 0
        self._missed: dict[str, Attempt] = {}
        self.failures: dict[str, Failure] = {}

    @property
    def unsettled(self) -> AbstractSet[str]:
        """Name keys of loads that may yet happen, and must not be made twice."""
        return {key for key, attempt in self._attempts.items() if attempt.is_unsettled}

    def loads(self) -> set[tuple[str, str]]:
        """Name and path of each load or swap of which no listing has told yet."""
        return {(one.name, one.path) for one in self._attempts.values() if one.path is not None}

    def settle(self, observed: Observed, *, turns: bool | None) -> None:
        """Settles calls against the engine's listing.

        `turns`: False: the engine generates nothing, so that what is under way inside it may yet happen. None: whether
        it does cannot be told, and time has to tell.
        """
        done, missing = self._listed_late(observed), list[Attempt]()
        for key, attempt in list(self._attempts.items()):
            is_done, is_here = attempt.is_borne_out(observed), attempt.incarnation == observed.facts.incarnation
            if is_here and not is_done and attempt.is_unsettled and not self._has_ended(key, turns):
                continue
            (done if is_done else missing if is_here else list[Attempt]()).append(attempt)
            del self._attempts[key], self._taken_up_at[key]
        if any(one.ref is not None for one in done):
            self._contradictions = 0
        for attempt in missing:
            self._miss(attempt, observed)
        self._bear_out(done)

    def _listed_late(self, observed: Observed) -> list[Attempt]:
        """Loads that were given up, and are listed by now."""
        failures = self.failures
        self._missed = {
            key: one for key, one in self._missed.items() if key in failures and failures[key].reason == NOT_LISTED
        }
        return [one for one in self._missed.values() if observed.adapters.get(one.name) == one.path]

    def _bear_out(self, done: Sequence[Attempt]) -> None:
        """Drops what these mended. Where others load, what failed is tried again sooner."""
        recovered = [one for one in done if self._recover(one) and one.ref is not None]
        if any(one.ref is not None for one in done):
            self._release({key for key, one in self.failures.items() if one.is_engines}, len(recovered))
        if recovered:
            self._paced_until = self._now()

    def _miss(self, attempt: Attempt, observed: Observed) -> None:
        """Notes that the engine does not list what it was told to, whatever it said of that."""
        self._contradictions += attempt.ref is not None and not attempt.is_unsettled
        failure = not_borne_out(
            attempt.ref,
            observed.facts.incarnation,
            self.failures.get(attempt.key),
            now=self._now(),
            uniform=self._clock.rng.uniform,
            listed_as=attempt.listed_as(observed),
        )
        self.failures[attempt.key] = self._paced(failure)
        if attempt.ref is not None:
            self._missed[attempt.key] = attempt

    def _recover(self, attempt: Attempt) -> bool:
        """Drops the failure that an attempt mended; True if there was one. An unload mends none of a load."""
        failure = self.failures.get(attempt.key)
        if failure is None or (attempt.ref is None and failure.ref is not None):
            return False
        del self.failures[attempt.key]
        return True

    def _has_ended(self, key: str, turns: bool | None) -> bool:
        """True if what a call without an answer began has come to its end inside the engine."""
        if turns is None:
            return self._now() - self._taken_up_at[key] >= UNTOLD_SECONDS
        return turns

    def _release(self, keys: AbstractSet[str], recovered: int) -> None:
        """Others succeed: what failed for the same cause is tried at once, so that it heals when the cause does.

        What has failed since others succeeded is likely to fail again. Of that, a few are tried for each that did
        recover, so that many come back as fast as they do, and many that cannot cost little.
        """
        again = sorted((self.failures[key].attempts, key) for key in keys if self.failures[key].others_succeed)
        put_off = {key for _, key in again[RELEASED_FOR_EACH * recovered :]}  # the least tried come first
        now, released = self._now(), keys - put_off
        for key in released:
            failure = self.failures[key]
            if failure.retry_at is not None:
                self.failures[key] = replace(failure, retry_at=now, others_succeed=True)

    def take_up(self, attempts: Iterable[Attempt]) -> None:
        """Notes calls that have ended."""
        for attempt in attempts:
            failure = after_call(
                attempt.outcome,
                attempt.ref,
                attempt.incarnation,
                self.failures.get(attempt.key),
                now=self._now(),
                uniform=self._clock.rng.uniform,
            )
            if failure is not None:
                self.failures[attempt.key] = self._paced(failure)
            elif not isinstance(attempt.outcome, EngineGone | EnginePaused):
                self._attempts[attempt.key], self._taken_up_at[attempt.key] = attempt, self._now()

    def _paced(self, failure: Failure) -> Failure:
        """With a place of its own among what is refused again and again, or is not listed."""
        pace_seconds = pace_of(failure, self._contradictions)
        if failure.retry_at is None or not pace_seconds:
            return failure
        if failure.incarnation != self._paced_for:  # nobody waits for turns at a process that is gone
            self._paced_until, self._paced_for = 0.0, failure.incarnation
        self._paced_until = max(self._paced_until, self._now()) + pace_seconds
        return replace(failure, retry_at=max(failure.retry_at, self._paced_until))

    def staging_failed(self, stage: Stage, error: ArtifactError | SourceUnchanged) -> None:
        """Notes that files could not be had, are not fit, or are still those that were not."""
        key = name_key(stage.name)
        failure = after_staging(
            error, stage.ref, self.failures.get(key), now=self._now(), uniform=self._clock.rng.uniform
        )
        if failure is not None:
            self.failures[key] = failure

    def staged(self, stage: Stage) -> None:
        """Notes that files were brought in: others from the same place may be there, too."""
        key, place = name_key(stage.name), _place_of(stage.ref)
        recovered = key in self.failures and self.failures[key].incarnation is None
        if recovered:
            del self.failures[key]
        waiting = {one: failure.ref for one, failure in self.failures.items() if failure.incarnation is None}
        self._release({one for one, ref in waiting.items() if ref and _place_of(ref) == place}, int(recovered))

    def forget_staging(self) -> None:
        """Drops what was found of files: they are looked at by other terms now."""
        self.failures = {key: one for key, one in self.failures.items() if one.incarnation is not None}

    def forget_others(self, observed: Observed, wanted: Callable[[str], DesiredAdapter | None]) -> None:
        """Drops what is about another ref than the desired one, and unloads of what is not listed any more.

        `wanted` gives what is desired under a name key.
        """
        listed = {name_key(name) for name in observed.adapters} if self.failures else set()
        for key, failure in list(self.failures.items()):
            adapter = wanted(key)
            is_same = adapter is not None and failure.ref == adapter.ref
            if not (key in listed if failure.ref is None else is_same):
                del self.failures[key]

    def ask_again(self, wanted: Callable[[str], DesiredAdapter | None]) -> None:
        """Drops what was applied again since it failed, or what this replica was asked to try again.

        `wanted` as in `forget_others`.
        """
        for key in list(self.failures):
            generation, request = self._asked_for(wanted(key))
            before = self._asked.setdefault(key, (generation, request))
            if generation != before[0] or request not in {"", before[1]}:
                del self.failures[key]
        self._asked = {key: asked for key, asked in self._asked.items() if key in self.failures}

    def _asked_for(self, adapter: DesiredAdapter | None) -> tuple[int, str]:
        """The generation that is desired, and the request by which this replica was asked for another try of it."""
        if adapter is None:
            return 0, ""
        retry = adapter.retry
        is_here = retry is not None and retry.replica in {"", self._replica}
        return adapter.generation, retry.request_id if retry is not None and is_here else ""

    def _now(self) -> float:
        return self._clock.monotonic()


def _place_of(ref: ArtifactRef) -> tuple[str, str]:
    """Place that is out of reach as a whole: a kind of source, and its host or bucket."""
    scheme, _, rest = ref.uri.partition("://")
    return scheme, rest.partition("/")[0]
