"""Converts records to messages of the admin API, and back. Pure.

Empty texts and zeros of a message stand for what is not said: None in a record, or the default that the proto names.
pydantic is not imported here: a command that only shows messages does without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.v1 import registry_pb2 as pb

if TYPE_CHECKING:
    from registry.model.expected_answers import Expect
    from registry.model.records import (
        AdapterRecord,
        AdapterSpec,
        BaseShapes,
        CanaryRollout,
        Placement,
        PoolLimits,
        PoolSpec,
        RetiredRecord,
        Strategy,
        TenantRecord,
    )
    from registry.model.status import ReportedEvidence, ScaledReplicas

Plain = dict[str, object]

# More are no number of replicas, and Python refuses to read very many.
_MOST_DIGITS = 18
_SOAK_SECONDS = 60
_TOLERANCE = 0.2


def spec_message(spec: AdapterSpec) -> pb.AdapterSpec:
    """Desired state of an adapter."""
    placement, prepare = spec.placement, spec.prepare
    message = pb.AdapterSpec(
        source=pb.Source(uri=spec.source.uri, digest=spec.source.digest, signature=spec.source.signature),
        base_model=spec.base_model,
        load=spec.load,
        priority=spec.priority,
        placement=_placement_message(placement),
        prepare=pb.Prepare(remap=prepare.remap, vision=prepare.vision, dora=prepare.dora, drop=prepare.drop),
        credentials=spec.credentials,
        labels=spec.labels,
        strategy=_strategy_message(spec.strategy) if spec.strategy else None,
        description=spec.description,
        expect=_expect_message(spec.expect) if spec.expect else None,
    )
    if not spec.enabled:
        message.enabled = False
    if spec.ttl_seconds is not None:
        message.ttl_seconds = spec.ttl_seconds
    if spec.ttl_from is not None:
        message.ttl_from = spec.ttl_from
    if spec.keep is not None:
        message.keep = spec.keep
    return message


def spec_dict(spec: pb.AdapterSpec) -> Plain:
    """Desired state of an adapter, in the form of its record; not checked."""
    placement, prepare = spec.placement, spec.prepare
    return {
        "source": {
            "uri": spec.source.uri,
            "digest": spec.source.digest or None,
            "signature": spec.source.signature or None,
        },
        "base_model": spec.base_model or None,
        "load": spec.load or "eager",
        "priority": spec.priority,
        "placement": _placement_dict(placement),
        "prepare": {
            "remap": prepare.remap or "auto",
            "vision": prepare.vision or "reject",
            "dora": prepare.dora or "reject",
            "drop": list(prepare.drop),
        },
        "credentials": spec.credentials or None,
        "labels": dict(sorted(spec.labels.items())),
        "strategy": _strategy_dict(spec.strategy) if spec.HasField("strategy") else None,
        "description": spec.description or None,
        "expect": _expect_dict(spec.expect) if spec.HasField("expect") else None,
        "enabled": spec.enabled or not spec.HasField("enabled"),
        "ttl_seconds": spec.ttl_seconds if spec.HasField("ttl_seconds") else None,
        "ttl_from": spec.ttl_from or None,
        "keep": spec.keep if spec.HasField("keep") else None,
    }


def _placement_message(placement: Placement) -> pb.Placement:
    message = pb.Placement(
        replicas=0 if placement.replicas == "all" else placement.replicas, selector=placement.selector
    )
    if placement.by_load is not None:
        message.by_load.MergeFrom(pb.ByLoad(max=placement.by_load.max, per_replica=placement.by_load.per_replica))
    return message


def _placement_dict(placement: pb.Placement) -> Plain:
    """Placement in the form of its record, without what it does not ask for."""
    by_load = placement.by_load
    told = {"by_load": {"max": by_load.max, "per_replica": by_load.per_replica}}
    return {
        "replicas": placement.replicas or "all",
        "selector": dict(sorted(placement.selector.items())),
        **(told if placement.HasField("by_load") else {}),
    }


def _strategy_message(strategy: Strategy) -> pb.Strategy:
    return pb.Strategy(
        canary_replicas=str(strategy.canary.replicas),
        promote=strategy.promote,
        max_failures=strategy.max_failures,
        soak_seconds=strategy.soak_seconds,
    )


def _strategy_dict(strategy: pb.Strategy) -> Plain:
    replicas = strategy.canary_replicas
    is_number = replicas.isdecimal() and len(replicas) <= _MOST_DIGITS
    return {
        "canary": {"replicas": int(replicas) if is_number else replicas},
        "promote": strategy.promote or "auto",
        "max_failures": strategy.max_failures,
        "soak_seconds": strategy.soak_seconds if strategy.HasField("soak_seconds") else _SOAK_SECONDS,
    }


def _expect_message(expect: Expect) -> pb.Expect:
    answers = [pb.ExpectedAnswer(prompt=one.prompt, tokens=one.tokens, logprobs=one.logprobs) for one in expect.answers]
    return pb.Expect(answers=answers, tolerance=expect.tolerance)


def _expect_dict(expect: pb.Expect) -> Plain:
    answers = [
        {"prompt": list(one.prompt), "tokens": list(one.tokens), "logprobs": list(one.logprobs)}
        for one in expect.answers
    ]
    return {"answers": answers, "tolerance": expect.tolerance or _TOLERANCE}


def adapter_message(record: AdapterRecord, revision: int) -> pb.Adapter:
    """An adapter; `revision` 0: it has no etag."""
    return pb.Adapter(
        name=record.name,
        pool=record.pool,
        tenant=record.tenant,
        generation=record.generation,
        spec=spec_message(record.spec),
        etag=_etag(revision),
        updated_at=record.updated_at,
        updated_by=record.updated_by,
        request_id=record.request_id,
        rollout=canary_message(record.rollout) if record.rollout else None,
        expires_at=record.expires_at,
        kept_generations=[one.generation for one in record.kept],
        scaled=scaled_message(record.scaled) if record.scaled else None,
    )


def scaled_message(scaled: ScaledReplicas) -> pb.ScaledReplicas:
    """Present number of replicas that follows requests."""
    return pb.ScaledReplicas(replicas=scaled.replicas, reason=scaled.reason, at=scaled.at)


def retired_message(record: RetiredRecord) -> pb.Adapter:
    """An earlier generation, with who restored it."""
    message, by = adapter_message(record, 0), record.restored_by
    if by is not None:
        message.restored_by.MergeFrom(pb.Restoration(principal=by.principal, at=by.at))
    return message


def adapter_dict(adapter: pb.Adapter) -> Plain:
    """An adapter in the form of its record."""
    return {
        "name": adapter.name,
        "pool": adapter.pool,
        "tenant": adapter.tenant,
        "generation": adapter.generation,
        "spec": spec_dict(adapter.spec),
        "etag": adapter.etag,
        "updated_at": adapter.updated_at,
        "updated_by": adapter.updated_by,
        "request_id": adapter.request_id,
        "canaries": canary_dict(adapter.rollout) if adapter.HasField("rollout") else None,
        "restored_by": restored_dict(adapter.restored_by) if adapter.HasField("restored_by") else None,
        "expires_at": adapter.expires_at or None,
        "kept_generations": list(adapter.kept_generations),
        **({"scaled": scaled_dict(adapter.scaled)} if adapter.HasField("scaled") else {}),
    }


def scaled_dict(scaled: pb.ScaledReplicas) -> Plain:
    """The present number of replicas, why it is that, and since when."""
    return {"replicas": scaled.replicas, "reason": scaled.reason, "at": scaled.at}


def restored_dict(restored: pb.Restoration) -> Plain:
    """Principal who restored a generation, and when."""
    return {"principal": restored.principal, "at": restored.at}


def canary_message(rollout: CanaryRollout) -> pb.CanaryRollout:
    """Rollout in which only canaries serve a generation."""
    stable = spec_message(rollout.stable_spec)
    return pb.CanaryRollout(stable_generation=rollout.stable_generation, stable_spec=stable, halted=rollout.halted)


def canary_dict(rollout: pb.CanaryRollout) -> Plain:
    """Rollout in which only canaries serve a generation, in the form of the record."""
    return {
        "stable_generation": rollout.stable_generation,
        "stable_spec": spec_dict(rollout.stable_spec),
        "halted": rollout.halted,
    }


def pool_message(record: PoolSpec, revision: int) -> pb.Pool:
    """A pool; `revision` 0: it has no etag."""
    return pb.Pool(
        name=record.name,
        base_models=record.base_models,
        limits=_limits_message(record.limits),
        base=_base_message(record.base) if record.base else None,
        engine=record.engine,
        engine_names=record.engine_names,
        removals_confirmed_revision=record.removals_confirmed_revision,
        etag=_etag(revision),
    )


def pool_dict(pool: pb.Pool) -> Plain:
    """A pool in the form of its record."""
    return {
        "name": pool.name,
        "base_models": list(pool.base_models),
        "limits": limits_dict(pool.limits),
        "base": base_dict(pool.base) if pool.HasField("base") else None,
        "engine": pool.engine,
        "engine_names": pool.engine_names,
        "removals_confirmed_revision": pool.removals_confirmed_revision,
        "etag": pool.etag,
    }


def _limits_message(limits: PoolLimits) -> pb.PoolLimits:
    return pb.PoolLimits(
        max_rank=limits.max_rank,
        max_adapters=limits.max_adapters,
        target_modules=limits.target_modules,
        require_signature=limits.require_signature,
        require_digest=limits.require_digest,
        engine_hosts=limits.engine_hosts,
        expected_replicas=limits.expected_replicas,
        expected_groups=[pb.ReplicaGroup(labels=one.labels, replicas=one.replicas) for one in limits.expected_groups],
        prove="" if limits.prove == "effect" else limits.prove,
        roles=limits.roles,
    )


def limits_dict(limits: pb.PoolLimits) -> Plain:
    """A pool's limits in the form of its record."""
    return {
        "max_rank": limits.max_rank or None,
        "max_adapters": limits.max_adapters or None,
        "target_modules": list(limits.target_modules) or None,
        "require_signature": limits.require_signature,
        "require_digest": limits.require_digest,
        "engine_hosts": list(limits.engine_hosts),
        "expected_replicas": limits.expected_replicas or None,
        "expected_groups": [
            {"labels": dict(sorted(one.labels.items())), "replicas": one.replicas} for one in limits.expected_groups
        ],
        "prove": limits.prove or "effect",
        "roles": list(limits.roles),
    }


