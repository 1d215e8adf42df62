"""Findings of the doctor, and those about etcd's members. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from ssl import cert_time_to_seconds

from registry.etcd3.client import SAFE_RELEASES, UNSAFE_RELEASES, MemberDown, MemberStatus
from registry.etcd3.errors import EtcdPermissionDenied, EtcdUnauthenticated
from registry.lora.text import some_of
from registry.model.messages import Plain
from registry.v1 import registry_pb2 as pb


class Severity(StrEnum):
    """Urgency of a finding: somebody has to act, should know, or may want to know what is meant to be so."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class CheckedPart(StrEnum):
    """Subject of a finding."""

    ADMIN = "admin"
    ETCD = "etcd"
    POD = "pod"
    POOL = "pool"
    REPLICA = "replica"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """Something that is not as it should be. `reason` is stable; `remedy` names a command or a setting."""

    severity: Severity
    part: CheckedPart
    subject: str
    reason: str
    finding: str
    remedy: str

    def as_dict(self) -> Plain:
        """The finding for programs."""
        return {
            "severity": str(self.severity),
            "part": str(self.part),
            "subject": self.subject,
            "reason": self.reason,
            "finding": self.finding,
            "remedy": self.remedy,
        }


def error(part: CheckedPart, subject: str, reason: str, finding: str, remedy: str) -> DoctorFinding:
    """Somebody has to act."""
    return DoctorFinding(Severity.ERROR, part, subject, reason, finding, remedy)


def warning(part: CheckedPart, subject: str, reason: str, finding: str, remedy: str) -> DoctorFinding:
    """Somebody should know."""
    return DoctorFinding(Severity.WARNING, part, subject, reason, finding, remedy)


def info(part: CheckedPart, subject: str, reason: str, finding: str, remedy: str) -> DoctorFinding:
    """It is as somebody asked for it, or cannot be known from here."""
    return DoctorFinding(Severity.INFO, part, subject, reason, finding, remedy)


def folded(findings: Iterable[DoctorFinding]) -> list[DoctorFinding]:
    """The same for people: what is found of several replicas of a pool in the same words is one finding."""
    groups: dict[tuple[str, ...], list[DoctorFinding]] = {}
    for one in findings:
        pool, _, replica = one.subject.partition("/")
        of_all = one.remedy.replace(f" {replica} ", " NAME ") if one.part is CheckedPart.REPLICA else one.remedy
        subject = pool if one.part is CheckedPart.REPLICA else one.subject
        key = one.severity, one.part, subject, one.reason, one.finding, of_all
        groups.setdefault(key, []).append(one)
    return [same[0] if len(same) == 1 else _of_several(same, key[2], key[5]) for key, same in groups.items()]


def _of_several(same: Sequence[DoctorFinding], pool: str, remedy: str) -> DoctorFinding:
    names = [one.subject.partition("/")[2] for one in same]
    return replace(
        same[0], subject=pool, finding=f"{len(same)} replicas ({named(names)}): {same[0].finding}", remedy=remedy
    )


