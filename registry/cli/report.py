"""Telling what became of changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from registry.cli.change_set import Applied, NotApplied, Outcome
from registry.cli.failure import CliError, Failure
from registry.cli.output import Format, Printer
from registry.cli.rollout import Followed
from registry.cli.wire import Plain, outcome_name, result_dict, rollout_dict
from registry.v1 import registry_pb2 as pb

_TITLES = ("OUTCOME", "NAME", "POOL", "GENERATION")


def print_table(printer: Printer, outcomes: Sequence[Outcome], *, dry_run: bool) -> None:
    """What became of each change, then one line for each transaction."""
    applied = [one for one in outcomes if isinstance(one, Applied)]
    printer.table(_TITLES, (_row(result) for one in applied for result in one.response.results))
    note = "dry run, nothing was changed; " if dry_run else ""
    printer.lines(f"{note}revision {one.response.revision}, request id {one.response.request_id}" for one in applied)
    printer.lines(_canaries_first(result) for one in applied for result in one.response.results if _begins(result))
    printer.lines(one.failure.line() for one in outcomes if isinstance(one, NotApplied))


def print_plain(printer: Printer, outcomes: Sequence[Outcome], followed: Sequence[Followed], *, dry_run: bool) -> None:
    """The same for programs; with `-o name` the names alone."""
    results = [result for one in outcomes if isinstance(one, Applied) for result in one.response.results]
    if printer.form is Format.NAME:
        printer.lines(result.adapter.name for result in results)
        return
    value: Plain = {
        "request_id": outcomes[0].batch.request_id,
        "revision": max((one.response.revision for one in outcomes if isinstance(one, Applied)), default=None),
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
    return result.outcome == pb.AdapterResult.UPDATED and result.adapter.HasField("rollout")


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
            return {**about, "revision": outcome.response.revision, "error": None}
        case NotApplied():
            return {**about, "revision": None, "error": outcome.failure.as_dict()}


def check_applied(outcomes: Iterable[Outcome]) -> None:
    """Returns if every transaction was carried out.

    Raises:
        CliError: the first failure, with how many transactions were not applied where there were several.
    """
    everything = list(outcomes)
    failures = [one.failure for one in everything if isinstance(one, NotApplied)]
    if failures:
        raise CliError(_counted(failures[0], len(failures), len(everything)))


def _counted(first: Failure, failed: int, total: int) -> Failure:
    if total == 1:
        return first
    message = f"{failed} of {total} transactions were not applied; the first: {first.message}"
    return Failure(first.exit, first.reason, message, first.field, first.metadata, first.request_id)
