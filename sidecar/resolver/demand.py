"""Resident set: demand for lazy adapters, and which stay loaded. Pure.

The loop and those who answer questions share it, in one event loop: what one writes the other sees at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace

from registry.model.names import name_key
from registry.model.records import AskedRetry
from sidecar.desired.informer import DesiredAdapter, DesiredState
from sidecar.engines.observed import Observed, Refused, Use
from sidecar.plan.backoff import Failure, after_call
from sidecar.plan.types import LazyCandidates, LazySituation, Plan
from sidecar.resolver.policy import Catalogue, ServingLimits

IDLE_SECONDS = 600.0
# After an answer the engine may read the files for so long though it does not list them yet.
HOLD_SECONDS = 120.0
# So long the engine is expected to list what it was told of.
EXPECT_SECONDS = 10.0
# A request that asked for an adapter is bound to it within this time of the answer: so long it stays in any case.
BIND_SECONDS = 2.0
# So many more than there is room for may be loaded or just asked for; whoever asks for more waits.
MAX_ABOVE_ROOM = 128
# What was used so shortly before a look has requests that run; the plugin counts these as used just then.
RUNNING_SECONDS = 0.02
# Only a look that is not older tells which adapters have requests.
FRESH_SECONDS = 1.0
# While something is expected of the engine it is looked at this often, and no oftener for anything that is due.
LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Answered:
    """That the engine was told where an adapter is: under which name, where and when (monotonic seconds)."""

    name: str
    path: str
    at: float


class AnswerMemory:
    """Memory of where the engine was told that adapters are, for as long as it may go by that.

    Attributes:
        told: answers by name key, some of them just over.
        expected: name keys of what it is soon to list.
        asked: name keys of what it asked for, whatever the answer was, until whoever tells uses takes them out.
    """

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self.told: dict[str, Answered] = {}
        self.expected: set[str] = set()
        self._in_vain: dict[str, tuple[str, str]] = {}

    def note(self, key: str, told: Answered, incarnation: str) -> None:
        """Notes an answer to a process of the engine."""
        self.told[key] = told
        self.expected.add(key)
        self._in_vain[key] = told.path, incarnation

    def take_vain(self, key: str, path: str, incarnation: str) -> bool:
        """True, once, if the engine was told just this, and no listing showed it since."""
        return self._in_vain.pop(key, None) == (path, incarnation)

    def take_listed(self, listed: Collection[str]) -> None:
        """Takes in a new listing: what it shows was not told in vain."""
        for key in listed:
            self._in_vain.pop(key, None)

    def age(self, listed: AbstractSet[str], now: float) -> None:
        """Takes in that time has passed."""
        self.told = {key: told for key, told in self.told.items() if now - told.at < HOLD_SECONDS}
        self._in_vain = {key: told for key, told in self._in_vain.items() if key in self.told}
        self.expected &= self.since(now, EXPECT_SECONDS) - listed

    def since(self, now: float, seconds: float) -> set[str]:
        """Name keys of what was told within this time."""
        return {key for key, told in self.told.items() if now - told.at < seconds}


@dataclass(frozen=True, slots=True)
class EngineLook:
    """The last look at the engine, as far as lazy adapters go.

    Attributes:
        observed: all that it said; None: there was none yet.
        listed: name keys of the lazy adapters that it lists.
        running: of those, which have requests.
        at: monotonic seconds.
    """

    observed: Observed | None = None
    listed: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()
    at: float = -math.inf


class ResidentSet:
    """One replica's memory of it; all of it is lost with the process, and comes again with the next look or question.

    Attributes:
        catalogue: reads their records.
        troubles: why some were refused.
        terms: what questions are decided by; None: none may be answered now.
        is_paused: the engine may not be given anything now.
    """

    def __init__(self, catalogue: Catalogue, *, idle_seconds: float = IDLE_SECONDS) -> None:
        """`idle_seconds`: what is not used for longer does not stay loaded."""
        self.catalogue = catalogue
        self.troubles = Troubles()
        self.terms: ServingLimits | None = None
        self.is_paused = False
        self._idle_seconds = idle_seconds
        self._open: Counter[str] = Counter()
        self._crowded: set[str] = set()
        self._answers = AnswerMemory()
        self._look = EngineLook()
        self._used_at: dict[str, float] = {}
        self._residents: dict[str, DesiredAdapter] = {}
        self._due_at = math.inf

    @contextmanager
    def asking(self, key: str) -> Iterator[None]:
        """While the body runs, the engine waits for an answer about this name."""
        self._open[key] += 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]

    @property
    def asked(self) -> set[str]:
        """Name keys of the adapters that were asked for, see `AnswerMemory`."""
        return self._answers.asked

    def is_asked(self, key: str) -> bool:
        """True while a question about the name is open: an engine call for it would wait for its answer."""
        return key in self._open

    def has_place(self, key: str, now: float) -> bool:
        """True if one more may be loaded, though another may have to go for it then, without requests that run.

        Else the engine is looked at often, until there is one or nobody asks any more.
        """
        if self.terms is None:
            return False
        taken = (self._look.listed | self._answers.expected) - {key}
        if len(taken) < self.terms.room:
            return True
        is_fresh = now - self._look.at < FRESH_SECONDS
        has_idle = is_fresh and len(self._look.running - {key}) < self.terms.room
        if has_idle and len(taken) < self.terms.room + MAX_ABOVE_ROOM:
            return True
        self._crowded.add(key)
        return False

    def tell(self, key: str, told: Answered, *, is_newest: bool = True) -> None:
        """Notes an answer, just before it is given; not the newest: that is refused still."""
        self._answers.note(key, told, self.incarnation)
        self._used_at[key] = max(told.at, self._used_at.get(key, told.at))
        self._crowded.discard(key)
        if is_newest:
            self.troubles.end_staging(key)

    def refusal(self, adapter: DesiredAdapter, path: str, now: float) -> Failure | None:
        """Why the engine must not be told of the adapter again now; None: it may.

        It holds a lock on the name from its question until the adapter is loaded or not. So if it asks again though no
        listing showed what it was told of, it has refused that.
        """
        if self._answers.take_vain(adapter.key, path, self.incarnation):
            self.troubles.note_in_vain(adapter, self.incarnation, now)
        return self.troubles.by_engine(adapter, self.incarnation, now)

    @property
    def incarnation(self) -> str:
        """The process of the engine that was seen last, of which `terms` are; empty: none was."""
        return self._look.observed.facts.incarnation if self._look.observed is not None else ""

    @property
    def is_expecting(self) -> bool:
        """True while the engine was told of what it did not list yet, or somebody waits for a place in it."""
        return bool(self._answers.expected or self._crowded & self._open.keys())

    def rest_seconds(self, now: float) -> float:
        """After this time at the latest the engine is to be looked at again, for the sake of lazy adapters."""
        return LOOK_SECONDS if self.is_expecting else max(LOOK_SECONDS, self._due_at - now)

    def uses(self, now: float) -> set[Use]:
        """Artifacts that the engine may be about to read because it was told so."""
        return {(told.name, told.path) for told in self._answers.told.values() if now - told.at < HOLD_SECONDS}

    def candidates(self, state: DesiredState, observed: Observed, *, now: float) -> LazyCandidates:
        """Takes in a look at the engine, and says what a plan may choose from."""
        listed = _listed(state, observed)
        self._notice(listed, observed, now)
        whole = {key: self.catalogue.whole(state, key) for key in listed}
        return LazyCandidates(
            used_at={key: self._used_at[key] for key in listed},
            whole={key: adapter for key, adapter in whole.items() if adapter is not None},
            bound=self._answers.since(now, BIND_SECONDS) | self._open.keys(),
            asked=frozenset(self._open),
            idle_seconds=self._idle_seconds,
            troubles=tuple(self.troubles.standing(state, self.catalogue)),
        )

    def follow(self, plan: Plan) -> None:
        """Takes in the plan that was made of these: what stays, and what questions are decided by until the next."""
        chosen = plan.chosen
        self.is_paused = bool(plan.paused)
        self.terms = None if plan.blocked else ServingLimits(chosen.limits, chosen.room)
        self._residents = {one.key: one for one in chosen.lazy.residents}
        for one in plan.residents:
            self.troubles.end(name_key(one.name))
        self._due_at = min(self._changes(chosen.room), default=math.inf)

    def suspend(self) -> None:
        """No question may be answered until the next plan."""
        self.terms = None

    def resident(self, key: str) -> DesiredAdapter | None:
        """The lazy adapter under a name key if it is loaded and stays so, as the last plan had it."""
        return self._residents.get(key)

    def situation(self, state: DesiredState | None, plan: Plan | None) -> LazySituation:
        """What there is to say of lazy adapters, after `follow`."""
        keys = [name_key(one.name) for one in plan.residents] if plan else []
        return LazySituation(
            count=len(state.lazy) if state else 0,
            room=self.terms.room if self.terms else 0,
            used_at={key: self._used_at[key] for key in keys},
        )

    def _changes(self, room: int) -> Iterator[float]:
        """When those that stay may have to go, and what the engine was told of, if nothing happens until then."""
        for told in self._answers.told.values():
            yield told.at + HOLD_SECONDS
        for key in self._residents:
            yield self._used_at[key] + self._idle_seconds
            if len(self._residents) > room and key in self._answers.told:
                yield self._answers.told[key].at + BIND_SECONDS

    def _notice(self, listed: dict[str, str], observed: Observed, now: float) -> None:
        """Brings what is remembered up to what the engine lists."""
        is_new, used = observed is not self._look.observed, observed.last_used
        self._look = replace(self._look, listed=frozenset(listed))
        if is_new:
            running = frozenset(key for key, name in listed.items() if used.get(name, 1.0) < RUNNING_SECONDS)
            self._look = EngineLook(observed, self._look.listed, running, now)
            self._crowded &= self._open.keys()
            self._answers.take_listed(listed)
            self.troubles.end_of_engine(listed, self.incarnation)
        for key, name in listed.items():
            seconds = used.get(name) if is_new else None
            known = [self._used_at.get(key), None if seconds is None else now - seconds]
            self._used_at[key] = max((at for at in known if at is not None), default=now)
        self._answers.age(self._look.listed, now)
        self.troubles.age(self._answers.expected | self._open.keys())
        kept = self._look.listed | self._answers.since(now, HOLD_SECONDS)
        self._used_at = {key: at for key, at in self._used_at.items() if key in kept}


def _listed(state: DesiredState, observed: Observed) -> dict[str, str]:
    """The lazy adapters that the engine lists from our store: name key to name."""
    found = {}
    for name, path in observed.adapters.items() if state.lazy else ():
        key = name_key(name)
        lazy = state.lazy.get(key)
        if lazy is not None and lazy.name == name and path in observed.ours:
            found[key] = name
    return found


MAX_TROUBLES = 100
# An engine that was told of an adapter so often and does not list it refuses it; a request that was broken off once
# leaves the same trace.
TOLD_IN_VAIN = 2
REFUSED = "the engine was told where it is, and does not list it: its log says why it was not loaded"


def _longest(_shortest: float, longest: float) -> float:
    """No jitter: what one engine refuses is asked for at moments of its own."""
    return longest


class Troubles:
    """Memory of why each lazy adapter was refused when last asked for, by name key; the newest are kept."""

    def __init__(self) -> None:
        self._known: dict[str, Failure] = {}
        self._fresh: set[str] = set()
        self._asked: dict[str, AskedRetry | None] = {}

    def of(self, key: str) -> Failure | None:
        """Refusal of the adapter when it was last asked for."""
        return self._known.get(key)

    def note(self, key: str, failure: Failure) -> None:
        """Remembers a refusal; the oldest are forgotten."""
        if self._known.pop(key, None) is None:
            self._fresh.add(key)
        self._known[key] = failure
        if len(self._known) > MAX_TROUBLES:
            del self._known[next(iter(self._known))]

    def note_in_vain(self, adapter: DesiredAdapter, incarnation: str, now: float) -> None:
        """Remembers that a process of the engine does not list what it was told of."""
        before = self._known.get(adapter.key)
        failure = after_call(Refused(REFUSED), adapter.ref, incarnation, before, now=now, uniform=_longest)
        if failure is not None:  # pragma: no branch - a refusal always is one
            self.note(adapter.key, failure)

    def by_engine(self, adapter: DesiredAdapter, incarnation: str, now: float) -> Failure | None:
        """Refusal by this process of the engine that forbids to tell it of the adapter now."""
        failure = self._known.get(adapter.key)
        if failure is None or not failure.is_engines or failure.attempts < TOLD_IN_VAIN:
            return None
        return failure if failure.forbids(adapter.ref, incarnation, now) else None

    def end(self, key: str) -> None:
        """Forgets a refusal: the adapter is served."""
        self._known.pop(key, None)

    def end_staging(self, key: str) -> None:
        """Forgets a refusal in which the engine had no part: it is told of the adapter."""
        failure = self._known.get(key)
        if failure is not None and not failure.is_engines:
            del self._known[key]

    def end_of_engine(self, listed: Collection[str], incarnation: str) -> None:
        """Drops what is loaded after all, and what another process of the engine refused."""
        for key, failure in list(self._known.items()):
            if failure.is_engines and (key in listed or failure.incarnation != incarnation):
                del self._known[key]

    def age(self, awaited: AbstractSet[str]) -> None:
        """Takes note of which adapters somebody still waits for."""
        self._fresh &= awaited

    def forget(self) -> None:
        """Has all that was refused looked at anew."""
        self._known.clear()

    def standing(self, state: DesiredState, catalogue: Catalogue) -> Iterator[tuple[DesiredAdapter, Failure]]:
        """Those of adapters that are still desired as they were when they were refused.

        Where the engine gets the last good generation instead, it is told with that: routers go on to ask here (R24).
        A first try in vain is no refusal yet (R9).
        """
        for key, failure in list(self._known.items()):
            adapter = catalogue.version(state, key)
            is_same = adapter is not None and adapter.ref == failure.ref
            if adapter is not None and is_same and self._asked.setdefault(key, adapter.retry) == adapter.retry:
                is_awaited = key in self._fresh and bool(adapter.fallbacks)
                is_awaited |= failure.is_engines and failure.attempts < TOLD_IN_VAIN
                if key == name_key(adapter.name) and not is_awaited:  # of an earlier generation nothing is told
                    yield adapter, failure
            else:
                del self._known[key]
        self._asked = {key: retry for key, retry in self._asked.items() if key in self._known}
