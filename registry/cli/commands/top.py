"""The command top: what replicas are doing, from their sidecars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Annotated

import click

from registry.cli import options
from registry.cli.failure import CliError, unavailable
from registry.cli.session import READ_SECONDS, pool_or_only, session_of
from registry.cli.sidecars import SidecarAccess, ask_sidecar, sidecar_address
from registry.cli.views.get import counted, note, replicas_of
from registry.cli.views.output import Printer
from registry.cli.views.replica_view import ReplicaView
from registry.cli.views.top import ADAPTERS, REPLICAS, BusyAdapter, BusyReplica, adapter_rows, replica_row
from registry.model.errors import Reason
from registry.model.messages import Plain
from registry.residency.standing import StandingCounts

_ASKED_AT_ONCE = 16
ASK_SECONDS = 5.0


def top(
    context: click.Context,
    *,
    pool: options.Pool = None,
    sidecar: Annotated[
        list[str] | None,
        options.flag("--sidecar", metavar="HOST:PORT", help="Ask this sidecar, its --http; may be repeated."),
    ] = None,
    sidecar_token_file: options.SidecarToken = None,
    timeout: options.Timeout = None,
) -> None:
    """Show what replicas and adapters are doing: requests, tokens, loads, swaps, last use.

    The command asks each sidecar at the address in its status, which has to be reachable from here, or those that
    --sidecar names. Of a replica, SERVED is what get replicas has, LOADED what its engine lists; REQUESTS and tokens
    count since its engine started, loads and swaps since its sidecar started; SECONDS (-o wide) is the average of one.
    Of an adapter, loads, swaps and evictions are those that sidecars still remember. Its REQUESTS (ended since it was
    loaded where it is now) and LAST USED need vLLM with the plugin: engines count requests by replica alone.
    """
    session, seconds = session_of(context), timeout or ASK_SECONDS
    shown = SidecarAccess(session.shown_tls, sidecar_token_file)
    asks: dict[str, Callable[[], Plain]]
    counts: dict[str, StandingCounts] = {}
    if sidecar:
        asks = {one: partial(ask_sidecar, sidecar_address(one), "/activity", seconds, shown) for one in sidecar}
    else:
        with session.client(timeout or READ_SECONDS) as client:
            known = pool_or_only(client, pool)
            found = counted(client, known, replicas_of(client, known))
        counts = {one.name: one.counts for one in found if one.counts is not None}
        asks = {one.name: partial(activity_of, one, seconds, shown) for one in found}
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as threads:
        answers = dict(zip(asks, threads.map(_asked, asks.values()), strict=True))
    unreached = {name: said for name, said in answers.items() if isinstance(said, str)}
    told = [said for said in answers.values() if not isinstance(said, str)]
    if unreached and not told:
        raise unavailable(Reason.SIDECAR_UNAVAILABLE, _left_out(unreached))
    _show(session.printer(), [replica_row(one, counts) for one in told], adapter_rows(told), unreached)


def activity_of(replica: ReplicaView, seconds: float, shown: SidecarAccess) -> Plain:
    """Work of a replica, as its sidecar tells it.

    Raises:
        CliError: it is not reached, or another process answers where it says that it listens.
    """
    address = replica.text("http")
    if replica.missing or address == "-":
        why = "it does not live" if replica.missing else "its status does not say where its sidecar listens"
        raise unavailable(Reason.SIDECAR_UNAVAILABLE, why)
    said = ask_sidecar(sidecar_address(address), "/activity", seconds, shown)
    if said.get("incarnation") != replica.incarnation:
        why = f"another process answers at {address}, as where sidecars listen on their own hosts alone"
        raise unavailable(Reason.SIDECAR_UNAVAILABLE, why)
    return said


def _asked(ask: Callable[[], Plain]) -> Plain | str:
    """Answer of a sidecar; text: why there is none."""
    try:
        return ask()
    except CliError as error:
        return error.failure.message


def _left_out(unreached: dict[str, str]) -> str:
    return "not reached: " + "; ".join(f"{name} ({why})" for name, why in unreached.items())


def _show(
    printer: Printer, rows: Sequence[BusyReplica], adapters: Sequence[BusyAdapter], unreached: dict[str, str]
) -> None:
    if printer.is_plain:
        values = {"replicas": [one.as_dict() for one in rows], "adapters": [asdict(one) for one in adapters]}
        printer.plain({**values, "unreached": unreached})
        return
    printer.items(REPLICAS, rows)
    if printer.is_table:
        printer.lines([""])
        printer.items(ADAPTERS, adapters)
    if unreached:
        note(_left_out(unreached))
