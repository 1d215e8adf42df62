"""Types of plans, and of what plans are made from. Pure.

`sidecar.plan.planner` makes plans, `sidecar.loop.executor` carries them out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from registry.lora.coverage.findings import EngineEvidence
from registry.model.records import EngineNames
from sidecar.artifacts.types import ArtifactRef, Stage, Staged
from sidecar.desired.assignment import Share
from sidecar.desired.informer import DesiredAdapter
from sidecar.desired.placement import NOBODY, MembershipDigest, Order
from sidecar.engines.observed import Observed, UnreadScale, Use
from sidecar.plan.backoff import Declines, Failure
from sidecar.plan.handoff import Handoff, HandoffVerdict
from sidecar.plan.readiness import NO_REFUSALS, EngineRefusals


@dataclass(frozen=True, slots=True)
class Load:
    """Load what the engine does not have. `prove`: first it is asked whether that is right, see `Engine.prove`.

    `key`: what its failure is remembered under; empty: the name key of its adapter.
    `beside`: it is of a generation that is kept beside the newest, which does not wait for it.
    """

    name: str
    path: str
    ref: ArtifactRef
    request_id: str
    prove: bool = False
    key: str = ""
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Swap:
    """Replace the weights behind a name that the engine has from us. `prove`: as of a load."""

    name: str
    old: str
    new: str
    ref: ArtifactRef
    request_id: str
    prove: bool = False


@dataclass(frozen=True, slots=True)
class Unload:
    """Unload what the engine has from us and should not have. It goes with the newest change that is planned for."""

    name: str
    path: str
    request_id: str = ""


Call = Load | Swap | Unload


@dataclass(frozen=True, slots=True)
class InProgress:
    """Calls of earlier plans that have not ended yet; `loads`: names that the engine may get.

    `keys`: name keys, of adapters and of the engine's names, that nothing may be called for meanwhile.
    """

    keys: frozenset[str] = frozenset()
    loads: frozenset[str] = frozenset()


Action = Stage | Call


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """A name that the engine lists with the path of the desired artifact; `digest` is that of its source.

    Where the record does not say that, `is_pinned` is False and it was found here.
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
    """A name that is not served as desired, and will not be until `retry_at` (monotonic; None: until a change).

    `is_settled`: nothing should wait for it. `final_at`: from when on (monotonic) rollouts take it for an answer.
    `look_at`: when its source is looked at for a change; None: it is not. `is_own`: another replica may serve it.
    """

    name: str
    generation: int
    reason: str
    message: str
    attempts: int
    retry_at: float | None
    request_id: str
    is_settled: bool
    final_at: float = math.inf
    look_at: float | None = None
    is_own: bool = False


@dataclass(frozen=True, slots=True)
class WarnedAdapter:
    """Warning about a served name; no name: about all of them."""

    name: str
    generation: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class KeptAdapter:
    """A pending or failed name that the engine lists with a path of ours; `generation` 0: not known which.

    `is_counted`: it is among what is served too, since its newest record cannot be followed.
    """

    name: str
    generation: int
    is_counted: bool = False


Condition = ServedAdapter | PendingAdapter | FailedAdapter


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """Limits that no adapter may break on a replica, eager or lazy.

    Attributes:
        base_names: names in lower case that are taken.
        max_rank: the highest; None: no limit.
        target_modules: those that are served; None: no limit. `names_targets`: they are the engine's, not the pool's.
        names: what the engine calls an adapter.
        capacity: how many adapters the engine is asked to hold at once, at least 1; None: no limit.
        evidence: what the engine says that it applies of adapters; None: it does not say.
        proves: an adapter is given to the engine only if it does not say that it has no effect.
        expects: it is asked before that, too, whether the adapter answers as its record expects.
        no_effect, unexpected: see `Observed`, where that counts.
        pool_rank: the highest on every replica of the pool; None: no limit.
        unread_scales: what the engine does not read of the scales of adapters.
    """

    base_names: frozenset[str] = frozenset()
    max_rank: int | None = None
    target_modules: tuple[str, ...] | None = None
    names: EngineNames = "plain"
    capacity: int | None = None
    evidence: EngineEvidence | None = None
    proves: bool = False
    no_effect: AbstractSet[str] = frozenset()
    expects: bool = False
    unexpected: Mapping[str, str] = field(default_factory=dict)
    pool_rank: int | None = None
    names_targets: bool = False
    unread_scales: tuple[UnreadScale, ...] = ()


