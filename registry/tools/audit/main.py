"""Entry point of ``loraplane-audit``: follow and verify."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.etcd3.ops import KeyValue, prefix_end
from registry.model.keys import Keys
from registry.runtime.commands import Group, argument, command, version_flag
from registry.runtime.process import configure_logging, on_stop_signal, supervise
from registry.runtime.settings import DaemonSettings
from registry.store.txn import DAY_SECONDS, DENIAL_DAYS, USUAL_RETENTION
from registry.tools.audit.compare import AuditedStore, compare
from registry.tools.audit.follow import AuditFollower, StoreWentBack
from registry.tools.audit.lines import AuditLine, HoleLine, decode_line
from registry.tools.audit.output import LineFile, LineSink, OutputUnusable, StandardOutput
from registry.tools.verify.export import read_histories
from registry.tools.verify.fold import Fold
from registry.tools.verify.history import HistoryBase, Violation
from registry.tools.verify.program import (
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    EtcdReach,
    fail,
    flag_of_daemon,
    report,
    run_program,
)

PROGRAM = "loraplane-audit"
# Of what the whole history tells, that which is about the audit.
_OF_THE_AUDIT = frozenset({"W2", "W7"})
After = Annotated[
    int, flag_of_daemon("--after", "Revision behind which the lines begin; 0: with all that etcd has.", min=0)
]


def follow(
    reach: EtcdReach,
    out: Annotated[
        Path | None, flag_of_daemon("--out", "File to append to; without it, standard output.", metavar="FILE")
    ] = None,
    after: After = 0,
) -> None:
    """Write each record of the audit as one line of JSON, until a signal.

    A file is gone on with where it ends: no record has two lines, and none is left out. It may be renamed away at any
    time, and the next lines begin a new one. What a compaction of etcd took before it was read is told by a line.
    """
    settings = reach.settings(PROGRAM)
    configure_logging()
    supervise(PROGRAM, _follow(settings, out, after), {OutputUnusable: EXIT_USAGE, StoreWentBack: EXIT_UNAVAILABLE})


async def _follow(settings: DaemonSettings, out: Path | None, after: int) -> None:
    client, rng = Client(settings.client_options()), random.Random()  # noqa: S311 - for pauses
    async with aclosing(client):
        sink: LineSink = LineFile(out, after) if out else StandardOutput(after)
        try:
            work = asyncio.ensure_future(AuditFollower(client, Keys(settings.prefix), sink, rng).run())
            on_stop_signal(work.cancel)
            await asyncio.wait([work])
            if not work.cancelled():
                work.result()
        finally:
            sink.close()


def verify(
    files: Annotated[list[Path], argument(metavar="FILE…", help="Files of follow, the oldest first.")],
    reach: EtcdReach,
    *,
    after: After = 0,
    audit_retention: Annotated[
        int,
        flag_of_daemon(
            "--audit-retention", "--audit-retention of loraplane-admin.", min=DAY_SECONDS, metavar="SECONDS"
        ),
    ] = USUAL_RETENTION.audit_seconds,
) -> None:
    """Compare lines of follow with etcd: what was removed, rewritten, invented, or changed without a record."""
    settings, lines = reach.settings(PROGRAM), [line for file in files for line in _lines(file)]
    now = datetime.now(UTC)
    retention = timedelta(seconds=audit_retention), timedelta(days=DENIAL_DAYS)
    try:
        found, checked = asyncio.run(_verified(settings, lines, after, now, retention))
    except (EtcdError, TimeoutError) as error:
        fail(PROGRAM, EXIT_UNAVAILABLE, f"etcd at {reach.etcd} cannot be read: {str(error) or 'it takes too long'}")
    _report(lines, found, checked)


async def _verified(
    settings: DaemonSettings, lines: list[AuditLine], after: int, now: datetime, retention: tuple[timedelta, timedelta]
) -> tuple[list[Violation], str]:
    """Findings, and what was compared."""
    client, keys = Client(settings.client_options()), Keys(settings.prefix)
    async with aclosing(client):
        for quiet_seconds in (1.0, 5.0):
            # What is found may have come late: so it is looked for twice.
            store, of_history = await read_audited(client, keys, now, retention, quiet_seconds)
            found = [*compare(lines, after, store), *of_history]
            if not found:
                break
    kept = f"history from revision {min((step.revision for step in store.steps), default=store.revision)} on"
    return found, f"{len(lines)} lines, {len(store.kvs)} keys at revision {store.revision}, {kept}"


async def read_audited(
    client: Client, keys: Keys, now: datetime, retention: tuple[timedelta, timedelta], quiet_seconds: float
) -> tuple[AuditedStore, list[Violation]]:
    """State of etcd, and what the replay checker finds in its history.

    Raises:
        TimeoutError: it takes too long.
        EtcdError: etcd does not answer, or its user may not read everything.
    """
    prefixes = (keys.audits(), *keys.audited())
    steps = await read_histories(client, prefixes, quiet_seconds=quiet_seconds)
    kvs: list[KeyValue] = []
    revision = 0
    for prefix in prefixes:
        found = await client.list_range(prefix, prefix_end(prefix), revision=revision)
        revision = revision or found.revision
        kvs += found.kvs
    fold = Fold(keys, has_requests=False).replay(steps)
    whole = f"{keys.prefix}/"
    by_key = {kv.key.decode(errors="backslashreplace").removeprefix(whole): kv for kv in kvs}
    store = AuditedStore(whole, revision, by_key, steps, now, retention)
    # Of what was deleted before the history begins, nobody can tell any more whether it was counted.
    is_whole = not any(isinstance(step, HistoryBase) for step in steps)
    found_there = [one for one in fold.findings if one.guarantee in _OF_THE_AUDIT]
    return store, [one for one in found_there if is_whole or one.revision > fold.first_revision]


def _lines(file: Path) -> Iterator[AuditLine]:
    try:
        with file.open(errors="replace") as texts:
            yield from map(decode_line, texts)
    except OSError as error:
        fail(PROGRAM, EXIT_USAGE, f"{file}: {error.strerror}")


def _report(lines: list[AuditLine], found: list[Violation], checked: str) -> None:
    for line in lines:
        if isinstance(line, HoleLine):
            told = f"between revisions {line.after} and {line.before} etcd was compacted before it was read: what was "
            sys.stdout.write(told + "made and removed there has no line\n")
    report(found, checked)


app = Group(
    PROGRAM,
    {"follow": command("follow", follow), "verify": command("verify", verify)},
    params=[version_flag(PROGRAM)],
    help="Write the audit to a file or standard output as it is made, and compare it with etcd later. Exit codes of "
    "verify: 0 nothing was found, 1 something was, 2 usage, 6 etcd does not answer.",
)


def main() -> None:
    """Entry point of the console script."""
    run_program(PROGRAM, app)


if __name__ == "__main__":
    main()
