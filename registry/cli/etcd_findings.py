"""What is wrong with etcd, from what each member says of itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from registry.cli.finding import Finding, Part, error, warning
from registry.etcd3.client import MemberDown, MemberStatus

_MUCH_BYTES = int(0.7 * 2 * 1024**3)  # of the 2 GiB that etcd takes unless it is told otherwise
_LAG_REVISIONS = 1000
_SPACE = "etcdctl compact, then defrag, then alarm disarm, as docs/operations.md says"


def etcd_findings(members: Sequence[MemberStatus | MemberDown], *, is_full: bool) -> list[Finding]:
    """Everything that is wrong. `is_full`: it refuses writes for want of space."""
    up = [one for one in members if isinstance(one, MemberStatus)]
    findings = [_down(one) for one in members if isinstance(one, MemberDown)]
    findings += [finding for one in up for finding in _member(one)]
    findings += _together(up)
    if is_full:
        findings.append(error(Part.ETCD, "all members", "no_space", "it refuses writes: it is out of space", _SPACE))
    return findings


def _down(member: MemberDown) -> Finding:
    finding = f"it does not answer: {member.error}"
    return error(Part.ETCD, member.endpoint, "member_down", finding, "start it, or correct --etcd")


def _member(member: MemberStatus) -> Iterator[Finding]:
    if not member.leader_id:
        remedy = "bring a majority of members back; etcdctl endpoint status shows who leads"
        yield error(Part.ETCD, member.endpoint, "no_leader", "it knows of no leader", remedy)
    if member.version in {"3.5.0", "3.5.1", "3.5.2"}:
        finding = f"{member.version} may lose or corrupt data when it is killed"
        yield error(
            Part.ETCD, member.endpoint, "etcd_version", finding, "upgrade etcd to 3.6.14 or 3.5.33 (etcd --version)"
        )
    if member.db_size_bytes > _MUCH_BYTES:
        finding = f"its store has {member.db_size_bytes >> 20} MiB: compare with its --quota-backend-bytes"
        yield warning(Part.ETCD, member.endpoint, "space", finding, _SPACE)


def _together(members: Sequence[MemberStatus]) -> Iterator[Finding]:
    if len({one.cluster_id for one in members}) > 1:
        told = ", ".join(f"{one.endpoint} of {one.cluster_id:x}" for one in members)
        finding = f"the members are of different clusters: {told}"
        yield error(Part.ETCD, "all members", "other_cluster", finding, "correct --etcd, of sidecars and admins too")
        return
    newest = max((one.revision for one in members), default=0)
    for one in members:
        if newest - one.revision > _LAG_REVISIONS:
            finding = f"it is {newest - one.revision} revisions behind"
            yield warning(
                Part.ETCD, one.endpoint, "behind", finding, "look at its disk and network: etcdctl check perf"
            )
    if len({one.version for one in members}) > 1:
        told = ", ".join(f"{one.endpoint}: {one.version}" for one in members)
        yield warning(
            Part.ETCD, "all members", "versions_differ", told, "upgrade all to the latest of these (etcd --version)"
        )
