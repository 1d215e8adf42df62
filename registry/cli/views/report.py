"""Reports outcomes of changes and the progress of rollouts."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from registry.cli.change.sets import Applied, NotApplied, Outcome, placed
from registry.cli.client import AdminClient
from registry.cli.failure import CliError, CommandFailure, refused
from registry.cli.rollout import FollowedRollout, RolloutTarget, describe, follow_all
from registry.cli.views.differences import left_out
from registry.cli.views.messages import outcome_name, result_dict, rollout_dict, state_name
from registry.cli.views.output import Format, Printer, end_unread
from registry.client.adapters import revision_of
from registry.lora.text import printable
from registry.model.errors import Reason
from registry.model.messages import Plain
from registry.residency.health import is_disabled
from registry.v1 import registry_pb2 as pb

if TYPE_CHECKING:
    from rich.table import Table

_TITLES = ("OUTCOME", "NAME", "POOL", "GENERATION")


def print_table(printer: Printer, outcomes: Sequence[Outcome], *, dry_run: bool) -> None:
    """Outcome of each change, then one line for each transaction."""
    applied = [one for one in outcomes if isinstance(one, Applied)]
    printer.table(_TITLES, (_row(result) for one in applied for result in one.response.results))
    for one in applied:
        at = revision_of(one.response)
        printer.lines([request_line(one.response.request_id, at, dry_run=dry_run)])
    if len(outcomes) > 1:
        printer.lines([f"{len(applied)} of {len(outcomes)} transactions applied"])
    printer.lines(_canaries_first(result) for one in applied for result in one.response.results if _begins(result))
    printer.lines(one.failure.line() for one in outcomes if isinstance(one, NotApplied))


def request_line(request_id: str, revision: int = 0, *, dry_run: bool) -> str:
    """Last line about a change: whether it was made, and what it is found by. `revision` 0: not told."""
    at = f"revision {revision}, " if revision else ""
    return f"{'dry run, nothing was changed; ' if dry_run else ''}{at}request id {request_id}"


def print_plain(
    printer: Printer, outcomes: Sequence[Outcome], followed: Sequence[FollowedRollout], *, dry_run: bool
) -> None:
    """The same for programs; with `-o name` the names alone."""
    results = [result for one in outcomes if isinstance(one, Applied) for result in one.response.results]
    if printer.form is Format.NAME:
        printer.lines(result.adapter.name for result in results)
        return
    value: Plain = {
        "request_id": outcomes[0].batch.request_id if outcomes else None,
        "revision": max((revision_of(one.response) for one in outcomes if isinstance(one, Applied)), default=None),
        "dry_run": dry_run,
        "results": [result_dict(result) for result in results],
        "transactions": [_transaction(one) for one in outcomes],
        "rollouts": [rollout_dict(one.rollout) for one in followed if one.rollout is not None],
    }
    printer.plain(value)


def _row(result: pb.AdapterResult) -> tuple[str, ...]:
    adapter = result.adapter
    return outcome_name(result), adapter.name, adapter.pool, str(adapter.generation)


def _begins(result: pb.AdapterResult) -> bool:
    adapter = result.adapter
    return result.outcome == pb.AdapterResult.UPDATED and adapter.HasField("rollout") and not is_disabled(adapter)


def _canaries_first(result: pb.AdapterResult) -> str:
    adapter = result.adapter
    others = f"all others keep {adapter.rollout.stable_generation}"
    return f"{adapter.name}: only canaries take generation {adapter.generation} for now, {others}"


def _transaction(outcome: Outcome) -> Plain:
    about: Plain = {
        "request_id": outcome.batch.request_id,
        "pool": outcome.batch.pool,
        "changes": len(outcome.batch.changes),
    }
    match outcome:
        case Applied():
            return {**about, "revision": revision_of(outcome.response), "error": None}
        case NotApplied():
            return {**about, "revision": None, "error": outcome.failure.as_dict()}


def check_applied(outcomes: Iterable[Outcome]) -> None:
    """Returns if every transaction was carried out, and with all that was asked for.

    Raises:
        CliError: the first failure, with how many transactions were not applied where there were several; or an admin
            service of an earlier release passed over a field.
    """
    everything = list(outcomes)
    failures = [one.failure for one in everything if isinstance(one, NotApplied)]
    if failures:
        raise CliError(_counted(failures[0], len(failures), len(everything)))
    for one in everything:
        if isinstance(one, Applied):
            _check_whole(one)


def _check_whole(applied: Applied) -> None:
    changes, results = applied.batch.changes, applied.response.results
    for number, (change, result) in enumerate(zip(changes, results, strict=False)):
        if lost := left_out(change.wire.upsert.spec, result.adapter.spec):
            message = "the admin service does not know it, and left it out; upgrade loraplane-admin, and say it again"
            failure = refused(Reason.UNSUPPORTED, message, field=f"changes[{number}].upsert.spec.{lost[0]}").failure
            raise CliError(placed(failure, applied.batch))


def _counted(first: CommandFailure, failed: int, total: int) -> CommandFailure:
    if total == 1:
        return first
    message = (
        f"{failed} of {total} transactions were not applied; the first: {first.message}; once that is mended, the same "
        "command goes on with the rest"
    )
    return replace(first, message=message)


_SHOWN = 20
_EVERY_SECONDS = 5.0


class _Display:
    """The newest news of every rollout; told from many threads, shown by one."""

    def __init__(self, printer: Printer, targets: Sequence[RolloutTarget]) -> None:
        self._printer = printer
        self._lock = threading.Lock()
        self._targets = targets
        self._rollouts: dict[RolloutTarget, pb.Rollout] = {}
        self._told = ""
        self._tell_at = time.monotonic()

    def seen(self, target: RolloutTarget, rollout: pb.Rollout) -> None:
        """Takes news; without a terminal it prints them, of several rollouts how many are served every few seconds."""
        with self._lock:
            self._rollouts[target] = rollout
            if len(self._targets) == 1:
                self._tell(describe(FollowedRollout(target, rollout)))
            elif time.monotonic() >= self._tell_at:
                self._tell(summary(self._targets, self._rollouts))
                self._tell_at = time.monotonic() + _EVERY_SECONDS

    def _tell(self, line: str) -> None:
        """Prints a line that was not the last one."""
        if self._printer.is_table and not self._printer.is_live and line != self._told:
            self._printer.lines([line])
        self._told = line

    def end(self) -> None:
        """Says how far several rollouts came."""
        with self._lock:
            if len(self._targets) > 1:
                self._tell(summary(self._targets, self._rollouts))

    def __rich__(self) -> Table:
        """The latest news, for a terminal."""
        from rich.table import Table  # noqa: PLC0415 - as in `Printer`
        from rich.text import Text  # noqa: PLC0415

        table = Table.grid()
        with self._lock:
            for line, style in self._lines():
                table.add_row(Text(printable(line), style=style))
        return table

    def _lines(self) -> Iterator[tuple[str, str]]:
        if len(self._targets) > 1:
            yield summary(self._targets, self._rollouts), "bold"
        failed = [FollowedRollout(*item) for item in self._rollouts.items() if fate_of(*item) is Fate.FAILED]
        yield from ((describe(one), "red") for one in failed[:_SHOWN])
        if len(failed) > _SHOWN:
            yield f"and {len(failed) - _SHOWN} more failed", "red"
        others = [FollowedRollout(*item) for item in self._rollouts.items() if fate_of(*item) is not Fate.FAILED]
        for one in others if len(self._targets) == 1 else ():
            yield describe(one), "green" if one.rollout and fate_of(one.target, one.rollout) is Fate.SERVED else ""


class Fate(Enum):
    """Outcome of a rollout so far."""

    SERVED = "served"
    FAILED = "failed"
    PENDING = "pending"


def fate_of(target: RolloutTarget, rollout: pb.Rollout) -> Fate:
    """Outcome so far."""
    if target.is_served(rollout) or (rollout.done and not rollout.failure):
        return Fate.SERVED
    return Fate.FAILED if rollout.done else Fate.PENDING


def summary(targets: Sequence[RolloutTarget], rollouts: Mapping[RolloutTarget, pb.Rollout]) -> str:
    """Progress of several rollouts, e.g. ``312/500 served, 188 staging, slowest r3``."""
    fates, reasons, slow = Counter[Fate](), Counter[str](), Counter[str]()
    for target, rollout in rollouts.items():
        fates[fate_of(target, rollout)] += 1
        if fate_of(target, rollout) is not Fate.PENDING:
            continue
        behind = [one for one in rollout.replicas if one.state != pb.RolloutReplica.SERVING]
        slow.update(one.replica for one in behind)
        why = Counter(one.reason or state_name(one) for one in behind).most_common(1)
        reasons[why[0][0] if why else "waiting"] += 1
    unheard = len(targets) - len(rollouts)
    told = [f"{fates[Fate.SERVED]}/{len(targets)} served"]
    told += [f"{fates[Fate.FAILED]} failed"] if fates[Fate.FAILED] else []
    told += [f"{count} {reason}" for reason, count in reasons.most_common()]
    told += [f"{unheard} without a report"] if unheard else []
    return ", ".join(told + [f"slowest {name}" for name, _ in slow.most_common(1)])


@contextmanager
def _shown(display: _Display, printer: Printer) -> Iterator[None]:
    if not printer.is_live:
        yield
        return
    from rich.live import Live  # noqa: PLC0415

    with Live(display, console=printer.console, refresh_per_second=8):
        yield


def follow_shown(
    client: AdminClient, targets: Sequence[RolloutTarget], timeout_seconds: float, printer: Printer
) -> list[FollowedRollout]:
    """Follows rollouts and shows how far they are: live on a terminal, else in lines."""
    display = _Display(printer, targets)
    with _shown(display, printer):
        try:
            return follow_all(client, targets, timeout_seconds, display.seen)
        except BrokenPipeError:  # of a thread that told news
            end_unread()
            raise
        finally:
            display.end()
