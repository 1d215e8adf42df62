"""Entry point of ``loraplane-verify``: export and verify."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.model.keys import DEFAULT_PREFIX, Keys
from registry.runtime.commands import Group, command, version_flag
from registry.runtime.settings import DaemonSettings
from registry.tools.verify.export import decode, encode, read_history
from registry.tools.verify.fold import Fold
from registry.tools.verify.history import Step
from registry.tools.verify.program import (
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    EtcdReach,
    fail,
    flag_of_daemon,
    report,
    run_program,
)

PROGRAM = "loraplane-verify"


def export(
    reach: EtcdReach,
    out: Annotated[Path, flag_of_daemon("--out", "File to write, one JSON line a revision.")],
    from_revision: Annotated[int, flag_of_daemon("--from-revision", "First revision.", min=1)] = 1,
) -> None:
    """Write what happened in etcd since a revision, or since the last compaction, to a file."""
    etcd, prefix, settings = reach.etcd, reach.prefix, reach.settings(PROGRAM)
    try:
        steps = asyncio.run(_read(settings, from_revision))
    except (EtcdError, TimeoutError, ValueError) as error:
        fail(PROGRAM, EXIT_UNAVAILABLE, f"etcd at {etcd} cannot be read: {str(error) or 'it takes too long'}")
    if not steps:
        fail(PROGRAM, EXIT_USAGE, f"etcd at {etcd} holds nothing below {prefix!r}; --prefix is the services' own")
    try:
        out.write_text("".join(f"{line}\n" for line in encode(steps)))
    except OSError as error:
        fail(PROGRAM, EXIT_USAGE, f"--out {out}: {error.strerror}")
    sys.stdout.write(f"{len(steps)} revisions in {out}\n")


async def _read(settings: DaemonSettings, from_revision: int) -> list[Step]:
    async with aclosing(Client(settings.client_options())) as client:
        return await read_history(client, settings.prefix, from_revision=from_revision)


def verify(
    history: Annotated[Path, flag_of_daemon("--history", "A file that export wrote.")],
    prefix: Annotated[str, flag_of_daemon("--prefix", "Prefix of all keys in etcd.")] = DEFAULT_PREFIX,
) -> None:
    """Check every revision of a history."""
    try:
        fold = Fold(Keys(prefix)).replay(decode(_lines(history)))
    except ValueError as error:
        fail(PROGRAM, EXIT_USAGE, str(error))
    if not fold.has_pool:  # of a history of something else everything would hold
        fail(PROGRAM, EXIT_USAGE, f"the history holds no pool below {prefix!r}; --prefix is the one that was exported")
    span = f"revisions {fold.first_revision} to {fold.revision}"
    report(fold.findings, f"{span}, {len(fold.changing)} changes")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fail(PROGRAM, EXIT_USAGE, f"cannot read {path}: {error}")


app = Group(
    PROGRAM,
    {"export": command("export", export), "verify": command("verify", verify)},
    params=[version_flag(PROGRAM)],
    help="Replay a history of etcd and check what was promised over it. Exit codes: 0 all holds, 1 something does not, "
    "2 usage, 6 etcd does not answer.",
)


def main() -> None:
    """Entry point of the console script."""
    run_program(PROGRAM, app)


if __name__ == "__main__":
    main()
