"""Stages artifacts concurrently, in slots, and reports each end.

Nobody knows beforehand what a source is like. So each staging begins in one of the quick slots, and what is not done
after a moment goes on in one of the long ones. Where these are full too, it gives its slot to somebody of another
origin or tenant who has had none yet, and waits behind: slow sources keep each other waiting, and nobody else for
longer than that moment. Among those that take long, the one that has had the least time is first, as processes are
scheduled.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from registry.model.names import tenant_of
from registry.runtime import tracing
from registry.sources.base import ArtifactError, SourceUnchanged
from sidecar.artifacts.types import ArtifactRef, ArtifactStore, Stage
from sidecar.metrics import STAGE_SECONDS

QUICK_SLOTS = 4
LONG_SLOTS = 4
QUICK_SECONDS = 2.0
# What a long one has at the least before it gives way; each further turn is as long as all before it together.
LONG_SECONDS = 120.0
_Group = tuple[str, str]


def origin_of(uri: str) -> str:
    """Identity of a source's server: the scheme and the authority of its URI; of a file the first folder."""
    scheme, _, rest = uri.partition("://")
    authority, _, path = rest.partition("/")
    return f"{scheme}://{authority}/{path.partition('/')[0]}" if scheme == "file" else f"{scheme}://{authority}"


def group_of(name: str, ref: ArtifactRef) -> _Group:
    """Origin and tenant of an adapter: those of one group wait for each other."""
    return origin_of(ref.uri), tenant_of(name)


@dataclass(eq=False, slots=True)
class Turn:
    """One staging, waiting or at work.

    Attributes:
        stage: what is staged.
        had_seconds: how long it has worked in turns that are over.
        is_long: it waits for, or has, a long slot.
        since: when its present turn began; None: it waits.
        entered: when it was admitted.
    """

    stage: Stage
    entered: float
    had_seconds: float = 0.0
    is_long: bool = False
    since: float | None = None
    origin: str = field(init=False)
    tenant: str = field(init=False)

    def __post_init__(self) -> None:
        self.origin, self.tenant = group_of(self.stage.name, self.stage.ref)

    def worked(self, now: float) -> float:
        """Seconds of its present turn."""
        return now - self.since if self.since is not None else 0.0

    @property
    def gives_way_at(self) -> float:
        """Time from which it may have to give way."""
        turn = max(LONG_SECONDS, self.had_seconds) if self.is_long else QUICK_SECONDS
        return (self.since or 0.0) + turn

    def is_over(self, now: float) -> bool:
        return now >= self.gives_way_at


class Rearrangement(NamedTuple):
    """Stagings whose turn begins, and those whose turn ends before their work is done."""

    begin: list[Turn]
    stop: list[Turn]


class StagingSlots:
    """The slots of one `Staging` and the queues before them."""

    def __init__(self) -> None:
        """Nobody is there."""
        self._fresh: dict[_Group, deque[Turn]] = {}
        self._slow: list[Turn] = []
        self.working: list[Turn] = []

    def admit(self, turn: Turn) -> None:
        """Puts a staging into the queue of its origin and tenant."""
        self._fresh.setdefault((turn.origin, turn.tenant), deque()).append(turn)

    def end(self, turn: Turn) -> None:
        """The work is done, or failed."""
        self.working.remove(turn)

    def withdraw(self, refs: AbstractSet[ArtifactRef]) -> list[Turn]:
        """Takes out the stagings of these refs; returns those that were at work."""
        stopped = [turn for turn in self.working if turn.stage.ref in refs]
        self.working = [turn for turn in self.working if turn.stage.ref not in refs]
        self._slow = [turn for turn in self._slow if turn.stage.ref not in refs]
        left = {group: deque(one for one in queue if one.stage.ref not in refs) for group, queue in self._fresh.items()}
        self._fresh = {group: queue for group, queue in left.items() if queue}
        return stopped

    def rearrange(self, now: float) -> Rearrangement:
        """Says what changes now; it is taken as done."""
        change = Rearrangement([], [])
        for turn in [turn for turn in self.working if not turn.is_long and turn.is_over(now)]:
            if self._count(is_long=True) < LONG_SLOTS:
                turn.is_long, turn.had_seconds, turn.since = True, turn.worked(now), now
        while (fresh := self._next_fresh(now)) is not None and self._has_room(fresh, now, change):
            self._begin(self._pop(fresh), now, change)
        while self._slow and self._has_room(min(self._slow, key=lambda turn: turn.had_seconds), now, change):
            turn = min(self._slow, key=lambda turn: turn.had_seconds)
            self._slow.remove(turn)
            self._begin(turn, now, change)
        return change

    def _count(self, *, is_long: bool) -> int:
        return sum(turn.is_long is is_long for turn in self.working)

    def _begin(self, turn: Turn, now: float, change: Rearrangement) -> None:
        turn.since = now
        self.working.append(turn)
        change.begin.append(turn)

    def _has_room(self, turn: Turn, now: float, change: Rearrangement) -> bool:
        """True if a slot is free for it, if need be because another gave way."""
        if self._count(is_long=turn.is_long) < (LONG_SLOTS if turn.is_long else QUICK_SLOTS):
            return True
        others = [one for one in self.working if one.is_long is turn.is_long and one.is_over(now)]
        others = [one for one in others if _may_take(turn, one, now)]
        if not others:
            return False
        slowest = max(others, key=lambda one: one.had_seconds + one.worked(now))
        self.working.remove(slowest)
        slowest.had_seconds += slowest.worked(now)
        slowest.is_long, slowest.since = True, None
        self._slow.append(slowest)
        change.stop.append(slowest)
        return True

    def _next_fresh(self, now: float) -> Turn | None:
        """The first of those whose origin, and then whose tenant, has the least at work or behind."""
        busy = [*self.working, *self._slow]
        origins, tenants = Counter(one.origin for one in busy), Counter(one.tenant for one in busy)
        late = [one for one in self.working if one.is_long or one.is_over(now)]
        if self._count(is_long=False) < QUICK_SLOTS:
            heads: Iterable[Turn] = (queue[0] for queue in self._fresh.values())
        else:
            heads = (queue[0] for queue in self._fresh.values() if _is_other(queue[0], late))
        # Ties go to whoever came first: `min` takes the first, and so does the order of the queues.
        return min(heads, key=lambda one: (origins[one.origin], tenants[one.tenant], one.entered), default=None)

    def _pop(self, turn: Turn) -> Turn:
        group = turn.origin, turn.tenant
        self._fresh[group].popleft()
        if not self._fresh[group]:
            del self._fresh[group]
        return turn


