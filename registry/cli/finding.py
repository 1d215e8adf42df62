"""What the doctor finds. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from registry.cli.wire import Plain


class Severity(StrEnum):
    """Whether somebody has to act."""

    ERROR = "error"
    WARNING = "warning"


class Part(StrEnum):
    """What a finding is about."""

    ADMIN = "admin"
    ETCD = "etcd"
    POOL = "pool"
    REPLICA = "replica"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be. `reason` is stable; `remedy` names a command or a setting."""

    severity: Severity
    part: Part
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


def error(part: Part, subject: str, reason: str, finding: str, remedy: str) -> Finding:
    """Somebody has to act."""
    return Finding(Severity.ERROR, part, subject, reason, finding, remedy)


def warning(part: Part, subject: str, reason: str, finding: str, remedy: str) -> Finding:
    """Somebody should know."""
    return Finding(Severity.WARNING, part, subject, reason, finding, remedy)