@dataclass(frozen=True, slots=True)
class LazySelection:
    """The few lazy adapters that count at present.

    Attributes:
        residents: those that are loaded and stay so.
        asked: name keys of which questions are open, or whose records have moved on: nothing is called for these.
        troubles: those that were asked for and refused, as far as that still holds, with why.
    """

    residents: tuple[DesiredAdapter, ...] = ()
    asked: frozenset[str] = frozenset()
    troubles: tuple[tuple[DesiredAdapter, Failure], ...] = ()


@dataclass(frozen=True, slots=True)
class Selection:
    """Adapters for the engine, and those without room; the most important first.

    Attributes:
        limits: of this engine in this pool.
        adapters: the eager ones that it is to hold; `kept`: earlier generations of these, to be held beside them.
        over: ranks, as in `DesiredState.order`, of those that there is no room for. There may be very many.
        undecided: the same of those of which it is not known yet whether this replica is to serve them.
        leaving: what the engine lists and others are to serve.
        room: for how many lazy adapters there is room beside the eager ones.
        lazy: those.
        good: by name key, what may be served instead of what it is to hold or hands over, the best first.
        staged: what is in the store of all these, by ref; `unseen`: refs of the others, which nobody is bringing in.
        unwanted: refs that are brought in, and are none of these.
        versions: what a plan made of this may load, with what proves it in an answer.
    """

    limits: ReplicaLimits = ReplicaLimits()
    adapters: tuple[DesiredAdapter, ...] = ()
    kept: tuple[DesiredAdapter, ...] = ()
    over: Order = ()
    undecided: Order = ()
    leaving: tuple[Handoff, ...] = ()
    room: int = 0
    lazy: LazySelection = LazySelection()
    good: Mapping[str, tuple[DesiredAdapter, ...]] = field(default_factory=dict)
    staged: Mapping[ArtifactRef, Staged] = field(default_factory=dict)
    unseen: AbstractSet[ArtifactRef] = frozenset()
    unwanted: AbstractSet[ArtifactRef] = frozenset()
    versions: Mapping[Use, str] = field(default_factory=dict)

    @property
    def wanted(self) -> tuple[DesiredAdapter, ...]:
        """All that the engine is to hold."""
        return *self.adapters, *self.lazy.residents


@dataclass(frozen=True, slots=True)
class Plan:
    """Calls to make now, and the condition of every adapter meanwhile.

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
        kept: what the engine answers to although it is not as desired, with the generation; 0: that is not known.
        beside: earlier generations that it answers to as desired.
        removing: how many names the engine has, or may get yet, that nothing desires here.
        among: the live replicas that this replica's share was found among; `is_out`: it leaves, and is none of them.
        refusals: of what it is to hold, what the engine refused.
        is_awaiting: calls of earlier plans have not ended yet.
        paused: why no call may be made to the engine now; empty: it may.
        declined: what is placed by number and this replica refuses for good by limits of its own.
        chosen: what it was made of.
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
    leaving: tuple[Handoff, ...] = ()
    still_served: tuple[ServedAdapter, ...] = ()
    kept: tuple[KeptAdapter, ...] = ()
    beside: tuple[ServedAdapter, ...] = ()
    removing: int = 0
    among: MembershipDigest = NOBODY
    is_out: bool = False
    is_awaiting: bool = False
    paused: str = ""
    refusals: EngineRefusals = field(default=NO_REFUSALS, compare=False)
    declined: Declines = field(default_factory=dict, compare=False)
    chosen: Selection = field(default=Selection(), compare=False)

    @property
    def is_destructive(self) -> bool:
        """True if it takes something away, for which the engine must just have been looked at."""
        return any(not isinstance(call, Load) for call in self.calls)

    @property
    def is_settled(self) -> bool:
        """True if there is nothing left that a replica's readiness should wait for."""
        return not (
            self.blocked
            or self.is_awaiting
            or self.stage
            or self.calls
            or any(not entry.is_settled for entry in self.pending)
            or any(not entry.is_settled for entry in self.failed)
        )


@dataclass(frozen=True, slots=True)
class LazyCandidates:
    """Lazy adapters that a plan may choose from.

    Attributes:
        used_at: of each that is loaded, monotonic seconds of its last use, by name key.
        whole: what of these is desired; without those whose records have moved on.
        bound: those that the engine has just asked for, which stay.
        asked: name keys of which questions are open.
        idle_seconds: what was not used for longer goes.
        troubles: see `LazySelection`.
    """

    used_at: Mapping[str, float] = field(default_factory=dict)
    whole: Mapping[str, DesiredAdapter] = field(default_factory=dict)
    bound: AbstractSet[str] = frozenset()
    asked: AbstractSet[str] = frozenset()
    idle_seconds: float = 0.0
    troubles: tuple[tuple[DesiredAdapter, Failure], ...] = ()


