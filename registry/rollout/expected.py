"""Replicas that a pool expects: who was ready lately, or as many as it says.

Expected is who was ready once: a presence alone may be anybody's, and one that never came to serve is missed by nobody
when it goes. That it was ready is remembered by its being remembered (`registry.rollout.members`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from registry.etcd3.ops import KeyValue
from registry.model.errors import Reason, RegistryError
from registry.model.keys import last_part
from registry.model.names import deployment_of, matches
from registry.model.placement import ROLE_LABEL
from registry.model.records import PoolLimits, PoolSpec
from registry.model.replica_state import ParsedStatus, parse_status, status_of
from registry.model.status import LastKnown, Presence, RememberedReplica, RememberedReplicas, host_of, presence_of
from registry.runtime.clock import rfc3339

REMEMBERED_FOR = timedelta(days=1)
# The lease of one that was killed ends so long after another has taken its place, at most.
REPLACED_WITHIN = timedelta(seconds=60)
# The reason where no replica of a role that the pool names is to serve an adapter.
ROLE_NOT_SERVED = "role_not_served"
# Of a pool. Those that live come first, then those that were seen last.
MAX_REMEMBERED = 1000
# Of a text that is last known; an engine's address may be any.
_MAX_TEXT = 300
NOTHING_KNOWN = LastKnown()


@dataclass(frozen=True, slots=True)
class AbsentReplica:
    """A replica that is expected and does not live; `last_seen` RFC 3339, empty: a moment ago.

    `ephemeral`: it is expected by number; its name is not to come back.
    """

    name: str
    labels: Mapping[str, str]
    last_seen: str
    ephemeral: bool = False
    known: LastKnown = NOTHING_KNOWN


@dataclass(frozen=True, slots=True)
class NamelessReplicas:
    """So many replicas that are expected, do not live, and are not known by name.

    `labels`: those of their group; empty: of none. `expected`: how many their group, or the pool, is to have.
    """

    count: int
    labels: Mapping[str, str]
    expected: int


@dataclass(frozen=True, slots=True)
class GroupPresence:
    """Numbers of a group's expected and living replicas."""

    labels: Mapping[str, str]
    expected: int
    live: int

    @property
    def lacking(self) -> int:
        return max(0, self.expected - self.live)


@dataclass(frozen=True, slots=True)
class LackingReplicas:
    """Replicas that are expected and do not live: by name, the latest first, and without; and how the groups stand."""

    named: Sequence[AbsentReplica] = ()
    nameless: Sequence[NamelessReplicas] = ()
    groups: Sequence[GroupPresence] = ()

    @property
    def count(self) -> int:
        return len(self.named) + sum(one.count for one in self.nameless)


NOBODY_LACKS = LackingReplicas()


@dataclass(frozen=True, slots=True)
class ExpectedNumber:
    """So many replicas that have all of these labels; without labels: so many in all."""

    labels: Mapping[str, str]
    replicas: int


@dataclass(frozen=True, slots=True)
class PoolExpectation:
    """Expectations of a pool, as they stand in etcd.

    Attributes:
        members: value of ``members/<pool>``; None: there is none.
        pool: value of the pool's record; None: there is none.
        remembered: replicas that were ready and lived within the last day.
        numbers: how many replicas the pool is to have: of groups, of which no replica is of two, and last in all, as
            far as it says so. Who is in none of these is expected by memory.
        roles: of each of these, a replica is to serve each adapter.
    """

    members: KeyValue | None = None
    pool: KeyValue | None = None
    remembered: Mapping[str, RememberedReplica] = field(default_factory=dict)
    numbers: Sequence[ExpectedNumber] = ()
    roles: Sequence[str] = ()

    def lacking(self, live: Mapping[str, Mapping[str, str]]) -> LackingReplicas:
        """Expected members that do not live. `live`: the labels of those that do, by name.

        No more than lack to each number. What lacks to a group lacks to the number in all, so the larger one counts.
        """
        gone, groups = self._gone(live), list[GroupPresence]()
        named, nameless = list[AbsentReplica](), list[NamelessReplicas]()
        for number in self.numbers:
            here = sum(matches(number.labels, labels) for labels in live.values())
            group = GroupPresence(number.labels, number.replicas, here)
            lack = max(0, group.lacking - (0 if group.labels else sum(one.lacking for one in groups)))
            groups.append(group)
            found = [one for one in gone if matches(group.labels, one.labels)][:lack]
            gone = [one for one in gone if not matches(group.labels, one.labels)]
            named += found
            nameless.append(NamelessReplicas(lack - len(found), group.labels, group.expected))
        named = sorted([*named, *gone], key=_latest, reverse=True)
        return LackingReplicas(named, [one for one in nameless if one.count], [one for one in groups if one.labels])

    def _gone(self, live: Collection[str]) -> list[AbsentReplica]:
        """Those that are remembered and do not live, the latest first."""
        gone = (
            AbsentReplica(name, one.labels, one.last_seen, one.ephemeral, one.last_known or NOTHING_KNOWN)
            for name, one in self.remembered.items()
            if name not in live
        )
        return sorted(gone, key=_latest, reverse=True)


