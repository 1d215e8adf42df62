"""Flags and ends of programs that verify: etcd, findings, failures, exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import click
from pydantic import ValidationError

from registry.lora.text import printable
from registry.model.keys import DEFAULT_PREFIX
from registry.runtime.commands import Group, complaint, flag
from registry.runtime.flags import complaint_of
from registry.runtime.program import open_standard_streams, variable_of
from registry.runtime.settings import DaemonSettings
from registry.tools.verify.history import Violation

EXIT_FOUND, EXIT_USAGE, EXIT_UNAVAILABLE = 1, 2, 6
_MAX_SHOWN = 100


def report(found: Sequence[Violation], checked: str) -> None:
    """Prints findings, and what was checked. Raises click's Exit if there are any."""
    for one in found[:_MAX_SHOWN]:
        sys.stdout.write(printable(f"{one}") + "\n")
    if len(found) > _MAX_SHOWN:
        sys.stdout.write(f"… and {len(found) - _MAX_SHOWN} more\n")
    sys.stdout.write(f"{checked}: {len(found)} findings\n")
    if found:
        raise click.exceptions.Exit(EXIT_FOUND)


def fail(program: str, code: int, message: str) -> NoReturn:
    """Prints why the program cannot go on, and raises click's Exit."""
    sys.stderr.write(printable(f"{program}: {message}") + "\n")
    raise click.exceptions.Exit(code)


def run_program(program: str, app: Group) -> NoReturn:
    """Runs the program and ends the process; a wrong command line is told in one line."""
    open_standard_streams()
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except click.UsageError as error:
        sys.stderr.write(printable(f"{program}: {complaint(error)}; see {program} --help") + "\n")
        sys.exit(EXIT_USAGE)


def flag_of_daemon(name: str, help: str, **more: Any) -> Any:  # noqa: A002, ANN401 - as `flag` takes them
    """An option with its environment variable."""
    return flag(name, help=help, envvar=variable_of(name), **more)


@dataclass(frozen=True, slots=True)
class EtcdReach:
    """Flags by which etcd is reached."""

    etcd: Annotated[str, flag_of_daemon("--etcd", "etcd's members, HOST:PORT[,HOST:PORT…].")]
    prefix: Annotated[str, flag_of_daemon("--prefix", "Prefix of all keys in etcd.")] = DEFAULT_PREFIX
    etcd_tls_ca: Annotated[Path | None, flag_of_daemon("--etcd-tls-ca", "CA of etcd.")] = None
    etcd_tls_cert: Annotated[Path | None, flag_of_daemon("--etcd-tls-cert", "Our certificate.")] = None
    etcd_tls_key: Annotated[Path | None, flag_of_daemon("--etcd-tls-key", "Its key.")] = None
    etcd_user: Annotated[str | None, flag_of_daemon("--etcd-user", "User of etcd.")] = None
    etcd_password_file: Annotated[Path | None, flag_of_daemon("--etcd-password-file", "Its password.")] = None
    insecure: Annotated[bool, flag_of_daemon("--insecure", "Send the password unencrypted over the network.")] = False

    def settings(self, program: str) -> DaemonSettings:
        """The same, checked; the program ends where they cannot be used."""
        try:
            return DaemonSettings.model_validate(asdict(self))
        except ValidationError as problem:
            fail(program, EXIT_USAGE, complaint_of(problem))
