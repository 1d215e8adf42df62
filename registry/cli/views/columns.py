"""Columns of the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime

from registry.cli.views.differences import GenerationRow
from registry.cli.views.messages import placed_on
from registry.cli.views.output import OutputView
from registry.cli.views.replica_view import ReplicaView, cell, short_span
from registry.cli.views.residency_view import (
    PoolRow,
    PoolStatus,
    reasons_cell,
    served_share,
    serving_cell,
    status_dict,
    where_cell,
)
from registry.model.messages import Plain, adapter_dict, pool_dict, tenant_dict
from registry.model.names import label_text
from registry.residency.health import AdapterRow, state
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


def restored_cell(one: pb.Adapter) -> str:
    """Principal who put a generation into history from a backup, and when."""
    by = one.restored_by
    return cell(f"{by.principal} at {by.at}") if one.HasField("restored_by") else "-"


def _by(one: pb.Adapter) -> str:
    """Principal who made a generation; or who says that it was made."""
    restored = [f"restored by {restored_cell(one)}"] if one.HasField("restored_by") else []
    return ", ".join(filter(None, [one.updated_by, *restored]))


def _manifest(one: AdapterRow) -> Plain:
    from registry.cli.change.manifest import manifest_dict  # noqa: PLC0415 - pydantic and yaml, for this form alone

    return manifest_dict(one.record)


def _age_seconds(one: AdapterRow) -> int | None:
    """Since when it has its generation; None: that cannot be read."""
    try:
        age = datetime.now(UTC) - datetime.fromisoformat(one.record.updated_at)
    except (ValueError, TypeError):
        return None
    return max(0, int(age.total_seconds()))


def age(one: AdapterRow) -> str:
    """Age of its generation, in one word."""
    seconds = _age_seconds(one)
    return "-" if seconds is None else short_span(seconds)


def seconds_left(one: pb.Adapter, now: datetime) -> int | None:
    """Time until it is deleted; None: it never is, or nobody can tell."""
    try:
        left = datetime.fromisoformat(one.expires_at) - now
    except (ValueError, TypeError):
        return None
    return max(0, int(left.total_seconds()))


def expires(one: pb.Adapter, now: datetime) -> str:
    """Time until it is deleted, in one word; ``-``: see `seconds_left`."""
    left = seconds_left(one, now)
    if left is not None and one.spec.ttl_from == "use":
        return f"unused {short_span(one.spec.ttl_seconds)}"
    return "-" if left is None else f"in {short_span(left)}"


def _plain(one: AdapterRow) -> Plain:
    """An adapter for programs, with how it is where that was asked for."""
    status = status_dict(one)
    return {**adapter_dict(one.record), **({"status": status} if status else {})}


ADAPTERS: OutputView[AdapterRow] = OutputView(
    name=lambda one: one.record.name,
    plain=_plain,
    columns={
        "NAME": lambda one: one.record.name,
        "POOL": lambda one: one.record.pool,
        "STATE": lambda one: cell(state(one)),
        "SERVING": serving_cell,
        "GENERATION": lambda one: _generation(one.record),
        "LOAD": lambda one: one.record.spec.load or "eager",
        "AGE": age,
        "REASONS": reasons_cell,
    },
    more={
        "REPLICAS": where_cell,
        "NOTE": lambda one: cell(one.residency.note if one.residency else ""),
        "PLACED": lambda one: placed_on(one.record),
        "SOURCE": lambda one: one.record.spec.source.uri,
        "UPDATED": lambda one: one.record.updated_at,
        "BY": lambda one: one.record.updated_by,
        "EXPIRES": lambda one: expires(one.record, datetime.now(UTC)),
    },
    order={"AGE": lambda one: str(_age_seconds(one) or 0), "SERVING": served_share},
    manifest=_manifest,
)


GENERATIONS: OutputView[GenerationRow] = OutputView(
    name=lambda one: str(one.record.generation),
    plain=lambda one: adapter_dict(one.record),
    columns={
        "GENERATION": lambda one: str(one.record.generation),
        "FOR": lambda one: _for(one.record),
        "UPDATED": lambda one: one.record.updated_at,
        "BY": lambda one: _by(one.record),
        "REQUEST": lambda one: one.record.request_id,
        "CHANGED": GenerationRow.changed,
    },
    more={
        "RESTORED BY": lambda one: restored_cell(one.record),
        "SOURCE": lambda one: one.record.spec.source.uri,
        "DIGEST": lambda one: one.record.spec.source.digest or "-",
    },
)


def _served(replica: ReplicaView) -> str:
    """E.g. ``12/13``; while residency is not known, the names that its status says that the engine answers to."""
    if replica.counts is not None:
        return replica.counts.share
    kept = sum(not one.get("counted") for one in replica.items("kept"))
    count = replica.text("served", "count")
    return f"{int(count) + kept} ({kept} not as desired)" if kept and count.isdecimal() else count


def _note(replica: ReplicaView) -> str:
    """The first thing that an operator has to know, or else its note."""
    if replica.missing:
        return replica.seen_ago(datetime.now(UTC))
    status = replica.status
    return cell(status.get("held") or status.get("degraded") or status.get("note"))


REPLICAS: OutputView[ReplicaView] = OutputView(
    name=lambda one: one.name,
    plain=lambda one: one.as_dict(),
    columns={
        "NAME": lambda one: one.name,
        "POOL": lambda one: one.pool,
        "READY": lambda one: "yes" if one.is_ready else "no",
        "SERVED": _served,
        "PENDING": lambda one: str(one.counts.pending) if one.counts is not None else one.total("pending"),
        "FAILED": lambda one: str(one.counts.failed) if one.counts is not None else one.total("failed"),
        "URL": lambda one: one.shown_url,
        "NOTE": _note,
    },
    more={
        "UNKNOWN": lambda one: cell(one.counts and one.counts.unknown),
        "STALE": lambda one: one.text("stale"),
        "REVISION": lambda one: one.shown_revision,
        "ENGINE": lambda one: one.shown_engine,
        "HOST": lambda one: one.shown_host,
        "LABELS": lambda one: cell(label_text(one.labels)),
    },
    is_dim=lambda one: one.missing,
)


def _expected(one: pb.Pool) -> str:
    """Number of replicas that it is to have, in all and by labels, and the roles that each adapter needs."""
    groups = [f"{label_text(group.labels)}: {group.replicas}" for group in one.limits.expected_groups]
    roles = [f"role {role}" for role in one.limits.roles]
    return cell([*([str(one.limits.expected_replicas)] if one.limits.expected_replicas else []), *groups, *roles])


POOLS: OutputView[pb.Pool] = OutputView(
    name=lambda one: one.name,
    plain=pool_dict,
    columns={
        "NAME": lambda one: one.name,
        "BASE MODELS": lambda one: ", ".join(one.base_models),
        "ENGINES": lambda one: one.engine,
        "ENGINE NAMES": lambda one: one.engine_names,
        "EXPECTED": _expected,
        "MAX RANK": lambda one: _number(one.limits.max_rank),
        "MAX ADAPTERS": lambda one: _number(one.limits.max_adapters),
    },
)


def _share(part: int, whole: int) -> str:
    """Sort key of a column of parts of wholes: per thousand, 0 where there is nothing."""
    return str(1000 * part // max(1, whole))


def _pool_plain(one: PoolRow) -> Plain:
    """A pool for programs, with how it is where that was asked for."""
    return {**pool_dict(one.record), **({"status": asdict(one.status)} if one.status else {})}


_POOL_STATUS: Mapping[str, Callable[[PoolStatus], str]] = {
    "STATE": lambda one: one.state,
    "REPLICAS": lambda one: f"{one.ready}/{one.replicas}",
    "ADAPTERS": lambda one: f"{one.served}/{one.adapters}",
}


def _of_status(shown: Callable[[PoolStatus], str]) -> Callable[[PoolRow], str]:
    return lambda one: shown(one.status) if one.status else "-"


def _of_record(shown: Callable[[pb.Pool], str]) -> Callable[[PoolRow], str]:
    return lambda one: shown(one.record)


# Of a pool, what stands beside how it is; the rest is for -o wide.
_USUAL = ("BASE MODELS", "EXPECTED")

# A pool as POOLS has it, and how it is.
POOL_ROWS: OutputView[PoolRow] = OutputView(
    name=lambda one: one.record.name,
    plain=_pool_plain,
    columns={
        "NAME": lambda one: one.record.name,
        **{title: _of_status(shown) for title, shown in _POOL_STATUS.items()},
        **{title: _of_record(shown) for title, shown in POOLS.columns.items() if title in _USUAL},
    },
    more={title: _of_record(shown) for title, shown in POOLS.columns.items() if title not in {*_USUAL, "NAME"}},
    order={
        "REPLICAS": lambda one: _share(one.status.ready, one.status.replicas) if one.status else "0",
        "ADAPTERS": lambda one: _share(one.status.served, one.status.adapters) if one.status else "0",
    },
)

TENANTS: OutputView[pb.Tenant] = OutputView(
    name=lambda one: one.name,
    plain=tenant_dict,
    columns={
        "NAME": lambda one: one.name,
        "ADAPTERS": lambda one: str(one.adapters),
        "MAX ADAPTERS": lambda one: _number(one.max_adapters),
    },
)