def _is_other(turn: Turn, late: Iterable[Turn]) -> bool:
    """True if its origin or its tenant has nothing at work that takes long."""
    return all(turn.origin != one.origin for one in late) or all(turn.tenant != one.tenant for one in late)


def _may_take(turn: Turn, slot_of: Turn, now: float) -> bool:
    """It may take the slot of somebody else who has had more time; a fresh one has had none."""
    is_behind = turn.had_seconds < slot_of.had_seconds + slot_of.worked(now)
    return is_behind and (turn.origin, turn.tenant) != (slot_of.origin, slot_of.tenant)


_log = structlog.get_logger()
_BROKEN = "the sidecar itself failed: its log has the traceback; please report it"


def _unheard(_stage: Stage) -> None:
    """Nobody hears of it."""


class Staging:
    """Runs `ArtifactStore.ensure` in tasks of the given group, as `StagingSlots` has room for them."""

    def __init__(
        self,
        store: ArtifactStore,
        tasks: asyncio.TaskGroup,
        *,
        on_failure: Callable[[Stage, ArtifactError | SourceUnchanged], None],
        on_end: Callable[[], None],
        on_success: Callable[[Stage], None] = _unheard,
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._on_failure = on_failure
        self._on_end = on_end
        self._slots = StagingSlots()
        self._working: dict[Turn, asyncio.Task[None]] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._on_success = on_success
        self.in_progress: dict[ArtifactRef, Stage] = {}

    def start(self, stages: Iterable[Stage]) -> None:
        """Starts what is not in progress yet."""
        for stage in stages:
            if stage.ref not in self.in_progress:
                self.in_progress[stage.ref] = stage
                self._slots.admit(Turn(stage, _now()))
        self._rearrange()

    def stop(self, refs: AbstractSet[ArtifactRef]) -> None:
        """Ends what nobody wants any more, and gives its slots to others; of such an end nobody hears."""
        if not (unwanted := refs & self.in_progress.keys()):
            return
        for ref in unwanted:
            del self.in_progress[ref]
        for turn in self._slots.withdraw(unwanted):
            self._working.pop(turn).cancel()
            _log.info("staging_stopped", name=turn.stage.name, origin=turn.origin, request_id=turn.stage.request_id)
        self._rearrange()

    def _rearrange(self) -> None:
        if any(task.cancelling() for task in self._working.values()):
            return  # by others than us: the group ends, and takes no more tasks, however these end and whenever
        change = self._slots.rearrange(_now())
        for turn in change.stop:
            self._working.pop(turn).cancel()
            _log.info("staging_put_back", name=turn.stage.name, origin=turn.origin, seconds=turn.had_seconds)
        for turn in change.begin:
            self._working[turn] = self._tasks.create_task(self._run(turn), name=f"stage {turn.stage.name}")
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Has the slots rearranged when the next turn is over, while anything works."""
        if self._alarm is not None:
            self._alarm.cancel()
        loop = asyncio.get_running_loop()
        due = [turn.gives_way_at for turn in self._slots.working if not turn.is_over(loop.time())]
        self._alarm = loop.call_at(min(due), self._rearrange) if due else None

    async def _run(self, turn: Turn) -> None:
        stage = turn.stage
        failed = ""
        try:
            with tracing.about(stage.request_id, {"adapter": stage.name}):
                staged = await self._store.ensure(stage.ref, stage.refused)
            about = {"name": stage.name, "artifact": staged.id, "digest": staged.digest}
            _log.info("artifact_staged", **about, request_id=stage.request_id)
            self._on_success(stage)
        except SourceUnchanged as error:
            failed = "source_unchanged"
            self._on_failure(stage, error)
        except ArtifactError as error:
            failed = error.reason
            self._on_failure(stage, error)
            about = {"name": stage.name, "reason": error.reason, "message": error.message, "detail": error.detail}
            _log.warning("artifact_failed", **about, request_id=stage.request_id)
        except Exception:  # noqa: BLE001 - the supervisor of one staging: what somebody's files made us do ends no other
            failed = "internal_error"
            self._on_failure(stage, ArtifactError("internal_error", _BROKEN))
            _log.exception("staging_broke", name=stage.name, request_id=stage.request_id)
        self._end(turn, failed)

    def _end(self, turn: Turn, failed: str) -> None:
        task = self._working.get(turn)
        if task is None or task.cancelling():
            return  # its end came with that of its turn, and the next one will find what is there; or with the group's
        del self._working[turn]
        self._slots.end(turn)
        seconds, stage = _now() - turn.entered, turn.stage
        STAGE_SECONDS.observe(seconds)
        tracing.record("staged", stage.request_id, {"adapter": stage.name}, seconds=seconds, failed=failed)
        del self.in_progress[turn.stage.ref]
        self._rearrange()
        self._on_end()


def _now() -> float:
    return asyncio.get_running_loop().time()