NOTHING_LAZY = LazyCandidates()


@dataclass(frozen=True, slots=True)
class LazySituation:
    """Report on lazy adapters beside the plan.

    Attributes:
        count: how many of the pool there are.
        room: how many of them the engine is to hold at once.
        used_at: monotonic seconds of the last use of those that are loaded, by name key.
    """

    count: int = 0
    room: int = 0
    used_at: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanContext:
    """Knowledge of this replica beside desired and observed state.

    Attributes:
        staged: see `ArtifactStore.staged`; what of the rest matters is `Selection.unseen`.
        staging: refs that are being brought in.
        failures: by name key.
        unsettled: name keys whose last load has an unknown outcome that no listing has settled yet.
        in_progress: calls of earlier plans that have not ended yet.
        base_problem: why adapters cannot be compared with the base model; empty: they can.
        base_known: False if there is nothing to compare them with.
        made_of, reads: see `ArtifactStore`; the first is asked for where nothing may be called.
        lazy: the lazy adapters that count at present.
        share: what of the desired state this replica serves; None: all of it.
        handed: what was said of handing over.
        taken: names that the engine had from us, wanted still, to which somebody gave other files.
        request_id: of the newest change that is planned for; empty: not known.
        since: revision that was desired when this process of the engine was first planned for; None: not known.
        used_at: monotonic seconds at which adapters were last used, by name key, as far as anybody could tell.
        proxied, pool_refusal: see `Snapshot`.
        handing: names that others are to serve and that the engine had until they do, also if it has lost them since.
        not_taken: by file of the operator's, why it is not taken as it is now.
        touched: by path, what somebody did to files that the engine may be reading.
        generations: of what the engine was seen to serve as it was desired then, by what it lists.
        declined: what the plan before declined, or this replica did before its restart.
    """

    staged: Mapping[ArtifactRef, Staged]
    staging: AbstractSet[ArtifactRef]
    failures: Mapping[str, Failure]
    unsettled: AbstractSet[str]
    in_progress: InProgress = InProgress()
    base_problem: str = ""
    base_known: bool = True
    made_of: Mapping[tuple[ArtifactRef, str], str] = field(default_factory=dict)
    lazy: LazyCandidates = NOTHING_LAZY
    share: Share | None = None
    handed: Mapping[Handoff, HandoffVerdict] = field(default_factory=dict)
    taken: AbstractSet[str] = frozenset()
    request_id: str = ""
    since: int | None = None
    used_at: Mapping[str, float] = field(default_factory=dict)
    proxied: str = ""
    pool_refusal: str = ""
    handing: AbstractSet[str] = frozenset()
    generations: Mapping[Use, int] = field(default_factory=dict)
    declined: Declines = field(default_factory=dict)
    reads: str = ""
    touched: Mapping[str, str] = field(default_factory=dict)
    not_taken: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LastSeen:
    """Served set at the last whole look, with its time (RFC 3339); empty: never."""

    served: tuple[ServedAdapter, ...] = ()
    at: str = ""


NOTHING_SEEN = LastSeen()


@dataclass(frozen=True, slots=True)
class StatusInputs:
    """Everything that a status is derived from.

    Attributes:
        revision: etcd's revision that it speaks about.
        observed: the engine as it was last seen whole; None: it is out of reach or cannot be driven.
        plan: made from that look; None where there was none or no desired state.
        ready: the first plan since the engine started has been carried out.
        stale: etcd is out of reach, or it is not known yet what is desired.
        lazy: of the lazy adapters.
        note: why the replica is not ready; empty if it is.
        held: why the newest list is not followed; empty if it is.
        last_request_id: request of the newest change that the plan is made from.
        names: what the engine calls an adapter.
        degraded: why the engine serves less than it should; empty: it does not.
        last_seen: told where there is no plan.
    """

    revision: int
    observed: Observed | None
    plan: Plan | None
    ready: bool
    stale: bool
    lazy: LazySituation
    note: str
    held: str
    last_request_id: str
    names: EngineNames = "plain"
    degraded: str = ""
    last_seen: LastSeen = NOTHING_SEEN


@dataclass(frozen=True, slots=True)
class RoundReport:
    """Result of one round, for status and metrics: `situation` is what the status is derived from.

    `desired_count`: how many eager adapters were this replica's to serve when it was last planned.
    `capacity`: the engine's, if there is a plan; None: it has no limit.
    """

    situation: StatusInputs
    desired_count: int
    capacity: int | None = None
