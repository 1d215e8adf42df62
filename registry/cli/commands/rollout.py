"""The command rollout: follow a generation, or end a rollout that canaries began."""

from __future__ import annotations

from typing import Annotated

import click

from registry.cli import options
from registry.cli.apply import ApplyOrder, OrderOptions, apply_change
from registry.cli.failure import usage
from registry.cli.rollout import RolloutTarget, check_served
from registry.cli.session import Session, pool_or_only, session_of
from registry.cli.views.messages import rollout_dict
from registry.cli.views.output import Format
from registry.cli.views.report import follow_shown
from registry.client import admin_api as api
from registry.v1 import registry_pb2 as pb

_GENERATION_HELP = "Refuse unless this is its generation; 0: any."
Generation = Annotated[
    int, options.flag("--generation", metavar="G", min=0, max=options.MOST_INT64, help=_GENERATION_HELP)
]


def rollout(
    context: click.Context,
    words: Annotated[
        list[str],
        options.naming(metavar="[promote|abort] NAME", help="Name of the adapter; before it, what to do with it."),
    ],
    *,
    pool: options.Pool = None,
    generation: Generation = 0,
    etag: options.Etag = "",
    given: OrderOptions,
) -> None:
    """Follow a generation until every replica that should serve it does, or name the others with reasons.

    With promote or abort before the name: give what only canaries serve to all replicas, or take it back. A name alone
    is always followed, also one that is called promote.
    """
    session, order = session_of(context), given.order
    match words:
        case [name]:
            if generation or etag:
                raise usage("--generation and --etag are for promote and abort; a name alone is followed")
            _follow(session, name, pool, order)
        case ["promote", name]:
            promoted = pb.PromoteRolloutRequest(name=name, generation=generation, etag=etag)
            apply_change(session, api.PROMOTE_ROLLOUT, promoted, pool, order)
        case ["abort", name]:
            aborted = pb.AbortRolloutRequest(name=name, generation=generation, etag=etag)
            apply_change(session, api.ABORT_ROLLOUT, aborted, pool, order)
        case _:
            raise usage("write rollout NAME, rollout promote NAME or rollout abort NAME")


def _follow(session: Session, name: str, pool: str | None, order: ApplyOrder) -> None:
    printer = session.printer()
    with session.client(order.read_seconds) as client:
        target = RolloutTarget(pool_or_only(client, pool), name, 0, order.min_ready)
        followed = follow_shown(client, [target], order.rollout_seconds, printer)
    if printer.form is Format.NAME:
        printer.lines([name])
    elif printer.is_plain:
        for one in followed:
            printer.plain(rollout_dict(one.rollout) if one.rollout else {"name": name, "done": False})
    check_served(followed)
