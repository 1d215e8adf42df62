"""Observes the engine: listings, identity, base model, and whether it turns."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import structlog

from registry.lora.base import BaseModules
from registry.lora.base_directory import BaseUnreadable, read_base
from registry.lora.engine_base import UNKNOWN_BASE, EngineBase
from registry.runtime.clock import Clock
from sidecar.engines.driver import Engine, EngineAbsent, EngineError, EngineUnreachable
from sidecar.engines.observed import EngineFacts, Observed, Use
from sidecar.metrics import ENGINE_RESTARTS

MAX_NAMES_A_LINE = 100


def listing_diff(before: Observed | None, now: Observed) -> Iterator[dict[str, object]]:
    """The fields of each line; none if nothing changed. All lines of one look together tell it, none is very long.

    `whole`: the engine's process is another than before, so all that it lists is told. `adapters` has the paths of what
    came or moved, and None for what is gone. `more`: another line tells the rest.
    """
    incarnation = now.facts.incarnation
    is_whole = before is None or before.facts.incarnation != incarnation
    known = {} if before is None or is_whole else before.adapters
    changed: dict[str, str | None] = {name: path for name, path in now.adapters.items() if known.get(name) != path}
    changed |= dict.fromkeys(known.keys() - now.adapters.keys())
    if not is_whole and not changed:
        return
    names = sorted(changed)
    for start in range(0, max(1, len(names)), MAX_NAMES_A_LINE):
        end = start + MAX_NAMES_A_LINE
        told = {name: changed[name] for name in names[start:end]}
        yield {"incarnation": incarnation, "whole": is_whole and not start, "adapters": told, "more": end < len(names)}


_log = structlog.get_logger()
# A look at the engine is at most this old when the next plan is made, so that drift is found.
RESYNC_SECONDS = 15.0
# The same while something is expected to happen inside the engine.
EXPECTING_SECONDS = 0.5
# After a look that failed the next comes so soon, then each after as long as looks have failed, up to the longest.
LOOK_AGAIN_SECONDS = 0.5
LOOK_AGAIN_LONGEST_SECONDS = 15.0
# So long looks may fail, while something listens where the engine is, before anybody is told.
BRIEF_SECONDS = 3.0


class EngineObserver:
    """Looks at one engine.

    Attributes:
        observed_at: of the last whole look at the engine, in monotonic seconds.
        problem: why it could not be looked at in full; empty: it could.
        turns: what it said when it was asked to generate, since a call whose outcome is unknown; see `Engine.turns`.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        wake: Callable[[], None],
        owns: Callable[[str], str | None],
        base: Path | None = None,
    ) -> None:
        """`wake` has a round follow soon. `owns`: see `ArtifactStore`. `base`: the sidecar's own of the model."""
        self._engine = engine
        self._wake = wake
        self._owns = owns
        self._clock = clock
        self._bases = StartedBases(base)
        self._observed: Observed | None = None
        self.observed_at = 0.0
        self._doubts = 0
        self._told: Observed | None = None
        self._failing_since: float | None = None
        self._failed_at = 0.0
        self.problem = "the engine was not looked at yet"
        self.turns: bool | None = True

    @property
    def hangs(self) -> bool:
        """True if it answers, but generated nothing since a call whose outcome is unknown."""
        return self.turns is False

    def distrust(self) -> None:
        """Forgets what was seen of the engine, since somebody heard that it may have changed; a round looks again."""
        self.forget()
        self._wake()

    def forget(self) -> None:
        """Forgets what was seen, or is just being seen. The next look is a new one."""
        self._observed = None
        self._doubts += 1

    @property
    def look_again_seconds(self) -> float:
        """After this time a look is due that is to mend the last: as long as looks have failed by now.

        Looks that failed are not counted: at a change there are many within a moment.
        """
        seconds = 0.0 if self._failing_since is None else self._failed_at - self._failing_since
        return min(LOOK_AGAIN_LONGEST_SECONDS, max(LOOK_AGAIN_SECONDS, seconds))

    async def fails_briefly(self) -> bool:
        """True if looks fail for a moment only, and the process that was seen last may well be there.

        So what was last seen is likely still so: nobody's requests are to be sent elsewhere for a single odd answer,
        also if it is the one that should tell of the process.
        """
        if self._told is None or self._failing_since is None:
            return False
        if self._clock.monotonic() - self._failing_since > BRIEF_SECONDS:
            return False
        try:
            return await self._engine.incarnation() == self._told.facts.incarnation
        except EngineAbsent:
            return False
        except EngineError:
            return True

    async def look(self, *, has_unsettled: bool, is_expecting: bool = False) -> Observed | None:
        """The engine as the next plan may be made from it; None: it cannot be read in full.

        `has_unsettled`: the outcome of a call is unknown. `is_expecting`: the engine may load something by itself.
        """
        if not has_unsettled:
            self.turns = True
            return await self.look_at_most_old(EXPECTING_SECONDS if is_expecting else RESYNC_SECONDS)
        # An engine that generates has ended every load before; only a look from after that tells what came of it.
        self.turns = await self._engine.turns()
        return await self.look_at_most_old(0.0)

    async def look_at_most_old(self, max_age_seconds: float) -> Observed | None:
        """The engine as it is, or was at most so long ago; None: it cannot be read in full."""
        now = self._clock.monotonic()
        if self._observed is not None and now - self.observed_at < max_age_seconds:
            return self._observed
        self._observed, doubts = None, self._doubts
        try:
            observed = await self._bases.complete(await self._engine.observe())
            ours = frozenset(path for path in observed.adapters.values() if self._owns(path) is not None)
            observed = replace(observed, ours=ours)
        except EngineError as error:
            if self.problem != str(error):
                _log.warning("engine_not_observed", url=self._engine.url, error=str(error))
            self.problem = str(error)
            self._failing_since = now if self._failing_since is None else self._failing_since
            self._failed_at = now
            return None
        self.problem, self._failing_since = "", None
        self._observed, self.observed_at = observed if doubts == self._doubts else None, now
        self._tell(observed)
        return observed

    def _tell(self, observed: Observed) -> None:
        """Logs what changed, before anybody acts upon it or says so: a status can be held against what was seen."""
        for fields in listing_diff(self._told, observed):
            _log.info("engine_listed", **fields)
        self._told = observed


