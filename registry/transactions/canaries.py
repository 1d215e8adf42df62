"""Decides whether canaries take new weights first."""

from __future__ import annotations

from collections.abc import Iterable

from registry.etcd3.ops import KeyValue, Range
from registry.model.errors import FailedPrecondition, InvalidArgument, Reason, RegistryError
from registry.model.keys import Keys, last_part
from registry.model.names import matches
from registry.model.placement import Member, counted, member_of
from registry.model.records import AdapterRecord, AdapterSpec, CanaryRollout
from registry.model.replica_state import status_of
from registry.model.status import Presence
from registry.transactions.changes import ApplyAdapters, Upsert
from registry.transactions.context import StepTarget
from registry.transactions.decode import Present, ReadSet, all_keys_in, everything_in, stored_adapter


def same_weights(one: AdapterSpec, other: AdapterSpec) -> bool:
    """True if two specs differ in nothing that decides which weights are served, or whether they are."""
    return _weights(one) == _weights(other)


def _weights(spec: AdapterSpec) -> tuple[object, ...]:
    return spec.source, spec.base_model, spec.prepare, spec.credentials, spec.expect


def rollout_of(record: AdapterRecord, wanted: AdapterSpec) -> CanaryRollout | None:
    """The rollout of the generation that gives an adapter another spec; None: it is for all replicas at once.

    What all but the canaries serve stays the same until a rollout is over, however many generations canaries see.
    """
    stable = record.rollout or CanaryRollout(stable_generation=record.generation, stable_spec=record.spec)
    if wanted.strategy is None or same_weights(stable.stable_spec, wanted):
        return None
    return stable.model_copy(update={"halted": ""})


def has_places(spec: AdapterSpec) -> bool:
    """False if more canaries are asked for than replicas are to serve the adapter."""
    return spec.placement.replicas == "all" or _canaries(spec) <= spec.placement.replicas


def check_strategy(spec: AdapterSpec, *, field: str) -> None:
    """Raises InvalidArgument if more canaries are asked for than replicas are to serve the adapter."""
    if not has_places(spec):
        wanted, serving = _canaries(spec), spec.placement.replicas
        raise InvalidArgument(
            Reason.INVALID_FIELD,
            f"{wanted} canaries are more than the {serving} replicas of its placement; use at most {serving}",
            field=f"{field}.strategy.canary.replicas",
        )


def looks_at_replicas(change: ApplyAdapters) -> bool:
    """True if the change set asks for a number of canaries, or of generations, for which the pool must have room."""
    asked = [one.spec for one in change.changes if isinstance(one, Upsert)]
    return any(_canaries(spec) > 0 or spec.keep is not None for spec in asked)


def may_keep_strategy(change: ApplyAdapters) -> bool:
    """True if an adapter of the change set may keep a strategy that asks for a number of canaries."""
    return any(isinstance(one, Upsert) and one.keeps("strategy") for one in change.changes)


def replicas_read(change: ApplyAdapters, keys: Keys) -> tuple[Range, ...]:
    """Further inputs of the plan of such a change set; none for another one."""
    return _members_read(change.pool, keys) if looks_at_replicas(change) else ()


def kept_replicas_read(pool: str, names: Iterable[str], view: ReadSet, keys: Keys) -> tuple[Range, ...]:
    """The same where adapters keep a strategy that asks for a number of canaries."""
    states = (stored_adapter(view, keys, pool, name) for name in names)
    is_counted = any(isinstance(one, Present) and _canaries(one.record.spec) > 0 for one in states)
    return _members_read(pool, keys) if is_counted else ()


def _members_read(pool: str, keys: Keys) -> tuple[Range, ...]:
    return everything_in(keys.replicas(pool)), all_keys_in(keys.statuses(pool))


def check_enough_replicas(target: StepTarget, after: AdapterRecord | None, view: ReadSet, keys: Keys) -> None:
    """Looks, when a strategy is new or a rollout begins, whether as many replicas count as it asks canaries for.

    Raises:
        FailedPrecondition: some report, but fewer count that match than there are to be canaries.
    """
    if after is None or _is_known(target, after):
        return
    members = members_of(target.pool.name, view, keys)
    if not any(one.reports for one in members):
        return
    wanted, selector = _canaries(after.spec), after.spec.placement.selector
    serving = counted(one for one in members if not one.leaving)
    found = sum(matches(selector, one.labels) for one in serving)
    if wanted > found:
        raise FailedPrecondition(
            Reason.CANARY_TOO_LARGE,
            f"{wanted} canaries are more than the {found} replicas of pool {target.pool.name!r} that report and match; "
            "use fewer, or a share such as 25%",
            field=f"{target.spec_field}.strategy.canary.replicas",
            metadata={"canaries": str(wanted), "replicas": str(found)},
        )


def _is_known(target: StepTarget, after: AdapterRecord) -> bool:
    if not isinstance(target.state, Present):
        return False
    before = target.state.record
    begins = after.rollout is not None and before.rollout is None
    return not begins and before.spec.strategy == after.spec.strategy


def _canaries(spec: AdapterSpec) -> int:
    """Number of canaries asked for by number; 0: none are."""
    replicas = spec.strategy.canary.replicas if spec.strategy else 0
    return replicas if isinstance(replicas, int) else 0


def members_of(pool: str, view: ReadSet, keys: Keys) -> list[Member]:
    """The live replicas of a pool, as far as they were read."""
    statuses = {last_part(kv.key): kv for kv in view.all_below(keys.statuses(pool))}
    presences = view.all_below(keys.replicas(pool))
    return [_member(kv, reports=status_of(kv, statuses.get(last_part(kv.key))) is not None) for kv in presences]


def _member(kv: KeyValue, *, reports: bool) -> Member:
    """The replica of a presence, without labels if that cannot be read: it lives all the same."""
    try:
        return member_of(last_part(kv.key), Presence.parse(kv.value), reports=reports, held=None)
    except RegistryError:
        return Member(last_part(kv.key), {}, reports=reports)
