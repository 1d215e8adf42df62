"""Executes a plan's engine calls, paced while requests run, and beside slow ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, assert_never

import structlog

from registry.model.names import PROOF_PREFIX, name_key
from registry.runtime import tracing
from registry.runtime.clock import Clock
from sidecar.artifacts.types import ArtifactRef
from sidecar.desired.mailbox import Mailbox
from sidecar.engines.driver import Engine, check_name
from sidecar.engines.observed import AlreadyThere, Done, EngineGone, EnginePaused, Observed, Outcome, Unknown, Use
from sidecar.metrics import ENGINE_CALL_SECONDS
from sidecar.plan.names import SEPARATOR, key_of
from sidecar.plan.types import Call, InProgress, Load, Plan, Swap, Unload

_log = structlog.get_logger()
# After so many calls, or so long, the engine is looked at again and a new plan made.
MAX_CALLS = 16
MAX_SECONDS = 2.0
# A call that takes longer is slow: it goes on by itself, and others are made beside it.
SLOW_SECONDS = 2.0
# One that is not sent yet, since it waits for the right moment, is not left behind. It is asked after so often.
DECIDING_SECONDS = 0.1
# So many of each kind may be under way at once, each for other names, so that no kind waits for another. vLLM's core
# carries loads and swaps out one after another: more of them at once would only stand in its queue.
MOST_AT_ONCE: dict[type[Call], int] = {Load: 3, Swap: 2, Unload: 4}
# While requests run, the engine rests this many times as long as the last load took (20 % duty), but no longer than
# the other: what took so long has waited for something, and did not compute.
REST_FACTOR = 4.0
MAX_REST_SECONDS = 10.0
# An engine that had no requests is not asked again for so long, in which many small adapters are loaded. A request that
# comes meanwhile finds no rest between loads, but for no longer.
IDLE_SECONDS = 0.05


# What a trace calls the end of each kind of call.
_STAGES = {"load": "loaded", "swap": "swapped", "unload": "unloaded"}


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call that was made, and what the engine said of it.

    `key` is that of the adapter or of its last good generation, and for an unload, which another adapter's load may
    replace, that of the engine's own name. `ref` and `path` are None for an unload. `before` is the path that a swap
    was to replace.
    """

    key: str
    name: str
    path: str | None
    ref: ArtifactRef | None
    incarnation: str
    outcome: Outcome
    before: str | None = None

    @property
    def is_unsettled(self) -> bool:
        """True for a load or swap that may yet happen."""
        return self.ref is not None and isinstance(self.outcome, Unknown)

    def is_borne_out(self, observed: Observed) -> bool:
        """True if the listing shows what the call was for; a name that another got first is the planner's matter.

        Not so where it is what it was before, as with an engine that loads by itself what a request asks for: the same
        call would be made again at once.
        """
        listed = observed.adapters.get(self.name)
        return listed == self.path or (listed not in (None, self.before) and isinstance(self.outcome, AlreadyThere))

    def listed_as(self, observed: Observed) -> str:
        """Another name of no adapter's proof under which the listing has the same files; empty: none.

        What is to be replaced by a swap, or is served by another name as well, says nothing.
        """
        if self.path is None or self.name in observed.adapters:
            return ""
        others = (name for name, path in observed.adapters.items() if path == self.path)
        return min((name for name in others if not name.startswith(PROOF_PREFIX)), default="")


def _attempt(call: Call, incarnation: str, outcome: Outcome) -> Attempt:
    match call:
        case Load(name, path, ref):
            return Attempt(call.key or key_of(name), name, path, ref, incarnation, outcome)
        case Swap(name, old, new, ref):
            return Attempt(key_of(name), name, new, ref, incarnation, outcome, before=old)
        case Unload(name):
            return Attempt(name_key(name), name, None, None, incarnation, outcome)
    assert_never(call)


def _keys_of(call: Call) -> Iterator[str]:
    """Everything that nothing else may be called for meanwhile: the adapter, and the engine's names for it."""
    yield name_key(call.name)
    if not isinstance(call, Unload) and not (isinstance(call, Load) and call.beside):
        yield key_of(call.name)
    if isinstance(call, Swap):
        yield name_key(check_name(call.new))


def _uses_of(call: Call) -> Iterator[Use]:
    """Artifacts that the engine may read for it; a failed swap puts back the old one."""
    yield call.name, call.new if isinstance(call, Swap) else call.path
    if isinstance(call, Swap):
        yield call.name, call.old


@dataclass(frozen=True, slots=True)
class Carried:
    """Outcome of a plan.

    Attributes:
        attempts: the calls that have ended.
        again_seconds: after so long there is to be another plan, since the rest of this one had to wait; None: as the
            plan itself says.
    """

    attempts: tuple[Attempt, ...]
    again_seconds: float | None = None


