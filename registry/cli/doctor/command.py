"""The command that looks at every part and says what to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, NoReturn

import click

from registry.cli import options
from registry.cli.change.documents import read_text
from registry.cli.client import AdminClient
from registry.cli.commands.etcd_access import EtcdLogin, etcd_settings
from registry.cli.doctor.collect import (
    access_of,
    collect,
    look_at_admin,
    look_at_certificates,
    look_at_counters,
    look_at_etcd,
)
from registry.cli.doctor.diagnosis import access_findings, diagnose, looked_at
from registry.cli.doctor.findings import CheckedPart, DoctorFinding, EtcdGrowth, Severity, error, folded, warning
from registry.cli.doctor.pod_findings import pod_findings
from registry.cli.failure import CliError, Exit, failure_of, usage
from registry.cli.session import READ_SECONDS, Session, session_of
from registry.cli.views.output import Printer
from registry.client.handshake import admin_service, handshake_trouble
from registry.formats.documents import read_documents
from registry.model.errors import InvalidArgument, Reason
from registry.runtime.settings import DaemonSettings, is_loopback

_WATCH_SECONDS = 5.0
_COLUMNS = ("severity", "part", "subject", "finding", "remedy")


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdOptions(EtcdLogin):
    """Options for reaching etcd, if it is to be looked at."""

    etcd: Annotated[
        str | None, options.flag("--etcd", metavar="HOST:PORT[,…]", help="Check these members of etcd too.")
    ] = None
    etcd_quota: Annotated[
        int | None,
        options.flag("--etcd-quota", metavar="BYTES", min=1, help="etcd's --quota-backend-bytes (default: 2 GiB)."),
    ] = None
    audit_retention: Annotated[
        int | None,
        options.flag(
            "--audit-retention",
            metavar="SECONDS",
            min=1,
            help="--audit-retention of loraplane-admin (default: 30 days).",
        ),
    ] = None

    def settings(self) -> DaemonSettings | None:
        """The same, checked; None: it is not to be looked at.

        Raises:
            CliError: the options do not fit together.
        """
        given = {**asdict(self), "insecure": self.insecure or None, "etcd_quota": None, "audit_retention": None}
        return None if all(value is None for value in given.values()) else etcd_settings(given)

    def growth(self) -> EtcdGrowth:
        """Quota and retention as these flags give them."""
        usual = EtcdGrowth(quota_bytes=self.etcd_quota)
        return usual if self.audit_retention is None else replace(usual, audit_seconds=self.audit_retention)


def doctor(
    context: click.Context,
    *,
    given: EtcdOptions,
    other_admin: Annotated[
        list[str] | None,
        options.flag(
            "--other-admin",
            metavar="HOST:PORT",
            help="Another admin service of the same registry, which has to have the same access file (repeatable).",
        ),
    ] = None,
    repair: Annotated[
        bool, options.flag("--repair", help="Repair counters and history after records were deleted directly in etcd.")
    ] = False,
    manifests: Annotated[
        str | None,
        options.flag(
            "--manifests",
            metavar="FILE",
            help="Look at manifests of Kubernetes instead, before they are applied (- for standard input).",
        ),
    ] = None,
    watch: Annotated[
        bool, options.flag("--watch", "-w", help="Repeat the checks, and print the findings when they change.")
    ] = False,
    timeout: options.Timeout = None,
) -> None:
    """Check admin service, pools, replicas and tenants (and etcd), and print a remedy for each finding.

    Exit code 0: nothing needs action, though there may be warnings; 4: an error does; 6: a part cannot be reached.
    """
    if watch and repair:
        raise usage("--watch only looks: leave out --repair, or run it once without --watch")
    session = session_of(context)
    if manifests is not None:
        if watch or repair:
            raise usage("--manifests looks at a file, once: leave out --watch and --repair")
        _end(session.printer(), _look_at_manifests(manifests))
        return
    given.settings()  # refuses what does not fit together before anybody is asked
    look = partial(_look, session, given, other_admin or (), timeout or READ_SECONDS, repair=repair)
    if watch:
        _watch(session.printer(), look)
    _end(session.printer(), look())


# What is wrong, what was looked at, and whether all of it answers.
Seen = tuple[list[DoctorFinding], str, bool]


def _end(printer: Printer, seen: Seen) -> None:
    """Tells what was seen, and ends with the code for it."""
    findings, looked, is_reached = seen
    _tell(printer, findings, looked)
    if not is_reached:
        raise click.exceptions.Exit(Exit.UNAVAILABLE)
    if any(one.severity is Severity.ERROR for one in findings):
        raise click.exceptions.Exit(Exit.REFUSED)


def _look_at_manifests(file: str) -> Seen:
    """Looks at pods as they are to be."""
    try:
        documents = read_documents(read_text(file, "--manifests"), file)
    except InvalidArgument as problem:
        raise CliError(failure_of(problem)) from problem
    findings = pod_findings(one.content for one in documents)
    return findings, f"the pods in {len(documents)} manifests", True


def _look(session: Session, given: EtcdOptions, others: Sequence[str], seconds: float, *, repair: bool) -> Seen:
    """Looks at everything once."""
    settings, told = given.settings(), given.growth()
    findings, looked, is_reached = _through_admin(session, others, seconds, repair=repair)
    if settings is not None:
        findings += [
            error(CheckedPart.ETCD, "all members", "plain_text", one, "give --etcd-tls-ca to all programs")
            for one in settings.unprotected()
        ]
        more, is_up = look_at_etcd(settings, told)
        own = {(one.subject, one.reason) for one in more}
        findings = [one for one in findings if (one.subject, one.reason) not in own] + more
        is_reached = is_reached and is_up
    etcd_looked = "etcd" if settings is not None else "not etcd itself (--etcd HOST:PORT)"
    return findings, f"{looked}, {etcd_looked}", is_reached


def _watch(printer: Printer, look: Callable[[], Seen]) -> NoReturn:
    """Looks again and again until it is interrupted. A terminal is drawn anew; else what changes is told."""
    told: set[tuple[str, str, str, str]] | None = None
    while True:
        findings, looked, _ = look()
        # Not the words, some of which say how long something has been so.
        found = {(str(one.severity), str(one.part), one.subject, one.reason) for one in findings}
        if printer.is_live:
            printer.console.clear()
        if printer.is_live or found != told:
            if printer.is_table:
                printer.lines([f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S}"])
            _tell(printer, findings, looked, is_event=True)
        told = found
        time.sleep(_WATCH_SECONDS)


def _through_admin(session: Session, others: Sequence[str], seconds: float, *, repair: bool) -> Seen:
    """The same of all but etcd."""
    try:
        with session.client(seconds) as client:
            seen, now = collect(client), datetime.now(UTC)
            findings = look_at_admin(client) + _plain_text(session) + diagnose(seen, now)
            findings += look_at_certificates(session.admin, session.shown_tls, now) if session.shown_tls else []
            findings += _look_at_access(session, client, others, seconds)
            looked = f"the admin service at {session.admin}, {looked_at(seen)}"
            return findings + look_at_counters(client, seen, repair=repair), looked, True
    except CliError as problem:
        if problem.failure.exit is not Exit.UNAVAILABLE:
            raise
        return [_unreachable(session, problem)], "", False


def _look_at_access(
    session: Session, client: AdminClient, others: Sequence[str], seconds: float
) -> list[DoctorFinding]:
    """Findings on the access files of this admin service and others.

    Raises:
        CliError: this one does not answer.
    """
    seen, findings = [access_of(client, session.admin)], []
    for address in others:
        other = replace(session, named_admin=address, tls=session.shown_tls)
        try:
            with other.client(seconds) as theirs:
                seen.append(access_of(theirs, address))
        except CliError as problem:
            remedy = "start loraplane-admin there, or name another with --other-admin"
            findings.append(error(CheckedPart.ADMIN, address, "unreachable", problem.failure.message, remedy))
    return findings + access_findings([one for one in seen if one is not None])


def _unreachable(session: Session, problem: CliError) -> DoctorFinding:
    """Part that does not answer: the admin service, or etcd behind it."""
    with session.client(READ_SECONDS) as client:
        is_etcd = client.is_without_etcd()
    if is_etcd or problem.failure.reason == Reason.ETCD_UNAVAILABLE:
        finding = f"the admin service at {session.admin} answers, but reaches no majority of etcd"
        remedy = "start etcd's members; loraplane doctor --etcd HOST:PORT,… says which of them are down"
        return error(CheckedPart.ETCD, "all members", "unreachable", finding, remedy)
    tls = session.shown_tls
    trouble = handshake_trouble(session.admin, tls.files() if tls else None, admin_service(session.admin))
    if trouble is not None:
        return error(CheckedPart.ADMIN, session.admin, "no_handshake", trouble.finding, trouble.remedy)
    remedy = "start loraplane-admin, or name another with --admin"
    return error(CheckedPart.ADMIN, session.admin, "unreachable", problem.failure.message, remedy)


def _plain_text(session: Session) -> list[DoctorFinding]:
    """Finding on an admin service spoken to over the network without TLS: then so may anybody else."""
    if session.shown_tls or session.admin.startswith("unix:") or is_loopback(session.admin.rpartition(":")[0]):
        return []
    finding = "it is reached unencrypted and without a certificate: anybody on the network may change everything"
    remedy = "give loraplane-admin --tls-cert, --tls-key and --tls-ca"
    return [warning(CheckedPart.ADMIN, session.admin, "plain_text", finding, remedy)]


def _tell(printer: Printer, findings: list[DoctorFinding], looked: str, *, is_event: bool = False) -> None:
    """Prints findings, `is_event`: as one of an endless stream."""
    values = [one.as_dict() for one in (folded(findings) if printer.is_table else findings)]
    if printer.is_plain:
        (printer.event if is_event else printer.plain)({"findings": values})
    elif not printer.is_table:
        printer.lines(one.reason for one in findings)
    else:
        if all(one.severity is Severity.INFO for one in findings):
            printer.lines([f"nothing is wrong; looked at: {looked}"])
        if values:
            rows = ([str(one[name]) for name in _COLUMNS] for one in values)
            printer.table([name.upper() for name in _COLUMNS], rows)
