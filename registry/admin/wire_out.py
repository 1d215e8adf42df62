"""From records and replies to messages on the wire."""

from __future__ import annotations

from registry.errors import RegistryError
from registry.etcd3.ops import KeyValue
from registry.keys import last_part
from registry.model.records import (
    AdapterOutcome,
    AdapterRecord,
    AdapterSpec,
    BaseShapes,
    CanaryRollout,
    PoolSpec,
    Strategy,
    TenantRecord,
)
from registry.model.status import Presence
from registry.store.break_glass import Removal
from registry.store.paging import PageToken
from registry.store.reader import History, ReplicaValues
from registry.transactions.replay import Settled
from registry.transactions.stored import Present
from registry.v1 import registry_pb2 as pb

_OUTCOMES = {
    "created": pb.AdapterResult.CREATED,
    "updated": pb.AdapterResult.UPDATED,
    "unchanged": pb.AdapterResult.UNCHANGED,
    "deleted": pb.AdapterResult.DELETED,
}


def adapter(record: AdapterRecord, revision: int) -> pb.Adapter:
    """An adapter; `revision` 0: it has no etag."""
    return pb.Adapter(
        name=record.name,
        pool=record.pool,
        tenant=record.tenant,
        generation=record.generation,
        spec=_spec(record.spec),
        etag=_etag(revision),
        updated_at=record.updated_at,
        updated_by=record.updated_by,
        request_id=record.request_id,
        rollout=canary_rollout(record.rollout) if record.rollout else None,
    )


def present_adapter(present: Present[AdapterRecord]) -> pb.Adapter:
    """An adapter as it is now."""
    return adapter(present.record, present.revision)


def _spec(spec: AdapterSpec) -> pb.AdapterSpec:
    replicas = spec.placement.replicas
    prepare, selector = spec.prepare, spec.placement.selector
    return pb.AdapterSpec(
        source=pb.Source(uri=spec.source.uri, digest=spec.source.digest or "", signature=spec.source.signature or ""),
        base_model=spec.base_model or "",
        load=spec.load,
        priority=spec.priority,
        placement=pb.Placement(replicas=0 if replicas == "all" else replicas, selector=selector),
        prepare=pb.Prepare(remap=prepare.remap, vision=prepare.vision, dora=prepare.dora),
        credentials=spec.credentials or "",
        labels=spec.labels,
        strategy=_strategy(spec.strategy) if spec.strategy else None,
    )


def _strategy(strategy: Strategy) -> pb.Strategy:
    return pb.Strategy(
        canary_replicas=str(strategy.canary.replicas),
        promote=strategy.promote,
        max_failures=strategy.max_failures,
        soak_seconds=strategy.soak_seconds,
    )


def canary_rollout(rollout: CanaryRollout) -> pb.CanaryRollout:
    """That only canaries serve a generation."""
    stable = _spec(rollout.stable_spec)
    return pb.CanaryRollout(stable_generation=rollout.stable_generation, stable_spec=stable, halted=rollout.halted)


def applied(settled: Settled, pool: str, request_id: str) -> pb.ApplyAdaptersResponse:
    """The reply to a change set or a rollback."""
    results = [_result(outcome, pool, settled.revision) for outcome in settled.reply.adapters]
    return pb.ApplyAdaptersResponse(results=results, revision=settled.revision, request_id=request_id)


def removal(one: Removal) -> pb.Removal:
    """The receipt of a removal, with what it left undone."""
    record = one.record
    return pb.Removal(
        pool=record.pool,
        name=record.name,
        record=record.to_bytes().decode(),
        revision=one.removed.revision,
        removed_at=one.removed.at,
        removed_by=one.removed.by,
        left_undone=(
            f"history has no generation {record.generation} of it",
            "there is no audit record of the removal",
            f"the counter of tenant {record.tenant} is one too high",
        ),
    )


def _result(outcome: AdapterOutcome, pool: str, revision: int) -> pb.AdapterResult:
    if outcome.record is None:
        shown = pb.Adapter(name=outcome.name, pool=pool)
    else:
        shown = adapter(outcome.record, revision if outcome.etag is None else outcome.etag)
    return pb.AdapterResult(outcome=_OUTCOMES[outcome.outcome], adapter=shown)


def pool(record: PoolSpec, revision: int) -> pb.Pool:
    """A pool."""
    limits = pb.PoolLimits(
        max_rank=record.limits.max_rank or 0,
        max_adapters=record.limits.max_adapters or 0,
        target_modules=record.limits.target_modules or (),
        require_signature=record.limits.require_signature,
        require_digest=record.limits.require_digest,
    )
    base = _base(record.base) if record.base else None
    return pb.Pool(
        name=record.name,
        base_models=record.base_models,
        limits=limits,
        etag=_etag(revision),
        base=base,
        removals_confirmed_revision=record.removals_confirmed_revision,
        engine=record.engine,
        engine_names=record.engine_names,
    )


def _base(base: BaseShapes) -> pb.BaseShapes:
    modules = [pb.BaseModule(pattern=name, outputs=out, inputs=into) for name, (out, into) in base.modules.items()]
    return pb.BaseShapes(modules=modules, fingerprint=base.fingerprint, names=base.names)


def tenant(record: TenantRecord, revision: int) -> pb.Tenant:
    """A tenant."""
    return pb.Tenant(
        name=record.name, max_adapters=record.max_adapters or 0, adapters=record.adapters, etag=_etag(revision)
    )


def settled_pool(settled: Settled) -> pb.Pool:
    """The reply to a change of a pool; empty for a deletion."""
    record, etag = settled.reply.pool, settled.reply.etag
    return pool(record, settled.revision if etag is None else etag) if record else pb.Pool()


def settled_tenant(settled: Settled) -> pb.Tenant:
    """The reply to the setting of a quota."""
    record, etag = settled.reply.tenant, settled.reply.etag
    return tenant(record, settled.revision if etag is None else etag) if record else pb.Tenant()


def history(found: History) -> pb.ListAdapterHistoryResponse:
    """An adapter's generations, the newest first."""
    now = [present_adapter(found.present)] if found.present else []
    earlier = [adapter(record, 0) for record in found.retired]
    return pb.ListAdapterHistoryResponse(generations=[*now, *earlier], unreadable=found.unreadable)


def replica(pool_name: str, values: ReplicaValues) -> pb.Replica:
    """A live replica; a presence that cannot be read still shows that it lives."""
    status_json = values.status.value.decode(errors="replace") if values.status else ""
    shown = pb.Replica(name=last_part(values.presence.key), pool=pool_name, status_json=status_json)
    presence = _presence(values.presence)
    if presence is not None:
        shown.labels.update(presence.labels)
        shown.incarnation = presence.incarnation
        shown.started_at = presence.started_at
    return shown


def _presence(kv: KeyValue) -> Presence | None:
    try:
        return Presence.parse(kv.value)
    except RegistryError:
        return None


def token(next_page: PageToken | None, listing: str) -> str:
    """A page token as text; empty for none."""
    return next_page.encode(listing) if next_page else ""


def _etag(revision: int) -> str:
    return str(revision) if revision else ""
