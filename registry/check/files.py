"""Holds what was removed from stores against what engines of the same host listed (R7). Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from registry.check.findings import Finding
from registry.check.listed import artifact_of
from registry.check.logs import Process, Taken
from registry.check.replicas import Listing

# By so much the clock of whoever takes listings may differ from a sidecar's.
CLOCK_SECONDS = 5.0


@dataclass
class _Store:
    """What is known of one store.

    Attributes:
        seen: by artifact, each process that saw it listed, and in which looks.
        sampled: by artifact, when somebody else saw an engine list it, the grace there, and the replica.
    """

    seen: dict[str, list[tuple[Process, range]]] = field(default_factory=lambda: defaultdict(list))
    sampled: dict[str, list[tuple[float, float, str]]] = field(default_factory=lambda: defaultdict(list))


def check_files(known: Iterable[Process], listings: Iterable[Listing]) -> tuple[list[Finding], Counter[str]]:
    """Findings, and how many removals, and looks of others besides, were compared."""
    # Of others it is not known whose files these are, or when.
    datable = [process for process in known if process.store and process.is_steady]
    stores = _stores(datable)
    counts = Counter({"of them at a known time": _sample(stores, datable, listings)})
    findings: list[Finding] = []
    for process in datable:
        counts["removals"] += len(process.removals)
        for taken in process.removals:
            findings += [Finding("R7", 0, process.where, why) for why in _too_early(stores[process.store], taken)][:1]
    return findings, counts


def _stores(known: Iterable[Process]) -> dict[str, _Store]:
    stores: dict[str, _Store] = defaultdict(_Store)
    for process in known:
        for artifact, spans in process.looks.spans().items():
            stores[process.store].seen[artifact] += [(process, span) for span in spans]
    return stores


def _sample(stores: dict[str, _Store], known: Iterable[Process], listings: Iterable[Listing]) -> int:
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


def _too_early(store: _Store, taken: Taken) -> Iterator[str]:
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


def _is_seen_after(process: Process, span: range, last: int, taken: Taken) -> bool:
    """True if the next look that showed any change showed the same process of the engine list it still."""
    after = last + 1
    if after not in span or process.looks.times[after] < taken.at + CLOCK_SECONDS:
        return False
    return process.looks.incarnations[after] == process.looks.incarnations[last]
