"""From changes to their end: send them, tell what became of them, wait for the replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from registry.cli.change_set import Applied, Batch, Change, Outcome, apply_atomic, apply_split
from registry.cli.client import Client, OneChange
from registry.cli.output import Printer
from registry.cli.progress import follow_shown
from registry.cli.report import check_applied, print_plain, print_table
from registry.cli.rollout import Followed, Target, check_served
from registry.cli.session import READ_SECONDS, ROLLOUT_SECONDS, WRITE_SECONDS, Session, pool_or_only, request_id_or_new
from registry.v1 import registry_pb2 as pb


@dataclass(frozen=True, slots=True)
class Order:
    """How changes are to be carried out. `timeout_seconds` None: the defaults."""

    request_id: str | None = None
    timeout_seconds: float | None = None
    dry_run: bool = False
    no_atomic: bool = False
    wait: bool = False

    @property
    def read_seconds(self) -> float:
        return self.timeout_seconds or READ_SECONDS

    @property
    def write_seconds(self) -> float:
        return self.timeout_seconds or WRITE_SECONDS

    @property
    def rollout_seconds(self) -> float:
        return self.timeout_seconds or ROLLOUT_SECONDS


def carry_out(session: Session, changes: Sequence[Change], order: Order) -> None:
    """Sends changes and tells what became of them.

    Raises:
        CliError: they were refused, found no answer, or, where the order says to wait, are not served.
    """
    request_id = request_id_or_new(order.request_id)
    with session.client(order.write_seconds) as client:
        tell(client, session.printer(), send(client, changes, request_id, order), order)


def carry_out_one(session: Session, request: OneChange, pool: str | None, order: Order) -> None:
    """As `carry_out`, for what is asked of one adapter; `pool` None: the only one there is."""
    request.validate_only, request.request_id = order.dry_run, request_id_or_new(order.request_id)
    with session.client(order.write_seconds) as client:
        request.pool = pool_or_only(client, pool)
        batch = Batch(request.pool, (), request.request_id)
        tell(client, session.printer(), [Applied(batch, client.change_one(request))], order)


def send(client: Client, changes: Sequence[Change], request_id: str, order: Order) -> Sequence[Outcome]:
    """Sends changes in one transaction, or in several where the order allows it."""
    if order.no_atomic:
        return apply_split(client, changes, request_id, dry_run=order.dry_run)
    return [apply_atomic(client, changes, request_id, dry_run=order.dry_run)]


def tell(client: Client, printer: Printer, outcomes: Sequence[Outcome], order: Order) -> None:
    """Prints outcomes, and waits for the replicas if the order says so."""
    if printer.is_table:
        print_table(printer, outcomes, dry_run=order.dry_run)
    followed: list[Followed] = []
    try:
        if order.wait and not order.dry_run:
            followed = follow_shown(client, _targets(outcomes), order.rollout_seconds, printer)
    finally:
        if not printer.is_table:
            print_plain(printer, outcomes, followed, dry_run=order.dry_run)
    check_applied(outcomes)
    check_served(followed)


def _targets(outcomes: Sequence[Outcome]) -> list[Target]:
    """What is to be waited for: everything applied that was not a deletion."""
    return [
        Target(result.adapter.pool, result.adapter.name, result.adapter.generation)
        for one in outcomes
        if isinstance(one, Applied)
        for result in one.response.results
        if result.outcome != pb.AdapterResult.DELETED
    ]
