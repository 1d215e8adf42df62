"""Entry point of ``loraplane-verify``: export and verify."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import click
from pydantic import ValidationError

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.lora.text import printable
from registry.model.keys import DEFAULT_PREFIX, Keys
from registry.runtime.commands import Group, command, complaint, flag, version_flag
from registry.runtime.flags import complaint_of
from registry.runtime.program import variable_of
from registry.runtime.settings import DaemonSettings
from registry.tools.verify.export import decode, encode, read_history
from registry.tools.verify.fold import Fold
from registry.tools.verify.history import Step

PROGRAM = "loraplane-verify"
EXIT_FOUND, EXIT_USAGE, EXIT_UNAVAILABLE = 1, 2, 6
MAX_SHOWN = 20


def _flag(name: str, help: str, **more: Any) -> Any:  # noqa: A002, ANN401 - as `flag` takes them
    """An option with its environment variable."""
    return flag(name, help=help, envvar=variable_of(name), **more)


Prefix = Annotated[str, _flag("--prefix", "Prefix of all keys in etcd.")]


def export(
    etcd: Annotated[str, _flag("--etcd", "etcd's members, HOST:PORT[,HOST:PORT…].")],
    out: Annotated[Path, _flag("--out", "File to write, one JSON line a revision.")],
    prefix: Prefix = DEFAULT_PREFIX,
    from_revision: Annotated[int, _flag("--from-revision", "First revision.", min=1)] = 1,
    etcd_tls_ca: Annotated[Path | None, _flag("--etcd-tls-ca", "CA of etcd.")] = None,
    etcd_tls_cert: Annotated[Path | None, _flag("--etcd-tls-cert", "Our certificate.")] = None,
    etcd_tls_key: Annotated[Path | None, _flag("--etcd-tls-key", "Its key.")] = None,
    etcd_user: Annotated[str | None, _flag("--etcd-user", "User of etcd.")] = None,
    etcd_password_file: Annotated[Path | None, _flag("--etcd-password-file", "Its password.")] = None,
    insecure: Annotated[bool, _flag("--insecure", "Send the password unencrypted over the network.")] = False,
) -> None:
    """Write what happened in etcd since a revision, or since the last compaction, to a file."""
    files = {"etcd_tls_ca": etcd_tls_ca, "etcd_tls_cert": etcd_tls_cert, "etcd_tls_key": etcd_tls_key}
    named = {**files, "etcd_user": etcd_user, "etcd_password_file": etcd_password_file}
    try:
        settings = DaemonSettings.model_validate({"etcd": etcd, "prefix": prefix, "insecure": insecure, **named})
    except ValidationError as problem:
        _fail(EXIT_USAGE, complaint_of(problem))
    try:
        steps = asyncio.run(_read(settings, from_revision))
    except (EtcdError, TimeoutError, ValueError) as error:
        _fail(EXIT_UNAVAILABLE, f"etcd at {etcd} cannot be read: {str(error) or 'it takes too long'}")
    if not steps:
        _fail(EXIT_USAGE, f"etcd at {etcd} holds nothing below {prefix!r}; --prefix is the services' own")
    try:
        out.write_text("".join(f"{line}\n" for line in encode(steps)))
    except OSError as error:
        _fail(EXIT_USAGE, f"--out {out}: {error.strerror}")
    sys.stdout.write(f"{len(steps)} revisions in {out}\n")


async def _read(settings: DaemonSettings, from_revision: int) -> list[Step]:
    client = Client(settings.client_options())
    try:
        return await read_history(client, settings.prefix, from_revision=from_revision)
    finally:
        await client.aclose()


def verify(
    history: Annotated[Path, _flag("--history", "A file that export wrote.")], prefix: Prefix = DEFAULT_PREFIX
) -> None:
    """Check every revision of a history."""
    try:
        fold = Fold(Keys(prefix)).replay(decode(_lines(history)))
    except ValueError as error:
        _fail(EXIT_USAGE, str(error))
    if not fold.has_pool:  # of a history of something else everything would hold
        _fail(EXIT_USAGE, f"the history holds no pool below {prefix!r}; --prefix is the one that was exported")
    _report(fold)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        _fail(EXIT_USAGE, f"cannot read {path}: {error}")


def _report(fold: Fold) -> None:
    findings = fold.findings
    for finding in findings[:MAX_SHOWN]:
        sys.stdout.write(printable(f"{finding}") + "\n")
    if len(findings) > MAX_SHOWN:
        sys.stdout.write(f"… and {len(findings) - MAX_SHOWN} more\n")
    span = f"revisions {fold.first_revision} to {fold.revision}"
    sys.stdout.write(f"{span}, {len(fold.changing)} changes: {len(findings)} findings\n")
    if findings:
        raise click.exceptions.Exit(EXIT_FOUND)


def _fail(code: int, message: str) -> NoReturn:
    sys.stderr.write(printable(f"{PROGRAM}: {message}") + "\n")
    raise click.exceptions.Exit(code)


app = Group(
    PROGRAM,
    {"export": command("export", export), "verify": command("verify", verify)},
    params=[version_flag(PROGRAM)],
    help="Replay a history of etcd and check what was promised over it. Exit codes: 0 all holds, 1 something does not, "
    "2 usage, 6 etcd does not answer.",
)


def main() -> None:
    """Entry point of the console script."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except click.UsageError as error:
        sys.stderr.write(printable(f"{PROGRAM}: {complaint(error)}; see {PROGRAM} --help") + "\n")
        sys.exit(EXIT_USAGE)


if __name__ == "__main__":
    main()
