"""Everything about one adapter, replica or pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from registry.cli.client import AdminClient
from registry.cli.failure import CliError
from registry.cli.rollout import RolloutTarget, look
from registry.cli.views.columns import ADAPTERS, POOL_ROWS, POOLS, REPLICAS, age, expires, restored_cell
from registry.cli.views.differences import flat
from registry.cli.views.events import EVENTS, ShownEvent, change_event, replica_events
from registry.cli.views.get import Note, counted, note, replica_of
from registry.cli.views.messages import meanwhile, placed_on, rollout_dict, state_name
from registry.cli.views.output import Format, Printer
from registry.cli.views.replica_view import (
    ReplicaView,
    cell,
    counted_views,
    disagreements,
    groups_told,
    replica_views,
    silent_on_uses,
)
from registry.cli.views.residency_view import (
    TITLES,
    PoolRow,
    behind_told,
    pool_status,
    residency_dict,
    rows,
    serving_cell,
)
from registry.cli.views.why import not_placed, several
from registry.client import admin_api as api
from registry.model.messages import Plain, restored_dict, spec_dict
from registry.model.names import label_text
from registry.residency.health import AdapterRow, state
from registry.residency.standing import counts_by_replica
from registry.runtime.clock import span_text
from registry.v1 import registry_pb2 as pb

Read = TypeVar("Read")
_EXCEPTION_KEYS = ("name", "generation", "reason", "message", "attempts", "retry_at")
_EVENTS_WITHIN, _MOST_EVENTS = timedelta(days=1), 10
_EVENT_COLUMNS = ("TIME", "EVENT", "GENERATION", "BY", "WHY")
# Of a status, what has a place of its own above the rest.
_PLACED = {"schema", "replica", "pool", "pending", "failed", "found", "kept", "warnings", "serves", "ready"}
_PLACED |= {"note", "leaving"}


def describe_adapter(client: AdminClient, printer: Printer, pool: str, name: str) -> None:
    """Spec, findings, places and history of an adapter."""
    adapter = client.unary(api.GET_ADAPTER, pb.GetAdapterRequest(pool=pool, name=name))
    if printer.form is Format.NAME:
        printer.item(ADAPTERS, AdapterRow(adapter))
        return
    rollout = look(client, RolloutTarget(pool, adapter.name, adapter.generation))
    where = client.residency(pool, adapter.name, pb.WatchResidencyRequest.REPLICAS_AND_COUNTS)
    row, unread = AdapterRow(adapter, where[0] if where else None), list[str]()
    replicas = _readable("Warnings", lambda: replica_views(pool, client.all_replicas(pool)), unread.append)
    warned = None if replicas is None else _warned(replicas, adapter.name)
    events = _last_events(client, pool, lambda one: one.is_about(adapter.name, None), unread.append)
    history = _readable("History", lambda: client.history(pool, adapter.name).generations, unread.append)
    restored = [one for one in history or () if one.HasField("restored_by")]
    if printer.is_table:
        _adapter_fields(printer, row, restored, replicas or ())
        _wrong(printer, rollout, warned or {})
        _where(printer, where)
        _event_table(printer, events, unread)
        return
    told = {
        "rollout": rollout_dict(rollout) if rollout else None,
        "warnings": None if warned is None else [_warning_dict(*why, names) for why, names in warned.items()],
        "residency": [residency_dict(one) for one in where],
        "restored": None if history is None else list(map(_restored_dict, restored)),
    }
    _plain(printer, {**ADAPTERS.plain(row), **told}, events, unread)


def _restored_dict(one: pb.Adapter) -> Plain:
    return {"generation": one.generation, **restored_dict(one.restored_by)}


def _plain(printer: Printer, told: Plain, events: Sequence[ShownEvent] | None, unread: Sequence[str]) -> None:
    """The same for programs; what cannot be read is null, and said beside it."""
    for text in unread:
        note(text)
    printer.plain({**told, "events": None if events is None else [dict(EVENTS.plain(one)) for one in events]})


def _readable(what: str, read: Callable[[], Read], say: Note) -> Read | None:
    """Result of a read; None: it failed, and a note says so."""
    try:
        return read()
    except CliError as error:
        say(f"{what} could not be read: {error.failure.message}")
        return None


def _table(printer: Printer, title: str, keys: tuple[str, ...], items: list[Plain]) -> None:
    """A table with a title, unless there is nothing in it."""
    if items:
        printer.lines(["", f"{title}:"])
        titles = [key.upper().replace("_", " ") for key in keys]
        printer.table(titles, ([str(one.get(key) or "-") for key in keys] for one in items))


def _adapter_fields(
    printer: Printer, row: AdapterRow, restored: Sequence[pb.Adapter], replicas: Sequence[ReplicaView]
) -> None:
    """Identity and state of an adapter; of its spec the given fields, not defaults."""
    adapter, elsewhere = row.record, not_placed(row, replicas)
    usual = flat(spec_dict(pb.AdapterSpec()))
    said = {path: value for path, value in flat(spec_dict(adapter.spec)).items() if value != usual.get(path)}
    made = f"by {cell(adapter.updated_by)} at {cell(adapter.updated_at)}, request {cell(adapter.request_id)}"
    printer.fields(
        {
            "Name": f"{adapter.name} of pool {adapter.pool}, tenant {cell(adapter.tenant)}",
            "State": ", ".join(
                filter(None, [cell(state(row)), f"{serving_cell(row)} replicas serve it", behind_told(row)])
            ),
            "Generation": f"{adapter.generation}, {age(row)} old, {made}",
            **({"Not placed on": elsewhere} if elsewhere else {}),
            **_end(adapter, replicas),
            **_kept(adapter),
            **_scaled(adapter),
            "Etag": adapter.etag,
            **_canaries(adapter),
            **_restored(restored),
            "Load": adapter.spec.load,
            **{f"Spec {path}": value for path, value in said.items() if path != "load"},
        }
    )


def _warned(replicas: Iterable[ReplicaView], name: str) -> dict[tuple[str, str], list[str]]:
    """Replicas by what they warn of it, as reason and message."""
    alike: dict[tuple[str, str], list[str]] = {}
    for replica in replicas:
        for one in replica.items("warnings"):
            if one.get("name") == name:
                alike.setdefault((str(one.get("reason")), str(one.get("message"))), []).append(replica.name)
    return alike


def _warning_dict(reason: str, message: str, replicas: list[str]) -> Plain:
    return {"reason": reason, "message": message, "replicas": replicas}


def _wrong(printer: Printer, rollout: pb.Rollout | None, warned: dict[tuple[str, str], list[str]]) -> None:
    """Replicas that do not serve it, with reasons (with canaries: all), and warnings."""
    _standings(printer, rollout, is_well=not warned)
    if warned:
        printer.lines(["", "Warnings:"])
        printer.table(("REPLICA", "REASON", "MESSAGE"), ((several(names), *why) for why, names in warned.items()))


def _standings(printer: Printer, rollout: pb.Rollout | None, *, is_well: bool) -> None:
    if rollout is None:
        printer.lines(["", "The states of its replicas could not be read in time."])
        return
    told = [*filter(None, (rollout.waiting, rollout.note))]
    states = {one.state for one in rollout.replicas}
    if states & {pb.RolloutReplica.FAILED, pb.RolloutReplica.UNKNOWN}:
        title = "What is wrong:"
    elif states - {pb.RolloutReplica.SERVING}:
        title = "What is awaited:"
    elif not rollout.HasField("canary"):
        told = told or ["Nothing is wrong with it."] * is_well
        printer.lines(["", *told] if told else [])
        return
    else:
        title = "Its canaries:"
    printer.lines(["", title, *told])
    _replica_table(printer, rollout)


def _end(adapter: pb.Adapter, replicas: Sequence[ReplicaView]) -> dict[str, str]:
    """Time of its deletion, if nobody writes it before, or who keeps it from being known; `replicas`: of its pool."""
    if not adapter.expires_at:
        return {}
    if adapter.spec.ttl_from == "use":
        lives = span_text(max(1, adapter.spec.ttl_seconds))
        when = f"once it was neither used nor changed for {lives}, as all replicas tell"
        return {"Expires": when, **_untold(adapter, replicas)}
    when = f"{cell(adapter.expires_at)}, {expires(adapter, datetime.now(UTC))}"
    return {"Expires": f"{when}, unless it is changed before: ttl {span_text(max(1, adapter.spec.ttl_seconds))}"}


def _untold(adapter: pb.Adapter, replicas: Sequence[ReplicaView]) -> dict[str, str]:
    """Replicas that do not tell uses, and what to do."""
    silent = silent_on_uses(replicas)
    if not silent:
        return {}
    remedy = (
        "its engine has to answer and to have the plugin, its sidecar to be of this release; or let the last change "
        f"count alone: loraplane set {cell(adapter.name)} --pool {cell(adapter.pool)} --ttl-from change"
    )
    return {"Does not expire": f"while uses are not told by {several(silent)}: {remedy}"}


def _kept(adapter: pb.Adapter) -> dict[str, str]:
    """Generations that are served by name, and those of them that are there beside the newest."""
    if not adapter.spec.HasField("keep"):
        return {}
    names = ", ".join(f"{adapter.name}@{one}" for one in adapter.kept_generations) or "none yet"
    return {"Keeps": cell(f"{adapter.spec.keep} generations by name; beside the newest: {names}")}


def _scaled(adapter: pb.Adapter) -> dict[str, str]:
    """Number of its replicas where that follows requests, and why it is that."""
    if not adapter.spec.placement.HasField("by_load"):
        return {}
    per_replica = f"{adapter.spec.placement.by_load.per_replica} requests at once on each"
    scaled = adapter.scaled
    why = f"; since {cell(scaled.at)}: {cell(scaled.reason)}" if adapter.HasField("scaled") else ""
    return {"Replicas": f"{placed_on(adapter)}, {per_replica}{why}"}


def _canaries(adapter: pb.Adapter) -> dict[str, str]:
    """Facts of a rollout that canaries began."""
    if not adapter.HasField("rollout"):
        return {}
    rollout = adapter.rollout
    return {
        "Rollout": f"only canaries serve generation {adapter.generation}, all others {rollout.stable_generation}",
        "Halted": rollout.halted or "no",
        "Others' source": rollout.stable_spec.source.uri,
    }


def _restored(generations: Sequence[pb.Adapter]) -> dict[str, str]:
    """Earlier generations that are not of this store, the newest first, and who said that they were."""
    by = {one.restored_by.principal: restored_cell(one) for one in reversed(generations)}
    told = {who: [str(one.generation) for one in generations if one.restored_by.principal == who] for who in by}
    lines = [f"generation {', '.join(told[who])} by {cell}" for who, cell in by.items()]
    return {"Restored": f"{'; '.join(lines)}; rollback takes them with --restored"} if lines else {}


def _replica_table(printer: Printer, rollout: pb.Rollout) -> None:
    if rollout.HasField("canary"):
        titles = ("REPLICA", "CANARY", "GENERATION", "STATE", "REASON", "MESSAGE")
        roles = [("yes" if one.canary else "no", str(one.generation)) for one in rollout.replicas]
        whole = zip(rollout.replicas, roles, strict=True)
        printer.table(titles, ((one.replica, *role, *_standing(one)) for one, role in whole))
        return
    alike: dict[tuple[str, str, str], list[str]] = {}
    for one in rollout.replicas:
        if one.state != pb.RolloutReplica.SERVING:
            alike.setdefault(_standing(one), []).append(one.replica)
    printer.table(("REPLICA", "STATE", "REASON", "MESSAGE"), ((several(names), *why) for why, names in alike.items()))


def _standing(one: pb.RolloutReplica) -> tuple[str, str, str]:
    """State, reason and message."""
    message = "; ".join(part for part in (meanwhile(one), one.message) if part)
    return state_name(one), one.reason or "-", message or "-"


def _where(printer: Printer, where: list[pb.AdapterResidency]) -> None:
    for one in where:
        printer.lines(["", f"Where it is{f' ({one.note})' if one.note else ''}:"])
        printer.table(TITLES, rows(one))


def _last_events(
    client: AdminClient, pool: str, is_about: Callable[[ShownEvent], bool], say: Note, others: Iterable[ShownEvent] = ()
) -> list[ShownEvent] | None:
    """The newest changes of a day, and other events that are known already; None: they cannot be read."""
    since = (datetime.now(UTC) - _EVENTS_WITHIN).isoformat().replace("+00:00", "Z")
    changes = _readable("What was done to it", lambda: _changes(client, pool, since), say)
    if changes is None:
        return None
    return sorted(filter(is_about, [*changes, *others]), key=lambda one: one.at)[-_MOST_EVENTS:]


def _changes(client: AdminClient, pool: str, since: str) -> list[ShownEvent]:
    found = client.whole(api.LIST_CHANGES, pb.ListChangesRequest(pool=pool, since=since))
    return list(map(change_event, found.changes))


def _event_table(printer: Printer, events: Sequence[ShownEvent] | None, unread: Sequence[str]) -> None:
    """Events, and what could not be read."""
    if events:
        printer.lines(["", "Last events:"])
        columns = [EVENTS.columns[title] for title in _EVENT_COLUMNS]
        printer.table(_EVENT_COLUMNS, ([shown(one) for shown in columns] for one in events))
    elif events is not None:
        printer.lines(["", "Last events: none within a day"])
    for text in unread:
        printer.lines(["", text])


def describe_replica(client: AdminClient, printer: Printer, pool: str, name: str) -> None:
    """Identity of a replica, its gaps with reasons, what it serves, and its events."""
    replica = replica_of(client, pool, name)
    if printer.form is Format.NAME:
        printer.item(REPLICAS, replica)
        return
    unread: list[str] = []
    whole = pb.WatchResidencyRequest(pool=pool)
    where = _readable("What it serves", lambda: client.residency_told(whole), unread.append)
    if replica.missing:
        [replica] = counted(client, pool, [replica])
    elif where is not None:
        [replica] = counted_views([replica], counts_by_replica(where))
    loaded = None if where is None else _loaded_there(where, replica.name)
    started = [one for one in replica_events(replica, with_pending=False) if not one.current]
    events = _last_events(client, pool, lambda one: one.is_about(None, replica.name), unread.append, started)
    if not printer.is_table:
        _plain(printer, {**replica.as_dict(), "serves": loaded}, events, unread)
        return
    _replica_fields(printer, replica)
    for title in ("pending", "failed"):
        _table(printer, title.capitalize(), _EXCEPTION_KEYS, replica.items(title))
    _table(printer, "Answered with another generation", ("name", "generation"), replica.items("kept"))
    _table(printer, "Warnings", _EXCEPTION_KEYS[:4], replica.items("warnings"))
    _table(printer, f"Loaded {len(loaded or ())}", ("name", "generation", "model", "last_used"), loaded or [])
    _table(printer, "Lazy, asked for and loaded", ("name", "generation", "last_used"), replica.resident())
    _table(printer, "Found, where records have no digest", ("name", "generation", "digest"), replica.items("found"))
    _event_table(printer, events, unread)
    _rest_of_status(printer, replica)


def _replica_fields(printer: Printer, replica: ReplicaView) -> None:
    """Identity and state of a replica."""
    engine = f"{replica.shown_engine} at {replica.shown_url}"
    titles = ("SERVED", "PENDING", "FAILED", "UNKNOWN")
    numbers = [REPLICAS.all_columns[title](replica) for title in titles]
    leaving = [str(one.get("name")) for one in replica.items("leaving")]
    printer.fields(
        {
            "Name": f"{replica.name} of pool {replica.pool}",
            "Ready": REPLICAS.columns["READY"](replica) + (", it drains" if replica.leaving else ""),
            "Note": REPLICAS.columns["NOTE"](replica),
            "Served": "{}, pending {}, failed {}, unknown {}".format(*numbers),
            "Leaving": cell(leaving),
            "Engine": engine,
            "Labels": cell(label_text(replica.labels)),
            **_process(replica),
        }
    )


def _process(replica: ReplicaView) -> dict[str, str]:
    """Facts of a sidecar's process; of one that is gone those that it told last."""
    if (known := replica.last_known) is not None:
        if not (known.engine_url or known.host):
            return {}
        seen = f"{cell(replica.last_seen)}; all that stands here is of then"
        told = {"Host": replica.shown_host, "Revision": replica.shown_revision, "Version": cell(known.version)}
        return {**told, "Last seen": seen}
    return {
        "Started": f"{cell(replica.started_at)}, version {cell(replica.version)}",
        "Incarnation": replica.incarnation,
    }


