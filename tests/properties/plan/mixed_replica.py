"""A replica in which everything happens at once, played on the pure core: its share, its plans, its engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from registry.model.placement import Member
from registry.model.records import PoolSpec
from registry.model.status import ReplicaStatus
from registry.runtime.clock import Moment
from sidecar.artifacts.types import ArtifactRef, Staged
from sidecar.desired.assignment import Assigner, Share
from sidecar.desired.informer import DesiredState, Informer
from sidecar.engines.observed import Observed
from sidecar.plan.backoff import Failure
from sidecar.plan.handoff import Handoff, HandoffVerdict
from sidecar.plan.names import SEPARATOR, names_of
from sidecar.plan.planner import make_plan
from sidecar.plan.types import Call, Load, Plan, PlanContext, Selection, StatusInputs, Swap, Unload
from sidecar.report.status import ReplicaIdentity, derive_status
from sidecar.resolver.demand import Answered, ResidentSet
from sidecar.resolver.policy import Catalogue
from tests.support.records import POOL
from tests.support.worlds import chosen, observed, owns, path_of, relisted

# A source that is no adapter, and one that every engine refuses.
MISSING, REFUSED = "missing", "refused"


def source_of(ref: ArtifactRef) -> str:
    return ref.uri.rsplit("/", 1)[-1]


def staged_from(ref: ArtifactRef) -> Staged:
    return Staged(source_of(ref), path_of(source_of(ref)), ref.digest or "", 8)


@dataclass
class MixedReplica:
    """A sidecar and its engine. It knows what it was told last, and says what it sees.

    Attributes:
        state: the records that it follows.
        members: whom it takes to be alive.
        handed: what was said to it of handing over.
        status: what it said last.
    """

    name: str
    labels: Mapping[str, str]
    informer: Informer
    spec: PoolSpec
    state: DesiredState = field(default_factory=DesiredState)
    members: Mapping[str, Member] | None = None
    engine: Observed = field(default_factory=observed)
    handed: dict[Handoff, HandoffVerdict] = field(default_factory=dict)
    leaving: frozenset[Handoff] = frozenset()
    status: ReplicaStatus | None = None
    now: float = 0.0

    def __post_init__(self) -> None:
        self.demand = ResidentSet(Catalogue(self.informer), idle_seconds=100.0)
        self._sharing = Assigner(POOL, self.name, self.labels)
        self._in_store: set[ArtifactRef] = set()
        self._failures: dict[str, Failure] = {}

    @property
    def share(self) -> Share:
        return self._sharing.find(self.state, self.members)

    @property
    def chosen(self) -> Selection:
        return chosen(self.state, self.engine, spec=self.spec, share=self.share)

    @property
    def capacity(self) -> int | None:
        return self.spec.limits.max_adapters

    def restart_engine(self) -> None:
        """Everything is gone, and everybody can see that."""
        number = int(self.engine.facts.incarnation[1:]) + 1
        self.engine, self.status = observed(incarnation=f"e{number}"), None

    def restart_sidecar(self) -> None:
        """What it remembers is gone; records, replicas and files it finds again."""
        self.__post_init__()
        self.handed, self.leaving = {}, frozenset()

    def ask(self, key: str) -> None:
        """The engine asks for a lazy adapter, and loads what it is told."""
        adapter = self.demand.catalogue.whole(self.state, key)
        terms = self.demand.terms
        if adapter is None or terms is None or not terms.room or adapter.name in self.engine.adapters:
            return
        if source_of(adapter.ref) in (MISSING, REFUSED):
            return
        path = staged_from(adapter.ref).path
        self.demand.tell(key, Answered(adapter.name, path, self.now))
        self.engine = relisted(self.engine, {**self.engine.adapters, adapter.name: path})

    def plan(self) -> Plan:
        """What it would do now; it says so."""
        known = PlanContext(
            staged={ref: staged_from(ref) for ref in self._in_store},
            staging=set(),
            failures=self._failures,
            unsettled=set(),
            lazy=self.demand.candidates(self.state, self.engine, now=self.now),
            share=self.share,
            handed=self.handed,
        )
        plan = make_plan(self.state, self.spec, self.engine, known, now=self.now)
        self.demand.follow(plan)
        self._tell(plan)
        return plan

    def _tell(self, plan: Plan) -> None:
        self.leaving = frozenset(plan.leaving)
        self.handed = {one: said for one, said in self.handed.items() if one in self.leaving}
        lazy = self.demand.situation(self.state, plan)
        names = names_of(self.spec)
        situation = StatusInputs(
            plan.revision, self.engine, plan, ready=True, stale=False, lazy=lazy, note="", held="", last_request_id="",
            names=names,
        )  # fmt: skip
        moment = Moment(self.now, datetime(2026, 1, 1, tzinfo=UTC))
        self.status = derive_status(ReplicaIdentity(self.name, POOL, "vllm", "http://e"), situation, moment)

    def carry_out(self, plan: Plan, steps: int) -> list[Call]:
        """Stages what the plan says, and makes so many of its calls; gives those that were made."""
        for stage in plan.stage:
            if source_of(stage.ref) == MISSING:
                self._fail(stage.name, stage.ref, None)
            else:
                self._in_store.add(stage.ref)
        made = [call for call in plan.calls[:steps] if self._make(call)]
        self._failures = {key: one for key, one in self._failures.items() if one.ref == self._ref_of(key)}
        return made

    def _make(self, call: Call) -> bool:
        adapters = dict(self.engine.adapters)
        match call:
            case Load(name, path, ref):
                assert name not in adapters, "a name that is there is not loaded"
                if source_of(ref) == REFUSED:
                    self._fail(name, ref, self.engine.facts.incarnation)
                    return False
                adapters[name] = path
            case Swap(name, old, new, ref):
                assert adapters[name] == old, "a swap is of what is there"
                if source_of(ref) == REFUSED:
                    self._fail(name, ref, self.engine.facts.incarnation)
                    return False
                adapters[name] = new
            case Unload(name, path):
                assert adapters.pop(name) == path, "an unload is of what is there"
        self.engine = relisted(self.engine, adapters)
        return True

    def _fail(self, name: str, ref: ArtifactRef, incarnation: str | None) -> None:
        key = name.partition("@")[0].lower()
        self._failures[key] = Failure(ref, incarnation, "refused", "no", 3, None)

    def _ref_of(self, key: str) -> ArtifactRef | None:
        adapter = self.state.adapters.get(key)
        version = self.share.version(adapter) if adapter else self.demand.resident(key)
        return version.ref if version else None

    def lists(self, name: str) -> bool:
        """True if its engine has the adapter from us, spelled so, in whichever version."""
        return any(one.partition(SEPARATOR)[0] == name and owns(path) for one, path in self.engine.adapters.items())
