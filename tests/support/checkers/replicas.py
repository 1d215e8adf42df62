"""Checks sidecar logs, engine listings and removals of files: R1 to R7, R11. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from registry.model.names import PROOF_PREFIX, name_key
from registry.model.stored import Part
from registry.tools.verify.history import Document, Violation, count_of, part_of, text_of
from tests.support.checkers.engine_names import artifact_of, generation_of, key_of
from tests.support.checkers.index import HistoryIndex
from tests.support.checkers.logs import SidecarProcess, TakenState


class EngineListing(Part):
    """One look at an engine: name to path, taken when its sidecar said `revision`.

    Attributes:
        settled: nothing was pending then: what is listed under the store is what was desired at that revision.
        removing: names that were listed besides, and on their way out, as the status said.
        unservable: names that the status said to have failed.
        at: unix seconds when it was asked for; None: it is not known, and nothing that depends on time is judged by it.
        incarnation: of the engine, as the status said before and after.
    """

    replica: str
    revision: int
    adapters: Mapping[str, str]
    settled: bool = False
    removing: int = 0
    unservable: list[str] = []
    at: float | None = None
    incarnation: str = ""


def check_log(index: HistoryIndex, pool: str, where: str, lines: Iterable[Document]) -> list[Violation]:
    """One sidecar's log, from its first line to its last, over any number of restarts. `where` names it."""
    findings: list[Violation] = []
    mark = 0
    for line in lines:
        revision = line.get("revision", 0)
        match line.get("event"):
            case "removals_confirmed":
                mark = revision
            case "plan_made":
                findings += _check_plan(index, pool, where, line, mark)
                mark = max(mark, revision)
            case "engine_call" if line.get("call") == "unload" and not _is_ours(index, pool, line["name"], mark):
                message = f"{line['name']!r} was unloaded, and was never in pool {pool!r}"
                findings.append(Violation("R11", mark, where, message))
    return findings


def _is_ours(index: HistoryIndex, pool: str, name: str, mark: int) -> bool:
    """Also of what is loaded for a moment, under a name that no adapter has, to see whether it can be; of what was
    unloaded before the history begins, nothing is known."""
    return name.startswith(PROOF_PREFIX) or index.knows(pool, key_of(name)) or 0 < mark < index.first_revision


def _check_plan(index: HistoryIndex, pool: str, where: str, line: Document, mark: int) -> list[Violation]:
    revision = line["revision"]
    if revision < mark:
        return [Violation("R1", revision, where, f"a plan was made from this revision after one from {mark}")]
    if not index.covers(revision):
        return []
    expected = f"{index.hash_at(pool, revision):064x}"
    if line["state_hash"] == expected:
        return []
    return [
        Violation("R2", revision, where, f"the sidecar's state is {line['state_hash']:.12}…, replayed {expected:.12}…")
    ]


@dataclass
class _SeenBefore:
    """Results of earlier looks.

    Attributes:
        absent: replica and name key to the revision at which what is deleted was first gone.
        going: replica, process of its engine and name key to when what is deleted was first listed still.
        possible: artifact to the digests that it can have been made of.
    """

    absent: dict[tuple[str, str], int] = field(default_factory=dict)
    going: dict[tuple[str, str, str], float] = field(default_factory=dict)
    possible: dict[str, set[str]] = field(default_factory=dict)


def check_listings(index: HistoryIndex, pool: str, listings: Iterable[EngineListing]) -> list[Violation]:
    """Samples of engines' listings, each replica's in the order in which they were taken.

    Those of a time that the history does not cover are passed over: what was desired then is not known.
    """
    findings: list[Violation] = []
    seen = _SeenBefore()
    for listing in (one for one in listings if index.covers(one.revision)):
        ours = {name: artifact for name, path in listing.adapters.items() if (artifact := artifact_of(path))}
        for name, digest in ours.items():
            findings += _check_digest(index, pool, listing, name, digest, seen.possible)
            findings += _check_return(index, pool, listing, name, seen.absent)
        findings += _check_bases(index, pool, listing, ours)
        _note_absent(index, pool, listing, ours, seen.absent)
        late = _late(index, pool, listing, ours, seen.going)
        if listing.settled:
            findings += [*late, *_check_settled(index, pool, listing, ours)]
    return findings


