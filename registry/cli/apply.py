"""Applies changes: sends them, reports the outcome, waits for the replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from registry.cli import options
from registry.cli.change.sets import Applied, Change, ChangeBatch, Outcome, apply_atomic, apply_split, step_of_changes
from registry.cli.client import AdminClient
from registry.cli.failure import CliError
from registry.cli.preflight import warn_if_gone
from registry.cli.rollout import REMEDY, FollowedRollout, RolloutTarget, check_served
from registry.cli.session import READ_SECONDS, ROLLOUT_SECONDS, WRITE_SECONDS, Session, pool_or_only, request_id_or_new
from registry.cli.views.differences import changed_fields
from registry.cli.views.get import Note, note
from registry.cli.views.output import Printer
from registry.cli.views.replica_view import ReplicaView, replica_view
from registry.cli.views.report import check_applied, follow_shown, print_plain, print_table
from registry.client import admin_api as api
from registry.client.admin_api import AdminMethod
from registry.v1 import registry_pb2 as pb

OneChange = TypeVar("OneChange", pb.RollbackAdapterRequest, pb.PromoteRolloutRequest, pb.AbortRolloutRequest)
# Of so many changes it is told which fields differ.
_FIELDS_TOLD = 20


@dataclass(frozen=True, slots=True)
class ApplyOrder:
    """Order to carry changes out. `timeout_seconds` None: the defaults.

    `retry`: what failed is tried at once although the spec is the same, on that replica, or if it is empty on all;
    None: what stays the same is left alone. `min_ready`, `goes_back`: see `RolloutTarget`.
    """

    request_id: str | None = None
    timeout_seconds: float | None = None
    dry_run: bool = False
    no_atomic: bool = False
    wait: bool = False
    min_ready: int = 0
    retry: str | None = None
    goes_back: bool = False

    @property
    def read_seconds(self) -> float:
        return self.timeout_seconds or READ_SECONDS

    @property
    def write_seconds(self) -> float:
        return self.timeout_seconds or WRITE_SECONDS

    @property
    def rollout_seconds(self) -> float:
        return self.timeout_seconds or ROLLOUT_SECONDS


@dataclass(frozen=True, slots=True)
class OrderOptions:
    """Flags by which a change is sent and waited for."""

    dry_run: options.DryRun = False
    wait: options.Wait = False
    min_ready: options.MinReady = 0
    timeout: options.Timeout = None
    request_id: options.RequestId = None

    @property
    def order(self) -> ApplyOrder:
        """The same, as the change is sent."""
        return ApplyOrder(self.request_id, self.timeout, self.dry_run, wait=self.wait, min_ready=self.min_ready)


def apply_changes(
    session: Session, changes: Sequence[Change], order: ApplyOrder, removals: Sequence[Change] = ()
) -> None:
    """Sends changes and tells what became of them. `removals` go with them, or where the order splits, after all.

    Raises:
        CliError: they were refused, found no answer, or, where the order says to wait, are not served.
    """
    request_id, printer = request_id_or_new(order.request_id), session.printer()
    with session.client(order.write_seconds) as client:
        outcomes = send(client, [*changes, *(() if order.no_atomic else removals)], request_id, order)
        if order.no_atomic and all(isinstance(one, Applied) for one in outcomes):
            outcomes = [*outcomes, *send(client, removals, step_of_changes(request_id, "prune", removals), order)]
        if printer.is_table and order.retry is None:
            known = [one.before for one in changes if one.before is not None]
            printer.lines(_changed_fields(client, outcomes, known, dry_run=order.dry_run))
        tell(client, printer, outcomes, order)


def _changed_fields(
    client: AdminClient, outcomes: Sequence[Outcome], known: Sequence[pb.Adapter], *, dry_run: bool
) -> list[str]:
    """A line for each field that differs from before; none where very many adapters changed. `known`: some before."""
    applied = [one.response for one in outcomes if isinstance(one, Applied)]
    results = [result for one in applied for result in one.results]
    updated = [one.adapter for one in results if one.outcome == pb.AdapterResult.UPDATED]
    if len(updated) > _FIELDS_TOLD:
        return []
    read = {(one.pool, one.name): one for one in known}
    made = {one.request_id for one in applied}
    lines = []
    for after in updated:
        before = read.get((after.pool, after.name))
        if before is None and after.request_id not in made and not dry_run:
            continue  # it is the generation that it was, of which history does not tell how it stood before
        try:
            before = before or earlier(client, after, dry_run=dry_run)
        except CliError:
            continue  # what was asked for is done, and this is no reason to say otherwise
        name = f"{after.name}: " if len(results) > 1 else ""
        lines += [f"{name}{line}" for line in changed_fields(before, after)] if before else []
    return lines


def earlier(client: AdminClient, after: pb.Adapter, *, dry_run: bool) -> pb.Adapter | None:
    """The generation that an update replaced, or would replace; None: it is not known any more."""
    if dry_run:
        return client.unary(api.GET_ADAPTER, pb.GetAdapterRequest(pool=after.pool, name=after.name))
    generations = client.history(after.pool, after.name).generations
    return next((one for one in generations if one.generation == after.generation - 1), None)


def apply_change(
    session: Session,
    method: AdminMethod[OneChange, pb.ApplyAdaptersResponse],
    request: OneChange,
    pool: str | None,
    order: ApplyOrder,
) -> None:
    """As `apply_changes`, for what is asked of one adapter; `pool` None: the only one there is."""
    request.validate_only, request.request_id = order.dry_run, request_id_or_new(order.request_id)
    with session.client(order.write_seconds) as client:
        request.pool = pool_or_only(client, pool)
        made = client.unary(method, request)
        if order.goes_back:
            for result in made.results:
                warn_if_gone(result.adapter, note)
        tell(client, session.printer(), [Applied(ChangeBatch(request.pool, (), request.request_id), made)], order)


def send(client: AdminClient, changes: Sequence[Change], request_id: str, order: ApplyOrder) -> Sequence[Outcome]:
    """Sends changes in one transaction, or in several where the order allows it."""
    if order.no_atomic:
        return apply_split(client, changes, request_id, dry_run=order.dry_run, retry=order.retry)
    return [apply_atomic(client, changes, request_id, dry_run=order.dry_run, retry=order.retry)]


def tell(client: AdminClient, printer: Printer, outcomes: Sequence[Outcome], order: ApplyOrder) -> None:
    """Prints outcomes, and waits for the replicas if the order says so."""
    if printer.is_table:
        print_table(printer, outcomes, dry_run=order.dry_run)
    warn_of_room(client, outcomes, note)
    followed: list[FollowedRollout] = []
    try:
        if order.wait and not order.dry_run:
            followed = follow_shown(client, _targets(outcomes, order), order.rollout_seconds, printer)
    finally:
        if not printer.is_table:
            print_plain(printer, outcomes, followed, dry_run=order.dry_run)
    check_applied(outcomes)
    check_served(followed)


def tell_nothing(session: Session, why: str, *, dry_run: bool = False) -> None:
    """Says that there was nothing to change; programs get the same object as of a change, without results."""
    if session.printer().is_plain:
        print_plain(session.printer(), [], [], dry_run=dry_run)
    else:
        note(why)


def warn_of_room(client: AdminClient, outcomes: Sequence[Outcome], note: Note) -> None:
    """Says where more adapters are to be held at once than an engine has room for, as far as replicas tell."""
    known: dict[str, tuple[int, list[ReplicaView]]] = {}
    for one in (it for it in outcomes if isinstance(it, Applied)):
        created, pool = sum(map(_takes_room, one.response.results)), one.batch.pool
        if not created:
            continue
        try:
            limit, replicas = known[pool] = known.get(pool) or _room_in(client, pool)
        except CliError:
            continue  # what was asked for is done, and this is no reason to say otherwise
        for replica in replicas:
            room, wanted = replica.room(limit), replica.wanted_since(one.response.revision, created)
            if room and wanted > room:
                note(
                    f"replica {replica.name} of pool {pool} has room for {room} adapters and is to hold "
                    f"{wanted}: {wanted - room} of them wait (over_capacity); {REMEDY}"
                )
                break


def _room_in(client: AdminClient, pool: str) -> tuple[int, list[ReplicaView]]:
    """Number of adapters that a pool allows on an engine, 0: any number; and its replicas. Raises CliError."""
    limit = client.unary(api.GET_POOL, pb.GetPoolRequest(name=pool)).limits.max_adapters
    return limit, [replica_view(replica) for replica in client.all_replicas(pool).replicas]


def _takes_room(result: pb.AdapterResult) -> bool:
    spec = result.adapter.spec
    is_everywhere = not spec.placement.replicas and not spec.placement.selector
    return result.outcome == pb.AdapterResult.CREATED and spec.load != "lazy" and is_everywhere


def _targets(outcomes: Sequence[Outcome], order: ApplyOrder) -> list[RolloutTarget]:
    """Targets to wait for: everything applied that was not a deletion."""
    applied = [result for one in outcomes if isinstance(one, Applied) for result in one.response.results]
    made = [result.adapter for result in applied if result.outcome != pb.AdapterResult.DELETED]
    return [RolloutTarget(one.pool, one.name, one.generation, order.min_ready, order.goes_back) for one in made]