class OwnNames:
    """Names that one process of the engine had from our store, and that are desired and were not unloaded by us."""

    def __init__(self) -> None:
        self._incarnation = ""
        self._names: AbstractSet[str] = frozenset()

    def taken(self, observed: Observed) -> frozenset[str]:
        """Those to which somebody gave files that are not ours."""
        if observed.facts.incarnation != self._incarnation:
            return frozenset()
        return frozenset(name for name in self._names if self._is_ours(name, observed) is False)

    def note(self, observed: Observed, unloaded: Iterable[str], is_desired: Callable[[str], bool]) -> None:
        """Takes in a look, what the plan made from it unloads, and which names have a record.

        What is not listed any more stays ours while it is desired: somebody unloaded it, and may load other files.
        """
        kept = self.taken(observed) | self._absent(observed)
        ours = {name for name in observed.adapters if self._is_ours(name, observed)}.difference(unloaded)
        self._names = ours | {name for name in kept if is_desired(name)}
        self._incarnation = observed.facts.incarnation

    def _absent(self, observed: Observed) -> AbstractSet[str]:
        is_same = observed.facts.incarnation == self._incarnation
        return self._names - observed.adapters.keys() if is_same else frozenset()

    def _is_ours(self, name: str, observed: Observed) -> bool | None:
        path = observed.adapters.get(name)
        return None if path is None else path in observed.ours


class ServedGenerations:
    """Generations of what the engine lists, as far as it was served as desired since this process started."""

    def __init__(self) -> None:
        self.by_use: Mapping[Use, int] = {}

    def note(self, observed: Observed, served: Iterable[tuple[str, int]]) -> None:
        """Takes in a look, and names in the engine with the generations that they were served as."""
        known = {use: generation for use, generation in self.by_use.items() if use in observed.adapters.items()}
        listed = ((name, observed.adapters.get(name), generation) for name, generation in served)
        now = {(name, path): generation for name, path, generation in listed if path is not None}
        self.by_use = {**known, **now}


