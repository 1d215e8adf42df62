"""Holds sidecar logs and engine listings against the history: R1 to R6 and R11. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from registry.check.findings import Finding
from registry.check.fold import Fold
from registry.check.listed import artifact_of, key_of
from registry.check.values import Document
from registry.model.base import Part
from registry.model.names import PROOF_PREFIX, name_key


class Listing(Part):
    """One look at an engine: name to path, taken when its sidecar said `revision`.

    Attributes:
        settled: nothing was pending then: what is listed under the store is what was desired at that revision.
        unservable: names that the status said to have failed.
        at: unix seconds when it was asked for; None: it is not known, and nothing that depends on time is judged by it.
        incarnation: of the engine, as the status said before and after.
    """

    replica: str
    revision: int
    adapters: Mapping[str, str]
    settled: bool = False
    unservable: list[str] = []
    at: float | None = None
    incarnation: str = ""


def check_log(fold: Fold, pool: str, where: str, lines: Iterable[Document]) -> list[Finding]:
    """One sidecar's log, from its first line to its last, over any number of restarts. `where` names it."""
    findings: list[Finding] = []
    mark = 0
    for line in lines:
        revision = line.get("revision", 0)
        match line.get("event"):
            case "removals_confirmed":
                mark = revision
            case "plan_made":
                findings += _check_plan(fold, pool, where, line, mark)
                mark = max(mark, revision)
            case "engine_call" if line.get("call") == "unload" and not _is_ours(fold, pool, line["name"]):
                message = f"{line['name']!r} was unloaded, and was never in pool {pool!r}"
                findings.append(Finding("R11", mark, where, message))
    return findings


def _is_ours(fold: Fold, pool: str, name: str) -> bool:
    """Also of what is loaded for a moment, under a name that no adapter has, to see whether it can be."""
    return name.startswith(PROOF_PREFIX) or fold.knows(pool, key_of(name))


def _check_plan(fold: Fold, pool: str, where: str, line: Document, mark: int) -> list[Finding]:
    revision = line["revision"]
    if revision < mark:
        return [Finding("R1", revision, where, f"a plan was made from this revision after one from {mark}")]
    if not fold.first_revision <= revision <= fold.revision:
        return []
    expected = f"{fold.hash_at(pool, revision):064x}"
    if line["state_hash"] == expected:
        return []
    return [
        Finding("R2", revision, where, f"the sidecar's state is {line['state_hash']:.12}…, replayed {expected:.12}…")
    ]


def check_listings(fold: Fold, pool: str, listings: Iterable[Listing]) -> list[Finding]:
    """Samples of engines' listings, each replica's in the order in which they were taken."""
    findings: list[Finding] = []
    absent: dict[tuple[str, str], int] = {}
    possible: dict[str, set[str]] = {}
    for listing in listings:
        ours = {name: artifact for name, path in listing.adapters.items() if (artifact := artifact_of(path))}
        for name, digest in ours.items():
            findings += _check_digest(fold, pool, listing, name, digest, possible)
            findings += _check_return(fold, pool, listing, name, absent)
        findings += _check_bases(fold, pool, listing, ours)
        _note_absent(fold, pool, listing, ours, absent)
        if listing.settled:
            findings += _check_settled(fold, pool, listing, ours)
    return findings


def _check_digest(
    fold: Fold, pool: str, listing: Listing, name: str, artifact: str, possible: dict[str, set[str]]
) -> list[Finding]:
    """R4: whatever is listed from one artifact was made of one digest, which each of their records had.

    An artifact is named by its content as it was prepared, so its name tells of no digest by itself.
    """
    written = _written(fold, pool, listing, key_of(name))
    records = [*written, *filter(None, map(_stable, written))]
    pinned = {digest for record in records if (digest := pinned_digest(record)) is not None}
    if not records or len(pinned) < len({repr(_source(record)) for record in records}):
        return []  # it may be of a record that is not pinned, or that went before the history begins
    left = possible.get(artifact, pinned) & pinned
    if left:
        possible[artifact] = left
        return []
    message = f"{name!r} is served from sha256-{artifact}, which was made of another digest than its records may have"
    return [Finding("R4", listing.revision, listing.replica, message)]


