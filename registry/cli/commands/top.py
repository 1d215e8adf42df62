"""The command top: what replicas are doing, from their sidecars."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from registry.cli import options
from registry.cli.commands.events import ask_sidecar, sidecar_address
from registry.cli.failure import CliError, CommandFailure, Exit
from registry.cli.session import READ_SECONDS, pool_or_only, session_of
from registry.cli.views.get import note, replicas_of
from registry.cli.views.output import Printer
from registry.cli.views.replica_view import ReplicaView
from registry.cli.views.top import ADAPTERS, REPLICAS, adapter_rows, replica_row
from registry.model.errors import Reason
from registry.model.messages import Plain

_ASKED_AT_ONCE = 16
_ASK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Target:
    """A sidecar to ask. `incarnation`: of the process that is to answer; empty: any. `why`: why it cannot be asked."""

    name: str
    address: str = ""
    incarnation: str = ""
    why: str = ""


def top(
    context: typer.Context,
    *,
    pool: options.Pool = None,
    sidecar: Annotated[
        list[str] | None,
        options.flag("--sidecar", metavar="HOST:PORT", help="Ask this sidecar, its --http; may be repeated."),
    ] = None,
    timeout: options.Timeout = None,
) -> None:
    """Show what replicas and adapters are doing: requests, tokens, loads, swaps, last use.

    Sidecars are asked where their statuses say that they listen, which has to be reachable from here; --sidecar names
    them instead. REQUESTS and tokens are the engine's, since it started; loads and swaps are the sidecar's, since that
    started, and SECONDS what one took on average. Engines count requests by replica alone. Of an adapter, loads, swaps
    and evictions are those that the rings of sidecars still have, and LAST USED needs vLLM with the plugin.
    """
    session, seconds = session_of(context), timeout or _ASK_SECONDS
    if sidecar:
        for one in sidecar:
            sidecar_address(one)
        targets = [_Target(one, one) for one in sidecar]
    else:
        with session.client(timeout or READ_SECONDS) as client:
            targets = [_target(one) for one in replicas_of(client, pool_or_only(client, pool))]
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as threads:
        answers = list(threads.map(lambda one: _ask(one, seconds), targets))
    unreached = {one.name: said for one, said in zip(targets, answers, strict=True) if isinstance(said, str)}
    told = [one for one in answers if not isinstance(one, str)]
    if unreached and not told:
        raise CliError(CommandFailure(Exit.UNAVAILABLE, Reason.SIDECAR_UNAVAILABLE, _left_out(unreached)))
    _show(session.printer(), told, unreached)


def _target(replica: ReplicaView) -> _Target:
    if replica.missing:
        return _Target(replica.name, why="it does not live")
    address = replica.text("http")
    if address == "-":
        return _Target(replica.name, why="its status does not say where its sidecar listens; name it with --sidecar")
    return _Target(replica.name, address, replica.incarnation)


def _ask(target: _Target, seconds: float) -> Plain | str:
    """What the sidecar says; text: why there is nothing."""
    if target.why:
        return target.why
    try:
        said = ask_sidecar(sidecar_address(target.address), "/activity", seconds)
    except CliError as error:
        return error.failure.message
    if target.incarnation and said.get("incarnation") != target.incarnation:
        return f"another process answers at {target.address}, as where sidecars listen on their own hosts alone"
    return said


def _left_out(unreached: dict[str, str]) -> str:
    return "not reached: " + "; ".join(f"{name} ({why})" for name, why in unreached.items())


def _show(printer: Printer, told: Sequence[Plain], unreached: dict[str, str]) -> None:
    rows, adapters = [replica_row(one) for one in told], adapter_rows(told)
    if printer.is_plain:
        values = {"replicas": [asdict(one) for one in rows], "adapters": [asdict(one) for one in adapters]}
        printer.plain({**values, "unreached": unreached})
        return
    printer.items(REPLICAS, rows)
    if printer.is_table:
        printer.lines([""])
        printer.items(ADAPTERS, adapters)
    if unreached:
        note(_left_out(unreached))
