"""Everything about one adapter, replica or pool."""

from __future__ import annotations

from registry.cli.client import AdminClient
from registry.cli.rollout import RolloutTarget, look
from registry.cli.views.columns import ADAPTERS, POOLS, REPLICAS
from registry.cli.views.get import replicas_of
from registry.cli.views.messages import meanwhile, rollout_dict, state_name
from registry.cli.views.output import Format, Printer
from registry.cli.views.replica_view import cell, disagreements, replica_view
from registry.cli.views.residency_view import TITLES, AdapterRow, residency_dict, rows
from registry.model.messages import Plain, adapter_dict, pool_dict, spec_dict
from registry.v1 import registry_pb2 as pb

_EXCEPTION_KEYS = ("name", "generation", "reason", "message", "attempts", "retry_at")


def describe_adapter(client: AdminClient, printer: Printer, pool: str, name: str) -> None:
    """An adapter's spec, who made it when, and how each replica stands to it."""
    adapter = client.get_adapter(pool, name)
    rollout = look(client, RolloutTarget(pool, adapter.name, adapter.generation))
    where = client.residency(pool, adapter.name)
    match printer.form:
        case Format.TABLE:
            _adapter_table(printer, adapter, rollout)
            _where(printer, where)
        case Format.NAME:
            printer.item(ADAPTERS, AdapterRow(adapter))
        case _:
            told = {"rollout": rollout_dict(rollout) if rollout else None}
            printer.plain({**adapter_dict(adapter), **told, "residency": [residency_dict(one) for one in where]})


def _table(printer: Printer, title: str, keys: tuple[str, ...], items: list[Plain]) -> None:
    """A table with a title, unless there is nothing in it."""
    if items:
        printer.lines(["", f"{title}:"])
        titles = [key.upper().replace("_", " ") for key in keys]
        printer.table(titles, ([str(one.get(key) or "-") for key in keys] for one in items))


def _adapter_table(printer: Printer, adapter: pb.Adapter, rollout: pb.Rollout | None) -> None:
    printer.fields(
        {
            "Name": adapter.name,
            "Pool": adapter.pool,
            "Tenant": adapter.tenant,
            "Generation": str(adapter.generation),
            "Etag": adapter.etag,
            **_canaries(adapter),
            "Updated": f"{adapter.updated_at} by {adapter.updated_by}",
            "Request id": adapter.request_id,
            **{f"Spec {path}": value for path, value in flat(spec_dict(adapter.spec)).items()},
        }
    )
    if rollout is None:
        printer.lines(["", "How the replicas stand to it could not be seen in time."])
        return
    printer.lines(["", *filter(None, (rollout.waiting, rollout.note))])
    _replica_table(printer, rollout)


def _canaries(adapter: pb.Adapter) -> dict[str, str]:
    """What is to be known of a rollout that canaries began."""
    if not adapter.HasField("rollout"):
        return {}
    rollout = adapter.rollout
    return {
        "Rollout": f"only canaries serve generation {adapter.generation}, all others {rollout.stable_generation}",
        "Halted": rollout.halted or "no",
        "Others' source": rollout.stable_spec.source.uri,
    }


def _replica_table(printer: Printer, rollout: pb.Rollout) -> None:
    rows = [(one.replica, state_name(one), one.reason or "-", _message(one)) for one in rollout.replicas]
    if not rollout.HasField("canary"):
        printer.table(("REPLICA", "STATE", "REASON", "MESSAGE"), rows)
        return
    titles = ("REPLICA", "CANARY", "GENERATION", "STATE", "REASON", "MESSAGE")
    roles = [("yes" if one.canary else "no", str(one.generation)) for one in rollout.replicas]
    printer.table(titles, ((name, *role, *rest) for (name, *rest), role in zip(rows, roles, strict=True)))


def _message(one: pb.RolloutReplica) -> str:
    return "; ".join(part for part in (meanwhile(one), one.message) if part) or "-"


def _where(printer: Printer, where: list[pb.AdapterResidency]) -> None:
    for one in where:
        printer.lines(["", f"Where it is{f' ({one.note})' if one.note else ''}:"])
        printer.table(TITLES, rows(one))


def flat(value: Plain, prefix: str = "") -> dict[str, str]:
    """Nested values by their path: ``source.uri``."""
    found: dict[str, str] = {}
    for key, inner in value.items():
        if isinstance(inner, dict):
            found.update(flat(inner, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = cell(inner)
    return found


def describe_replica(client: AdminClient, printer: Printer, pool: str, name: str) -> None:
    """What a replica says of itself, with all that it does not serve and why."""
    replica = replica_view(client.get_replica(pool, name))
    if printer.form is Format.NAME:
        printer.item(REPLICAS, replica)
        return
    serves = _served_there(client, pool, replica.name)
    if printer.form is not Format.TABLE:
        printer.plain({**replica.as_dict(), "serves": serves})
        return
    fields = {"Name": replica.name, "Pool": replica.pool, "Incarnation": replica.incarnation}
    fields |= {"Started": replica.started_at, "Labels": _pairs(replica.labels), "Version": cell(replica.version)}
    told = {key: value for key, value in replica.status.items() if key not in {"schema", "pending", "failed", "found"}}
    values = {path: value for path, value in flat(told).items() if path not in {"lazy.resident", "kept", "serves"}}
    printer.fields({**fields, **{f"Status {path}": value for path, value in values.items()}})
    _table(printer, f"Serves {len(serves)}", ("name", "generation", "model", "last_used"), serves)
    for title in ("pending", "failed"):
        _table(printer, title.capitalize(), _EXCEPTION_KEYS, replica.items(title))
    _table(printer, "Answered all the same, with another generation", ("name", "generation"), replica.items("kept"))
    _table(printer, "Lazy, asked for and loaded", ("name", "generation", "last_used"), replica.resident())
    _table(printer, "Found, where records have no digest", ("name", "generation", "digest"), replica.items("found"))


def _served_there(client: AdminClient, pool: str, replica: str) -> list[Plain]:
    """What an engine answers to, as residency tells it to routers; by name."""
    found = sorted(client.residency(pool), key=lambda one: one.name)
    return [
        {"name": one.name, "generation": part.generation, "model": part.model, "last_used": part.last_used or None}
        for one in found
        for part in one.replicas
        if part.replica == replica and part.loaded
    ]


def _pairs(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items()) or "-"


def describe_pool(client: AdminClient, printer: Printer, name: str) -> None:
    """A pool, how many adapters it has, and its replicas."""
    pool = client.get_pool(name)
    if printer.form is Format.NAME:
        printer.item(POOLS, pool)
        return
    adapters = len(client.list_adapters(pool.name))
    replicas = replicas_of(client, pool.name)
    if not printer.is_table:
        replica_dicts = [replica.as_dict() for replica in replicas]
        differing = [one.as_dict() for one in disagreements(replicas)]
        printer.plain({**pool_dict(pool), "adapters": adapters, "replicas": replica_dicts, "disagreements": differing})
        return
    fields = {title.capitalize(): shown(pool) for title, shown in POOLS.columns.items()}
    printer.fields({**fields, "Adapters": str(adapters), "Etag": pool.etag})
    printer.lines([""])
    printer.items(REPLICAS, replicas)
    printer.lines(one.line() for one in disagreements(replicas))
