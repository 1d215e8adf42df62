"""Which adapters a status says are served, of which it tells the number and a hash alone. Pure.

A set of (name, generation, digest) that has this hash is the set that is meant: what the history makes likely is tried.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from registry.check.fold import Fold
from registry.check.listed import key_of
from registry.check.replicas import is_everywhere, pinned_digest
from registry.check.values import Document
from registry.model.names import name_key
from registry.model.status import ReplicaStatus

Keep = Callable[[str, Document], bool]


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """That a name is served at a generation, from what has that digest."""

    name: str
    generation: int
    digest: str

    def engine_name(self, names: str) -> str:
        """What an engine calls it that names adapters in that way."""
        return f"{self.name}@{self.generation}" if names == "versioned" else self.name


def hash_of(claims: Collection[Claim]) -> str:
    """The hash that a status has of a served set."""
    lines = (f"{one.name}\0{one.generation}\0{one.digest}\n" for one in sorted(claims))
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


class Claims:
    """Finds out what the statuses of a pool claim."""

    def __init__(self, fold: Fold, pool: str) -> None:
        self._fold = fold
        self._pool = pool
        self._records: tuple[int, dict[str, Document]] = (-1, {})

    def of(self, status: ReplicaStatus, listed: Iterable[str]) -> tuple[Claim, ...] | None:
        """What it says is served; None: it cannot be told.

        `listed`: what its engine was seen to list, by which what is not for all replicas is guessed.
        """
        known = range(self._fold.first_revision, self._fold.revision + 1)
        if status.stale or status.observed_revision not in known:
            return None  # it may follow a store that was replaced since, or a record from before the history
        for claims in self._guesses(status, {key_of(name) for name in listed}):
            if len(claims) == status.served.count and hash_of(claims) == status.served.hash:
                return claims
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
            keys = [key for pool, key in self._fold.adapters if pool == self._pool]
            found = {key: self._fold.adapter_at(self._pool, key, revision) for key in keys}
            eager = {key: one for key, one in found.items() if one and (one.get("spec") or {}).get("load") != "lazy"}
            self._records = (revision, eager)
        return self._records[1]


def _newest(record: Document) -> tuple[Document, int]:
    return record, record.get("generation", 0)


def _stable(record: Document) -> tuple[Document, int]:
    """What all but the canaries of a rollout serve."""
    rollout = record.get("rollout")
    if not rollout:
        return _newest(record)
    return record | {"spec": rollout.get("stable_spec")}, rollout.get("stable_generation", 0)


def _claim(record: Document, generation: int, found: dict[tuple[str, int], str]) -> Claim | None:
    """None where neither the record nor the status tells the digest, so that nothing comes of the guess."""
    name = record.get("name", "")
    digest = pinned_digest(record) or found.get((name, generation))
    return Claim(name, generation, digest) if digest else None
