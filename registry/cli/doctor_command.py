"""The command that looks at every part and says what to do."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from registry.cli import options
from registry.cli.diagnosis import diagnose
from registry.cli.failure import CliError, Exit, usage
from registry.cli.finding import Finding, Part, Severity, error
from registry.cli.output import Printer
from registry.cli.session import READ_SECONDS, Session, session_of
from registry.cli.survey import look_at_admin, look_at_etcd, survey
from registry.daemon.flags import complaint_of
from registry.daemon.settings import DaemonSettings

_COLUMNS = ("severity", "part", "subject", "finding", "remedy")


def doctor(
    context: typer.Context,
    *,
    etcd: Annotated[
        str | None,
        options.flag("--etcd", metavar="HOST:PORT[,…]", help="Look at these members of etcd too."),
    ] = None,
    etcd_tls_ca: Annotated[Path | None, options.flag("--etcd-tls-ca", metavar="FILE", help="CA of etcd.")] = None,
    etcd_tls_cert: Annotated[
        Path | None, options.flag("--etcd-tls-cert", metavar="FILE", help="Our certificate.")
    ] = None,
    etcd_tls_key: Annotated[Path | None, options.flag("--etcd-tls-key", metavar="FILE", help="Its key.")] = None,
    etcd_user: Annotated[str | None, options.flag("--etcd-user", metavar="NAME", help="User of etcd.")] = None,
    etcd_password_file: Annotated[
        Path | None, options.flag("--etcd-password-file", metavar="FILE", help="Its password.")
    ] = None,
    timeout: options.Timeout = None,
) -> None:
    """Look at admin service, pools, replicas and tenants (and etcd), and say what to do about each finding.

    Exit code 0: nothing needs action, though there may be warnings; 4: an error does; 6: a part cannot be reached.
    """
    session = session_of(context)
    given = {"etcd_tls_ca": etcd_tls_ca, "etcd_tls_cert": etcd_tls_cert, "etcd_tls_key": etcd_tls_key}
    settings = _settings({**given, "etcd": etcd, "etcd_user": etcd_user, "etcd_password_file": etcd_password_file})
    findings, is_reached = _through_admin(session, timeout or READ_SECONDS)
    if settings is not None:
        more, is_up = look_at_etcd(settings)
        findings, is_reached = findings + more, is_reached and is_up
    _tell(session.printer(), findings)
    if not is_reached:
        raise typer.Exit(Exit.UNAVAILABLE)
    if any(one.severity is Severity.ERROR for one in findings):
        raise typer.Exit(Exit.REFUSED)


def _settings(given: dict[str, object]) -> DaemonSettings | None:
    """How to reach etcd; None: it is not to be looked at.

    Raises:
        CliError: the options do not fit together.
    """
    named = {name: value for name, value in given.items() if value is not None}
    if not named:
        return None
    try:
        return DaemonSettings.model_validate(named)
    except ValidationError as problem:
        raise usage(complaint_of(problem)) from problem


def _through_admin(session: Session, seconds: float) -> tuple[list[Finding], bool]:
    """What is wrong, and whether the admin service answers."""
    try:
        findings = look_at_admin(session)
        with session.client(seconds) as client:
            return findings + diagnose(survey(client), datetime.now(UTC)), True
    except CliError as problem:
        if problem.failure.exit is not Exit.UNAVAILABLE:
            raise
        remedy = "start loraplane-admin, or name another with --admin; if it runs, see that its --etcd has a majority"
        return [error(Part.ADMIN, session.admin, "unreachable", problem.failure.message, remedy)], False


def _tell(printer: Printer, findings: list[Finding]) -> None:
    values = [one.as_dict() for one in findings]
    if printer.is_plain:
        printer.plain({"findings": values})
    elif not printer.is_table:
        printer.lines(one.reason for one in findings)
    elif findings:
        printer.table([name.upper() for name in _COLUMNS], ([str(one[name]) for name in _COLUMNS] for one in values))
    else:
        printer.lines(["nothing is wrong"])