def role_not_served(role: str) -> str:
    """Why an adapter does not count as served, and what to do, in one sentence."""
    return (
        f"no replica of the role {role} is to serve it, as its pool asks; "
        f"start one with --labels {ROLE_LABEL}={role}, or place it on more replicas"
    )


def _latest(one: AbsentReplica) -> tuple[bool, str, str]:
    return not one.last_seen, one.last_seen, one.name


def labels_of(
    presences: Iterable[KeyValue], statuses: Iterable[KeyValue], remembered: Collection[str]
) -> dict[str, Mapping[str, str]]:
    """The labels of those that live, by name; none of one whose presence cannot be read.

    Who lives reports, or was ready once: is `remembered`, so that its status need not be among `statuses`.
    """
    said = _by_name(statuses)
    here = {name: kv for name, kv in _by_name(presences).items() if name in remembered or status_of(kv, said.get(name))}
    found = {name: presence_of(kv.value) for name, kv in here.items()}
    return {name: one.labels if one is not None else {} for name, one in found.items()}


def _by_name(kvs: Iterable[KeyValue]) -> dict[str, KeyValue]:
    return {last_part(kv.key): kv for kv in kvs}


NOTHING_EXPECTED = PoolExpectation()


def expectation_of(
    members: KeyValue | None, pool: KeyValue | None, before: PoolExpectation = NOTHING_EXPECTED
) -> PoolExpectation:
    """Expectation in these values, without unreadable ones; `before` if they are its."""
    if (before.members, before.pool) == (members, pool):
        return before
    limits = _limits(pool)
    return PoolExpectation(members, pool, remembered(members).members, _numbers(limits), limits.roles)


def remembered(kv: KeyValue | None) -> RememberedReplicas:
    """Replicas remembered by a value of etcd; nobody if it cannot be read."""
    try:
        return remembered_here(kv)
    except RegistryError:
        return RememberedReplicas()


def remembered_here(kv: KeyValue | None) -> RememberedReplicas:
    """The same. Raises FailedPrecondition: a later release wrote it, so nobody here knows whom it remembers."""
    try:
        return RememberedReplicas.parse(kv.value) if kv is not None else RememberedReplicas()
    except RegistryError as error:
        if error.reason is Reason.FUTURE_SCHEMA:
            raise
        return RememberedReplicas()


def _limits(kv: KeyValue | None) -> PoolLimits:
    try:
        return PoolSpec.parse(kv.value).limits if kv is not None else PoolLimits()
    except RegistryError:
        return PoolLimits()


def _numbers(limits: PoolLimits) -> list[ExpectedNumber]:
    numbers = [ExpectedNumber(one.labels, one.replicas) for one in limits.expected_groups]
    return numbers if limits.expected_replicas is None else [*numbers, ExpectedNumber({}, limits.expected_replicas)]


def remember(
    before: RememberedReplicas,
    presences: Iterable[KeyValue],
    statuses: Iterable[KeyValue],
    left: Mapping[str, str],
    now: datetime,
) -> RememberedReplicas:
    """Members to remember: those that were ready and lived within the last day.

    Args:
        before: who was. They were ready, whatever they say now.
        presences: of the pool.
        statuses: of it, those at least of whom nobody remembers.
        left: the incarnations of those whose processes ended in order, by name.
        now: in UTC.
    """
    present, said = _by_name(presences), _by_name(statuses)
    live = {name: presence_of(kv.value) for name, kv in present.items()}
    new = present.keys() - before.members.keys()
    ready = before.members.keys() | {name for name in new if _is_ready(present[name], said.get(name))}
    gone: dict[str, RememberedReplica] = {}
    for name, one in before.members.items():
        has_left = bool(one.incarnation) and left.get(name) == one.incarnation
        if name not in live and not has_left and (seen := _seen(one, now)) is not None:
            gone[name] = seen
    staying = {name: one for name, one in sorted(live.items()) if name in ready and not _leaves(one, left.get(name))}
    here = {name: _living(before.members.get(name), one, now) for name, one in staying.items()}
    _replace_ephemeral(before, here, gone, now)
    latest = sorted(gone, key=lambda name: (gone[name].last_seen, name), reverse=True)
    members = {**here, **{name: gone[name] for name in latest}}
    return _fitting(before, dict(list(members.items())[:MAX_REMEMBERED]))


def _is_ready(presence: KeyValue, status: KeyValue | None) -> bool:
    reading = parse_status(status_of(presence, status))
    return isinstance(reading, ParsedStatus) and reading.status.ready and not reading.status.stale


