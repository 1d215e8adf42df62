"""What a plan is made of. Pure types; `sidecar.planner` makes plans, `sidecar.executor` carries them out."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.artifacts.types import ArtifactRef
from sidecar.leaving import Leaving
from sidecar.placings import NOBODY, Among


@dataclass(frozen=True, slots=True)
class Stage:
    """Bring an artifact into the store."""

    name: str
    ref: ArtifactRef
    request_id: str


@dataclass(frozen=True, slots=True)
class Load:
    """Load what the engine does not have."""

    name: str
    path: str
    ref: ArtifactRef
    request_id: str


@dataclass(frozen=True, slots=True)
class Swap:
    """Replace the weights behind a name that the engine has from us."""

    name: str
    old: str
    new: str
    ref: ArtifactRef
    request_id: str


@dataclass(frozen=True, slots=True)
class Unload:
    """Unload what the engine has from us and should not have."""

    name: str
    path: str


Call = Load | Swap | Unload
Action = Stage | Call


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """A name that the engine lists with the path of the desired artifact.

    `digest` is that of its source; where the record does not say it, `is_pinned` is False and it was found here.
    """

    name: str
    generation: int
    digest: str
    is_pinned: bool = True


@dataclass(frozen=True, slots=True)
class PendingAdapter:
    """A name that is not served yet. `is_settled`: nothing that this replica does will change that."""

    name: str
    generation: int
    reason: str
    request_id: str
    is_settled: bool = False


@dataclass(frozen=True, slots=True)
class FailedAdapter:
    """A name that is not served as desired, and will not be until `retry_at` (monotonic; None: until a change)."""

    name: str
    generation: int
    reason: str
    message: str
    attempts: int
    retry_at: float | None
    request_id: str
    is_settled: bool


@dataclass(frozen=True, slots=True)
class WarnedAdapter:
    """What somebody should know of a name that is served all the same; no name: of all of them."""

    name: str
    generation: int
    reason: str
    message: str


Condition = ServedAdapter | PendingAdapter | FailedAdapter


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, and what to say of every adapter meanwhile.

    Attributes:
        revision: etcd's, of the desired state that it was made from.
        stage: artifacts to bring in, concurrently.
        calls: engine calls, one after another, in this order.
        residents: lazy adapters that are loaded as desired.
        wake_at: monotonic seconds of the first retry; None: nothing waits for time to pass.
        warnings: what somebody should know; as many as can be listed.
        omitted: pending names that are too many to be listed.
        blocked: why nothing at all may be done with this engine; empty: it may.
        leaving: what is listed and others are to serve, also what is let go of since they do.
        still_served: what of that is kept until they do, and is of a generation that is known.
        among: the live replicas that this replica's share was found among.
    """

    revision: int
    stage: tuple[Stage, ...]
    calls: tuple[Call, ...]
    served: tuple[ServedAdapter, ...]
    pending: tuple[PendingAdapter, ...]
    failed: tuple[FailedAdapter, ...]
    wake_at: float | None
    warnings: tuple[WarnedAdapter, ...] = ()
    omitted: int = 0
    blocked: str = ""
    residents: tuple[ServedAdapter, ...] = ()
    leaving: tuple[Leaving, ...] = ()
    still_served: tuple[ServedAdapter, ...] = ()
    among: Among = NOBODY

    @property
    def is_destructive(self) -> bool:
        """True if it takes something away, for which the engine must just have been looked at."""
        return any(not isinstance(call, Load) for call in self.calls)

    @property
    def is_settled(self) -> bool:
        """True if there is nothing left that a replica's readiness should wait for."""
        return not (
            self.blocked
            or self.stage
            or self.calls
            or any(not entry.is_settled for entry in self.pending)
            or any(not entry.is_settled for entry in self.failed)
        )
