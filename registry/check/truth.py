"""Holds what statuses say is served against what their sidecars saw (R9). Pure.

Nothing here depends on clocks: a sidecar's log has its looks and the revisions of its statuses in their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from registry.check.claims import Claim, Claims
from registry.check.findings import Finding
from registry.check.fold import Fold
from registry.check.listed import artifact_of
from registry.check.logs import Process, Write
from registry.check.looks import Looks
from registry.errors import RegistryError
from registry.model.status import ReplicaStatus


def check_truth(fold: Fold, pool: str, known: Sequence[Process]) -> tuple[list[Finding], Counter[str]]:
    """Findings, and how many statuses were compared."""
    made_of = {artifact: digest for process in known for artifact, digest in process.made_of.items()}
    claims, findings, counts = Claims(fold, pool), list[Finding](), Counter[str]()
    for process in known:
        for write in process.writes if process.is_begun else ():
            status = _status(fold, process, write)
            claimed = claims.of(status, _names(process.looks, write)) if status else None
            if status is None or claimed is None:
                continue
            counts["statuses"] += 1
            if untrue := _untrue(process.looks, write, status, claimed, made_of):
                where = f"{process.where}, {status.replica}"
                findings.append(Finding("R9", write.revision, where, untrue))
    return findings, counts


def _status(fold: Fold, process: Process, write: Write) -> ReplicaStatus | None:
    """What was written then; None: it is older than the history, of a later schema, or in a store that was replaced."""
    try:
        status = ReplicaStatus.parse(fold.statuses[write.revision])
    except (KeyError, RegistryError):
        return None
    return status if (status.replica, status.updated_at) == (process.replica, write.updated_at) else None


def _names(looks: Looks, write: Write) -> set[str]:
    return looks.names(write.looks[-1]) if write.looks else set()


def _untrue(
    looks: Looks, write: Write, status: ReplicaStatus, claimed: Sequence[Claim], made_of: Mapping[str, str]
) -> str:
    """What is wrong with a status; empty: one look of the engine's process that it names showed all that it claims."""
    engine = status.engine
    seen = [number for number in write.looks if looks.incarnations[number] == engine.incarnation]
    if claimed and not seen:
        return f"it says that {len(claimed)} are served, and no look had shown incarnation {engine.incarnation!r}"
    least: list[str] | None = None
    for number in seen:
        shown = ((one, looks.path(one.engine_name(engine.names), number)) for one in claimed)
        wrong = [fault for one, path in shown if (fault := _fault(one, path, made_of))]
        least = wrong if least is None else min(least, wrong, key=len)
    if not least:
        return ""
    more = f", and {len(least) - 1} more" if least[1:] else ""
    return f"its status is not what it saw: {least[0]}{more}"


def _fault(claim: Claim, path: str | None, made_of: Mapping[str, str]) -> str:
    """How what was listed under a name is not what is claimed; empty: it may be."""
    told = f"{claim.name!r} is called served at generation {claim.generation}, and was "
    if path is None:
        return told + "not listed"
    artifact = artifact_of(path)
    digest = made_of.get(artifact, claim.digest) if artifact else None
    if digest == claim.digest:
        return ""
    return told + f"listed from {path}" + (f", which was made of {digest:.19}…" if digest else "")