def _check_digest(
    index: HistoryIndex, pool: str, listing: EngineListing, name: str, artifact: str, possible: dict[str, set[str]]
) -> list[Violation]:
    """R4: whatever is listed from one artifact was made of one digest, which each of their records had.

    An artifact is named by its content as it was prepared, so its name tells of no digest by itself.
    """
    written, is_whole = _written(index, pool, listing, name)
    records = [*written, *filter(None, map(_stable, written))]
    pinned = {digest for record in records if (digest := pinned_digest(record)) is not None}
    if not (records and is_whole) or len(pinned) < len({repr(_source(record)) for record in records}):
        return []  # it may be of a record that is not pinned, or that went before the history begins
    left = possible.get(artifact, pinned) & pinned
    if left:
        possible[artifact] = left
        return []
    message = f"{name!r} is served from sha256-{artifact}, which was made of another digest than its records may have"
    return [Violation("R4", listing.revision, listing.replica, message)]


def _written(index: HistoryIndex, pool: str, listing: EngineListing, name: str) -> tuple[list[Document], bool]:
    """The records of which something may be listed: of a settled replica the one that stood then, else all.

    A name with a generation is of that one. Also whether these are all that there may be.
    """
    key, generation = key_of(name), generation_of(name)
    if generation is not None:
        written, is_whole = index.records(pool, key)
        return [one for one in written if count_of(one, "generation") == generation], is_whole
    now = index.adapter_at(pool, key, listing.revision)
    is_kept = key in {key_of(name) for name in listing.unservable}
    if listing.settled and not listing.removing and now and not is_kept and is_everywhere(now):
        return [now], True
    return index.records(pool, key)


def _stable(record: Document) -> Document | None:
    """Version that all but the canaries of a rollout serve, which may have been written before the history begins."""
    rollout = part_of(record, "rollout")
    return {"spec": rollout.get("stable_spec")} if rollout else None


def _source(record: Document) -> object:
    return part_of(record, "spec").get("source")


def pinned_digest(record: Document) -> str | None:
    """The digest as the engine sees it; None: not pinned, or to be made from what is pinned."""
    return text_of(part_of(record, "spec", "source"), "digest") or None


def _check_bases(index: HistoryIndex, pool: str, listing: EngineListing, ours: Iterable[str]) -> list[Violation]:
    """R5: no adapter of ours answers for the base model."""
    bases = index.base_models_at(pool, listing.revision)
    return [
        Violation("R5", listing.revision, listing.replica, f"{name!r} is an adapter, and the name of the base model")
        for name in ours
        if name_key(name) in bases
    ]


def _check_return(
    index: HistoryIndex, pool: str, listing: EngineListing, name: str, absent: Mapping[tuple[str, str], int]
) -> list[Violation]:
    """R6: what was gone after its deletion is not there again unless it was made again."""
    since = absent.get((listing.replica, key_of(name)))
    if since is None or any(record and at > since for at, record in index.adapters.get((pool, key_of(name)), [])):
        return []
    return [Violation("R6", listing.revision, listing.replica, f"{name!r} was deleted, gone at {since}, and is back")]


def _note_absent(
    index: HistoryIndex, pool: str, listing: EngineListing, ours: Mapping[str, str], absent: dict[tuple[str, str], int]
) -> None:
    listed = {key_of(name) for name in ours}
    for of_pool, key in index.adapters:
        if of_pool == pool and key not in listed and index.adapter_at(pool, key, listing.revision) is None:
            absent.setdefault((listing.replica, key), listing.revision)
        elif key in listed:
            absent.pop((listing.replica, key), None)


# Within this time of a look that showed it, what is deleted has left a replica with which nothing else is pending.
GONE_SECONDS = 60.0


def _late(
    index: HistoryIndex,
    pool: str,
    listing: EngineListing,
    ours: Mapping[str, str],
    going: dict[tuple[str, str, str], float],
) -> list[Violation]:
    """R6: what is on its way out arrives there."""
    if listing.at is None:
        return []
    of_engine = (listing.replica, listing.incarnation)
    deleted = {key for key in map(key_of, ours) if index.adapter_at(pool, key, listing.revision) is None}
    refused = {key_of(name) for name in listing.unservable}
    for replica, incarnation, key in list(going):
        if (replica, incarnation) == of_engine and key not in deleted:
            del going[replica, incarnation, key]
    late = []
    for key in sorted(deleted - refused):
        seconds = listing.at - going.setdefault((*of_engine, key), listing.at)
        if seconds > GONE_SECONDS:
            message = f"{key!r} is not desired, and listed for {seconds:.0f} s since that is known"
            late.append(Violation("R6", listing.revision, listing.replica, message))
    return late


