"""Placement of adapters by rendezvous hashing, and canaries. Pure.

By rendezvous hashing: each replica has a score for each adapter, and the highest scores serve it. A replica that comes
or goes therefore changes nothing but its own share. Scores grow with the room that a replica has for adapters that are
placed by number (weighted rendezvous hashing, J. Schindelhauer and G. Schomaker, 2005).

A presence alone says little: anybody may have written it, and its sidecar may never have come as far as to say
anything. So a replica counts once it reports: a status stands under the lease of its presence; and it has no more room
than its engine holds by that status. As with what is declined, below, nobody goes by this while one that reports is of
a release that does not.

A replica that declines an adapter, since it refuses it for good by limits of its own, counts as none for it: the next
one takes it. Where all decline, they are placed on as if none did, and say why it is not served. Only where all live
replicas are of releases that know of this do they go by it, so that all of them find the same.

Sidecars and the admin service both ask here, so that they find the same answer.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from registry.lora.text import some_of
from registry.model.names import matches
from registry.model.records import AdapterRecord, AdapterSpec, Canary, CanaryRollout, Placement
from registry.model.status import Presence, ReportedDeclines

# Of a replica that does not say how many adapters it can hold, and of one that has no room left.
UNKNOWN_CAPACITY = 100
LEAST_WEIGHT = 0.01
# Of a replica whose engine is away, and which says that it holds nothing: so little that all others come before it.
AWAY_WEIGHT = 2.0**-100
# Steps of weight to a doubling of room: a small change of room moves nothing, and makes nobody look at all shares anew.
_STEPS = 4
_SCALE = float(1 << 53)
_BELOW_ONE = math.nextafter(1.0, 0.0)
# The label by which llm-d tells replicas for prefill from those for decode; both, like "prefill-decode", are for both.
ROLE_LABEL, _BOTH = "llm-d.ai/role", "both"
# A replica's score for an adapter with the sign turned, so that the best comes first, and its name.
Rank = tuple[float, str]


# Why a replica may refuse an adapter for good that another one would serve, and what of the replica that comes from.
# What is wrong with the files is not among them: every replica would refuse those alike, one after the other.
DECLINABLE: Mapping[str, str] = {
    "rank_too_high": "its engine's --max-lora-rank is lower",
    "target_modules_mismatch": "its engine's --lora-target-modules do not name all of its modules",
    "not_applied_by_engine": "its engine does not apply all of its modules",
    "not_taken_by_engine": "its engine does not take all of its modules",
    "source_not_allowed": "its --allow-source does not name the source",
    "address_not_allowed": "its --allow-source does not name the source's address",
    "redirect_not_allowed": "its --allow-source does not name where the source leads to",
    "unsupported_scheme": "its release does not know the source's scheme",
    "unknown_credential": "its --credentials do not have the credential",
    "credential_not_bound": "its --credentials do not bind the credential to the source",
    "signature_keys_missing": "it has no --signature-keys",
}
_DECLINE_DIGITS = 12
_NAMED_AT_MOST = 3


def decline_id(key: str, generation: int) -> str:
    """An adapter's generation, as presences tell of it: short, since a replica may decline many. `key`: a name key."""
    return hashlib.sha256(f"{key}\0{generation}".encode()).hexdigest()[:_DECLINE_DIGITS]


@dataclass(frozen=True, slots=True)
class Declined:
    """The ids of the adapters that a replica declines for one reason; `by`: a digest of its limit."""

    by: str
    adapters: frozenset[str]


@dataclass(frozen=True, slots=True)
class Member:
    """A live replica: what its presence says. `capacity` None: it does not say; 0: its engine is away.

    `leaving`: it drains; nothing is placed on it, so no set of members that something is placed among holds it.
    `declines`: by reason; None: its sidecar is of a release that does not know of that.
    `reports`: a status stands under the lease of its presence; `by_reports`: its sidecar is of a release that leaves
    out those of whom that is not so. Neither makes it another replica.
    """

    replica: str
    labels: Mapping[str, str]
    capacity: int | None = None
    leaving: bool = False
    declines: Mapping[str, Declined] | None = field(default_factory=dict)
    reports: bool = field(default=True, compare=False)
    by_reports: bool = field(default=True, compare=False)

    def why_declined(self, adapter: str) -> str:
        """The reason why it declines an adapter of this id; empty: it does not."""
        return next((reason for reason, one in (self.declines or {}).items() if adapter in one.adapters), "")


def member_of(replica: str, presence: Presence, *, reports: bool, held: int | None) -> Member:
    """The replica of a presence.

    `reports`: as in `Member`; `held`: how many adapters its engine holds by its status; None: that does not say.
    """
    declines = declined_of(presence.declines) if "declines" in presence.model_fields_set else None
    capacity = capacity_within(presence.capacity, held)
    return Member(
        replica, presence.labels, capacity, presence.leaving, declines, reports=reports, by_reports=presence.by_reports
    )


