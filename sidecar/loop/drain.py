"""Drain tracker: proves that an engine let go of an artifact. Pure.

An engine reads an adapter's files again whenever the adapter has fallen out of its cache, also for requests that were
queued before the adapter was unloaded, and dies if they are gone. So an artifact is let go of only if all of this is
true of one and the same engine process (R7):

- it is not listed, and no plan of ours may still load it, for the grace at least;
- after that grace the engine said twice, some seconds apart, that no request of it waits or runs: by its name, or by
  its path where our plugin inside the engine tells it, which also knows of requests that are on their way to the queue;
- a look just before the decision still does not list it.

Whatever cannot be read, and every change of mind of the engine, starts the proof anew: no answer is no proof. Another
process of the engine does, too: what the last one let go of says nothing of this one.

An artifact may be known in the engine by several names, such as that by which it was proven loadable. All of them have
to be clear, since a request names but one. Of what was leased before this process first looked, the names are not all
known: then no request for any adapter may run. What the engine lists though it is not leased is told, to be leased.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from sidecar.engines.driver import check_name
from sidecar.engines.observed import DrainEvidence, Observed, Use

# Between the two times that the engine has to say it.
EVIDENCE_GAP_SECONDS = 5.0


@dataclass(slots=True)
class _Idle:
    """An artifact that is leased and neither listed nor about to be: since when, and what the engine said since."""

    since: float
    clear_at: float | None = None
    is_proven: bool = False


class DrainTracker:
    """Files that one replica's engine may still read. All times are monotonic seconds."""

    def __init__(self, grace_seconds: float, owns: Callable[[str], str | None]) -> None:
        """Knows of nothing yet.

        Args:
            grace_seconds: how long an artifact is kept after it was last listed, at least.
            owns: artifact id of a path under our store, else None.
        """
        self._grace_seconds = grace_seconds
        self._owns = owns
        self._incarnation = ""
        self._idle: dict[str, _Idle] = {}
        self._names: defaultdict[str, set[str]] = defaultdict(set)
        # Leased before this process first looked: the names that they had in the engine are not all known.
        self._inherited: set[str] = set()

    def look(self, observed: Observed, uses: Iterable[Use], leased: AbstractSet[str], *, now: float) -> set[str]:
        """Takes in what the engine lists.

        Args:
            observed: the listing.
            uses: what the newest plan may load, and what calls of unknown outcome may yet load.
            leased: every artifact that is leased for this engine.
            now: after the listing was read.

        Returns:
            What the engine lists though it is not leased.
        """
        listed = self._note_names(observed.adapters.items())
        busy = listed | self._note_names(uses)
        self._meet(observed.facts.incarnation, leased | listed)
        before = self._idle
        self._idle = {one: before.get(one) or _Idle(now) for one in leased - busy}
        for forgotten in self._names.keys() - leased - busy:
            del self._names[forgotten]
        self._inherited &= leased | busy
        return listed - leased

    def _note_names(self, uses: Iterable[Use]) -> set[str]:
        """Remembers by which names our artifacts may be known in the engine; gives the artifacts.

        Each may have been listed, while no look of ours saw it, under the name by which it was proven loadable.
        """
        found = [(name, path, artifact) for name, path in uses if (artifact := self._owns(path)) is not None]
        for name, path, artifact in found:
            self._names[artifact] |= {name, check_name(path)}
        return {artifact for _, _, artifact in found}

    def _meet(self, incarnation: str, present: AbstractSet[str]) -> None:
        """A new process of the engine: what the last one was proven to have let go of says nothing of this one."""
        if incarnation == self._incarnation:
            return
        # A process that came while we watched had nothing before; of the first one we cannot know.
        self._inherited = set() if self._incarnation else set(present)
        self._incarnation = incarnation
        self._idle = {}

    def is_due(self, now: float) -> bool:
        """True if evidence is wanted: something is idle for longer than the grace."""
        return any(self._is_old(idle, now) for idle in self._idle.values())

    def _is_old(self, idle: _Idle, now: float) -> bool:
        return now - idle.since >= self._grace_seconds

    def testify(self, evidence: DrainEvidence, *, asked_at: float, now: float) -> None:
        """Takes in what the engine says of its requests, between `asked_at` and `now`."""
        if evidence.incarnation != self._incarnation:
            self.doubt()
            return
        in_use = None if evidence.paths is None else {self._owns(path) for path in evidence.paths}
        for artifact, idle in self._idle.items():
            if not self._is_old(idle, asked_at):
                continue
            if not self._is_clear(evidence, artifact, in_use):
                idle.clear_at, idle.is_proven = None, False
            elif idle.clear_at is None:
                idle.clear_at = now
            elif asked_at - idle.clear_at >= EVIDENCE_GAP_SECONDS:
                idle.is_proven = True

    def _is_clear(self, evidence: DrainEvidence, artifact: str, in_use: AbstractSet[str | None] | None) -> bool:
        """By paths where the engine tells them, which `in_use` are of: versions of one name differ in nothing else."""
        if in_use is None:
            is_known = artifact not in self._inherited
            return evidence.is_clear_of(self._names.get(artifact, frozenset()) if is_known else None)
        return artifact not in in_use

    def doubt(self) -> None:
        """Forgets all evidence, where the engine could not be asked."""
        for idle in self._idle.values():
            idle.clear_at, idle.is_proven = None, False

    def proven(self) -> frozenset[str]:
        """Files that may be let go of, if the newest `look` is of this moment."""
        return frozenset(artifact for artifact, idle in self._idle.items() if idle.is_proven)