def named(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    return some_of(names, _NAMED_AT_MOST)


def expiry_findings(
    address: str, certificates: Mapping[str, Mapping[str, object]], now: datetime
) -> list[DoctorFinding]:
    """Certificates that end soon, or have. `certificates`: what `SSLSocket.getpeercert` gives, by what they are."""
    remedy = "issue a new one in time, and put it in the file of --tls-cert or --tls-ca that has it"
    return [
        finding
        for name, one in certificates.items()
        if "notBefore" in one and "notAfter" in one
        for finding in expiry(CheckedPart.ADMIN, address, name, _span(one), remedy, now)
    ]


def _span(one: Mapping[str, object]) -> tuple[float, float]:
    return cert_time_to_seconds(str(one["notBefore"])), cert_time_to_seconds(str(one["notAfter"]))


def expiry(
    part: CheckedPart, subject: str, name: str, span: tuple[float, float], remedy: str, now: datetime
) -> Iterator[DoctorFinding]:
    """Finding on a certificate that ends soon, or has ended. `span`: when it began and ends, in seconds since 1970.

    Soon is the last fifth of its life, and at most 30 days, so that short-lived ones are not told of all the time.
    """
    begin, end = span
    left = end - now.timestamp()
    when = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if left <= 0:
        yield error(part, subject, "certificate_expired", f"{name} ended at {when}", remedy)
    elif left < min(_SOON_SECONDS, (end - begin) / 5):
        yield warning(part, subject, "certificate_expires", f"{name} ends at {when}", remedy)


_SOON_SECONDS = 30 * 86400.0
_NAMED_AT_MOST = 5
# What etcd takes unless it is told otherwise.
DEFAULT_QUOTA_BYTES = 2 * 1024**3
_MUCH_SHARE = 0.7
_MUCH_BYTES = int(_MUCH_SHARE * DEFAULT_QUOTA_BYTES)
# What a change of one adapter leaves in etcd's file, as docs/operations.md measures it.
AUDIT_BYTES, REQUEST_BYTES = 3400, 1300
_LAG_REVISIONS = 1000
_SPACE = "etcdctl compact, then defrag, then alarm disarm, as docs/operations.md says"


@dataclass(frozen=True, slots=True)
class EtcdGrowth:
    """Growth in etcd, and its limit.

    Attributes:
        changes: audit records of the last day.
        audit_seconds: for which audit records are kept, as the admin service was told; those of requests: a day.
        quota_bytes: etcd's; None: nobody said, so it is what etcd takes unless it is told otherwise.
        old_revision: a revision that long ago is passed and can be read all the same; 0: none.
    """

    changes: int = 0
    audit_seconds: int = 30 * 86_400
    quota_bytes: int | None = None
    old_revision: int = 0


def growth_findings(growth: EtcdGrowth) -> Iterator[DoctorFinding]:
    """True if the changes of a day, for as long as their records are kept, outgrow the quota, and nothing compacts."""
    if growth.old_revision:
        finding = f"revision {growth.old_revision} can still be read: nothing compacts, or too seldom"
        remedy = "start etcd with --auto-compaction-mode=periodic --auto-compaction-retention=1h"
        yield warning(CheckedPart.ETCD, "all members", "not_compacted", finding, remedy)
    days = growth.audit_seconds / 86_400
    kept = growth.changes * (AUDIT_BYTES * days + REQUEST_BYTES)
    quota = growth.quota_bytes or DEFAULT_QUOTA_BYTES
    if kept <= _MUCH_SHARE * quota:
        return
    told = "" if growth.quota_bytes else " that etcd takes unless it is told otherwise (--etcd-quota)"
    finding = (
        f"{growth.changes} changes in the last day, with audit records for {days:g} days (--audit-retention), come to "
        f"{int(kept) >> 20} MiB, and the quota is the {quota >> 20} MiB{told}"
    )
    remedy = "give loraplane-admin a shorter --audit-retention, or etcd a larger --quota-backend-bytes"
    yield warning(CheckedPart.ETCD, "all members", "outgrows_quota", finding, remedy)


def etcd_findings(members: Sequence[MemberStatus | MemberDown], *, is_full: bool) -> list[DoctorFinding]:
    """Everything that is wrong. `is_full`: it refuses writes for want of space."""
    up = [one for one in members if isinstance(one, MemberStatus)]
    findings = [_down(one) for one in members if isinstance(one, MemberDown)]
    findings += [finding for one in up for finding in _member(one)]
    findings += _together(up)
    if is_full:
        findings.append(
            error(CheckedPart.ETCD, "all members", "no_space", "it refuses writes: it is out of space", _SPACE)
        )
    return findings


def member_findings(members: Sequence[pb.EtcdMember]) -> Iterator[DoctorFinding]:
    """Everything that an admin service sees wrong with etcd's members, without etcd being asked from here."""
    for one in members:
        if one.state == "down":
            finding, remedy = f"the admin service gets no answer: {one.message}", "start it, or correct --etcd there"
            yield error(CheckedPart.ETCD, one.endpoint, "member_down", finding, remedy)
        elif one.state == "no_leader":
            yield _no_leader(one.endpoint)
        elif one.state == "unseen":
            finding = f"{one.message}, and the admin service gets no answer of it there"
            remedy = "start it; or etcdctl member remove, or update if its --advertise-client-urls are others"
            yield warning(CheckedPart.ETCD, one.endpoint, "member_unseen", finding, remedy)
    if denied := [one.endpoint for one in members if one.state == "denied"]:
        finding = f"it is not known whether they lead, lag or are full: they tell that to root alone ({named(denied)})"
        remedy = f"loraplane doctor --etcd {','.join(denied)} --etcd-user root"
        yield info(CheckedPart.ETCD, "all members", "status_denied", finding, remedy)


def _down(member: MemberDown) -> DoctorFinding:
    if isinstance(member.error, EtcdPermissionDenied):
        remedy = "give --etcd-user root, or a release that tells every user (etcd --version)"
        finding = "it tells its release, leader and size to root alone: they were not compared"
        return warning(CheckedPart.ETCD, member.endpoint, "status_denied", finding, remedy)
    if isinstance(member.error, EtcdUnauthenticated):
        remedy = "give --etcd-user and --etcd-password-file, or --etcd-tls-cert and --etcd-tls-key"
        finding = f"it does not know us: {member.error}"
        return error(CheckedPart.ETCD, member.endpoint, "unauthenticated", finding, remedy)
    finding = f"it does not answer: {member.error}"
    return error(CheckedPart.ETCD, member.endpoint, "member_down", finding, "start it, or correct --etcd")


def _no_leader(endpoint: str) -> DoctorFinding:
    remedy = "bring a majority of members back; etcdctl endpoint status shows who leads"
    return error(CheckedPart.ETCD, endpoint, "no_leader", "it knows of no leader", remedy)


def _member(member: MemberStatus) -> Iterator[DoctorFinding]:
    if not member.leader_id:
        yield _no_leader(member.endpoint)
    if member.version in UNSAFE_RELEASES:
        finding = f"{member.version} may lose or corrupt data when it is killed"
        yield error(
            CheckedPart.ETCD,
            member.endpoint,
            "etcd_version",
            finding,
            f"upgrade etcd to {SAFE_RELEASES} (etcd --version)",
        )
    if member.db_size_bytes > _MUCH_BYTES:
        finding = f"its store has {member.db_size_bytes >> 20} MiB: compare with its --quota-backend-bytes"
        yield warning(CheckedPart.ETCD, member.endpoint, "space", finding, _SPACE)


def _together(members: Sequence[MemberStatus]) -> Iterator[DoctorFinding]:
    if len({one.cluster_id for one in members}) > 1:
        told = ", ".join(f"{one.endpoint} of {one.cluster_id:x}" for one in members)
        finding = f"the members are of different clusters: {told}"
        yield error(
            CheckedPart.ETCD, "all members", "other_cluster", finding, "correct --etcd, of sidecars and admins too"
        )
        return
    newest = max((one.revision for one in members), default=0)
    for one in members:
        if newest - one.revision > _LAG_REVISIONS:
            finding = f"it is {newest - one.revision} revisions behind"
            yield warning(
                CheckedPart.ETCD, one.endpoint, "behind", finding, "look at its disk and network: etcdctl check perf"
            )
    if len({one.version for one in members}) > 1:
        told = ", ".join(f"{one.endpoint}: {one.version}" for one in members)
        yield warning(
            CheckedPart.ETCD,
            "all members",
            "versions_differ",
            told,
            "upgrade all to the latest of these (etcd --version)",
        )
