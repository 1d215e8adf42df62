"""What the engine asked for and was told, and which lazy adapters it therefore is to keep. Pure: time is an argument.

The loop and those who answer questions share it, in one event loop: what one writes the other sees at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from registry.model.names import name_key
from sidecar.desired import DesiredAdapter, DesiredState
from sidecar.failures import Failure
from sidecar.lazy.answers import Terms
from sidecar.lazy.catalogue import Catalogue
from sidecar.lazy.residents import stay
from sidecar.lazy.wanted import LazySituation, Wanted
from sidecar.observed import Observed
from sidecar.plan import Plan
from sidecar.retention import Use

IDLE_SECONDS = 600.0
# After an answer the engine may read the files for so long though it does not list them yet.
HOLD_SECONDS = 120.0
# So long the engine is expected to list what it was told of.
EXPECT_SECONDS = 10.0
# A request that asked for an adapter is bound to it within this time of the answer: so long it stays in any case.
BIND_SECONDS = 2.0
# So many more than there is room for may be loaded or just asked for; whoever asks for more waits.
MAX_ABOVE_ROOM = 128
MAX_TROUBLES = 100
# While something is expected of the engine it is looked at this often, and no oftener for anything that is due.
LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Told:
    """That the engine was told where an adapter is: under which name, where and when (monotonic seconds)."""

    name: str
    path: str
    at: float


class Demand:
    """One replica's memory of it; all of it is lost with the process, and comes again with the next look or question.

    Attributes:
        terms: what questions are decided by; None: none may be answered now.
    """

    def __init__(self, catalogue: Catalogue, *, idle_seconds: float = IDLE_SECONDS) -> None:
        """`idle_seconds`: what is not used for longer does not stay loaded."""
        self.catalogue = catalogue
        self.terms: Terms | None = None
        self._idle_seconds = idle_seconds
        self._open: Counter[str] = Counter()
        self._told: dict[str, Told] = {}
        self._expected: set[str] = set()
        self._used_at: dict[str, float] = {}
        self._listed: frozenset[str] = frozenset()
        self._residents: dict[str, DesiredAdapter] = {}
        self._troubles: dict[str, Failure] = {}
        self._seen: Observed | None = None
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

    def is_asked(self, key: str) -> bool:
        """True while a question about the name is open: an engine call for it would wait for its answer."""
        return key in self._open

    def has_place(self, key: str) -> bool:
        """True if one more may be loaded, though another may have to go for it then."""
        if self.terms is None:
            return False
        taken = (self._listed | self._expected) - {key}
        return len(taken) < self.terms.room + MAX_ABOVE_ROOM

    def tell(self, key: str, told: Told) -> None:
        """Notes an answer, just before it is given."""
        self._told[key] = told
        self._expected.add(key)
        self._used_at[key] = max(told.at, self._used_at.get(key, told.at))
        self._troubles.pop(key, None)

    @property
    def is_expecting(self) -> bool:
        """True while the engine was told of what it did not list yet."""
        return bool(self._expected)

    def rest_seconds(self, now: float) -> float:
        """After this time at the latest the engine is to be looked at again, for the sake of lazy adapters."""
        return LOOK_SECONDS if self._expected else max(LOOK_SECONDS, self._due_at - now)

    def uses(self, now: float) -> set[Use]:
        """What the engine may be about to read because it was told so."""
        return {(told.name, told.path) for told in self._told.values() if now - told.at < HOLD_SECONDS}

    def trouble(self, key: str) -> Failure | None:
        """Why the adapter was refused when it was last asked for."""
        return self._troubles.get(key)

    def note_trouble(self, key: str, failure: Failure) -> None:
        """Remembers a refusal; the oldest are forgotten."""
        self._troubles.pop(key, None)
        self._troubles[key] = failure
        if len(self._troubles) > MAX_TROUBLES:
            del self._troubles[next(iter(self._troubles))]

    def forget_troubles(self) -> None:
        """What was refused is looked at anew."""
        self._troubles.clear()

    def review(self, state: DesiredState, observed: Observed, terms: Terms, *, now: float) -> Wanted:
        """Takes in a look at the engine, and says what a plan is to do about lazy adapters."""
        self.terms = terms
        listed = _listed(state, observed, terms.owns)
        self._notice(listed, observed, now)
        bound = {key for key, told in self._told.items() if now - told.at < BIND_SECONDS} | self._open.keys()
        loaded = {key: self._used_at[key] for key in listed}
        kept = stay(loaded, bound, room=terms.room, now=now, idle_seconds=self._idle_seconds)
        self._due_at = min(self._changes(kept, terms.room), default=math.inf)
        whole = {key: self.catalogue.whole(state, key) for key in sorted(kept)}
        self._residents = {key: adapter for key, adapter in whole.items() if adapter is not None}
        return Wanted(
            residents=tuple(self._residents.values()),
            asked=frozenset(self._open.keys() | (whole.keys() - self._residents.keys())),
            troubles=tuple(self._standing_troubles(state)),
        )

    def suspend(self) -> None:
        """No question may be answered until the next review."""
        self.terms = None

    def resident(self, key: str) -> DesiredAdapter | None:
        """The lazy adapter under a name key if it is loaded and stays so, as the last review had it."""
        return self._residents.get(key)

    def situation(self, state: DesiredState | None, plan: Plan | None) -> LazySituation:
        """What there is to say of lazy adapters, after a review and the plan that was made from it."""
        keys = [name_key(one.name) for one in plan.residents] if plan else []
        return LazySituation(
            count=len(state.lazy) if state else 0,
            room=self.terms.room if self.terms else 0,
            used_at={key: self._used_at[key] for key in keys},
        )

    def _changes(self, kept: frozenset[str], room: int) -> Iterator[float]:
        """When those that stay may have to go, and what the engine was told of, if nothing happens until then."""
        for told in self._told.values():
            yield told.at + HOLD_SECONDS
        for key in kept:
            yield self._used_at[key] + self._idle_seconds
            if len(kept) > room and key in self._told:
                yield self._told[key].at + BIND_SECONDS

    def _notice(self, listed: dict[str, str], observed: Observed, now: float) -> None:
        """Brings what is remembered up to what the engine lists."""
        is_new, self._seen = observed is not self._seen, observed
        for key, name in listed.items():
            seconds = observed.last_used.get(name) if is_new else None
            known = [self._used_at.get(key), None if seconds is None else now - seconds]
            self._used_at[key] = max((at for at in known if at is not None), default=now)
        self._listed = frozenset(listed)
        self._told = {key: told for key, told in self._told.items() if now - told.at < HOLD_SECONDS}
        recent = {key for key, told in self._told.items() if now - told.at < EXPECT_SECONDS}
        self._expected = (self._expected & recent) - self._listed
        self._used_at = {key: at for key, at in self._used_at.items() if key in listed or key in self._told}

    def _standing_troubles(self, state: DesiredState) -> Iterator[tuple[DesiredAdapter, Failure]]:
        """Those of adapters that are still desired as they were when they were refused."""
        for key, failure in list(self._troubles.items()):
            adapter = self.catalogue.whole(state, key)
            if adapter is not None and adapter.ref == failure.ref:
                yield adapter, failure
            else:
                del self._troubles[key]


def _listed(state: DesiredState, observed: Observed, owns: Callable[[str], str | None]) -> dict[str, str]:
    """The lazy adapters that the engine lists from our store: name key to name."""
    found = {}
    for name, path in observed.adapters.items() if state.lazy else ():
        key = name_key(name)
        lazy = state.lazy.get(key)
        if lazy is not None and lazy.name == name and owns(path) is not None:
            found[key] = name
    return found
