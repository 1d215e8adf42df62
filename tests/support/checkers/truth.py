"""Checks statuses against what their sidecars saw (R9). Pure.

A set of (name, generation, digest) that has this hash is the set that is meant: what the history makes likely is tried.

Nothing here depends on clocks: a sidecar's log has its looks and the revisions of its statuses in their order.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from registry.model.errors import RegistryError
from registry.model.names import name_key
from registry.model.status import ReplicaStatus
from registry.tools.verify.history import Document, Violation, count_of, part_of, text_of
from tests.support.checkers.engine_names import artifact_of, key_of
from tests.support.checkers.index import HistoryIndex
from tests.support.checkers.logs import Looks, SidecarProcess, Write
from tests.support.checkers.replicas import is_everywhere, pinned_digest

Keep = Callable[[str, Document], bool]


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """That a name is served at a generation, from what has that digest."""

    name: str
    generation: int
    digest: str

    def engine_name(self, names: str) -> str:
        """Name of it in an engine that names adapters in that way."""
        return f"{self.name}@{self.generation}" if names == "versioned" else self.name


def hash_of(claims: Collection[Claim]) -> str:
    """The hash that a status has of a served set."""
    lines = (f"{one.name}\0{one.generation}\0{one.digest}\n" for one in sorted(claims))
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


class Claims:
    """Finds out what the statuses of a pool claim."""

    def __init__(self, index: HistoryIndex, pool: str) -> None:
        self._index = index
        self._pool = pool
        self._records: tuple[int, dict[str, Document]] = (-1, {})
        self._told: dict[str, tuple[Claim, ...]] = {}

    def of(self, status: ReplicaStatus, listed: Iterable[str]) -> tuple[Claim, ...] | None:
        """Version that it says is served; None: it cannot be told.

        `listed`: what its engine was seen to list, by which what is not for all replicas is guessed.
        """
        if status.stale or not self._index.covers(status.observed_revision):
            return None  # it may follow a store that was replaced since, or a record from before the history
        # What is told while the engine cannot be looked at is of an earlier revision.
        earlier = [self._told[status.served.hash]] if status.served.hash in self._told else []
        for claims in chain(earlier, self._guesses(status, {key_of(name) for name in listed})):
            if len(claims) == status.served.count and hash_of(claims) == status.served.hash:
                return self._told.setdefault(status.served.hash, claims)
        return None

    def _guesses(self, status: ReplicaStatus, listed: set[str]) -> Iterator[tuple[Claim, ...]]:
        absent = {key_of(one.name) for one in status.pending} | {key_of(one.name) for one in status.failed}
        leaving = {name_key(one.name) for one in status.leaving}
        found = {(one.name, one.generation): one.digest for one in status.found}
        records = [(key, one) for key, one in self._at(status.observed_revision).items() if key not in absent]
        keeps: tuple[Keep, ...] = (
            lambda _key, _record: True,
            lambda _key, record: is_everywhere(record),
            lambda key, _record: key in listed - leaving,
        )
        yield ()
        for keep in keeps:
            kept = [record for key, record in records if keep(key, record)]
            for version in (_newest, _stable):
                yield tuple(claim for record in kept if (claim := _claim(*version(record), found)))

    def _at(self, revision: int) -> dict[str, Document]:
        """Records that are served without being asked for, by name key, as they stood at a revision."""
        if self._records[0] != revision:
            keys = [key for pool, key in self._index.adapters if pool == self._pool]
            found = {key: self._index.adapter_at(self._pool, key, revision) for key in keys}
            eager = {key: one for key, one in found.items() if one and part_of(one, "spec").get("load") != "lazy"}
            self._records = (revision, eager)
        return self._records[1]


def _newest(record: Document) -> tuple[Document, int]:
    return record, count_of(record, "generation")


def _stable(record: Document) -> tuple[Document, int]:
    """Version that all but the canaries of a rollout serve."""
    rollout = part_of(record, "rollout")
    if not rollout:
        return _newest(record)
    return record | {"spec": rollout.get("stable_spec")}, count_of(rollout, "stable_generation")


def _claim(record: Document, generation: int, found: dict[tuple[str, int], str]) -> Claim | None:
    """None where neither the record nor the status tells the digest, so that nothing comes of the guess."""
    name = text_of(record, "name")
    digest = pinned_digest(record) or found.get((name, generation))
    return Claim(name, generation, digest) if digest else None


def check_truth(
    index: HistoryIndex, pool: str, known: Sequence[SidecarProcess]
) -> tuple[list[Violation], Counter[str]]:
    """Findings, and how many statuses were compared."""
    made_of = {artifact: digest for process in known for artifact, digest in process.made_of.items()}
    claims, findings, counts = Claims(index, pool), list[Violation](), Counter[str]()
    for process in known:
        for write in process.writes:
            status = _status(index, process, write)
            claimed = claims.of(status, _names(process.looks, write)) if status else None
            if status is None or claimed is None:
                continue
            counts["statuses"] += 1
            if untrue := _untrue(process.looks, write, status, claimed, made_of):
                where = f"{process.where}, {status.replica}"
                findings.append(Violation("R9", write.revision, where, untrue))
    return findings, counts


def _status(index: HistoryIndex, process: SidecarProcess, write: Write) -> ReplicaStatus | None:
    """Version written then; None: it is older than the history, of a later schema, in a store that was replaced, or
    by a process whose log begins after its start.
    """
    try:
        status = ReplicaStatus.parse(index.statuses[write.revision])
    except (KeyError, RegistryError):
        return None
    return status if (status.replica, status.updated_at) == (process.replica, write.updated_at) else None


def _names(looks: Looks, write: Write) -> set[str]:
    return looks.names(write.looks[-1]) if write.looks else set()


def _untrue(
    looks: Looks, write: Write, status: ReplicaStatus, claimed: Sequence[Claim], made_of: Mapping[str, str]
) -> str:
    """Finding on a status; empty: one look of the engine's process that it names showed all that it claims.

    What it says that was served then, where there is no process to look at, the last looks must have shown.
    """
    engine = status.engine
    is_past = bool(status.served.seen_at)  # of an engine that is out of reach now, whose process it does not name
    seen = [number for number in write.looks if is_past or looks.incarnations[number] == engine.incarnation]
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
    """Contradiction between what was listed under a name and the claim; empty: none."""
    told = f"{claim.name!r} is called served at generation {claim.generation}, and was "
    if path is None:
        return told + "not listed"
    artifact = artifact_of(path)
    digest = made_of.get(artifact, claim.digest) if artifact else None
    if digest == claim.digest:
        return ""
    return told + f"listed from {path}" + (f", which was made of {digest:.19}…" if digest else "")
