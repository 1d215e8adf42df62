"""Between manifests, messages of the admin API and plain values for output. Pure."""

from __future__ import annotations

from registry.cli.manifest import Manifest, Spec, Strategy
from registry.v1 import registry_pb2 as pb

Plain = dict[str, object]


def adapter_of(manifest: Manifest) -> pb.Adapter:
    """The message that a manifest describes."""
    spec = spec_of(manifest.spec)
    spec.labels.update(manifest.metadata.labels)
    return pb.Adapter(name=manifest.metadata.name, pool=manifest.metadata.pool, spec=spec)


def spec_of(spec: Spec) -> pb.AdapterSpec:
    """A spec as a message, without labels."""
    replicas = spec.placement.replicas
    return pb.AdapterSpec(
        source=pb.Source(uri=spec.source.uri, digest=spec.source.digest or "", signature=spec.source.signature or ""),
        base_model=spec.base_model or "",
        load=spec.load,
        priority=spec.priority,
        placement=pb.Placement(replicas=0 if isinstance(replicas, str) else replicas, selector=spec.placement.selector),
        prepare=pb.Prepare(remap=spec.prepare.remap, vision=spec.prepare.vision, dora=spec.prepare.dora),
        credentials=spec.credentials or "",
        strategy=_strategy_of(spec.strategy) if spec.strategy else None,
    )


def _strategy_of(strategy: Strategy) -> pb.Strategy:
    return pb.Strategy(
        canary_replicas=str(strategy.canary.replicas),
        promote=strategy.promote,
        max_failures=strategy.max_failures,
        soak_seconds=strategy.soak,
    )


def adapter_dict(adapter: pb.Adapter) -> Plain:
    """An adapter in the form of the record in etcd."""
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
    }


def canary_dict(rollout: pb.CanaryRollout) -> Plain:
    """That only canaries serve a generation, in the form of the record in etcd."""
    return {
        "stable_generation": rollout.stable_generation,
        "stable_spec": spec_dict(rollout.stable_spec),
        "halted": rollout.halted,
    }


def spec_dict(spec: pb.AdapterSpec) -> Plain:
    """A spec in the form of the record in etcd."""
    return {
        "source": _source(spec.source),
        "base_model": spec.base_model or None,
        "load": spec.load or "eager",
        "priority": spec.priority,
        "placement": {
            "replicas": spec.placement.replicas or "all",
            "selector": dict(sorted(spec.placement.selector.items())),
        },
        "prepare": {
            "remap": spec.prepare.remap or "auto",
            "vision": spec.prepare.vision or "reject",
            "dora": spec.prepare.dora or "reject",
        },
        "credentials": spec.credentials or None,
        "labels": dict(sorted(spec.labels.items())),
        "strategy": _strategy(spec.strategy) if spec.HasField("strategy") else None,
    }


def _strategy(strategy: pb.Strategy) -> Plain:
    replicas = strategy.canary_replicas
    return {
        "canary": {"replicas": int(replicas) if replicas.isdecimal() else replicas},
        "promote": strategy.promote,
        "max_failures": strategy.max_failures,
        "soak_seconds": strategy.soak_seconds,
    }


def _source(source: pb.Source) -> Plain:
    return {"uri": source.uri, "digest": source.digest or None, "signature": source.signature or None}


def pool_dict(pool: pb.Pool) -> Plain:
    """A pool in the form of the record in etcd."""
    return {
        "name": pool.name,
        "base_models": list(pool.base_models),
        "limits": {
            "max_rank": pool.limits.max_rank or None,
            "max_adapters": pool.limits.max_adapters or None,
            "target_modules": list(pool.limits.target_modules) or None,
            "require_signature": pool.limits.require_signature,
            "require_digest": pool.limits.require_digest,
        },
        "base": base_dict(pool.base) if pool.HasField("base") else None,
        "engine": pool.engine,
        "engine_names": pool.engine_names,
        "removals_confirmed_revision": pool.removals_confirmed_revision,
        "etag": pool.etag,
    }


def base_dict(base: pb.BaseShapes) -> Plain:
    """The modules of a base model in the form of the record in etcd."""
    modules = {one.pattern: [one.outputs, one.inputs] for one in base.modules}
    return {"modules": modules, "fingerprint": base.fingerprint, "names": list(base.names)}


def tenant_dict(tenant: pb.Tenant) -> Plain:
    """A tenant in the form of the record in etcd."""
    return {
        "name": tenant.name,
        "max_adapters": tenant.max_adapters or None,
        "adapters": tenant.adapters,
        "etag": tenant.etag,
    }


def rollout_dict(rollout: pb.Rollout) -> Plain:
    """How far a rollout is."""
    return {
        "name": rollout.name,
        "generation": rollout.generation,
        "done": rollout.done,
        "failure": rollout.failure or None,
        "waiting": rollout.waiting or None,
        "note": rollout.note or None,
        "canaries": canary_dict(rollout.canary) if rollout.HasField("canary") else None,
        "replicas": [_replica(one) for one in rollout.replicas],
    }


def _replica(one: pb.RolloutReplica) -> Plain:
    return {
        "replica": one.replica,
        "state": state_name(one),
        "reason": one.reason,
        "message": one.message,
        "canary": one.canary,
        "generation": one.generation,
    }


def state_name(replica: pb.RolloutReplica) -> str:
    """``pending``, ``serving``, ``failed`` or ``unknown``."""
    return pb.RolloutReplica.State.Name(replica.state).lower()


def outcome_name(result: pb.AdapterResult) -> str:
    """``created``, ``updated``, ``unchanged`` or ``deleted``."""
    return pb.AdapterResult.Outcome.Name(result.outcome).lower()


def result_dict(result: pb.AdapterResult) -> Plain:
    """What became of one change."""
    return {"outcome": outcome_name(result), "adapter": adapter_dict(result.adapter)}