def _base_message(base: BaseShapes) -> pb.BaseShapes:
    modules = [pb.BaseModule(pattern=name, outputs=out, inputs=into) for name, (out, into) in base.modules.items()]
    return pb.BaseShapes(
        modules=modules,
        fingerprint=base.fingerprint,
        names=base.names,
        architecture=base.architecture,
        tied=base.tied,
        head_size=base.head_size,
        evidence=evidence_message(base.evidence) if base.evidence else None,
        layout=base.layout,
        weights=base.weights,
    )


_RENAMES = ("parts", "beginnings", "ends")


def evidence_message(said: ReportedEvidence) -> pb.EngineEvidence:
    """Modules that an engine said it applies."""
    renames = {field: [pb.Rename(old=old, new=new) for old, new in getattr(said, field)] for field in _RENAMES}
    return pb.EngineEvidence(
        engine=said.engine, architecture=said.architecture, applied=said.applied, taken=said.taken, **renames
    )


def evidence_dict(said: pb.EngineEvidence) -> Plain:
    """Modules that an engine said it applies, in the form of the record."""
    texts: Plain = {"engine": said.engine, "architecture": said.architecture}
    lists: Plain = {"applied": list(said.applied), "taken": list(said.taken)}
    renames: Plain = {field: [(one.old, one.new) for one in getattr(said, field)] for field in _RENAMES}
    return {**texts, **lists, **renames}


def base_dict(base: pb.BaseShapes) -> Plain:
    """The modules of a base model in the form of the record."""
    modules = {one.pattern: (one.outputs, one.inputs) for one in base.modules}
    return {
        "modules": modules,
        "fingerprint": base.fingerprint,
        "names": list(base.names),
        "architecture": base.architecture or None,
        "tied": base.tied,
        "head_size": base.head_size or None,
        "evidence": evidence_dict(base.evidence) if base.HasField("evidence") else None,
        "layout": base.layout or None,
        "weights": base.weights or None,
    }


def tenant_message(record: TenantRecord, revision: int) -> pb.Tenant:
    """A tenant; `revision` 0: it has no etag."""
    return pb.Tenant(name=record.name, max_adapters=record.max_adapters, adapters=record.adapters, etag=_etag(revision))


def tenant_dict(tenant: pb.Tenant) -> Plain:
    """A tenant in the form of its record."""
    return {
        "name": tenant.name,
        "max_adapters": tenant.max_adapters or None,
        "adapters": tenant.adapters,
        "etag": tenant.etag,
    }


def _etag(revision: int) -> str:
    return str(revision) if revision else ""