def capacity_within(told: int | None, held: int | None) -> int | None:
    """The capacity that a presence tells, as far as its engine holds so many; None: nothing says how many.

    `held`: how many that are; None: it is not known.
    """
    if held is None:
        return told
    if told is None:
        return held if held < UNKNOWN_CAPACITY else None
    return min(told, held)


def counted(members: Iterable[Member]) -> tuple[Member, ...]:
    """The replicas that something is placed among: those that report.

    All of them where one that reports is of a release that does not go by this, so that all find the same.
    """
    found = tuple(members)
    reporting = tuple(one for one in found if one.reports)
    return reporting if all(one.by_reports for one in reporting) else found


def declined_of(declines: Mapping[str, ReportedDeclines]) -> dict[str, Declined]:
    """Adapters that a replica declines, by its presence."""
    return {reason: Declined(one.by, frozenset(one.adapters)) for reason, one in declines.items()}


def heeded(members: Iterable[Member]) -> tuple[Member, ...]:
    """The replicas, without what they decline where one of them is of a release that does not heed that."""
    found = tuple(members)
    if all(one.declines is not None for one in found):
        return found
    return tuple(replace(one, declines={}) for one in found)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live replica, with the room that it has for adapters that are placed by number."""

    member: Member
    weight: float


def members_digest(members: Iterable[Member]) -> str:
    """Equal for equal sets of live replicas; 32 hex digits."""
    lines = sorted(
        f"{one.replica}\0{sorted(one.labels.items())}\0{'' if one.capacity is None else one.capacity}{_declines(one)}\n"
        for one in members
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:32]


def _declines(member: Member) -> str:
    """Nothing where it declines nothing, so that earlier releases find the same digest."""
    ids = sorted({adapter for one in (member.declines or {}).values() for adapter in one.adapters})
    return "".join(f"\0{one}" for one in ids)


def weights_digest(candidates: Iterable[Candidate]) -> str:
    """Equal where all replicas have the same weights; 32 hex digits."""
    lines = sorted(f"{one.member.replica}\0{one.weight!r}\n" for one in candidates)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:32]


def candidate(member: Member, everywhere: int) -> Candidate:
    """`everywhere`: how many adapters the replica serves because all that match do; these leave less room."""
    if member.capacity == 0:
        return Candidate(member, AWAY_WEIGHT)
    capacity = UNKNOWN_CAPACITY if member.capacity is None else member.capacity
    return Candidate(member, _weight(capacity - everywhere))


def _weight(room: int) -> float:
    return LEAST_WEIGHT if room < 1 else 2.0 ** (round(_STEPS * math.log2(room)) / _STEPS)


def place(
    pool: str, key: str, placement: Placement, generation: int, candidates: Collection[Candidate]
) -> tuple[Rank, ...]:
    """The ranks of the replicas that serve an adapter, the best first: fewer than it asks for where fewer match.

    Args:
        pool: of the adapter.
        key: its name key.
        placement: what its record asks for.
        generation: the one that replicas may decline, see `declinable`.
        candidates: all live replicas of the pool.
    """
    willing = takers(key, placement, generation, candidates)
    return best(ranks(pool, key, placement, willing), placement) or best(
        ranks(pool, key, placement, candidates), placement
    )


def placed(
    pool: str, key: str, placement: Placement, candidates: Collection[Candidate], generation: int = 0
) -> tuple[str, ...]:
    """The names of the replicas that `place` finds."""
    return tuple(replica for _, replica in place(pool, key, placement, generation, candidates))


def takers(key: str, placement: Placement, generation: int, candidates: Collection[Candidate]) -> Collection[Candidate]:
    """The replicas that do not decline an adapter; those that are to serve it because all do are not asked."""
    if placement.replicas == "all" or not any(one.member.declines for one in candidates):
        return candidates
    adapter = decline_id(key, generation)
    return [one for one in candidates if not one.member.why_declined(adapter)]


def decliners(key: str, spec: AdapterSpec, generation: int, members: Iterable[Member]) -> dict[str, str]:
    """Those of the replicas that match and decline an adapter, with why, sorted by name."""
    declining = [one for one in members if one.declines and looks_at_room(spec)]
    adapter = decline_id(key, generation) if declining else ""
    fitting = (one for one in declining if matches(spec.placement.selector, one.labels))
    return dict(sorted((one.replica, reason) for one in fitting if (reason := one.why_declined(adapter))))


def decline_note(decliners: Mapping[str, str]) -> str:
    """A sentence that says who does not take an adapter, and why; empty: nobody."""
    by_reason: dict[str, list[str]] = {}
    for replica, reason in decliners.items():
        by_reason.setdefault(reason, []).append(replica)
    return "; ".join(_sentence(reason, replicas) for reason, replicas in by_reason.items())


def _sentence(reason: str, replicas: list[str]) -> str:
    names = some_of(replicas, _NAMED_AT_MOST)
    does = "does" if len(replicas) == 1 else "do"
    return f"{names} {does} not take it: {reason}" + (f" ({DECLINABLE[reason]})" if reason in DECLINABLE else "")


def declinable(generation: int, rollout: CanaryRollout | None) -> int:
    """The generation of a record that a replica may decline: with canaries the one that the others serve.

    A canary that refuses a new generation has that halted; it is not passed on to another.
    """
    return generation if rollout is None else rollout.stable_generation


def ranks(pool: str, key: str, placement: Placement, candidates: Iterable[Candidate]) -> Iterator[Rank]:
    """The ranks of the replicas that may serve an adapter, in no order."""
    salt = f"{pool}\0{key}\0"
    return (_rank(salt, one) for one in candidates if matches(placement.selector, one.member.labels))


def best(ranked: Iterable[Rank], placement: Placement) -> tuple[Rank, ...]:
    """Of some ranks those that serve, the best first."""
    return tuple(sorted(ranked))[: None if placement.replicas == "all" else placement.replicas]


def canaries(canary: Canary, serving: tuple[str, ...]) -> frozenset[str]:
    """Those of the replicas that serve an adapter, as `placed` orders them, that take a new version first."""
    return frozenset(serving[: canary_count(canary, len(serving))])


def canary_count(canary: Canary, serving: int) -> int:
    """Number of canaries among so many replicas: at least one, at most all."""
    if isinstance(canary.replicas, int):
        return min(canary.replicas, serving)
    return -(-int(canary.replicas.removesuffix("%")) * serving // 100)


def _rank(salt: str, one: Candidate) -> Rank:
    digest = hashlib.sha256((salt + one.member.replica).encode()).digest()
    # Within (0, 1), both ends left out, so that the logarithm is finite and not 0: the last number would be rounded up.
    clock = min(((int.from_bytes(digest[:8], "big") >> 11) + 0.5) / _SCALE, _BELOW_ONE)
    return one.weight / math.log(clock), one.member.replica


Selector = frozenset[tuple[str, str]]
# Where nothing is placed by number nobody looks at room: canaries then stay the same whatever else a pool serves.
_EVEN = 1.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """The replicas that serve an adapter, the highest score first, and those of them that take new versions first."""

    serving: tuple[str, ...]
    canaries: frozenset[str]


def spec_now(record: AdapterRecord) -> AdapterSpec:
    """A record's spec with the present number of replicas, where that follows requests.

    It is never outside its range, whoever wrote the record. Nobody who places an adapter goes by another number.
    """
    placement, by_load = record.spec.placement, record.spec.placement.by_load
    if by_load is None or record.scaled is None or placement.replicas == "all":
        return record.spec
    number = max(placement.replicas, min(record.scaled.replicas, by_load.max))
    return record.spec.model_copy(update={"placement": placement.model_copy(update={"replicas": number})})


def room_taken(spec: AdapterSpec) -> Selector | None:
    """The selector of an adapter that takes room on each replica that matches; None: it is not all of these that do."""
    if not spec.enabled or spec.load == "lazy" or spec.placement.replicas != "all":
        return None
    return frozenset(spec.placement.selector.items())


def looks_at_room(spec: AdapterSpec) -> bool:
    """True if who serves the adapter depends on what else the pool serves."""
    return spec.placement.replicas != "all"


def assign(
    pool: str, key: str, spec: AdapterSpec, candidates: Collection[Candidate], generation: int = 0
) -> Assignment:
    """The replicas that serve an adapter.

    Args:
        pool: of the adapter.
        key: its name key.
        spec: what its record asks for.
        candidates: all live replicas of the pool; with their room if the adapter is placed by number.
        generation: the one that replicas may decline.
    """
    if not spec.enabled:
        return Assignment((), frozenset())
    serving = placed(pool, key, spec.placement, candidates, generation)
    return Assignment(serving, canaries(spec.strategy.canary, serving) if spec.strategy else frozenset())


def rate(members: Iterable[Member], everywhere: Mapping[Selector, int]) -> tuple[Candidate, ...]:
    """The replicas with the room that they have for what is placed by number.

    It is told by the least, so that nothing is new where the room of all of them changes alike.
    """
    rated = tuple(candidate(one, _on(one, everywhere)) for one in members)
    least = min((one.weight for one in rated), default=1.0)
    return tuple(Candidate(one.member, one.weight / least) for one in rated)


def rate_evenly(members: Iterable[Member]) -> tuple[Candidate, ...]:
    """The replicas for what is served by all that match."""
    return tuple(Candidate(one, _EVEN) for one in members)


def _on(member: Member, everywhere: Mapping[Selector, int]) -> int:
    return sum(count for selector, count in everywhere.items() if matches(dict(selector), member.labels))


def roles_lacking(roles: Iterable[str], serving: Iterable[Mapping[str, str]]) -> list[str]:
    """The roles of a pool that none of these replicas plays. `serving`: the labels of those that are to serve."""
    wanted = list(roles)
    there = {role for labels in serving for role in _roles_of(labels)} if wanted else set[str]()
    return [role for role in wanted if role not in there]


def _roles_of(labels: Mapping[str, str]) -> list[str]:
    value = labels.get(ROLE_LABEL, "")
    return ["prefill", "decode"] if value == _BOTH else value.split("-")
