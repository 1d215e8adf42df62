"""Drain of this replica (R20): its causes, and the need for it until it may end.

A replica that is about to end says so first, and goes on to serve. Everybody who places adapters, follows rollouts or
answers routers reads presences, so `leaving` in the presence is the one thing that has to change.

- Readiness ends at once, whatever round is out, and the presence is written as soon as etcd takes it. From then on no
  placement, and no residency but of what no other serves yet, names the replica (R20, R24).
- It unloads nothing that it hands over (see `still_kept`). The engine is about to end, or comes back as it is, and a
  router that has not heard yet still gets its answers.
- The need for it is over once its presence stands as leaving, each owner proves to serve what was handed over, and for
  what all replicas serve another one with such labels is ready. What cannot be read counts as needed.
- Where our plugin makes the engine's list of models, each adapter leaves that list once another replica serves it:
  whoever polls it, and nothing else, goes elsewhere too. Before the list is without adapters the replica is needed.
- A signal needs less: it waits only for what is placed on some replicas, only while somebody is there to take it and
  etcd is there to tell of it, and no longer than it was told to. A process that was told to end must end.
- A drain for a signal is never taken back: the process ends in any case.
- An order of an operator stands under the lease of the presence, so it goes with the replica. That it is gone says
  nothing: a sidecar that lost etcd for a while goes on to drain.
- An order that stood before this process began to listen says how it begins, not that it is to serve again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import aclosing
from enum import Enum

import structlog

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.etcd3.ops import KeyValue, Range
from registry.etcd3.reflector import Reflector
from registry.etcd3.stream import Changed, Connected, Disconnected, Listed, Progressed
from registry.model.errors import RegistryError
from registry.model.keys import Keys
from registry.model.status import DrainOrder, Presence
from registry.runtime.clock import Clock
from sidecar.desired.mailbox import Mailbox, heard_within
from sidecar.desired.placement import NOBODY
from sidecar.engines.driver import Engine, HidesNames
from sidecar.engines.observed import Done
from sidecar.plan.handoff import Need, need_of_common, need_of_placed
from sidecar.plan.takeover import common_selectors, has_placed, needed_names
from sidecar.plan.types import Plan
from sidecar.report.cache import StatusCache
from sidecar.report.events import EventRing
from sidecar.report.handoff_watch import HandoffWatch
from sidecar.report.writer import StatusWriter

_log = structlog.get_logger()
# How often it is looked what the replica is still needed for, while somebody waits for that.
ASK_SECONDS = 0.5
# While it drains the adapters are hidden again and again, each time for so long that a few calls may fail.
HIDE_AGAIN_SECONDS, HIDE_SECONDS = 5.0, 30.0
# How often it is looked whether others serve what is still listed.
LOOK_SECONDS = 1.0


class DrainCause(Enum):
    """Origin of the drain; the value stands in the status."""

    OPERATOR = "it drains: an operator asked for it; loraplane undrain takes that back"
    REQUEST = "it drains: /drain was called; loraplane undrain takes that back"
    SIGNAL = "it drains: its sidecar was told to end"


class ReplicaDrain:
    """True if this replica drains. Placement, residency and rollouts follow its presence, readiness follows at once."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        presence: Presence,
        mailbox: Mailbox,
        writer: StatusWriter,
        handoffs: HandoffWatch,
        cache: StatusCache,
        ring: EventRing,
        clock: Clock,
    ) -> None:
        self._client = client
        self._key = keys.drain(presence.pool, presence.replica)
        self._replica = presence.replica
        self._mailbox = mailbox
        self._writer = writer
        self._handoffs = handoffs
        self._cache = cache
        self._ring = ring
        self._clock = clock
        self._cause: DrainCause | None = None
        self._by = ""
        self._obeyed: KeyValue | None = None
        self._changed = asyncio.Event()
        # Names that stay in the engine's list, as it was told; None: it was not told to leave any out.
        self._shown: frozenset[str] | None = None
        self._told_to = ""  # which process of the engine; another has heard of nothing
        self._may_hide = True  # the process before this may have told it, too
        self._hides_names = False

    @property
    def why(self) -> str:
        """Why the replica drains, in one sentence; empty: it does not."""
        if self._cause is None:
            return ""
        return f"{self._cause.value}; called by {self._by}" if self._by else self._cause.value

    def begin(self, cause: DrainCause, by: str = "") -> None:
        """Begins to drain; a drain for a signal stays one. `by`: who asked for it, as far as that is known here."""
        if self._cause not in {cause, DrainCause.SIGNAL}:
            _log.info("drain_begun", replica=self._replica, cause=cause.name.lower(), by=by)
            self._become(cause, by)

    def end(self) -> None:
        """Serves again, unless the process is about to end."""
        if self._cause not in {None, DrainCause.SIGNAL}:
            _log.info("drain_ended", replica=self._replica)
            self._become(None)

    def _become(self, cause: DrainCause | None, by: str = "") -> None:
        self._cause, self._by = cause, by
        self._ring.take_drain(self.why)
        self._writer.announcement.leave(leaving=cause is not None)
        self._cache.take_drain(self.why)
        self._changed.set()

    async def hide(self, engine: Engine) -> None:
        """Keeps adapters that others serve out of the engine's list for strangers while the replica drains.

        Routers that poll the list then go elsewhere, while requests that come all the same are answered. Without this
        process the engine lists them again soon, and at once when the next one knows what is served. It runs until it
        is cancelled.
        """
        self._hides_names = isinstance(engine, HidesNames)
        told_at = -math.inf
        while isinstance(engine, HidesNames):
            self._changed.clear()
            now = asyncio.get_running_loop().time()
            if self._cause is None:
                if self._may_hide and self._plan() is not None and isinstance(await engine.hide(0.0), Done):
                    self._shown, self._may_hide = None, False
            elif self._is_listed() or now - told_at >= HIDE_AGAIN_SECONDS:
                told_at = await self._hide_others(engine, now, told_at)
            await self._until_changed()

    async def _hide_others(self, engine: HidesNames, now: float, told_at: float) -> float:
        """Has all left out that others serve, unless the engine was just told so; gives when it was told last.

        While that is not known, it is told what it was told before.
        """
        process, shown = self._process, await self._needed_names()
        if shown is None:
            return told_at
        is_known = shown == self._shown and process in {"", self._told_to}
        if is_known and now - told_at < HIDE_AGAIN_SECONDS:
            return told_at
        self._may_hide = True
        if not isinstance(await engine.hide(HIDE_SECONDS, shown), Done):
            return told_at
        self._shown, self._told_to = shown, process
        return now

    @property
    def _process(self) -> str:
        """Process of the engine that was seen last; empty: it is away."""
        observed = self._cache.report.situation.observed
        return "" if observed is None else observed.facts.incarnation

    def _is_listed(self) -> bool:
        """True if the engine may list adapters yet, by which routers that poll it send requests here."""
        return self._shown != frozenset() or self._process not in {"", self._told_to}

    async def _until_changed(self) -> None:
        """Waits for a begin or an end of a drain, or until the engine's list is to be looked at again."""
        is_calm = self._cause is None and not self._may_hide
        await heard_within(None if is_calm else LOOK_SECONDS, self._changed)

    async def _needed_names(self) -> frozenset[str] | None:
        """Names in the engine's list that no other replica is known to serve; None: not known, nor told before."""
        observed, plan = self._cache.report.situation.observed, self._plan()
        if observed is None or plan is None:
            return self._shown
        try:
            others = await self._handoffs.others(self._replica) if common_selectors(plan) else []
        except EtcdError:
            others = []  # nobody is known to be ready
        return needed_names(plan, observed.adapters, self._handoffs.verdicts(), others)

    async def run(self) -> None:
        """Follows the orders of operators until it is cancelled."""
        reflector = Reflector(self._client, self._key, b"", resume=None, rng=self._clock.rng)
        is_news = False  # what was ordered before this process began to listen is not about its own drain
        async with aclosing(reflector.stream()) as reflections:
            async for reflection in reflections:
                match reflection:
                    case Listed(kvs=kvs):
                        self._obey(kvs, is_news=is_news)
                        is_news = True
                    case Changed():
                        self._obey(await self._standing(), is_news=True)
                    case Disconnected(message):
                        _log.warning("drain_not_followed", replica=self._replica, error=message)
                    case Progressed() | Connected():
                        pass

    async def _standing(self) -> Sequence[KeyValue]:
        """The order that stands now.

        What a watch tells after a time without connection may be long gone, and whoever ordered the replica to serve
        again was then told that it does.
        """
        while True:
            try:
                return (await self._client.range(Range(self._key))).kvs
            except EtcdError as error:
                _log.warning("drain_not_followed", replica=self._replica, error=str(error))
                await asyncio.sleep(ASK_SECONDS)

    def _obey(self, orders: Sequence[KeyValue], *, is_news: bool) -> None:
        """Follows the order. That one is gone says nothing: it goes with the lease of the presence.

        The revision alone tells no two orders apart: in a store that was replaced another may stand at the same one.
        """
        for kv in orders:
            if kv == self._obeyed:
                continue  # it is listed again after a lost connection, and /drain may have been called since
            self._obeyed = kv
            try:
                order = DrainOrder.parse(kv.value)
            except RegistryError as error:
                _log.error("drain_refused", replica=self._replica, reason=error.reason, error=error.message)
                continue
            if order.drain:
                self.begin(DrainCause.OPERATOR)
            elif is_news:
                self.end()

    async def need(self) -> Need | None:
        """Need for the replica now; None: it does not drain."""
        return None if self._cause is None else await self._need()

    async def wait(self, seconds: float) -> Need:
        """Need for the replica, as soon as there is none or when the time is up."""
        need = Need.TAKEOVER
        try:
            async with asyncio.timeout(seconds):
                while True:
                    need = await self._need()
                    if need is Need.NOTHING:
                        break
                    await asyncio.sleep(ASK_SECONDS)
        except TimeoutError:
            _log.info("drain_waited", replica=self._replica, needed=need.name.lower())
        return need

    async def wait_at_end(self, seconds: float) -> None:
        """Drains at a signal: returns once others took over what they can, or the time is up.

        At once where nothing is to be handed over, nobody is there to take it, or etcd is away. In the end it says that
        nobody is to wait for this replica.
        """
        if self._may_hand_over():
            await self._hand_over(seconds)
        await self._writer.say_left()

    async def _hand_over(self, seconds: float) -> None:
        self.begin(DrainCause.SIGNAL)
        try:
            async with asyncio.timeout(seconds):
                while True:
                    if not self._mailbox.snapshot.connected or self._need_of_placed() is not Need.TAKEOVER:
                        break
                    await asyncio.sleep(ASK_SECONDS)
        except TimeoutError:
            _log.warning("not_handed_over", error=f"{seconds} s after the signal others do not serve it yet")

    def _may_hand_over(self) -> bool:
        snapshot, plan = self._mailbox.snapshot, self._plan()
        others = {*(snapshot.members or ())} - {self._replica}
        return snapshot.connected and bool(others) and plan is not None and has_placed(plan)

    def _plan(self) -> Plan | None:
        """The newest plan; None: the engine is away, so nothing is served here, or what is desired is not known."""
        situation = self._cache.report.situation
        return situation.plan if situation.observed is not None else None

    async def _need(self) -> Need:
        placed, plan = self._need_of_placed(), self._plan()
        if placed is Need.TAKEOVER or plan is None:
            return placed
        try:
            others = await self._handoffs.others(self._replica)
        except EtcdError:
            return Need.TAKEOVER
        common = need_of_common(common_selectors(plan), others)
        if placed is common is Need.NOTHING and self._hides_names and self._cause is not None and self._is_listed():
            return Need.TAKEOVER
        return placed if common is Need.NOTHING else common

    def _need_of_placed(self) -> Need:
        """The need for what only some replicas serve."""
        plan = self._plan()
        if plan is None:
            observed = self._cache.report.situation.observed
            return Need.TAKEOVER if observed is not None and observed.adapters else Need.NOTHING
        is_known = plan.is_out or (plan.among == NOBODY and not plan.chosen.undecided)
        if not (is_known and self._writer.is_leave_known):
            return Need.TAKEOVER
        return need_of_placed(plan.leaving, self._handoffs.verdicts())
