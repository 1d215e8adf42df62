"""Selection of what the engine is to hold, and of what it is to unload. Pure.

Eager adapters come first, as many as there is room for, the most important first. Beside them stay the lazy adapters
that are used, as many as there is room left for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain

from registry.model.names import PROOF_PREFIX, name_key
from registry.model.records import EngineNames, PoolSpec
from sidecar.artifacts.types import ArtifactRef
from sidecar.desired.assignment import Share, everything
from sidecar.desired.informer import DesiredAdapter, DesiredState, LazyAdapter
from sidecar.desired.placement import NOBODY
from sidecar.engines.observed import Observed, Use
from sidecar.plan.backoff import NOT_LISTED
from sidecar.plan.handoff import Handoff, Taken
from sidecar.plan.limits import limits_of
from sidecar.plan.names import SEPARATOR, NameOverlap, engine_name, key_of, version_of
from sidecar.plan.types import (
    FailedAdapter,
    KeptAdapter,
    LazyCandidates,
    LazySelection,
    PlanContext,
    Selection,
    ServedAdapter,
    Unload,
)

# More digits than any generation has.
_MOST_DIGITS = 16
# For lazy adapters, where neither the engine nor the pool limits what is loaded: listings must stay small.
DEFAULT_ROOM = 100


def select(
    desired: DesiredState, pool: PoolSpec | None, observed: Observed, known: PlanContext, *, now: float
) -> Selection:
    """Chooses for the engine that was observed.

    A generation with a name of its own is loaded before the one that it replaces is unloaded: room is kept for it. Lazy
    adapters have no such names, so there is no room for them.
    """
    share, limits = known.share or everything(desired), limits_of(pool, observed)
    limit, is_versioned = limits.capacity, limits.names == "versioned"
    if limit is not None and is_versioned:
        limit -= 1
    adapters = tuple(share.version(desired.adapters[key]) for _, key in share.order[:limit])
    kept = _select_kept(adapters, None if limit is None else limit - len(adapters)) if is_versioned else ()
    room = 0 if is_versioned else DEFAULT_ROOM if limit is None else limit - len(adapters)
    chosen = Selection(
        limits=limits,
        adapters=adapters,
        kept=kept,
        over=() if limit is None else share.order[limit:],
        undecided=share.undecided,
        leaving=tuple(_leaving(desired, share, (*observed.adapters, *(known.handing - observed.adapters.keys())))),
        room=room,
        lazy=_select_lazy(known.lazy, room, now),
    )
    return _looked_up(desired, chosen, known)


def _select_kept(adapters: Iterable[DesiredAdapter], room: int | None) -> tuple[DesiredAdapter, ...]:
    """Earlier generations to hold beside the newest.

    What is the fewest generations behind comes first, so that the oldest goes first where room is short; `room` None:
    there is no limit.
    """
    found = [(behind, one.rank, earlier) for one in adapters for behind, earlier in enumerate(one.beside)]
    return tuple(earlier for _, _, earlier in sorted(found, key=lambda one: one[:2])[:room])


def _select_lazy(known: LazyCandidates, room: int, now: float) -> LazySelection:
    stays = sorted(stay(known, room=room, now=now))
    moved_on = {key for key in stays if key not in known.whole}
    residents = tuple(known.whole[key] for key in stays if key not in moved_on)
    return LazySelection(residents, frozenset(known.asked | moved_on), known.troubles)


def stay(known: LazyCandidates, *, room: int, now: float) -> frozenset[str]:
    """Chooses among the lazy adapters that are loaded: those in use, of these so many that were used last."""
    bound, used_at = known.bound, known.used_at
    in_use = [key for key, at in used_at.items() if key in bound or now - at <= known.idle_seconds]
    wanted = sorted(in_use, key=lambda key: (key not in bound, -used_at[key], key))
    return frozenset(wanted[: max(room, sum(key in bound for key in in_use))])


def _looked_up(desired: DesiredState, chosen: Selection, known: PlanContext) -> Selection:
    """With what is in the store. It is looked up once, so that whatever is called was among the uses before."""
    good, names = {one.key: one.fallbacks for one in chosen.wanted if one.fallbacks}, chosen.limits.names
    for one in chosen.leaving:
        instead = desired.adapters[one.key].fallbacks if one.name in known.handing else ()
        if fitting := tuple(other for other in instead if engine_name(other, names) == one.name):
            good[one.key] = fitting
    earlier = [one for each in good.values() for one in reversed(each)]
    leaving = [desired.adapters[one.key] for one in chosen.leaving]
    former = (former for one in (*chosen.wanted, *leaving) for former in one.former)
    refs = {adapter.ref for adapter in (*chosen.wanted, *chosen.kept, *earlier, *former)}
    refs |= {ref for one in (*leaving, *_newest(desired, chosen)) for _, ref in one.versions}
    staged = {ref: found for ref in refs if (found := known.staged.get(ref)) is not None}
    handing = (_left_as(desired, one, names) for one in chosen.leaving if one.name in known.handing)
    # What is wanted comes last: of two generations with the same files it is the one that is served.
    adapters = (*(one for one in handing if one is not None), *earlier, *chosen.kept, *chosen.wanted)
    pairs = ((one, staged[one.ref]) for one in adapters if one.ref in staged)
    versions = {(engine_name(one, names), files.path): version_of(one, files) for one, files in pairs}
    unseen, unwanted = refs - staged.keys() - known.staging, known.staging - refs
    if unwanted:
        waiting = (desired.adapters[key] for _, key in chain(chosen.over, chosen.undecided))
        unwanted -= {ref for one in waiting for _, ref in one.versions}
    return replace(chosen, good=good, staged=staged, unseen=unseen, unwanted=unwanted, versions=versions)


def _newest(desired: DesiredState, chosen: Selection) -> Iterator[DesiredAdapter]:
    """Adapters of which this replica serves the stable generation; it may have been a canary, and have the newest."""
    for one in chosen.adapters:
        if (newest := desired.adapters[one.key]).generation != one.generation:
            yield newest


def _leaving(desired: DesiredState, share: Share, names: Iterable[str]) -> Iterator[Handoff]:
    for name in names if desired.tally.with_terms else ():
        adapter = desired.adapters.get(key_of(name))
        if adapter is None or adapter.terms is None or not share.is_elsewhere(adapter):
            continue
        if adapter.name != name.partition(SEPARATOR)[0]:
            continue
        terms, owners, among = adapter.terms, None, NOBODY
        if terms.needs_members:
            owners, among = tuple(replica for _, replica in share.placed[adapter.key]), share.among
        pinned = adapter.ref.digest is not None
        yield Handoff(adapter.key, name, adapter.revision, adapter.generation, pinned, terms, owners, among)


def _left_as(desired: DesiredState, leaving: Handoff, names: EngineNames) -> DesiredAdapter | None:
    """The version of what leaves that an engine calls so; None: that is neither.

    Of two it is the stable one: new weights are for canaries, and a replica that leaves is none.
    """
    adapter = desired.adapters[leaving.key]
    versions = [replace(adapter, generation=generation, ref=ref) for generation, ref in adapter.versions]
    return next((one for one in reversed(versions) if engine_name(one, names) == leaving.name), None)


def ours_leaving(chosen: Selection, observed: Observed) -> tuple[Handoff, ...]:
    """Adapters of ours to be served elsewhere, also those that the engine has lost."""
    listed = observed.adapters
    return tuple(one for one in chosen.leaving if one.name not in listed or listed[one.name] in observed.ours)


def still_kept(leaving: Iterable[Handoff], known: PlanContext) -> tuple[Handoff, ...]:
    """Leaving adapters to keep: not taken over, or routers may still ask for them.

    A replica that leaves keeps all of it (guarantee R20).
    """
    if known.share is not None and known.share.is_out:
        return tuple(leaving)
    return tuple(one for one in leaving if known.handed.get(one) != Taken())


def lost_by_engine(
    desired: DesiredState, chosen: Selection, kept: Iterable[Handoff], observed: Observed, known: PlanContext
) -> tuple[DesiredAdapter, ...]:
    """Kept adapters that the engine lost and others do not serve yet, up to its room."""
    lost = [one for one in kept if one.name not in observed.adapters and one in known.handed]
    versions = [found for one in lost if (found := _lost_version(desired, one, chosen, known)) is not None]
    fitting = [one for one in versions if one.ref in chosen.staged]
    limit = chosen.limits.capacity
    room = len(fitting) if limit is None else max(0, limit - len(chosen.wanted))
    return tuple(sorted(fitting, key=lambda one: one.rank)[:room])


def _lost_version(
    desired: DesiredState, leaving: Handoff, chosen: Selection, known: PlanContext
) -> DesiredAdapter | None:
    """Version to load: as followed, or the last good one if that is absent or fails."""
    failure = known.failures.get(leaving.key)
    found, instead = _left_as(desired, leaving, chosen.limits.names), chosen.good.get(leaving.key, ())
    good = next((one for one in instead if one.ref in chosen.staged), next(iter(instead), None))
    is_fit = found is not None and found.ref in chosen.staged and (failure is None or failure.ref != found.ref)
    is_busy = leaving.key in known.in_progress.keys | known.unsettled
    if is_fit or is_busy or good is None:
        return found
    return found if found is not None and found.ref == good.ref else good


def still_served(
    desired: DesiredState, kept: Iterable[Handoff], observed: Observed, chosen: Selection, known: PlanContext
) -> Iterator[ServedAdapter]:
    """Kept adapters that nobody took over, at the newest generation that the engine has of each."""
    newest: dict[str, ServedAdapter] = {}
    for found in _versions_served(desired, kept, observed, chosen, known):
        before = newest.get(found.name)
        if before is None or before.generation < found.generation:
            newest[found.name] = found
    yield from newest.values()


def _versions_served(
    desired: DesiredState, kept: Iterable[Handoff], observed: Observed, chosen: Selection, known: PlanContext
) -> Iterator[ServedAdapter]:
    for one in kept:
        path = observed.adapters.get(one.name)
        if path is not None and not isinstance(known.handed.get(one), Taken):
            found = _served_as(desired.adapters[one.key], one.name, path, chosen)
            if found is not None:
                yield found
            elif generation := known.generations.get((one.name, path), 0):
                yield ServedAdapter(desired.adapters[one.key].name, generation, "", is_pinned=True)


def _known_versions(adapter: DesiredAdapter, chosen: Selection) -> Iterator[tuple[int, ArtifactRef]]:
    """Versions that an engine may have: as followed, as served last, and as before."""
    yield from adapter.versions
    earlier = (*chosen.good.get(adapter.key, ()), *reversed(adapter.former))
    yield from ((one.generation, one.ref) for one in earlier)


def _served_as(adapter: DesiredAdapter, name: str, path: str, chosen: Selection) -> ServedAdapter | None:
    """The generation of an adapter that has these files, the newest first; None: it is not one that is known."""
    for generation, ref in _known_versions(adapter, chosen):
        staged, names = chosen.staged.get(ref), {adapter.name, f"{adapter.name}{SEPARATOR}{generation}"}
        if staged is not None and staged.path == path and name in names:
            return ServedAdapter(adapter.name, generation, staged.digest, ref.digest is not None)
    return None


def still_answered(
    desired: DesiredState,
    chosen: Selection,
    observed: Observed,
    known: PlanContext,
    *,
    told: AbstractSet[str],
    gone: Collection[str],
) -> Iterator[KeptAdapter]:
    """Adapters of ours that the engine answers to, though not as desired; of several generations the newest.

    `told` has the name keys of what is served as desired, or reported as leaving; `gone` names that are to be unloaded.
    """
    is_versioned = chosen.limits.names == "versioned"
    residents = {one.key: one for one in chosen.lazy.residents}
    found: dict[str, KeptAdapter] = {}
    for name, path in observed.adapters.items():
        plain, separator, number = name.partition(SEPARATOR)
        adapter = residents.get(name_key(plain)) or desired.of(name_key(plain))
        if adapter is None or adapter.name != plain or bool(separator) != is_versioned:
            continue
        if name_key(plain) not in told and name not in gone and path in observed.ours:
            one = KeptAdapter(plain, _number(number) or _generation_of(adapter, (name, path), chosen, known))
            if plain not in found or found[plain].generation < one.generation:
                found[plain] = one
    yield from found.values()


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else 0


def _generation_of(adapter: DesiredAdapter | LazyAdapter, use: Use, chosen: Selection, known: PlanContext) -> int:
    """The generation that a path of ours is of; 0: nothing tells."""
    for generation, ref in _known_versions(adapter, chosen) if isinstance(adapter, DesiredAdapter) else ():
        staged = chosen.staged.get(ref)
        if staged is not None and staged.path == use[1]:
            return generation
    return known.generations.get(use, 0)


def superfluous(
    desired: DesiredState, chosen: Selection, kept: Iterable[Handoff], handover: NameOverlap, known: PlanContext
) -> Iterator[Unload]:
    """Unloads of adapters of ours that are not to be there, also while a call is out."""
    keep = handover.keep | handover.held | _misspelt(chosen, handover, known) | {one.name for one in kept}
    waiting = {key for _, key in chosen.undecided} | chosen.lazy.asked
    for name, path in handover.ours.items():
        key = key_of(name)
        if name in keep or key in waiting:
            continue
        # A record that cannot be read says nothing about what should be served; what is loaded stays.
        if key in desired.refused and desired.of(key) is None:
            continue
        yield Unload(name, path, known.request_id)


def of_before(
    desired: DesiredState, chosen: Selection, observed: Observed, known: PlanContext, now: float
) -> Iterator[Unload]:
    """Unloads of what stands under a name since before it was deleted and made anew, once the new cannot be had."""
    busy = known.in_progress.keys | known.unsettled
    for adapter in chosen.wanted:
        name, failure = engine_name(adapter, chosen.limits.names), known.failures.get(adapter.key)
        path = observed.adapters.get(name)
        if not adapter.made or failure is None or path is None or path not in observed.ours or adapter.key in busy:
            continue
        # What was served since it was made is its own, also where the store has it no more, or may not give it anew.
        if (_number(name.partition(SEPARATOR)[2]) or known.generations.get((name, path), 0)) >= adapter.made:
            continue
        newest = desired.adapters.get(adapter.key, adapter)  # who is no canary any more has that, too
        earlier = {one.ref for one in (*newest.fallbacks, *newest.former, *newest.beside)}
        refs = {*earlier, *(ref for _, ref in newest.versions)}
        known_paths = {chosen.staged[ref].path for ref in refs if ref in chosen.staged}
        is_failing = failure.forbids(adapter.ref, observed.facts.incarnation, now)
        # Files of an earlier generation that are not there may be those.
        if is_failing and path not in known_paths and refs - chosen.staged.keys() <= {adapter.ref}:
            yield Unload(name, path, known.request_id)


def count_removing(gone: Collection[Unload], desired: DesiredState, chosen: Selection, known: PlanContext) -> int:
    """Number of undesired names that the engine has, or may get by calls under way."""
    going = {one.name for one in gone}
    may_come = {key_of(name) for name in known.in_progress.loads} | known.unsettled | chosen.lazy.asked
    undesired = {key for key in may_come if desired.of(key) is None}
    return len(going) + len(undesired - {key_of(name) for name in going})


def _misspelt(chosen: Selection, handover: NameOverlap, known: PlanContext) -> AbstractSet[str]:
    """Names under which the engine may list what it was told to load under others.

    They stay while the others are loaded and not listed: to unload one might take away what answers, and it would be
    back with the next try.
    """
    absent: set[str] = set()
    for adapter in chosen.wanted:
        failure, staged = known.failures.get(adapter.key), chosen.staged.get(adapter.ref)
        is_missed = failure is not None and failure.reason == NOT_LISTED
        if is_missed and staged is not None and engine_name(adapter, chosen.limits.names) not in handover.ours:
            absent.add(staged.path)
    return {name for name, path in handover.ours.items() if path in absent and not name.startswith(PROOF_PREFIX)}


def decide_unload(
    unload: Unload, observed: Observed, known: PlanContext, now: float
) -> tuple[FailedAdapter | None, Unload | None]:
    """An unload is put off while an earlier one of the same name has failed."""
    failure = known.failures.get(name_key(unload.name))
    if failure is None or not failure.forbids(None, observed.facts.incarnation, now):
        return None, unload
    put_off = FailedAdapter(
        unload.name, 0, failure.reason, failure.message, failure.attempts, failure.retry_at, "", is_settled=True
    )
    return put_off, None
