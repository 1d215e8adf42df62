"""Decides whether canaries take new weights first."""

from __future__ import annotations

from collections.abc import Mapping

from registry.etcd3.ops import KeyValue
from registry.model.errors import FailedPrecondition, InvalidArgument, Reason, RegistryError
from registry.model.keys import Keys
from registry.model.names import matches
from registry.model.records import AdapterRecord, AdapterSpec, CanaryRollout
from registry.model.status import Presence
from registry.transactions.changes import ApplyAdapters, Upsert
from registry.transactions.context import StepTarget
from registry.transactions.decode import Present, ReadSet


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


def check_strategy(spec: AdapterSpec, *, field: str) -> None:
    """Raises InvalidArgument if more canaries are asked for than replicas are to serve the adapter."""
    wanted, serving = _canaries(spec), spec.placement.replicas
    if serving != "all" and wanted > serving:
        raise InvalidArgument(
            Reason.INVALID_FIELD,
            f"{wanted} canaries are more than the {serving} replicas of its placement; use at most {serving}",
            field=f"{field}.strategy.canary.replicas",
        )


def looks_at_replicas(change: ApplyAdapters) -> bool:
    """True if the change set asks for a number of canaries, which the pool must have."""
    return any(isinstance(one, Upsert) and _canaries(one.spec) > 0 for one in change.changes)


def check_enough_replicas(target: StepTarget, after: AdapterRecord | None, view: ReadSet, keys: Keys) -> None:
    """Looks, when a strategy is new or a rollout begins, whether as many replicas live as it asks canaries for.

    Raises:
        FailedPrecondition: some live, but fewer that match than there are to be canaries.
    """
    presences = view.all_below(keys.replicas(target.pool.name))
    if after is None or not presences or _is_known(target, after):
        return
    wanted, selector = _canaries(after.spec), after.spec.placement.selector
    found = sum(labels is not None and matches(selector, labels) for labels in map(_labels, presences))
    if wanted > found:
        raise FailedPrecondition(
            Reason.CANARY_TOO_LARGE,
            f"{wanted} canaries are more than the {found} live replicas of pool {target.pool.name!r} that match; use "
            "fewer, or a share such as 25%",
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
    """How many canaries are asked for by their number; 0: none are."""
    replicas = spec.strategy.canary.replicas if spec.strategy else 0
    return replicas if isinstance(replicas, int) else 0


def _labels(kv: KeyValue) -> Mapping[str, str] | None:
    """Of a presence that cannot be read none: it lives all the same. None: it leaves, so it takes nothing new."""
    try:
        presence = Presence.parse(kv.value)
    except RegistryError:
        return {}
    return None if presence.leaving else presence.labels
