"""The command rollout: follow a generation, or end a rollout that canaries began."""

from __future__ import annotations

from typing import Annotated

import typer

from registry.cli import options
from registry.cli.carry_out import Order, carry_out_one
from registry.cli.failure import usage
from registry.cli.progress import follow_shown
from registry.cli.rollout import Target, check_served
from registry.cli.session import Session, pool_or_only, session_of
from registry.cli.wire import rollout_dict
from registry.v1 import registry_pb2 as pb

_UNCONDITIONAL = ""


def rollout(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(metavar="[promote|abort] NAME", help="Name of the adapter; before it, what to do with it."),
    ],
    *,
    pool: options.Pool = None,
    generation: Annotated[
        int,
        options.flag(
            "--generation",
            metavar="G",
            min=0,
            max=options.MOST_INT64,
            help="Refuse unless this is its generation; 0: any.",
        ),
    ] = 0,
    etag: options.Etag = _UNCONDITIONAL,
    dry_run: options.DryRun = False,
    wait: options.Wait = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
) -> None:
    """Follow a generation until every replica that should serve it does, or say who does not and why.

    With promote or abort before the name: give what only canaries serve to all replicas, or take it back. A name alone
    is always followed, also one that is called promote.
    """
    session, order = session_of(context), Order(request_id, timeout, dry_run, wait=wait)
    match words:
        case [name]:
            if generation or etag:
                raise usage("--generation and --etag are for promote and abort; a name alone is followed")
            _follow(session, name, pool, order)
        case ["promote", name]:
            carry_out_one(session, pb.PromoteRolloutRequest(name=name, generation=generation, etag=etag), pool, order)
        case ["abort", name]:
            carry_out_one(session, pb.AbortRolloutRequest(name=name, generation=generation, etag=etag), pool, order)
        case _:
            raise usage("write rollout NAME, rollout promote NAME or rollout abort NAME")


def _follow(session: Session, name: str, pool: str | None, order: Order) -> None:
    printer = session.printer()
    with session.client(order.read_seconds) as client:
        target = Target(pool_or_only(client, pool), name, 0)
        followed = follow_shown(client, [target], order.rollout_seconds, printer)
    if not printer.is_table:
        for one in followed:
            printer.plain(rollout_dict(one.rollout) if one.rollout else {"name": name, "done": False})
    check_served(followed)
