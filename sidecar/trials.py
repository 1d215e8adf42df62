"""What was tried of late: failures, which delay a retry, and calls whose effect the next listing shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from registry.model.names import name_key
from registry.sources.errors import ArtifactError
from sidecar.artifacts.types import ArtifactRef
from sidecar.chance import Chance
from sidecar.executor import Attempt
from sidecar.failures import Failure, after_call, after_staging, not_borne_out
from sidecar.observed import Gone, Observed
from sidecar.plan import Stage


class Trials:
    """One engine's. Nothing of it is needed again after a restart.

    Attributes:
        failures: by name key.
    """

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._attempts: dict[str, Attempt] = {}
        self.failures: dict[str, Failure] = {}

    @property
    def unsettled(self) -> AbstractSet[str]:
        """Name keys of loads that may yet happen, and must not be made twice."""
        return {key for key, attempt in self._attempts.items() if attempt.is_unsettled}

    def loads(self) -> set[tuple[str, str]]:
        """Name and path of each load or swap of which no listing has told yet."""
        return {(one.name, one.path) for one in self._attempts.values() if one.path is not None}

    def settle(self, observed: Observed, *, hangs: bool) -> None:
        """Compares what calls were said, or not known, to have done with what the engine now lists.

        `hangs`: the engine generates nothing, so that what is under way inside it may yet happen.
        """
        incarnation = observed.facts.incarnation
        for key, attempt in list(self._attempts.items()):
            if attempt.is_borne_out(observed):
                self.failures.pop(key, None)
            elif attempt.incarnation == incarnation:
                if hangs and attempt.is_unsettled:
                    continue
                self.failures[key] = not_borne_out(
                    attempt.ref, incarnation, self.failures.get(key), now=self._now(), uniform=self._chance.rng.uniform
                )
            del self._attempts[key]

    def take_up(self, attempts: Iterable[Attempt], incarnation: str) -> None:
        """Notes calls that were made to a process of the engine."""
        for attempt in attempts:
            failure = after_call(
                attempt.outcome,
                attempt.ref,
                incarnation,
                self.failures.get(attempt.key),
                now=self._now(),
                uniform=self._chance.rng.uniform,
            )
            if failure is not None:
                self.failures[attempt.key] = failure
            elif not isinstance(attempt.outcome, Gone):
                self._attempts[attempt.key] = attempt

    def staging_failed(self, stage: Stage, error: ArtifactError) -> None:
        """Notes that files could not be had, or are not fit."""
        key = name_key(stage.name)
        self.failures[key] = after_staging(
            error, stage.ref, self.failures.get(key), now=self._now(), uniform=self._chance.rng.uniform
        )

    def forget_staging(self) -> None:
        """Drops what was found of files: they are looked at by other terms now."""
        self.failures = {key: one for key, one in self.failures.items() if one.incarnation is not None}

    def forget_others(self, observed: Observed, ref_of: Callable[[str], ArtifactRef | None]) -> None:
        """Drops what is about another ref than the desired one, and unloads of what is not listed any more.

        `ref_of` gives the ref that is desired under a name key.
        """
        listed = {name_key(name) for name in observed.adapters} if self.failures else set()
        for key, failure in list(self.failures.items()):
            if not (key in listed if failure.ref is None else failure.ref == ref_of(key)):
                del self.failures[key]

    def _now(self) -> float:
        return self._chance.monotonic()
