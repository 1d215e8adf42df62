"""Answers what an engine asks: at once if it can, or once the adapter has been brought into the store.

An engine that asks holds a lock on the name until it is answered, and our own calls for that name wait for the same
lock. So nothing here waits for an engine call, nor for the loop that makes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from registry.model.names import name_key
from registry.sources.errors import ArtifactError
from sidecar.artifacts.types import ArtifactStore
from sidecar.chance import Chance
from sidecar.desired import DesiredAdapter
from sidecar.failures import Failure, after_staging
from sidecar.inputs import Inputs
from sidecar.lazy.answers import Bring, Refuse, Serve, find, judge
from sidecar.lazy.demand import Demand, Told
from sidecar.lazy.wire import Answer, Found, No, NoReason
from sidecar.ownership import Ownership
from sidecar.plan import Stage
from sidecar.retention import Use
from sidecar.staging import Staging

_log = structlog.get_logger()
ANSWER_SECONDS = 25.0
# What may have changed while a question waits is looked at this often.
LOOK_SECONDS = 0.25
MAX_WAITING = 128
MAX_STAGING = 64
# Anybody can cause these with any name, so that they are counted and not logged.
_SAID_OF_ANY_NAME = frozenset({"unknown_adapter", "not_lazy", "not_ready"})


@dataclass(frozen=True, slots=True)
class Means:
    """What a desk shares with the loop: etcd's newest state, the store, and whether the replica id is ours."""

    inputs: Inputs
    store: ArtifactStore
    ownership: Ownership


@dataclass(frozen=True, slots=True)
class _NotYet:
    """No answer yet; `reason` is what is said if there is none in time."""

    reason: NoReason


class Desk:
    """Where one engine's questions are answered."""

    def __init__(
        self,
        means: Means,
        demand: Demand,
        chance: Chance,
        expect: Callable[[Use], None],
        *,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """Answers nothing before it runs.

        Args:
            means: of the replica whose engine asks.
            demand: remembers questions and answers.
            chance: clocks, and jitter of the pauses after a failed staging.
            expect: is told of what the engine may read from now on, before it is answered (guarantee R7).
            answer_seconds: no question waits longer.
        """
        self._means = means
        self._demand = demand
        self._chance = chance
        self._expect = expect
        self._answer_seconds = answer_seconds
        self._staging: Staging | None = None
        self._waiting = 0
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Brings in what is asked for, until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._staging = Staging(self._means.store, tasks, on_failure=self._staging_failed, on_end=self._staged)
            await asyncio.Event().wait()

    async def ask(self, name: str) -> Answer:
        """Answers a question about a name within `answer_seconds`."""
        answer = await self._settle(name)
        if isinstance(answer, Found) or answer.reason not in _SAID_OF_ANY_NAME:
            _log.info("lazy_answered", name=name, answer=repr(answer))
        return answer

    async def _settle(self, name: str) -> Answer:
        answer = self._consider(name)
        if not isinstance(answer, _NotYet):
            return answer
        if self._waiting >= MAX_WAITING:
            return No(answer.reason)
        self._waiting += 1
        try:
            with self._demand.asking(name_key(name)):
                return await self._wait(name, answer)
        finally:
            self._waiting -= 1
            self._means.inputs.wake()  # what was not called while the question was open may be now

    async def _wait(self, name: str, answer: Answer | _NotYet) -> Answer:
        until = self._chance.monotonic() + self._answer_seconds
        while isinstance(answer, _NotYet):
            left = until - self._chance.monotonic()
            if left <= 0:
                return No(answer.reason)
            await self._look_out(min(left, LOOK_SECONDS))
            answer = self._consider(name)
        return answer

    async def _look_out(self, timeout_seconds: float) -> None:
        """Returns when something was staged, or after the time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._news.wait()
        except TimeoutError:
            return

    def _consider(self, name: str) -> Answer | _NotYet:
        """In one step of the event loop: what is found right here is still right when it is told."""
        inputs, terms = self._means.inputs, self._demand.terms
        if inputs.desired is None or terms is None or self._means.ownership.refusal:
            return No("not_ready")
        key = find(name, inputs.desired)
        if isinstance(key, No):
            return key
        if not terms.room:
            return No("no_room")
        adapter = self._demand.catalogue.whole(inputs.desired, key)
        if adapter is None:
            return _NotYet("not_ready")
        return self._judge(adapter)

    def _judge(self, adapter: DesiredAdapter) -> Answer | _NotYet:
        terms, staged = self._demand.terms, self._means.store.lookup(adapter.ref)
        if terms is None:
            return No("not_ready")
        now = self._chance.monotonic()
        match judge(adapter, staged, terms, self._demand.trouble(adapter.key), now=now):
            case Refuse(failure):
                return self._refuse(adapter, failure)
            case Bring():
                return self._bring(adapter)
            case Serve(staged):
                return self._serve(adapter, staged.path, now)

    def _refuse(self, adapter: DesiredAdapter, failure: Failure) -> Answer | _NotYet:
        if failure != self._demand.trouble(adapter.key):
            self._demand.note_trouble(adapter.key, failure)
            self._means.inputs.wake()
        return No("refused") if failure.retry_at is None else _NotYet("staging")

    def _serve(self, adapter: DesiredAdapter, path: str, now: float) -> Answer | _NotYet:
        if not self._demand.has_place(adapter.key):
            return _NotYet("no_room")
        self._expect((adapter.name, path))
        was_expecting = self._demand.is_expecting
        self._demand.tell(adapter.key, Told(adapter.name, path, now))
        if not was_expecting:
            self._means.inputs.wake()  # from now on the engine is looked at more often
        return Found(path)

    def _bring(self, adapter: DesiredAdapter) -> Answer | _NotYet:
        staging = self._staging
        if staging is None:
            return No("not_ready")
        if adapter.ref not in staging.in_progress and len(staging.in_progress) >= MAX_STAGING:
            return No("staging")
        staging.start([Stage(adapter.name, adapter.ref, adapter.request_id)])
        return _NotYet("staging")

    def _staging_failed(self, stage: Stage, error: ArtifactError) -> None:
        key = name_key(stage.name)
        failure = after_staging(
            error,
            stage.ref,
            self._demand.trouble(key),
            now=self._chance.monotonic(),
            uniform=self._chance.rng.uniform,
        )
        self._demand.note_trouble(key, failure)

    def _staged(self) -> None:
        """Something was staged, or has failed: whoever waits looks, and the status may have changed."""
        self._news.set()
        self._news = asyncio.Event()
        self._means.inputs.wake()