class Executor:
    """Makes the calls of one plan after another, and none for a name while another for it is under way."""

    def __init__(
        self,
        engine: Engine,
        mailbox: Mailbox,
        clock: Clock,
        may_call: Callable[[Call], bool],
        start: Callable[[Coroutine[Any, Any, Attempt]], asyncio.Task[Attempt]],
    ) -> None:
        """`may_call`: whether a call may be made now, which may change while a plan is carried out.

        `start` makes a task of a call; whoever runs the executor ends it.
        """
        self._engine = engine
        self._mailbox = mailbox
        self._clock = clock
        self._may_call = may_call
        self._start = start
        self._rest_until = self._idle_until = 0.0
        self._under_way: dict[asyncio.Task[Attempt], Call] = {}

    @property
    def in_progress(self) -> InProgress:
        """The calls that were not collected yet: a plan must leave their names alone."""
        calls = self._under_way.values()
        keys = frozenset(key for call in calls for key in _keys_of(call))
        return InProgress(keys, frozenset(call.name for call in calls if isinstance(call, Load)))

    @property
    def uses(self) -> set[Use]:
        """Artifacts that the engine may read for these calls."""
        return {use for call in self._under_way.values() for use in _uses_of(call)}

    def collect(self) -> tuple[Attempt, ...]:
        """Slow calls that have ended since. Only a look from after this tells what came of them."""
        ended = [task for task in self._under_way if task.done()]
        for task in ended:
            del self._under_way[task]
        return tuple(task.result() for task in ended)

    async def carry_out(self, plan: Plan, incarnation: str, *, is_serving: bool) -> Carried:
        """Makes calls until the plan is done or out of date, something has to be looked at first, or it may not.

        Nothing is called beside a slow call, nor while the engine is to rest from the last load: the plan would be old
        by then, and what the calls before came to is to be told at once.

        Args:
            plan: what to do.
            incarnation: of the engine that the plan was made for.
            is_serving: True if requests may be running, so that loads have to be paced.
        """
        attempts: list[Attempt] = []
        started = self._clock.monotonic()
        for count, call in enumerate(plan.calls):
            if count and (count >= MAX_CALLS or self._is_over(plan, started)):
                break
            if not self._has_room(call):
                continue
            if is_serving and not isinstance(call, Unload) and (rest_seconds := await self._rest_seconds()) > 0:
                return Carried(tuple(attempts), rest_seconds)
            if not self._may_call(call):
                continue
            attempt = await self._make(call, incarnation)
            if attempt is None:
                return Carried(tuple(attempts), 0.0)
            attempts.append(attempt)
            if isinstance(attempt.outcome, EngineGone | EnginePaused | Unknown):
                break
        return Carried(tuple(attempts))

    def _is_over(self, plan: Plan, started: float) -> bool:
        desired = self._mailbox.snapshot.desired
        is_old = desired is not None and desired.revision != plan.revision
        return is_old or self._clock.monotonic() - started > MAX_SECONDS

    def _has_room(self, call: Call) -> bool:
        """False while calls under way are too many, or one of them is for the same name."""
        others = self._under_way.values()
        if not self._engine.is_concurrent:
            return not others
        if self._engine.swaps_alone and not isinstance(call, Unload) and any(isinstance(one, Swap) for one in others):
            return False
        is_free = self.in_progress.keys.isdisjoint(_keys_of(call))
        return is_free and sum(type(one) is type(call) for one in others) < MOST_AT_ONCE[type(call)]

    async def _rest_seconds(self) -> float:
        """Seconds for running requests to have the engine after the last load; 0: none."""
        now = self._clock.monotonic()
        if now >= self._rest_until or now < self._idle_until:
            return 0.0
        if await self._engine.is_busy():
            return self._rest_until - now
        self._idle_until = now + IDLE_SECONDS
        return 0.0

    async def _make(self, call: Call, incarnation: str) -> Attempt | None:
        """Makes a call and waits for its end, but not for long; None: it goes on."""
        task = self._start(self._attempt(call, incarnation))
        self._under_way[task] = call
        await asyncio.wait({task}, timeout=SLOW_SECONDS)
        while not task.done() and self._engine.is_deciding:
            await asyncio.wait({task}, timeout=DECIDING_SECONDS)
        if task.done():
            del self._under_way[task]
            return task.result()
        task.add_done_callback(lambda _: self._mailbox.wake())
        return None

    async def _attempt(self, call: Call, incarnation: str) -> Attempt:
        started = self._clock.monotonic()
        outcome = await self._send(call)
        seconds = self._clock.monotonic() - started
        if not isinstance(call, Unload):
            self._rest_until = started + seconds + min(seconds * REST_FACTOR, MAX_REST_SECONDS)
        kind = type(call).__name__.lower()
        failed = "" if isinstance(outcome, Done | AlreadyThere) else type(outcome).__name__.lower()
        about = {"adapter": call.name.partition(SEPARATOR)[0], "engine_name": call.name}
        tracing.record(_STAGES[kind], call.request_id, about, seconds=seconds, failed=failed)
        ENGINE_CALL_SECONDS.labels(kind, type(outcome).__name__.lower()).observe(seconds)
        _log.info("engine_call", call=kind, name=call.name, request_id=call.request_id, outcome=repr(outcome))
        return _attempt(call, incarnation, outcome)

    async def _send(self, call: Call) -> Outcome:
        if not isinstance(call, Unload) and call.prove:
            path = call.new if isinstance(call, Swap) else call.path
            proven = await self._engine.prove(path, call.ref.expect, request_id=call.request_id)
            if not isinstance(proven, Done):
                return proven
        match call:
            case Load(name, path):
                return await self._engine.load(name, path, request_id=call.request_id)
            case Swap(name, old, new):
                return await self._engine.swap(name, old, new, request_id=call.request_id)
            case Unload(name):
                return await self._engine.unload(name, request_id=call.request_id)
        assert_never(call)
