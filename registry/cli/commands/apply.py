"""Commands that change adapters: apply, add, diff, retry, rollback."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Annotated

import click
import yaml

from registry.cli import options
from registry.cli.apply import ApplyOrder, OrderOptions, apply_change, apply_changes, earlier, send, tell_nothing
from registry.cli.change.addresses import is_uri, source_uri
from registry.cli.change.documents import upsert_of, upserts
from registry.cli.change.manifest import API_VERSION
from registry.cli.change.replica_range import RangeOptions, set_range
from registry.cli.change.sets import Applied, Change, Outcome, check_one_transaction
from registry.cli.client import AdminClient
from registry.cli.failure import CliError, not_found, usage
from registry.cli.preflight import LOOK_SECONDS, Looking, preflight
from registry.cli.removal import DELETE_LIMIT, ask, to_prune
from registry.cli.session import Session, pool_or_only, request_id_or_new, session_of
from registry.cli.views.get import Kind, Query, find, note
from registry.cli.views.messages import outcome_name
from registry.cli.views.output import Format, Printer
from registry.cli.views.replica_view import ReplicaView
from registry.cli.views.report import check_applied
from registry.client import admin_api as api
from registry.model.errors import Reason
from registry.model.messages import Plain, adapter_dict, spec_dict
from registry.model.names import name_key
from registry.v1 import registry_pb2 as pb


def differences(before: pb.Adapter | None, after: pb.Adapter) -> list[str]:
    """The lines of the diff; empty where the specs are equal. `before` None: it does not exist yet."""
    old = f"{after.pool}/{after.name} generation {before.generation}" if before else "nothing"
    new = f"{after.pool}/{after.name} generation {after.generation}"
    return list(difflib.unified_diff(_lines(before), _lines(after), old, new, lineterm=""))


def _lines(adapter: pb.Adapter | None) -> list[str]:
    return yaml.safe_dump(spec_dict(adapter.spec), sort_keys=False).splitlines() if adapter else []


# Words of `diff NAME OLD NEW`.
_COMPARED = 3
# The etag of what does not exist.
_ABSENT = "0"
SourceUri = Annotated[str, options.flag("--source", metavar="URI", help="Where its files are: a URI or a folder.")]
Digest = Annotated[str | None, options.flag("--digest", metavar="D", help="Manifest digest to pin, sha256:….")]
Signature = Annotated[
    str | None, options.flag("--signature", metavar="S", help="Signature that loraplane sign printed.")
]
Lazy = Annotated[bool, options.flag("--lazy", help="Load it at the first request, not at once.")]
Priority = Annotated[int, options.flag("--priority", help="Higher is loaded first.")]
Replicas = Annotated[int, options.flag("--replicas", min=0, help="Number of replicas that serve it; 0: all.")]
On = Annotated[
    list[str] | None,
    options.flag("--on", metavar="K=V", help="Serve it only on replicas with this label; may be repeated."),
]
Labels = Annotated[list[str] | None, options.flag("--label", metavar="K=V", help="Label to set; may be repeated.")]
Credential = Annotated[
    str | None, options.flag("--credential", metavar="NAME", help="The credential that sidecars use.")
]
LazyOrEager = Annotated[bool | None, options.flag("--lazy/--eager", help="Load it at the first request, or at once.")]
NewSource = Annotated[
    str | None, options.flag("--source", metavar="URI", help="Where its files are: a URI or a folder.")
]
NewPriority = Annotated[int | None, options.flag("--priority", help="Higher is loaded first.")]
NewReplicas = Annotated[int | None, options.flag("--replicas", min=0, help="Number of replicas that serve it; 0: all.")]
NewOn = Annotated[
    list[str] | None,
    options.flag(
        "--on", metavar="K=V", help="Serve it only on replicas with this label; K- removes it; may be repeated."
    ),
]
NewLabels = Annotated[
    list[str] | None, options.flag("--label", metavar="K=V", help="Label to set; K- removes it; may be repeated.")
]
Replace = Annotated[
    bool, options.flag("--replace", help="Replace an existing adapter; fields that are not given are cleared.")
]


@dataclass(frozen=True, slots=True)
class SendOptions(OrderOptions):
    """Flags by which sources are read, and a change is sent and waited for."""

    credentials: options.Credentials = None
    hf_endpoint: options.HfEndpoint = None
    look_seconds: options.LookSeconds = LOOK_SECONDS
    force: options.Force = False

    @property
    def looking(self) -> Looking:
        """How its source is read before."""
        seconds = self.order.read_seconds
        return Looking(self.credentials, self.hf_endpoint, self.look_seconds, seconds, self.force)


Prune = Annotated[
    bool, options.flag("--prune", help="Also delete adapters that have the label of -l and are in no manifest.")
]


def apply(
    context: click.Context,
    *,
    file: options.Files,
    recursive: options.Recursive = False,
    prune: Prune = False,
    selector: options.Selector = None,
    delete_limit: options.DeleteLimit = DELETE_LIMIT,
    yes: options.Yes = False,
    given: SendOptions,
    no_atomic: options.NoAtomic = False,
    retry: Annotated[
        bool, options.flag("--retry", help="Make replicas retry at once what failed, changed or not.")
    ] = False,
) -> None:
    """Create or change adapters as manifests say, all in one transaction.

    With --prune -l K=V also delete those of the same pools that have the label and stand in no manifest.
    """
    session = session_of(context)
    order = replace_fields(given.order, no_atomic=no_atomic, retry="" if retry else None)
    wanted = _documents(file, recursive=recursive, no_atomic=no_atomic)
    removals = to_prune(session, wanted, selector, delete_limit, order.read_seconds, prune=prune)
    changes = preflight(session, wanted, given.looking)
    if not given.dry_run:
        ask(session, removals, yes=yes)
    apply_changes(session, changes, order, removals)


def _documents(files: Sequence[str], *, recursive: bool, no_atomic: bool) -> list[Change]:
    """The changes of manifests. Raises CliError: unless several transactions are allowed, they cannot be one."""
    found = upserts(files, recursive=recursive)
    if not no_atomic:
        check_one_transaction(found)
    return found


def add(
    context: click.Context,
    name: options.AdapterName,
    *,
    source: SourceUri,
    pool: options.Pool = None,
    digest: Digest = None,
    signature: Signature = None,
    lazy: Lazy = False,
    priority: Priority = 0,
    replicas: Replicas = 0,
    on: On = None,
    label: Labels = None,
    credential: Credential = None,
    given: SendOptions,
    replace: Replace = False,
) -> None:
    """Create one adapter without a file."""
    session = session_of(context)
    with session.client(given.order.read_seconds) as client:
        where = pool_or_only(client, pool)
    content: Plain = {
        "apiVersion": API_VERSION,
        "kind": "Adapter",
        "metadata": {"name": name, "pool": where, "labels": options.pairs("--label ", label or [])},
        "spec": {
            "source": {"uri": source_uri(source), "digest": digest, "signature": signature},
            "load": "lazy" if lazy else "eager",
            "priority": priority,
            "placement": {"replicas": replicas or "all", "selector": options.pairs("--on ", on or [])},
            "credentials": credential,
        },
    }
    change = replace_fields(upsert_of(content, "add"), is_local=not is_uri(source))
    if not replace:
        change.wire.etag = _ABSENT
    with _existing_named(name):
        apply_changes(session, preflight(session, [change], given.looking), given.order)


@contextmanager
def _existing_named(name: str) -> Iterator[None]:
    """A name that is taken is refused with what changes it."""
    try:
        yield
    except CliError as error:
        if error.failure.reason != Reason.ETAG_MISMATCH:
            raise
        message = (
            f"adapter {name!r} exists; change what you name of it with loraplane set {name}, or give --replace to make "
            "it exactly this"
        )
        raise CliError(replace_fields(error.failure, reason=Reason.ADAPTER_EXISTS, message=message)) from error


# By --lazy; None: it was not given.
_LOADS = {None: None, True: "lazy", False: "eager"}
_NOTHING_TO_SET = (
    "say what to set: --source, --digest, --label, --priority, --replicas, --on, --ttl, --keep, … (or it is so already)"
)


def set_(
    context: click.Context,
    name: options.AdapterName,
    *,
    pool: options.Pool = None,
    source: NewSource = None,
    digest: Digest = None,
    signature: Signature = None,
    lazy: LazyOrEager = None,
    priority: NewPriority = None,
    replicas: NewReplicas = None,
    on: NewOn = None,
    label: NewLabels = None,
    credential: Credential = None,
    ttl: options.Ttl = None,
    ttl_from: options.TtlFrom = None,
    keep: options.KeepCount = None,
    scale: RangeOptions,
    given: SendOptions,
) -> None:
    """Change the given fields of an adapter; print old and new values.

    A new source clears digest, signature and expected answers that are not given: the old ones were of other files.
    """
    session, order = session_of(context), given.order
    with session.client(order.read_seconds) as client:
        before = client.unary(api.GET_ADAPTER, pb.GetAdapterRequest(pool=pool_or_only(client, pool), name=name))
    after = pb.Adapter()
    after.CopyFrom(before)
    spec = after.spec
    if source is not None:
        spec.source.CopyFrom(pb.Source(uri=source_uri(source)))
        spec.ClearField("expect")
    options.set_given(spec.source, digest=digest, signature=signature)
    options.set_given(spec, load=_LOADS[lazy], priority=priority, credentials=credential)
    set_range(spec.placement, replicas, scale)
    options.relabel("--on ", spec.placement.selector, on or [])
    options.relabel("--label ", spec.labels, label or [])
    options.set_ttl(spec, ttl)
    options.set_given(spec, ttl_from=ttl_from)
    options.set_keep(spec, keep)
    if spec == before.spec:
        raise usage(_NOTHING_TO_SET)
    wire = pb.AdapterChange(upsert=after, etag=before.etag)
    change = Change(before.pool, wire, name, bool(source and not is_uri(source)), before)
    apply_changes(session, preflight(session, [change], given.looking), order)


def retry(
    context: click.Context,
    kind: Annotated[str, options.naming(help="The word adapter.")],
    name: options.AdapterName,
    *,
    pool: options.Pool = None,
    replica: Annotated[str | None, options.flag("--replica", metavar="R", help="On this replica only.")] = None,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
) -> None:
    """Make replicas retry a failed adapter at once."""
    session, order = session_of(context), ApplyOrder(request_id, timeout, retry=replica or "")
    if kind not in {"adapter", "adapters"}:
        raise usage("say which: loraplane retry adapter NAME")
    with session.client(order.read_seconds) as client:
        where = pool_or_only(client, pool)
        adapter = client.unary(api.GET_ADAPTER, pb.GetAdapterRequest(pool=where, name=name))
        replicas = find(client, Query(Kind.REPLICAS, where, replica), note)
    if not any(_may_fail(one, adapter.name) for one in replicas if not one.missing):
        where_not = f"on replica {replica!r}" if replica else f"on any replica of pool {where!r}"
        tell_nothing(session, f"adapter {name!r} has not failed {where_not}; nothing is tried again")
        return
    change = pb.AdapterChange(update=pb.Adapter(name=adapter.name))
    apply_changes(session, [Change(where, change, name)], order)


def _may_fail(replica: ReplicaView, name: str) -> bool:
    """False only where its status says that the adapter has not failed."""
    failed = {name_key(str(one.get("name"))) for one in replica.items("failed")}
    return name_key(name) in failed or not replica.status or bool(replica.status.get("omitted"))


def rollback(
    context: click.Context,
    name: options.AdapterName,
    *,
    pool: options.Pool = None,
    to: Annotated[
        int,
        options.flag(
            "--to",
            metavar="GENERATION",
            min=0,
            max=options.MOST_INT64,
            help="Generation to go back to; 0: the previous one that was not only for canaries.",
        ),
    ] = 0,
    restored: Annotated[
        bool, options.flag("--restored", help="Allow a generation that was restored from a backup.")
    ] = False,
    etag: options.Etag = "",
    given: OrderOptions,
) -> None:
    """Make a new generation that equals an earlier one."""
    request = pb.RollbackAdapterRequest(name=name, to_generation=to, restored=restored, etag=etag)
    order = replace_fields(given.order, goes_back=True)
    apply_change(session_of(context), api.ROLLBACK_ADAPTER, request, pool, order)


def diff(
    context: click.Context,
    words: Annotated[
        list[str] | None,
        options.naming(metavar="[NAME OLD NEW]", help="Compare these two generations of this adapter instead."),
    ] = None,
    *,
    file: options.OptionalFiles = None,
    recursive: options.Recursive = False,
    pool: options.Pool = None,
    prune: Prune = False,
    selector: options.Selector = None,
    delete_limit: options.DeleteLimit = DELETE_LIMIT,
    timeout: options.Timeout = None,
    credentials: options.Credentials = None,
    hf_endpoint: options.HfEndpoint = None,
    look_seconds: options.LookSeconds = LOOK_SECONDS,
    no_atomic: options.NoAtomic = False,
) -> None:
    """Show what apply would change, checked as apply would check it.

    With a name and two generations in place of manifests: show how these differ, as the adapter's history has them.
    """
    session, order = session_of(context), ApplyOrder(None, timeout, dry_run=True, no_atomic=no_atomic)
    if words:
        if file:
            raise usage("compare two generations of an adapter, or a manifest with what is there: leave out one")
        _compare(session, words, pool, order.read_seconds)
        return
    wanted = _documents(file or [], recursive=recursive, no_atomic=no_atomic)
    removals = to_prune(session, wanted, selector, delete_limit, order.read_seconds, prune=prune)
    changes = preflight(session, wanted, Looking(credentials, hf_endpoint, look_seconds, order.read_seconds))
    with session.client(order.write_seconds) as client:
        outcomes = send(client, [*changes, *removals], request_id_or_new(None), order)
        check_applied(outcomes)
        _print_differences(client, session.printer(), outcomes)


def _compare(session: Session, words: Sequence[str], pool: str | None, seconds: float) -> None:
    """Prints how two generations of an adapter differ. Raises CliError: there is none of that number."""
    if len(words) != _COMPARED or not all(one.isdecimal() for one in words[1:]):
        raise usage(
            "write loraplane diff NAME OLD NEW, with the numbers of two generations; see loraplane history NAME"
        )
    name, *numbers = words
    with session.client(seconds) as client:
        where = pool_or_only(client, pool)
        known = {str(one.generation): one for one in client.history(where, name).generations}
    missing = [one for one in numbers if one not in known]
    if missing:
        kept = ", ".join(known)
        message = (
            f"adapter {name!r} of pool {where!r} has no generation {', '.join(missing)} any more, or yet; it has {kept}"
        )
        raise not_found(Reason.GENERATION_NOT_FOUND, message)
    before, after = (known[one] for one in numbers)
    printer = session.printer()
    if printer.is_table:
        printer.lines(differences(before, after) or ["The two are the same."])
        return
    printer.plain({"before": adapter_dict(before), "after": adapter_dict(after)})


def _print_differences(client: AdminClient, printer: Printer, outcomes: Sequence[Outcome]) -> None:
    pairs = [
        (result, _before(client, result))
        for one in outcomes
        if isinstance(one, Applied)
        for result in one.response.results
    ]
    match printer.form:
        case Format.TABLE:
            for result, before in pairs:
                printer.lines(_shown(before, result))
            printer.lines([_summary([result.outcome for result, _ in pairs])])
        case Format.NAME:
            printer.lines(one.adapter.name for one, _ in pairs if one.outcome != pb.AdapterResult.UNCHANGED)
        case _:
            counts = _counts([result.outcome for result, _ in pairs])
            printer.plain({"changes": [_difference(result, before) for result, before in pairs], "summary": counts})


def _shown(before: pb.Adapter | None, result: pb.AdapterResult) -> list[str]:
    if result.outcome != pb.AdapterResult.DELETED:
        return differences(before, result.adapter)
    gone = f"{result.adapter.pool}/{result.adapter.name} generation {result.adapter.generation}"
    return list(difflib.unified_diff(_lines(result.adapter), [], gone, "nothing", lineterm=""))


def _counts(outcomes: Sequence[pb.AdapterResult.Outcome]) -> dict[str, int]:
    """Numbers of adapters that are or would be created, updated, deleted, and left as they are."""
    known = (pb.AdapterResult.CREATED, pb.AdapterResult.UPDATED, pb.AdapterResult.DELETED, pb.AdapterResult.UNCHANGED)
    return {pb.AdapterResult.Outcome.Name(kind).lower(): outcomes.count(kind) for kind in known}


def _summary(outcomes: Sequence[pb.AdapterResult.Outcome]) -> str:
    """All of a diff in one line, e.g. ``summary: +3 ~2 -0 (of 500 adapters)``."""
    counts = _counts(outcomes)
    return f"summary: +{counts['created']} ~{counts['updated']} -{counts['deleted']} (of {len(outcomes)} adapters)"


def _before(client: AdminClient, result: pb.AdapterResult) -> pb.Adapter | None:
    """The adapter as it is now, where that differs from what the result says."""
    match result.outcome:
        case pb.AdapterResult.CREATED:
            return None
        case pb.AdapterResult.UPDATED:
            return earlier(client, result.adapter, dry_run=True)
        case _:
            return result.adapter


def _difference(result: pb.AdapterResult, before: pb.Adapter | None) -> Plain:
    return {
        "outcome": outcome_name(result),
        "before": adapter_dict(before) if before else None,
        "after": None if result.outcome == pb.AdapterResult.DELETED else adapter_dict(result.adapter),
    }