PROBE_SECONDS = 1.0
# While the engine is away it is asked more often, so that its adapters are back soon after it is.
PROBE_AWAY_SECONDS = 0.25
# An engine whose probes fail for so long is away, whatever was seen of it before; one failed probe proves nothing.
PATIENCE_SECONDS = 3.0
# Between two looks at whether the engine generates.
PULSE_SECONDS = 5.0
STALLED = "the engine answers but generates nothing; restart it if that lasts"


# Several engines answer where processes came back so often within so long; and one, after so long without another.
RETURNS, ALONE_SECONDS = 2, 10.0
MOST_INCARNATIONS = 16


class Incarnations:
    """Those that answered of late. A process that is over does not come back: one that does was there all the time.

    Attributes:
        several: why it is not known who answers; empty: it is one engine, or one after the other.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._seen: tuple[str, ...] = ()
        self._returned_at: deque[float] = deque([-math.inf] * RETURNS, RETURNS)
        self._changed_at = -math.inf
        self.several = ""

    def see(self, incarnation: str, now: float) -> bool:
        """Takes in who answered at `now`, in monotonic seconds. True: the one before has ended, and this is another."""
        is_other = bool(self._seen) and incarnation != self._seen[-1]
        if is_other:
            self._changed_at = now
        if is_other and incarnation in self._seen:
            self._returned_at.append(now)
            if not self.several and now - self._returned_at[0] <= ALONE_SECONDS:
                self.several = self._told(incarnation, self._seen[-1])
        if now - self._changed_at >= ALONE_SECONDS:
            self.several = ""
        self._seen = (*self._seen[-MOST_INCARNATIONS:], incarnation) if is_other or not self._seen else self._seen
        return is_other and not self.several

    def _told(self, *incarnations: str) -> str:
        _log.warning("several_engines", url=self._url, incarnations=incarnations)
        return (
            f"two engines or more answer at {self._url} in turn ({' and '.join(sorted(incarnations))}), so nothing is "
            "loaded: give each sidecar the address of one engine, not of a load balancer"
        )


class EngineProbes:
    """Probes one engine beside all calls to it, so that none of them can hide that it stopped.

    Attributes:
        incarnation: of the process that answered the newest probe; empty: none did.
        away: why it is out of reach by the probes alone; empty: it is not.
        stalled: why it is held to generate nothing; empty: it generates, or that cannot be told.
        paused: why no call may be made to it; empty: it may.
    """

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._incarnations = Incarnations(engine.url)
        self.incarnation = ""
        self.away = ""
        self.stalled = ""
        self.paused = ""

    @property
    def problem(self) -> str:
        """Why a replica with this engine cannot be ready; empty: the probes are well."""
        return self.several or self.away or self.paused or self.stalled

    @property
    def several(self) -> str:
        """See `Incarnations.several`: nothing that is seen or called is of one engine."""
        return self._incarnations.several

    async def watch(self, on_change: Callable[[], None]) -> None:
        """Calls `on_change` when the engine's incarnation changes, or it stops or starts to answer or to take calls.

        Never returns.
        """
        failing_since = None
        while True:
            asked_at = self._clock.monotonic()
            current, problem = await self._probe()
            failing_since = None if current else asked_at if failing_since is None else failing_since
            is_away = failing_since is not None and self._clock.monotonic() - failing_since >= PATIENCE_SECONDS
            is_news = current != self.incarnation or is_away != bool(self.away) or self.paused != self._engine.paused
            self.paused = self._engine.paused
            self.incarnation, self.away = current, (self.away or problem) if is_away else ""
            was_mixed = bool(self.several)
            if current and self._incarnations.see(current, asked_at):
                self.stalled = ""  # that was another process
                ENGINE_RESTARTS.inc()
                _log.warning("engine_restarted", url=self._engine.url, incarnation=current)
            if is_news or was_mixed != bool(self.several):
                on_change()
            await asyncio.sleep(PROBE_SECONDS if current else PROBE_AWAY_SECONDS)

    async def _probe(self) -> tuple[str, str]:
        """The engine's incarnation; or empty, and why there is none."""
        try:
            return await self._engine.incarnation(), ""
        except EngineError as error:
            return "", str(error)

    async def feel_pulse(self, on_change: Callable[[], None]) -> None:
        """Calls `on_change` when the engine stops or starts to generate. Never returns."""
        while True:
            stalled = STALLED if await self._engine.pulse() is False else ""
            if stalled != self.stalled:
                _log.warning("engine_pulse", url=self._engine.url, problem=stalled)
                self.stalled = stalled
                on_change()
            await asyncio.sleep(PULSE_SECONDS)


