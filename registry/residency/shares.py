"""Shares of an adapter: which replica has which part in it. Pure.

A replica serves by the record and among the live replicas that it knows, until it receives what is newer. So each is
judged twice: by the newest record, for what it is to serve, and, unless it proves to serve that, by the record that
stood at the revision of its status and by the names that the status tells, for what it serves meanwhile (guarantee
R24). Nothing is said of a replica that its status does not prove (R9); but where nobody else is known to serve an
adapter, whoever may is named as unknown, since an engine answers on while its sidecar cannot hear of anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from registry.model.names import matches
from registry.model.placement import Assignment, declinable, decline_note, decliners
from registry.model.replica_reasons import LEAVING
from registry.model.replica_state import Expectation, ParsedStatus, ReplicaState, Verdict, answered, evaluate, said
from registry.residency.view import AdapterView, PoolView
from registry.rollout.pool import LiveReplica, PlacementInputs

# The reason of a replica that serves another generation than it is to serve.
EARLIER_GENERATION = "earlier_generation"
# The note where no replica is to serve an adapter.
_NOBODY, _NOBODY_ALIVE = "no live replica matches its selector", "no replica is alive"


@dataclass(frozen=True, slots=True)
class WantedGeneration:
    """A generation that a replica is to serve, and how it stands to it."""

    generation: int
    state: ReplicaState
    reason: str


@dataclass(frozen=True, slots=True)
class ReplicaPart:
    """A generation that a replica serves or, if it serves none, is to serve; and the verdict on that.

    `name`: of the record that it serves by; `lazy`: that one is. `wanted` None: it is to serve nothing else.
    """

    replica: str
    name: str
    generation: int
    verdict: Verdict
    lazy: bool = False
    wanted: WantedGeneration | None = None

    @property
    def is_serving(self) -> bool:
        return self.verdict.state is ReplicaState.SERVING

    def judged(self, verdict: Verdict) -> ReplicaPart:
        """The part by another verdict; by what is wanted if it does not serve what it seemed to."""
        if verdict.state is ReplicaState.SERVING or self.wanted is None:
            return replace(self, verdict=verdict)
        wanted = Verdict(self.wanted.state, self.wanted.reason)
        return replace(self, generation=self.wanted.generation, verdict=wanted, wanted=None)


class Shares:
    """The replicas to serve an adapter: by the live ones, and by what each knows."""

    def __init__(self, view: PoolView, adapter: AdapterView) -> None:
        self._view = view
        self._adapter = adapter
        self._inputs = view.inputs(adapter)
        self._now = view.assigned(adapter, self._inputs.now) if adapter.is_chosen else None

    def names(self) -> Iterable[str]:
        """The replicas that may have a part in it, sorted; without those that leave."""
        view = self._view
        if self._now is None or not view.is_followed(self._adapter):
            return view.replicas
        names = {*view.answering.get(self._adapter.key, ())}
        names = names.union(*(view.assigned(self._adapter, one).serving for one in self._inputs.all))
        return sorted(names & view.replicas.keys())

    def part(self, name: str) -> ReplicaPart | None:
        """A replica's part; None: it has none."""
        part = self._own_part(name) or self._leaving_part(name) or self._awaited_part(name)
        if part is not None and part.is_serving:
            return part
        return self._part_of_before(name, part) or self._answered_part(name, part) or part

    def last_parts(self) -> Iterator[ReplicaPart]:
        """The parts of those that serve it still, and are told of only where nobody else serves it."""
        view = self._view
        names = {*view.snapshot.draining, *view.answering.get(self._adapter.key, ()), *view.doubted, *view.unplaced}
        parts = (self.last_part(name) for name in sorted(names))
        return (part for part in parts if part is not None)

    def last_part(self, name: str) -> ReplicaPart | None:
        """The part of one that drains, that keeps what others are to serve, or that may serve it; None: it does not.

        Others may have taken it over already, so that it is about to be unloaded.
        """
        part = self.part(name)
        if part is None:
            told = self._told_part(name, answered(self._view.everybody[name].reading, self._adapter.key), None)
            return told or self._doubted_part(name) or self._unplaced_part(name)
        if part.verdict.state is ReplicaState.PENDING:
            return self._unplaced_part(name)
        if not part.is_serving or name in self._view.replicas:
            return None
        return replace(part, verdict=replace(part.verdict, reason=LEAVING), wanted=None)

    def _own_part(self, name: str) -> ReplicaPart | None:
        """The part by what the replica knows."""
        adapter, replica = self._adapter, self._view.everybody[name]
        if self._now is None:
            fits = matches(adapter.spec.placement.selector, replica.member.labels)
            return self._part(name, replica, adapter.generation) if fits else None
        own = self._own(name)
        if own is None or name not in own.serving:
            return None
        return self._part(name, replica, self._generation(own, name))

    def _leaving_part(self, name: str) -> ReplicaPart | None:
        """The part that it reports to serve until others do, as far as that is proven."""
        replica = self._view.everybody[name]
        leaving = replica.reading.leaving.get(self._adapter.key) if isinstance(replica.reading, ParsedStatus) else None
        if leaving is None:
            return None
        part = self._part(name, replica, leaving.generation)
        return replace(part, verdict=replace(part.verdict, reason=LEAVING)) if part.is_serving else None

    def _awaited_part(self, name: str) -> ReplicaPart | None:
        """The part that it is to have once it knows the live replicas and their room."""
        if self._now is None or name not in self._now.serving:
            return None
        generation = self._generation(self._now, name)
        return self._part(name, self._view.everybody[name], generation, self._inputs.now)

    def _part_of_before(self, name: str, part: ReplicaPart | None) -> ReplicaPart | None:
        """The part by the earlier record that the replica follows; None: it follows none, or serves nothing by it."""
        adapter, reading = self._adapter, self._view.everybody[name].reading
        if not isinstance(reading, ParsedStatus) or reading.status.observed_revision >= adapter.revision:
            return None
        before = self._view.stood(adapter.key, reading.status.observed_revision)
        if before is None:
            return None
        shares = Shares(self._view, before)
        found = shares._own_part(name) or shares._leaving_part(name)
        if found is None or not found.is_serving:
            return None
        if part is not None and part.generation == found.generation:  # the same files, whatever else changed
            return found
        return _instead(found, part)

    def _doubted_part(self, name: str) -> ReplicaPart | None:
        """The part of one that said that it serves it, or was to serve it, until its status could not be believed."""
        reading, adapter = self._view.everybody[name].reading, self._adapter
        verdict = self._view.doubted.get(name)
        if verdict is None or not isinstance(reading, ParsedStatus):
            return None
        if (generation := said(reading, adapter.key)) is not None:
            return ReplicaPart(name, adapter.name, generation, verdict)
        before = self._view.stood(adapter.key, reading.status.observed_revision)
        if before is None or adapter.key in reading.failed.keys() | reading.pending.keys():
            return None
        shares = Shares(self._view, before)
        return shares._own_part(name)

    def _unplaced_part(self, name: str) -> ReplicaPart | None:
        """The part of one whose share nobody knows, as it knows other live replicas or other room than stood anywhere.

        It has one for all that its status says, unless that names the adapter.
        """
        reading, adapter = self._view.everybody[name].reading, self._adapter
        verdict = self._view.unplaced.get(name)
        if verdict is None or not isinstance(reading, ParsedStatus):
            return None
        if adapter.key in {*reading.failed, *reading.pending, *reading.kept} or reading.status.omitted:
            return None
        at = reading.status.observed_revision
        known = adapter if at >= adapter.revision else self._view.stood(adapter.key, at)
        if known is None or not known.is_chosen or self._view.inputs(known).own[name] is not None:
            return None
        fits = matches(known.spec.placement.selector, self._view.everybody[name].member.labels)
        return ReplicaPart(name, known.name, known.generation, verdict) if fits else None

    def _answered_part(self, name: str, part: ReplicaPart | None) -> ReplicaPart | None:
        """The part by the names that the status tells; None: it does not say that it answers to this one."""
        if part is not None:
            return self._told_part(name, part.verdict.kept, part)
        reading, key = self._view.everybody[name].reading, self._adapter.key
        if (
            isinstance(reading, ParsedStatus)
            and key in reading.kept.keys() - reading.pending.keys() - reading.failed.keys()
        ):
            return None
        return self._told_part(name, answered(reading, key), None)

    def _told_part(self, name: str, kept: int | None, part: ReplicaPart | None) -> ReplicaPart | None:
        if kept is None:
            return None
        return _instead(ReplicaPart(name, self._adapter.name, kept, Verdict(ReplicaState.SERVING)), part)

    def note(self) -> str:
        """A note if fewer replicas take it than it asks for, who declines it, or that none match; or empty."""
        adapter, placement = self._adapter, self._adapter.spec.placement
        if self._now is None or placement.replicas == "all":
            return "" if self._has_somebody() else _NOBODY if placement.selector else _NOBODY_ALIVE
        generation = declinable(adapter.generation, adapter.rollout)
        members = (one.member for one in self._inputs.now.candidates)
        declined = decline_note(decliners(adapter.key, adapter.spec, generation, members))
        if len(self._now.serving) >= placement.replicas:
            return declined
        lacking = f"placed on {placement.replicas}, {len(self._now.serving)}"
        return f"{lacking} take it; {declined}" if declined else f"{lacking} alive"

    def _has_somebody(self) -> bool:
        if self._now is not None:
            return bool(self._now.serving)
        selector = self._adapter.spec.placement.selector
        return any(matches(selector, one.member.labels) for one in self._view.replicas.values())

    def _part(
        self, name: str, replica: LiveReplica, generation: int, inputs: PlacementInputs | None = None
    ) -> ReplicaPart:
        """A replica's part; `inputs`: those that its share must be of; None: any."""
        adapter = self._adapter
        pinned = adapter.pinned
        if adapter.rollout is not None and generation == adapter.rollout.stable_generation:
            pinned = adapter.rollout.stable_spec.source.digest is not None
        expected = Expectation(adapter.key, generation, adapter.revision, adapter.lazy, pinned)
        if inputs is not None:
            expected = replace(expected, members=inputs.members, weights=inputs.weights)
        return ReplicaPart(name, adapter.name, generation, evaluate(replica.reading, expected), adapter.lazy)

    def _generation(self, assigned: Assignment, name: str) -> int:
        rollout = self._adapter.rollout
        if rollout is None or name in assigned.canaries:
            return self._adapter.generation
        return rollout.stable_generation

    def _own(self, name: str) -> Assignment | None:
        """The replicas that serve it by what this one knows; None: that is not known here."""
        inputs = self._inputs.own[name]
        return None if inputs is None else self._view.assigned(self._adapter, inputs)


def _instead(served: ReplicaPart, wanted: ReplicaPart | None) -> ReplicaPart:
    """Served version beside the wanted one; `wanted` None: nothing is, so others are to serve it."""
    if wanted is None:
        return replace(served, verdict=replace(served.verdict, reason=LEAVING))
    still = WantedGeneration(wanted.generation, wanted.verdict.state, wanted.verdict.reason)
    return replace(served, verdict=replace(served.verdict, reason=EARLIER_GENERATION), wanted=still)