def _written(fold: Fold, pool: str, listing: Listing, key: str) -> list[Document]:
    """The records of which something may be listed: of a settled replica the one that stood then, else all."""
    now = fold.adapter_at(pool, key, listing.revision)
    is_kept = key in {key_of(name) for name in listing.unservable}
    if listing.settled and now and not is_kept and is_everywhere(now):
        return [now]
    return [record for _, record in fold.adapters.get((pool, key), []) if record]


def _stable(record: Document) -> Document | None:
    """What all but the canaries of a rollout serve, which may have been written before the history begins."""
    rollout = record.get("rollout")
    return {"spec": rollout.get("stable_spec")} if rollout else None


def _source(record: Document) -> object:
    return (record.get("spec") or {}).get("source")


def pinned_digest(record: Document) -> str | None:
    """The digest as the engine sees it; None: not pinned, or to be made from what is pinned."""
    spec: dict[str, Any] = record.get("spec") or {}
    digest = (spec.get("source") or {}).get("digest")
    return digest if isinstance(digest, str) else None


def _check_bases(fold: Fold, pool: str, listing: Listing, ours: Iterable[str]) -> list[Finding]:
    """R5: no adapter of ours answers for the base model."""
    bases = fold.base_models_at(pool, listing.revision)
    return [
        Finding("R5", listing.revision, listing.replica, f"{name!r} is an adapter, and the name of the base model")
        for name in ours
        if name_key(name) in bases
    ]


def _check_return(
    fold: Fold, pool: str, listing: Listing, name: str, absent: Mapping[tuple[str, str], int]
) -> list[Finding]:
    """R6: what was gone after its deletion is not there again unless it was made again."""
    since = absent.get((listing.replica, key_of(name)))
    if since is None or any(record and at > since for at, record in fold.adapters.get((pool, key_of(name)), [])):
        return []
    return [Finding("R6", listing.revision, listing.replica, f"{name!r} was deleted, gone at {since}, and is back")]


def _note_absent(
    fold: Fold, pool: str, listing: Listing, ours: Mapping[str, str], absent: dict[tuple[str, str], int]
) -> None:
    listed = {key_of(name) for name in ours}
    for of_pool, key in fold.adapters:
        if of_pool == pool and key not in listed and fold.adapter_at(pool, key, listing.revision) is None:
            absent.setdefault((listing.replica, key), listing.revision)
        elif key in listed:
            absent.pop((listing.replica, key), None)


def _check_settled(fold: Fold, pool: str, listing: Listing, ours: Mapping[str, str]) -> list[Finding]:
    wanted = {
        key: record
        for of_pool, key in fold.adapters
        if of_pool == pool
        and (record := fold.adapter_at(pool, key, listing.revision))
        and (record.get("spec") or {}).get("load") != "lazy"
    }
    everywhere = {key for key, record in wanted.items() if is_everywhere(record)}
    refused = {key_of(name) for name in listing.unservable}
    listed = {key_of(name) for name in ours}
    gone = [
        Finding("R6", listing.revision, listing.replica, f"{key!r} is listed and not desired")
        for key in sorted(listed - wanted.keys() - refused)
    ]
    missing = [
        Finding("R3", listing.revision, listing.replica, f"{key!r} is desired and not listed")
        for key in sorted(everywhere - listed - refused)
    ]
    return gone + missing


def is_everywhere(record: Document) -> bool:
    """False for what is placed on some replicas: which these were is not in the history of desired state."""
    placement = (record.get("spec") or {}).get("placement") or {}
    return placement.get("replicas", "all") == "all" and not placement.get("selector")