def _check_settled(index: HistoryIndex, pool: str, listing: EngineListing, ours: Mapping[str, str]) -> list[Violation]:
    wanted = {
        key: record
        for of_pool, key in index.adapters
        if of_pool == pool and (record := index.adapter_at(pool, key, listing.revision))
    }
    everywhere = {
        key for key, record in wanted.items() if is_everywhere(record) and part_of(record, "spec").get("load") != "lazy"
    }
    refused = {key_of(name) for name in listing.unservable}
    listed = {key_of(name) for name in ours}
    gone = sorted(listed - wanted.keys() - refused)
    excess = [
        Violation("R6", listing.revision, listing.replica, f"{key!r} is listed and not desired")
        for key in (gone if len(gone) > listing.removing else ())
    ]
    missing = [
        Violation("R3", listing.revision, listing.replica, f"{key!r} is desired and not listed")
        for key in sorted(everywhere - listed - refused)
    ]
    return excess + missing


def is_everywhere(record: Document) -> bool:
    """False for what is placed on some replicas: which these were is not in the history of desired state."""
    placement = part_of(record, "spec", "placement")
    return placement.get("replicas", "all") == "all" and not placement.get("selector")


# By so much the clock of whoever takes listings may differ from a sidecar's.
CLOCK_SECONDS = 5.0


@dataclass
class _Store:
    """Knowledge of one store.

    Attributes:
        seen: by artifact, each process that saw it listed, and in which looks.
        sampled: by artifact, when somebody else saw an engine list it, the grace there, and the replica.
    """

    seen: dict[str, list[tuple[SidecarProcess, range]]] = field(default_factory=lambda: defaultdict(list))
    sampled: dict[str, list[tuple[float, float, str]]] = field(default_factory=lambda: defaultdict(list))


def check_files(
    known: Iterable[SidecarProcess], listings: Iterable[EngineListing]
) -> tuple[list[Violation], Counter[str]]:
    """Findings, and how many removals, and looks of others besides, were compared."""
    # Of others it is not known whose files these are, or when.
    datable = [process for process in known if process.store and process.is_steady]
    stores = _stores(datable)
    counts = Counter({"of them at a known time": _sample(stores, datable, listings)})
    findings: list[Violation] = []
    for process in datable:
        counts["removals"] += len(process.removals)
        for taken in process.removals:
            findings += [Violation("R7", 0, process.where, why) for why in _too_early(stores[process.store], taken)][:1]
    return findings, counts


def _stores(known: Iterable[SidecarProcess]) -> dict[str, _Store]:
    stores: dict[str, _Store] = defaultdict(_Store)
    for process in known:
        for artifact, spans in process.looks.spans().items():
            stores[process.store].seen[artifact] += [(process, span) for span in spans]
    return stores


def _sample(stores: dict[str, _Store], known: Iterable[SidecarProcess], listings: Iterable[EngineListing]) -> int:
    """Adds looks of others, whose store is that of the sidecar which saw the same process of the engine; how many."""
    count = 0
    engines = {(process.replica, seen): process for process in known for seen in process.looks.incarnations}
    for listing in listings:
        process = engines.get((listing.replica, listing.incarnation))
        if listing.at is None or process is None:
            continue
        count += 1
        for artifact in filter(None, map(artifact_of, listing.adapters.values())):
            stores[process.store].sampled[artifact].append((listing.at, process.grace_seconds, listing.replica))
    return count


def _too_early(store: _Store, taken: TakenState) -> Iterator[str]:
    """Why an artifact should not have been removed then."""
    told = f"sha256-{taken.artifact:.12}… was removed, and "
    for process, span in store.seen.get(taken.artifact, ()):
        last = min(bisect_right(process.looks.times, taken.at) - 1, span.stop - 1)
        if last < span.start:
            continue
        idle_seconds = taken.at - process.looks.times[last]
        if idle_seconds < process.grace_seconds - CLOCK_SECONDS:
            grace = f"the grace is {process.grace_seconds:g} s"
            yield told + f"{process.replica}'s engine had listed it {idle_seconds:.1f} s before; {grace}"
        elif _is_seen_after(process, span, last, taken):
            yield told + f"{process.replica}'s engine listed it before and after"
    for at, grace_seconds, replica in store.sampled.get(taken.artifact, ()):
        if 0.0 <= taken.at - at < grace_seconds - CLOCK_SECONDS:
            grace = f"the grace is {grace_seconds:g} s"
            yield told + f"{replica}'s engine was seen to list it {taken.at - at:.1f} s before; {grace}"


def _is_seen_after(process: SidecarProcess, span: range, last: int, taken: TakenState) -> bool:
    """True if the next look that showed any change showed the same process of the engine list it still."""
    after = last + 1
    if after not in span or process.looks.times[after] < taken.at + CLOCK_SECONDS:
        return False
    return process.looks.incarnations[after] == process.looks.incarnations[last]
