"""A replica in which everything happens at once, played on the pure core: its share, its plans, its engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from registry.model.placement import Member
from registry.model.records import PoolSpec
from registry.model.status import ReplicaStatus
from sidecar.artifacts.types import ArtifactRef, Staged
from sidecar.chosen import Chosen, choose
from sidecar.desired import DesiredState, Informer
from sidecar.engine_names import SEPARATOR, names_of
from sidecar.failures import Failure
from sidecar.known import Known
from sidecar.lazy.answers import Terms
from sidecar.lazy.catalogue import Catalogue
from sidecar.lazy.demand import Demand, Told
from sidecar.leaving import Leaving, Verdict
from sidecar.observed import Observed
from sidecar.plan import Call, Load, Plan, Swap, Unload
from sidecar.planner import make_plan
from sidecar.rules import rules_of
from sidecar.share import Share, Sharing
from sidecar.status import Moment, Replica, Situation, derive_status
from tests.support.records import POOL
from tests.support.worlds import observed, owns, path_of

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
    handed: dict[Leaving, Verdict] = field(default_factory=dict)
    leaving: frozenset[Leaving] = frozenset()
    status: ReplicaStatus | None = None
    now: float = 0.0

    def __post_init__(self) -> None:
        self.demand = Demand(Catalogue(POOL, self.informer.record), idle_seconds=100.0)
        self._sharing = Sharing(POOL, self.name, self.labels)
        self._in_store: set[ArtifactRef] = set()
        self._failures: dict[str, Failure] = {}

    @property
    def share(self) -> Share:
        return self._sharing.find(self.state, self.members)

    @property
    def chosen(self) -> Chosen:
        return choose(self.state, self.share, self.spec, self.engine)

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
        self.demand.tell(key, Told(adapter.name, path, self.now))
        self.engine = replace(self.engine, adapters={**self.engine.adapters, adapter.name: path})

    def plan(self) -> Plan:
        """What it would do now; it says so."""
        share, chosen = self.share, self.chosen
        terms = Terms(rules_of(self.spec, self.engine), chosen.room, owns)
        lazy = self.demand.review(self.state, self.engine, terms, now=self.now)
        wanted = {one.ref for one in (*chosen.adapters, *lazy.residents)}
        wanted |= {ref for one in chosen.leaving for _, ref in self.state.adapters[one.key].versions}
        known = Known(
            staged={ref: staged_from(ref) for ref in wanted & self._in_store},
            staging=set(),
            failures=self._failures,
            unsettled=set(),
            owns=owns,
            lazy=lazy,
            share=share,
            handed=self.handed,
        )
        plan = make_plan(self.state, self.spec, self.engine, known, now=self.now)
        self._tell(plan)
        return plan

    def _tell(self, plan: Plan) -> None:
        self.leaving = frozenset(plan.leaving)
        self.handed = {one: said for one, said in self.handed.items() if one in self.leaving}
        lazy = self.demand.situation(self.state, plan)
        names = names_of(self.spec)
        situation = Situation(
            plan.revision, self.engine, plan, ready=True, stale=False, lazy=lazy, note="", held="", last_request_id="",
            names=names,
        )  # fmt: skip
        moment = Moment(self.now, datetime(2026, 1, 1, tzinfo=UTC))
        self.status = derive_status(Replica(self.name, POOL, "vllm", "http://e"), situation, moment)

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
        self.engine = replace(self.engine, adapters=adapters)
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