def _rest_of_status(printer: Printer, replica: ReplicaView) -> None:
    """Other fields of its status that are not empty."""
    told = {key: value for key, value in replica.status.items() if key not in _PLACED}
    rest = {path: value for path, value in flat(told).items() if path != "lazy.resident" and value != "-"}
    if rest:
        printer.lines([""])
        printer.fields({f"Status {path}": value for path, value in rest.items()})


def _loaded_there(where: Iterable[pb.WatchResidencyResponse], replica: str) -> list[Plain]:
    """Names that an engine has loaded, as residency tells them to routers."""
    found = sorted((one for response in where for one in response.adapters), key=lambda one: one.name)
    return [
        {"name": one.name, "generation": part.generation, "model": part.model, "last_used": part.last_used or None}
        for one in found
        for part in one.replicas
        if part.replica == replica and part.loaded
    ]


def describe_pool(client: AdminClient, printer: Printer, name: str) -> None:
    """A pool, how many adapters it has, and its replicas."""
    pool = client.unary(api.GET_POOL, pb.GetPoolRequest(name=name))
    if printer.form is Format.NAME:
        printer.item(POOLS, pool)
        return
    found = client.all_replicas(pool.name)
    unread: list[str] = []
    counts = pb.WatchResidencyRequest.COUNTS
    adapters = _readable("What it serves", lambda: client.residency(pool.name, "", counts), unread.append)
    row = PoolRow(pool, None if adapters is None else pool_status(found, adapters))
    replicas = counted(client, pool.name, replica_views(pool.name, found))
    if not printer.is_table:
        replica_dicts = [replica.as_dict() for replica in replicas]
        differing = [one.as_dict() for one in disagreements(replicas)]
        groups = [
            {"labels": dict(sorted(one.expected.labels.items())), "replicas": one.expected.replicas, "live": one.live}
            for one in found.groups
        ]
        lacking = {"lacking": found.lacking, "groups": groups}
        count = None if adapters is None else len(adapters)
        values = {"adapters": count, "replicas": replica_dicts, "disagreements": differing, **lacking}
        for text in unread:
            note(text)
        printer.plain({**POOL_ROWS.plain(row), **values})
        return
    fields = {title.capitalize(): shown(row) for title, shown in POOL_ROWS.all_columns.items()}
    living = groups_told(found.groups, lacking=False)
    by_group = {"Living": living} if living else {}
    printer.fields({**fields, **by_group, "Etag": pool.etag})
    printer.lines([""])
    printer.items(REPLICAS, replicas)
    printer.lines([*(one.line() for one in disagreements(replicas)), *unread])
