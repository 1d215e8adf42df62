"""Carries out a plan's engine calls: one at a time, paced while requests run, each with its request's id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

import structlog

from registry.model.names import name_key
from sidecar.artifacts.types import ArtifactRef
from sidecar.chance import Chance
from sidecar.engine_names import key_of
from sidecar.engines.driver import Engine
from sidecar.inputs import Inputs
from sidecar.metrics import ENGINE_CALL_SECONDS
from sidecar.observed import AlreadyThere, Gone, Observed, Outcome, Unknown
from sidecar.plan import Call, Load, Plan, Swap, Unload

_log = structlog.get_logger()
# After so many calls, or so long, the engine is looked at again and a new plan made.
MAX_CALLS = 16
MAX_SECONDS = 2.0
# While requests run, the engine rests this many times as long as the last load took (20 % duty).
REST_FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call that was made, and what the engine said of it.

    `key` is that of the adapter, and for an unload, which another adapter's load may replace, that of the engine's own
    name. `ref` and `path` are None for an unload. `before` is the path that a swap was to replace.
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


def _attempt(call: Call, incarnation: str, outcome: Outcome) -> Attempt:
    match call:
        case Load(name, path, ref):
            return Attempt(key_of(name), name, path, ref, incarnation, outcome)
        case Swap(name, old, new, ref):
            return Attempt(key_of(name), name, new, ref, incarnation, outcome, before=old)
        case Unload(name):
            return Attempt(name_key(name), name, None, None, incarnation, outcome)
    assert_never(call)


@dataclass(frozen=True, slots=True)
class Carried:
    """What became of a plan: the calls that were made, and whether the rest of it was left because it is old by now."""

    attempts: tuple[Attempt, ...]
    is_overtaken: bool


class Executor:
    """Makes the calls of one plan after another."""

    def __init__(self, engine: Engine, inputs: Inputs, chance: Chance, may_call: Callable[[str], bool]) -> None:
        """`may_call`: whether a call for a name key may be made now, which may change while a plan is carried out."""
        self._engine = engine
        self._inputs = inputs
        self._chance = chance
        self._may_call = may_call
        self._rest_until = 0.0

    async def carry_out(self, plan: Plan, incarnation: str, *, is_serving: bool) -> Carried:
        """Makes calls until the plan is done or out of date, something has to be looked at first, or it may not.

        After a rest nothing is called any more: a rest may take minutes, and the plan was made before it.

        Args:
            plan: what to do.
            incarnation: of the engine that the plan was made for.
            is_serving: True if requests may be running, so that loads have to be paced.
        """
        attempts: list[Attempt] = []
        started = self._chance.monotonic()
        for count, call in enumerate(plan.calls):
            if count and (count >= MAX_CALLS or self._is_over(plan, started)):
                break
            if is_serving and not isinstance(call, Unload) and await self._has_rested():
                return Carried(tuple(attempts), is_overtaken=True)
            if not self._may_call(key_of(call.name)):
                continue
            outcome = await self._make(call)
            attempts.append(_attempt(call, incarnation, outcome))
            if isinstance(outcome, Gone | Unknown):
                break
        return Carried(tuple(attempts), is_overtaken=False)

    def _is_over(self, plan: Plan, started: float) -> bool:
        desired = self._inputs.desired
        is_old = desired is not None and desired.revision != plan.revision
        return is_old or self._chance.monotonic() - started > MAX_SECONDS

    async def _has_rested(self) -> bool:
        """Lets running requests have the engine for a while after the last load; True if that took time."""
        rest_seconds = self._rest_until - self._chance.monotonic()
        if rest_seconds <= 0 or not await self._engine.is_busy():
            return False
        await asyncio.sleep(rest_seconds)
        return True

    async def _make(self, call: Call) -> Outcome:
        request_id = self._request_id(call)
        started = self._chance.monotonic()
        outcome = await self._send(call, request_id)
        seconds = self._chance.monotonic() - started
        if not isinstance(call, Unload):
            self._rest_until = started + seconds * (1 + REST_FACTOR)
        kind = type(call).__name__.lower()
        ENGINE_CALL_SECONDS.labels(kind, type(outcome).__name__.lower()).observe(seconds)
        _log.info("engine_call", call=kind, name=call.name, request_id=request_id, outcome=repr(outcome))
        return outcome

    def _request_id(self, call: Call) -> str:
        if isinstance(call, Unload):
            return self._inputs.deleted_by(key_of(call.name))
        return call.request_id

    async def _send(self, call: Call, request_id: str) -> Outcome:
        match call:
            case Load(name, path):
                return await self._engine.load(name, path, request_id=request_id)
            case Swap(name, old, new):
                return await self._engine.swap(name, old, new, request_id=request_id)
            case Unload(name):
                return await self._engine.unload(name, request_id=request_id)
        assert_never(call)
