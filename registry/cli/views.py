"""Which columns the tables have. Pure."""

from __future__ import annotations

from registry.cli.output import View
from registry.cli.replica_view import ReplicaView, cell
from registry.cli.wire import adapter_dict, pool_dict, tenant_dict
from registry.v1 import registry_pb2 as pb


def _number(value: int) -> str:
    """A limit as text; 0 is none."""
    return str(value) if value else "-"


def _generation(one: pb.Adapter) -> str:
    """The generation, and while only canaries serve it that of all others."""
    if not one.HasField("rollout"):
        return str(one.generation)
    return f"{one.generation} ({_for(one)}; others {one.rollout.stable_generation})"


def _for(one: pb.Adapter) -> str:
    """For whom a generation is, or was as long as it was the newest."""
    if not one.HasField("rollout"):
        return "all"
    return "canaries, halted" if one.rollout.halted else "canaries"


ADAPTERS: View[pb.Adapter] = View(
    name=lambda one: one.name,
    plain=adapter_dict,
    columns={
        "NAME": lambda one: one.name,
        "POOL": lambda one: one.pool,
        "GENERATION": _generation,
        "LOAD": lambda one: one.spec.load or "eager",
        "REPLICAS": lambda one: str(one.spec.placement.replicas or "all"),
        "SOURCE": lambda one: one.spec.source.uri,
        "UPDATED": lambda one: one.updated_at,
        "BY": lambda one: one.updated_by,
    },
)

GENERATIONS: View[pb.Adapter] = View(
    name=lambda one: str(one.generation),
    plain=adapter_dict,
    columns={
        "GENERATION": lambda one: str(one.generation),
        "FOR": _for,
        "SOURCE": lambda one: one.spec.source.uri,
        "DIGEST": lambda one: one.spec.source.digest or "-",
        "UPDATED": lambda one: one.updated_at,
        "BY": lambda one: one.updated_by,
        "REQUEST": lambda one: one.request_id,
    },
)

REPLICAS: View[ReplicaView] = View(
    name=lambda one: one.name,
    plain=lambda one: one.as_dict(),
    columns={
        "NAME": lambda one: one.name,
        "POOL": lambda one: one.pool,
        "READY": lambda one: one.text("ready"),
        "STALE": lambda one: one.text("stale"),
        "SERVED": lambda one: one.text("served", "count"),
        "PENDING": lambda one: str(len(one.items("pending"))) if one.status else "-",
        "FAILED": lambda one: str(len(one.items("failed"))) if one.status else "-",
        "REVISION": lambda one: one.text("observed_revision"),
        "ENGINE": lambda one: f"{one.text('engine', 'kind')} {one.text('engine', 'version')}",
        "URL": lambda one: one.text("engine", "url"),
        "NOTE": lambda one: cell(one.status.get("held")) if one.status.get("held") else one.text("note"),
    },
)

POOLS: View[pb.Pool] = View(
    name=lambda one: one.name,
    plain=pool_dict,
    columns={
        "NAME": lambda one: one.name,
        "BASE MODELS": lambda one: ", ".join(one.base_models),
        "ENGINES": lambda one: one.engine,
        "ENGINE NAMES": lambda one: one.engine_names,
        "MAX RANK": lambda one: _number(one.limits.max_rank),
        "MAX ADAPTERS": lambda one: _number(one.limits.max_adapters),
    },
)

TENANTS: View[pb.Tenant] = View(
    name=lambda one: one.name,
    plain=tenant_dict,
    columns={
        "NAME": lambda one: one.name,
        "ADAPTERS": lambda one: str(one.adapters),
        "MAX ADAPTERS": lambda one: _number(one.max_adapters),
    },
)