# What somebody else does to the engine is told so soon, where the engine tells it: `RESYNC_SECONDS` is for all others.
CHANGES_SECONDS = 0.5
# After what we did ourselves the engine is looked at sooner than this.
OWN_CHANGES_SECONDS = 0.2


async def watch_changes(engine: Engine, on_change: Callable[[], None]) -> None:
    """Calls `on_change` whenever the engine tells that it has other adapters than at the last look. Never returns."""
    while True:
        await asyncio.sleep(CHANGES_SECONDS)
        with suppress(EngineError):  # which the engine's watch tells
            if await engine.has_changed():
                await asyncio.sleep(OWN_CHANGES_SECONDS)
                if await engine.has_changed():
                    on_change()


# A look waits so long for the folder of the base model, so that the status says what it waits for.
READ_SECONDS = 10.0


class StartedBases:
    """Knowledge of the base model of the engine's present process, read anew at each start where it is not told.

    Without the plugin the sidecar reads the folder of ``--base-model``, or the one that the engine itself was given, if
    it sees it. It does so once for each process of the engine: what stands there later is not what that one has loaded.
    """

    def __init__(self, own: Path | None = None) -> None:
        """Reads nothing yet.

        Args:
            own: the sidecar's folder of the base model; None: it has none.
        """
        self._own = own
        self._told: tuple[str, EngineBase] | None = None
        self._reading: tuple[str, asyncio.Task[tuple[BaseModules | None, BaseModules | None]]] | None = None
        self._base = UNKNOWN_BASE

    async def complete(self, observed: Observed) -> Observed:
        """The look, with what was read when that process of the engine was first seen.

        Raises:
            EngineUnreachable: a folder, as on a mount that hangs, was not read in time; it is waited for again.
        """
        facts = observed.facts
        if self._told is None or self._told[0] != facts.incarnation or self._told[1] is not facts.base:
            own, seen = await self._read_once(facts)
            files = facts.base.files or (None if facts.base.is_known else seen)
            self._base = replace(facts.base, files=files, own=own)
            self._told = facts.incarnation, facts.base
        return replace(observed, facts=replace(facts, base=self._base))

    async def _read_once(self, facts: EngineFacts) -> tuple[BaseModules | None, BaseModules | None]:
        """The sidecar's own base and the engine's, as they were when its process was first seen."""
        if self._reading is None or self._reading[0] != facts.incarnation:
            self._reading = facts.incarnation, asyncio.create_task(self._read(facts), name="base model's folder")
        reading = self._reading[1]
        await asyncio.wait({reading}, timeout=READ_SECONDS)
        if not reading.done():
            folder = self._own or facts.base_path
            raise EngineUnreachable(f"the base model's folder {folder} is read for long: see whether its mount answers")
        return reading.result()

    async def _read(self, facts: EngineFacts) -> tuple[BaseModules | None, BaseModules | None]:
        own = await _read_folder(self._own) if self._own else None
        has_other = self._own is not None or not facts.base_path.startswith("/")
        return own, None if has_other else await _read_folder(Path(facts.base_path))


async def _read_folder(directory: Path) -> BaseModules | None:
    return await asyncio.to_thread(_read_base, directory)


def _read_base(directory: Path) -> BaseModules | None:
    try:
        return read_base(directory)
    except BaseUnreadable as error:
        _log.info("base_not_read", directory=f"{directory}", error=f"{error}")
        return None