def _fitting(before: RememberedReplicas, members: dict[str, RememberedReplica]) -> RememberedReplicas:
    """With as many as a value of etcd may hold, whatever labels they have.

    What is last known of them goes before any of them does.
    """
    while True:
        made = _with_members(before, members)
        if _fits(made):
            return made
        if any(one.last_known for one in members.values()):
            members = {name: one.model_copy(update={"last_known": None}) for name, one in members.items()}
        else:
            members = dict(list(members.items())[: len(members) // 2])


def _with_members(before: RememberedReplicas, members: Mapping[str, RememberedReplica]) -> RememberedReplicas:
    return before.model_copy(update={"members": dict(sorted(members.items()))})


def _fits(made: RememberedReplicas) -> bool:
    return len(made.to_bytes()) <= RememberedReplicas.max_bytes


def newly_gone(before: RememberedReplicas, after: RememberedReplicas) -> list[str]:
    """Names of those that are gone and were not, as `remember` found it."""
    was = before.members
    return [name for name, one in after.members.items() if one.last_seen and name in was and not was[name].last_seen]


def last_known(presence: KeyValue, status: KeyValue | None) -> LastKnown:
    """Facts that a presence and the status beside it tell, as they stood before they went."""
    told, reading = presence_of(presence.value), parse_status(status_of(presence, status))
    known = NOTHING_KNOWN
    if isinstance(reading, ParsedStatus):
        engine, revision = reading.status.engine, reading.status.observed_revision
        kind = _short(f"{engine.kind} {engine.version}".strip())
        known = LastKnown(engine_url=_short(engine.url), engine=kind, observed_revision=revision)
    if told is None:
        return known
    url = _short(told.engine_url) or known.engine_url
    return known.model_copy(
        update={"engine_url": url, "host": _short(host_of(told.owner)), "version": _short(told.version)}
    )


def _short(text: str) -> str:
    """The text if it is no longer than what is kept; a part of an address would be another one."""
    return text if len(text) <= _MAX_TEXT else ""


def with_last_known(made: RememberedReplicas, known: Mapping[str, LastKnown]) -> RememberedReplicas:
    """The same replicas with what is last known of some, as far as a value of etcd has room: of the first of these."""
    names = list(known)
    while names:
        told = {name: made.members[name].model_copy(update={"last_known": known[name]}) for name in names}
        added = _with_members(made, {**made.members, **told})
        if _fits(added):
            return added
        names = names[: len(names) // 2]
    return made


def _replace_ephemeral(
    before: RememberedReplicas, here: dict[str, RememberedReplica], gone: dict[str, RememberedReplica], now: datetime
) -> None:
    """Has each ephemeral replica that joined take the place of one with its labels, or of its Deployment, that is gone.

    It may have come before the lease of the other one ended. A pod that is made anew may be in another zone.
    """
    for name, one in here.items():
        is_new = name not in before.members
        if not one.joined_at or not (is_new or _is_since(one.joined_at, now - REPLACED_WITHIN)):
            continue
        others = [
            other
            for other, was in gone.items()
            if was.ephemeral
            and (was.labels == one.labels or deployment_of(other) == deployment_of(name) != "")
            and (is_new or not before.members[other].last_seen)
        ]
        if others:
            del gone[min((gone[other].labels != one.labels, gone[other].last_seen, other) for other in others)[-1]]
            here[name] = one.model_copy(update={"joined_at": ""})


def _living(before: RememberedReplica | None, presence: Presence | None, now: datetime) -> RememberedReplica:
    """A presence that cannot be read says that the replica lives, and nothing else."""
    if presence is not None:
        joined_at = "" if not presence.ephemeral else rfc3339(now) if before is None else before.joined_at
        return RememberedReplica(
            labels=presence.labels, incarnation=presence.incarnation, ephemeral=presence.ephemeral, joined_at=joined_at
        )
    return before.model_copy(update={"last_seen": "", "last_known": None}) if before else RememberedReplica()


def _seen(one: RememberedReplica, now: datetime) -> RememberedReplica | None:
    """One that is gone, with the time at which that was found; None: a day ago, or that time cannot be read."""
    if not one.last_seen:
        return one.model_copy(update={"last_seen": rfc3339(now)})
    return one if _is_since(one.last_seen, now - REMEMBERED_FOR) else None


def _is_since(text: str, start: datetime) -> bool:
    """True if a time can be read, and is later."""
    try:
        return datetime.fromisoformat(text) > start
    except (ValueError, TypeError):
        return False


def _leaves(presence: Presence | None, left: str | None) -> bool:
    """True for one that nobody is to wait for.

    It drains, or has ended; or its sidecar is of a release that says neither, so that it would be missed for a day
    whenever it was ended on purpose.
    """
    if presence is None:
        return False
    return presence.leaving or presence.incarnation == left or "leaving" not in presence.model_fields_set


def not_alive(one: AbsentReplica, pool: str) -> str:
    """Why it is waited for, and what to do, in one sentence."""
    seen = f"last seen at {one.last_seen}" if one.last_seen else "just gone"
    forget, expect = f"loraplane replica forget {one.name}", f"loraplane pool update {pool} --expect N"
    if one.ephemeral:
        return (
            f"{seen}; the next new replica with its labels, or of its Deployment, takes its place; if none is to come: "
            f"{forget}, or {expect}"
        )
    return f"{seen}; start its sidecar, or {forget}; if names change with each start: sidecar --ephemeral, or {expect}"
