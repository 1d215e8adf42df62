"""Everything about one adapter, replica or pool."""

from __future__ import annotations

from registry.cli.client import Client
from registry.cli.lodging import TITLES, residency_dict, rows
from registry.cli.output import Format, Printer
from registry.cli.replica_view import cell, disagreements, replica_view
from registry.cli.rollout import Target, look
from registry.cli.views import ADAPTERS, POOLS, REPLICAS
from registry.cli.wire import Plain, adapter_dict, pool_dict, rollout_dict, spec_dict, state_name
from registry.v1 import registry_pb2 as pb

_EXCEPTION_KEYS = ("name", "generation", "reason", "message", "attempts", "retry_at")


def describe_adapter(client: Client, printer: Printer, pool: str, name: str) -> None:
    """An adapter's spec, who made it when, and how each replica stands to it."""
    adapter = client.get_adapter(pool, name)
    rollout = look(client, Target(pool, adapter.name, adapter.generation))
    where = client.residency(pool, adapter.name)
    match printer.form:
        case Format.TABLE:
            _adapter_table(printer, adapter, rollout)
            _where(printer, where)
        case Format.NAME:
            printer.item(ADAPTERS, adapter)
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
            **{f"Spec {path}": value for path, value in _flat(spec_dict(adapter.spec)).items()},
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
    rows = [(one.replica, state_name(one), one.reason or "-", one.message or "-") for one in rollout.replicas]
    if not rollout.HasField("canary"):
        printer.table(("REPLICA", "STATE", "REASON", "MESSAGE"), rows)
        return
    titles = ("REPLICA", "CANARY", "GENERATION", "STATE", "REASON", "MESSAGE")
    roles = [("yes" if one.canary else "no", str(one.generation)) for one in rollout.replicas]
    printer.table(titles, ((name, *role, *rest) for (name, *rest), role in zip(rows, roles, strict=True)))


def _where(printer: Printer, where: list[pb.AdapterResidency]) -> None:
    for one in where:
        printer.lines(["", f"Where it is{f' ({one.note})' if one.note else ''}:"])
        printer.table(TITLES, rows(one))


def _flat(value: Plain, prefix: str = "") -> dict[str, str]:
    """Nested values by their path: ``source.uri``."""
    flat: dict[str, str] = {}
    for key, inner in value.items():
        if isinstance(inner, dict):
            flat.update(_flat(inner, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = cell(inner)
    return flat


def describe_replica(client: Client, printer: Printer, pool: str, name: str) -> None:
    """What a replica says of itself, with all that it does not serve and why."""
    replica = replica_view(client.get_replica(pool, name))
    if printer.form is not Format.TABLE:
        printer.item(REPLICAS, replica)
        return
    fields = {"Name": replica.name, "Pool": replica.pool, "Incarnation": replica.incarnation}
    fields |= {"Started": replica.started_at, "Labels": _pairs(replica.labels)}
    told = {key: value for key, value in replica.status.items() if key not in {"schema", "pending", "failed", "found"}}
    flat = {path: value for path, value in _flat(told).items() if path != "lazy.resident"}
    printer.fields({**fields, **{f"Status {path}": value for path, value in flat.items()}})
    for title in ("pending", "failed"):
        _table(printer, title.capitalize(), _EXCEPTION_KEYS, replica.items(title))
    _table(printer, "Lazy, asked for and loaded", ("name", "generation", "last_used"), replica.resident())
    _table(printer, "Found, where records have no digest", ("name", "generation", "digest"), replica.items("found"))


def _pairs(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items()) or "-"


def describe_pool(client: Client, printer: Printer, name: str) -> None:
    """A pool, how many adapters it has, and its replicas."""
    pool = client.get_pool(name)
    if printer.form is Format.NAME:
        printer.item(POOLS, pool)
        return
    adapters = len(client.list_adapters(pool.name))
    replicas = [replica_view(replica) for replica in client.list_replicas(pool.name)]
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
