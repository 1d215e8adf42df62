"""Resolves names for an engine, at once or after staging.

An engine that asks holds a lock on the name until it is answered, and our own calls for that name wait for the same
lock. So nothing here waits for an engine call, nor for the loop that makes them. The engine is asked who it is alone,
which takes no lock: what the loop found out of the process before it, as which base model it has, is no answer to it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from registry.model.names import name_key
from registry.runtime.clock import Clock
from registry.sources.base import ArtifactError, SourceUnchanged
from sidecar.artifacts.staging import Staging, group_of
from sidecar.artifacts.types import ArtifactStore, Stage, Staged
from sidecar.desired.informer import DesiredAdapter
from sidecar.desired.mailbox import Mailbox, heard_within
from sidecar.engines.driver import EngineError
from sidecar.engines.observed import Use
from sidecar.ownership import Ownership
from sidecar.plan.backoff import Failure, after_staging
from sidecar.plan.names import SEPARATOR, key_of, version_of
from sidecar.resolver.demand import Answered, ResidentSet
from sidecar.resolver.policy import Fetch, Reject, Serve, ServingLimits, decide, find
from sidecar.vllm_plugin.protocol import Answer, NoReason, Resolved, Unresolved

_log = structlog.get_logger()
ANSWER_SECONDS = 25.0
# What may have changed while a question waits is looked at this often.
LOOK_SECONDS = 0.25
# So long something may be fetched that nobody wants any more.
UNWANTED_SECONDS = 5.0
# The plugin has 64 questions open at most: those about what one origin and tenant wait for leave some to others.
MAX_WAITING_OF_GROUP, MAX_WAITING = 48, 128
CROWDED = (
    "there is room for fewer lazy adapters than have requests at once: raise the engine's --max-cpu-loras, or start "
    "more replicas"
)
# So many are brought in at once of one origin and tenant, which then wait for each other, and so many of all.
MAX_STAGING_OF_GROUP, MAX_STAGING = 64, 1024
NO_ROOM: Final = "no_room"
# Anybody can cause these with any name, so that they are counted and not logged.
_SAID_OF_ANY_NAME = frozenset({"unknown_adapter", "not_lazy", "not_ready"})


@dataclass(frozen=True, slots=True)
class Means:
    """State that the resolver shares with the loop.

    Attributes:
        mailbox: the newest snapshot.
        store: of the host.
        ownership: who owns the replica id.
        incarnation: asks the engine for its present process, and raises EngineError.
    """

    mailbox: Mailbox
    store: ArtifactStore
    ownership: Ownership
    incarnation: Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class _NotYet:
    """No answer yet; `reason` is what is said if there is none in time."""

    reason: NoReason


def _is_full(staging: Staging, stage: Stage) -> bool:
    groups = [group_of(one.name, one.ref) for one in staging.in_progress.values()]
    return len(groups) >= MAX_STAGING or groups.count(group_of(stage.name, stage.ref)) >= MAX_STAGING_OF_GROUP


def _resolved(adapter: DesiredAdapter, staged: Staged, terms: ServingLimits) -> Resolved:
    expect = adapter.ref.expect if terms.rules.expects else ""
    return Resolved(staged.path, terms.rules.proves, expect, version_of(adapter, staged))


class Resolver:
    """Answers to one engine's questions."""

    def __init__(
        self,
        means: Means,
        demand: ResidentSet,
        clock: Clock,
        expect: Callable[[Use], None],
        *,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """Answers nothing before it runs.

        Args:
            means: of the replica whose engine asks.
            demand: remembers questions and answers.
            clock: clocks, and jitter of the pauses after a failed staging.
            expect: is told of what the engine may read from now on, before it is answered (guarantee R7).
            answer_seconds: no question waits longer.
        """
        self._means = means
        self._demand = demand
        self._clock = clock
        self._expect = expect
        self._answer_seconds = answer_seconds
        self._staging: Staging | None = None
        self._waiting = Counter[tuple[str, str]]()
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Brings in what is asked for, until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._staging = Staging(self._means.store, tasks, on_failure=self._staging_failed, on_end=self._staged)
            while True:
                await asyncio.sleep(UNWANTED_SECONDS)
                unwanted = {ref for ref, stage in self._staging.in_progress.items() if not self._is_wanted(stage)}
                self._staging.stop(unwanted)

    def _is_wanted(self, stage: Stage) -> bool:
        """True unless its adapter is gone, or is another version now."""
        desired, key = self._means.mailbox.snapshot.desired, key_of(stage.name)
        if desired is None or key not in desired.lazy:
            return desired is None
        adapter = self._demand.catalogue.whole(desired, key)
        return adapter is None or stage.ref in {adapter.ref, *(one.ref for one in adapter.fallbacks)}

    async def ask(self, name: str) -> Answer:
        """Answers a question about a name within `answer_seconds`."""
        self._note_use(name)
        answer = await self._settle(name)
        if isinstance(answer, Resolved) or answer.reason not in _SAID_OF_ANY_NAME:
            _log.info("lazy_answered", name=name, answer=repr(answer))
        return answer

    def _note_use(self, name: str) -> None:
        """Notes that a request came, which the engine may have forgotten when it is asked for uses next."""
        desired = self._means.mailbox.snapshot.desired
        key = None if desired is None else find(name, desired)
        if isinstance(key, str):
            self._demand.asked.add(key)

    async def _settle(self, name: str) -> Answer:
        until = self._clock.monotonic() + self._answer_seconds
        found = self._find(name)
        if isinstance(found, Unresolved):
            return found  # whoever asks
        await self._recall(name)
        asker = await self._asker()
        answer = self._consider(name, asker)
        if not isinstance(answer, _NotYet):
            return answer
        group = group_of(name, found[0].ref) if isinstance(found, tuple) else ("", "")
        if self._waiting[group] >= MAX_WAITING_OF_GROUP or self._waiting.total() >= MAX_WAITING:
            return Unresolved(answer.reason)
        self._waiting[group] += 1
        try:
            with self._demand.asking(name_key(name)):
                return await self._wait(name, asker, answer, until)
        finally:
            self._waiting -= Counter([group])
            self._means.mailbox.wake()  # what was not called while the question was open may be now

    async def _asker(self) -> str:
        """The process of the engine that asks; empty: it does not say it now."""
        try:
            return await self._means.incarnation()
        except EngineError:
            return ""

    async def _wait(self, name: str, asker: str, answer: Answer | _NotYet, until: float) -> Answer:
        while isinstance(answer, _NotYet):
            left = until - self._clock.monotonic()
            if left <= 0:
                if answer.reason == NO_ROOM:
                    self._note_crowded(name)
                return Unresolved(answer.reason)
            await heard_within(min(left, LOOK_SECONDS), self._news)
            asker = asker or await self._asker()
            answer = self._consider(name, asker)
        return answer

    def _note_crowded(self, name: str) -> None:
        """Has the status name an adapter for which all others that are loaded were in use."""
        desired, key, now = self._means.mailbox.snapshot.desired, name_key(name), self._clock.monotonic()
        adapter = None if desired is None else self._demand.catalogue.whole(desired, key)
        if adapter is not None:
            self._demand.troubles.note(key, Failure(adapter.ref, None, NO_ROOM, CROWDED, 1, now, since=now))

    async def _recall(self, name: str) -> None:
        """Looks beside the event loop at files that an earlier process may have staged."""
        found = self._find(name)
        if isinstance(found, tuple):
            adapter = found[0]
            if unseen := [
                one.ref for one in (adapter, *adapter.fallbacks) if self._means.store.lookup(one.ref) is None
            ]:
                await self._means.store.recall(unseen)

    def _consider(self, name: str, asker: str) -> Answer | _NotYet:
        """In one step of the event loop: what is found right here is still right when it is told."""
        found = self._find(name)
        if not isinstance(found, tuple):
            return found
        if asker != self._demand.incarnation:
            return _NotYet("not_ready")  # the loop has not looked at that process yet
        return self._judge(*found)

    def _find(self, name: str) -> tuple[DesiredAdapter, ServingLimits] | Unresolved | _NotYet:
        """The lazy adapter of that name, and what it is judged by."""
        desired, terms = self._means.mailbox.snapshot.desired, self._demand.terms
        if desired is None or terms is None or self._demand.is_paused or self._means.ownership.refusal:
            return Unresolved("not_ready")
        key = find(name, desired)
        if isinstance(key, Unresolved):
            return key
        if not terms.room:
            return Unresolved(NO_ROOM)
        adapter = self._demand.catalogue.whole(desired, key)
        return _NotYet("not_ready") if adapter is None else (adapter, terms)

    def _judge(self, adapter: DesiredAdapter, terms: ServingLimits) -> Answer | _NotYet:
        answer = self._offer(adapter, terms)
        failure = self._demand.troubles.of(adapter.key)
        is_failing = failure is not None and failure.ref == adapter.ref and failure.reason != NO_ROOM
        if isinstance(answer, Resolved) or not is_failing:
            return answer
        instead = (self._fall_back(one, terms) for one in adapter.fallbacks)
        return next((one for one in instead if one is not None), answer)

    def _fall_back(self, good: DesiredAdapter, terms: ServingLimits) -> Answer | _NotYet | None:
        """The same of the generation that was served before one that fails; None: it is not fit either."""
        staged, now = self._means.store.lookup(good.ref), self._clock.monotonic()
        verdict = decide(good, staged, terms, self._demand.troubles.of(good.key), now=now)
        if isinstance(verdict, Reject):
            return None
        if isinstance(verdict, Fetch) or not self._means.store.is_intact(verdict.staged.path):
            return self._bring(good, f"{good.name}{SEPARATOR}{good.generation}")
        return self._tell(good, _resolved(good, verdict.staged, terms), now, is_newest=False)

    def _offer(self, adapter: DesiredAdapter, terms: ServingLimits) -> Answer | _NotYet:
        staged, now = self._means.store.lookup(adapter.ref), self._clock.monotonic()
        match decide(adapter, staged, terms, self._demand.troubles.of(adapter.key), now=now):
            case Reject(failure):
                return self._refuse(adapter, failure)
            case Serve(staged) if self._means.store.is_intact(staged.path):
                return self._serve(adapter, _resolved(adapter, staged, terms), now)
            case Fetch() | Serve():
                return self._bring(adapter, adapter.name)

    def _refuse(self, adapter: DesiredAdapter, failure: Failure) -> Answer | _NotYet:
        if failure != self._demand.troubles.of(adapter.key):
            self._demand.troubles.note(adapter.key, failure)
            self._means.mailbox.wake()
        if failure.retry_at is None:
            return Unresolved("refused")
        is_soon = failure.retry_at <= self._clock.monotonic() + self._answer_seconds
        return _NotYet("staging") if is_soon else Unresolved("staging")

    def _serve(self, adapter: DesiredAdapter, told: Resolved, now: float) -> Answer | _NotYet:
        if self._demand.refusal(adapter, told.path, now) is not None:
            self._means.mailbox.wake()  # so that the status names it
            return Unresolved("refused")
        return self._tell(adapter, told, now, is_newest=True)

    def _tell(self, adapter: DesiredAdapter, told: Resolved, now: float, *, is_newest: bool) -> Answer | _NotYet:
        key, was_expecting = name_key(adapter.name), self._demand.is_expecting
        if not self._demand.has_place(key, now):
            if not was_expecting:
                self._means.mailbox.wake()
            return _NotYet(NO_ROOM)
        self._expect((adapter.name, told.path))
        self._demand.tell(key, Answered(adapter.name, told.path, now), is_newest=is_newest)
        if not was_expecting:
            self._means.mailbox.wake()  # from now on the engine is looked at more often
        return told

    def _bring(self, adapter: DesiredAdapter, name: str) -> Answer | _NotYet:
        """Fetches it; what fails of it is remembered under the key of `name`."""
        staging = self._staging
        if staging is None:
            return Unresolved("not_ready")
        stage = Stage(name, adapter.ref, adapter.request_id)
        if adapter.ref not in staging.in_progress and _is_full(staging, stage):
            return Unresolved("staging")
        staging.start([stage])
        return _NotYet("staging")

    def _staging_failed(self, stage: Stage, error: ArtifactError | SourceUnchanged) -> None:
        key = name_key(stage.name)
        failure = after_staging(
            error,
            stage.ref,
            self._demand.troubles.of(key),
            now=self._clock.monotonic(),
            uniform=self._clock.rng.uniform,
        )
        if failure is not None:
            self._demand.troubles.note(key, failure)

    def _staged(self) -> None:
        """Something was staged, or has failed: whoever waits looks, and the status may have changed."""
        self._news.set()
        self._news = asyncio.Event()
        self._means.mailbox.wake()
