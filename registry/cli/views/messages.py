"""Rollouts and results of the admin API as plain values for output. Pure."""

from __future__ import annotations

from registry.model.messages import Plain, adapter_dict, canary_dict
from registry.v1 import registry_pb2 as pb


def rollout_dict(rollout: pb.Rollout) -> Plain:
    """Progress of a rollout."""
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
        "serving_generation": one.serving_generation if one.HasField("serving_generation") else None,
    }


def meanwhile(one: pb.RolloutReplica) -> str:
    """Version that a replica answers with in place of the one it is to serve; empty: none."""
    if not one.HasField("serving_generation"):
        return ""
    return f"serving {generation_name(one.serving_generation)}"


def generation_name(generation: int) -> str:
    """A generation in words; 0 is one of which nothing is known."""
    return f"generation {generation}" if generation else "an earlier generation"


def state_text(state: pb.RolloutReplica.State) -> str:
    """``pending``, ``serving``, ``failed`` or ``unknown``."""
    return pb.RolloutReplica.State.Name(state).lower()


def state_name(replica: pb.RolloutReplica | pb.Residence) -> str:
    """State of a replica, as `state_text` has it."""
    return state_text(replica.state)


def outcome_name(result: pb.AdapterResult) -> str:
    """``created``, ``updated``, ``unchanged`` or ``deleted``."""
    return pb.AdapterResult.Outcome.Name(result.outcome).lower()


def result_dict(result: pb.AdapterResult) -> Plain:
    """Outcome of one change."""
    return {"outcome": outcome_name(result), "adapter": adapter_dict(result.adapter)}


def placed_on(record: pb.Adapter) -> str:
    """Number of replicas that are to serve it, and the range of one that follows requests."""
    placement = record.spec.placement
    if not placement.HasField("by_load"):
        return str(placement.replicas or "all")
    now = record.scaled.replicas if record.HasField("scaled") else placement.replicas
    least, most = placement.replicas, placement.by_load.max
    return f"{max(least, min(now, most))} ({least} to {most} by load)"
