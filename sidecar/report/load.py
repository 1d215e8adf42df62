"""Load of adapters whose number of replicas follows it, as a status tells it.

The engine is asked every few seconds how many requests for each adapter it has, running or waiting, and the average
over the last minute is what is told. It is told seldom, since each news of a status is a write to etcd that others
read: when it has moved by a tenth of what one replica is to have, and every `TELL_SECONDS` at most. An engine that
cannot say it, or has not for a minute, leaves it unknown: that is not the same as no requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from registry.model.names import name_key
from registry.model.status import MAX_IN_FLIGHT, MAX_LOADS, AdapterLoad, ReportedLoad
from registry.runtime.clock import Clock
from sidecar.desired.informer import DesiredState
from sidecar.desired.mailbox import Mailbox
from sidecar.engines.driver import Engine, EngineError

SAMPLE_SECONDS = 5.0
WINDOW_SECONDS = 60.0
# Fewer tell of a moment, not of a load.
LEAST_SAMPLES = 6
TELL_SECONDS = 20.0
_MOVED_SHARE = 0.1
# By name key, the adapter's name and what one replica is to have.
Targets = Mapping[str, tuple[str, int]]


def targets_of(desired: DesiredState | None) -> Targets:
    """The adapters whose number of replicas follows their requests."""
    adapters = desired.adapters.values() if desired is not None else ()
    return {
        one.key: (one.name, one.terms.per_replica)
        for one in adapters
        if one.terms is not None and one.terms.per_replica
    }


def averages(samples: list[Mapping[str, int]]) -> dict[str, float]:
    """Requests at once by name key, on average; an engine's own names may say a generation, too."""
    found: dict[str, float] = {}
    for sample in samples:
        for name, count in sample.items():
            key = name_key(name.partition("@")[0])
            found[key] = found.get(key, 0.0) + count / len(samples)
    return found


def reported(targets: Targets, loads: Mapping[str, float]) -> ReportedLoad:
    """The load as a status tells it, the busiest first."""
    busy = sorted(((-loads[key], name) for key, (name, _) in targets.items() if loads.get(key)))
    rows = [AdapterLoad(name=name, in_flight=round(min(-load, MAX_IN_FLIGHT), 2)) for load, name in busy]
    return ReportedLoad(adapters=rows[:MAX_LOADS], omitted=max(0, len(rows) - MAX_LOADS))


def has_moved(targets: Targets, before: ReportedLoad, now: ReportedLoad) -> bool:
    """True if the load of any adapter has moved by so much that it is worth telling, or has ended."""
    was, comes = ({name_key(one.name): one.in_flight for one in load.adapters} for load in (before, now))
    moves = ((abs(comes.get(key, 0.0) - was.get(key, 0.0)), per) for key, (_, per) in targets.items())
    has_ended = any(key not in comes for key in was)
    return has_ended or before.omitted != now.omitted or any(move >= _MOVED_SHARE * per for move, per in moves)


class LoadSampler:
    """Samples one engine while the pool has adapters whose number of replicas follows requests.

    Args:
        tell: is called with what is to be told from now on; None: nothing is known, or nobody asks for it.
    """

    def __init__(
        self, mailbox: Mailbox, engine: Engine, clock: Clock, tell: Callable[[ReportedLoad | None], None]
    ) -> None:
        self._mailbox = mailbox
        self._engine = engine
        self._clock = clock
        self._tell = tell
        self._samples: deque[tuple[float, Mapping[str, int]]] = deque()
        self._known: tuple[DesiredState | None, Targets] = (None, {})
        self._told: ReportedLoad | None = None
        self._told_at = 0.0

    async def run(self) -> None:
        """Samples until it is cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            await self.sample()

    async def sample(self) -> None:
        """Takes one sample, and tells what there is to tell."""
        desired = self._mailbox.snapshot.desired
        if desired is not self._known[0]:
            self._known = desired, targets_of(desired)
        targets, now = self._known[1], self._clock.monotonic()
        if targets and (counts := await self._counts()) is not None:
            self._samples.append((now, counts))
        while self._samples and (not targets or self._samples[0][0] <= now - WINDOW_SECONDS):
            self._samples.popleft()
        self._offer(targets, now)

    async def _counts(self) -> Mapping[str, int] | None:
        try:
            return (await self._engine.activity()).adapter_in_flight
        except EngineError:
            return None

    def _offer(self, targets: Targets, now: float) -> None:
        load = None
        if len(self._samples) >= LEAST_SAMPLES or (self._samples and self._told is not None):
            load = reported(targets, averages([counts for _, counts in self._samples]))
        if load is None or self._told is None:
            is_news = load is not self._told
        else:
            is_news = now - self._told_at >= TELL_SECONDS and has_moved(targets, self._told, load)
        if is_news:
            self._told, self._told_at = load, now
            self._tell(load)
