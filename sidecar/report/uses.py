"""Last uses of adapters whose ttl begins with it, as a status tells them.

Nobody's wall clock is asked: a use is told as the revision of the store before which it was, and the clock of expiry
says how old that is (`registry.rollout.uses`). At each look the store is asked for its newest revision, and then the
engine for what was used since the look before: all of that was used before anything later is written. The status also
says up to which revision that is so, since who hears nothing cannot tell an adapter without requests from a replica
without a voice. That is one write each `tell_seconds`, however many requests come.

A lazy adapter may come and go between two looks. Each time the engine has to ask for it first, and that is a use.

Invariant: what is told is never earlier than what was so. What nobody knows, as what a process of the engine that is
gone was asked last, moves `since` on: any adapter may have been used until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.etcd3.ops import Range
from registry.model.status import MAX_USES, ReportedUses, tell_seconds
from registry.runtime.clock import Clock
from sidecar.desired.informer import DesiredAdapter, DesiredState, LazyAdapter
from sidecar.desired.mailbox import Mailbox
from sidecar.engines.driver import Engine, EngineError
from sidecar.engines.observed import EngineActivity
from sidecar.plan.names import key_of

# So often it is looked whether the pool has such adapters.
IDLE_SECONDS = 5.0
# By how much an age that the engine tells may be too long.
_AGE_SLACK_SECONDS = 1.0
_ETCD_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class KnownUses:
    """All that is known of uses; what each look makes of it is the next.

    Attributes:
        incarnation: process of the engine that was asked.
        since: before the store wrote this, any adapter may have been used.
        looked_at: monotonic seconds of the last look, from before the engine was asked.
        used: by name key, the revision before which it was last used.
    """

    incarnation: str = ""
    since: int = 0
    looked_at: float = 0.0
    used: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UseLook:
    """One look at an engine: its process, what it knows, and the store's newest revision before.

    `at`, `answered_at`: when it began, and when the engine had answered, in monotonic seconds. `asked`: name keys of
    the lazy adapters that the engine asked for since the look before, and before that revision was.
    """

    incarnation: str
    activity: EngineActivity
    revision: int
    at: float
    answered_at: float
    asked: frozenset[str] = frozenset()


def lives_of(desired: DesiredState | None) -> dict[str, tuple[str, int]]:
    """The adapters whose ttl begins with their last use: by name key, name and ttl in seconds."""
    if desired is None:
        return {}
    adapters: Iterator[tuple[str, DesiredAdapter | LazyAdapter]]
    adapters = chain(desired.adapters.items(), desired.lazy.items())
    return {key: (one.name, one.ttl_from_use_seconds) for key, one in adapters if one.ttl_from_use_seconds}


def used_within(activity: EngineActivity, seconds: float) -> frozenset[str]:
    """Name keys of what was used so lately, or has requests now, by whichever generation."""
    running = {key_of(name) for name, count in (activity.adapter_in_flight or {}).items() if count}
    return frozenset(running | {key_of(name) for name, age in (activity.last_used or {}).items() if age <= seconds})


def followed(known: KnownUses, look: UseLook, longest_pause_seconds: float, desired: DesiredState) -> KnownUses:
    """Knowledge after a look. After a longer pause, or by another process, the time before it is unknown.

    What is deleted is forgotten. Of others a use counts whose ttl may begin with it only later.
    """
    pause = look.at - known.looked_at
    if look.incarnation != known.incarnation or pause > longest_pause_seconds:
        return KnownUses(look.incarnation, look.revision + 1, look.at)
    age = look.answered_at - known.looked_at + _AGE_SLACK_SECONDS
    news = dict.fromkeys(used_within(look.activity, age) | look.asked, look.revision + 1)
    used = {key: at for key, at in {**known.used, **news}.items() if desired.of(key) is not None}
    return KnownUses(look.incarnation, known.since, look.at, used)


def reported_uses(known: KnownUses, revision: int, lives: Mapping[str, tuple[str, int]]) -> ReportedUses:
    """Uses as a status tells them. Of too many names those that were used first give way: that moves `since` on."""
    names = sorted((at, lives[key][0]) for key, at in known.used.items() if key in lives and at > known.since)
    cut = max(0, len(names) - MAX_USES)
    since = names[cut - 1][0] if cut else known.since
    return ReportedUses(since=since, until=revision, names=sorted((name, at) for at, name in names[cut:]))


class UseTeller:
    """Tells uses while the pool has adapters whose ttl begins with them.

    Args:
        key: of the replica's own in etcd; only the store's revision is read with it.
        tell: is called with what is to be told from now on; None: nothing is known, or nobody asks for it.
        asked: name keys of the lazy adapters that the engine asks for, until they are taken out here.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        engine: Engine,
        store: tuple[Client, bytes],
        clock: Clock,
        tell: Callable[[ReportedUses | None], None],
        asked: set[str],
    ) -> None:
        self._mailbox = mailbox
        self._engine = engine
        self._client, self._key = store
        self._clock = clock
        self._tell = tell
        self._asked = asked
        self._known = KnownUses()
        self._is_told = False
        self._lives_of: tuple[DesiredState | None, dict[str, tuple[str, int]]] = (None, {})

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            seconds = await self.look()
            await asyncio.sleep(seconds)

    async def look(self) -> float:
        """Looks once, and tells; returns the seconds until the next look."""
        desired = self._mailbox.snapshot.desired
        if desired is not self._lives_of[0]:  # many thousand adapters are walked through only once they changed
            self._lives_of = (desired, lives_of(desired))
        lives = self._lives_of[1]
        seconds = tell_seconds(min((ttl for _, ttl in lives.values()), default=0)) if lives else IDLE_SECONDS
        asked = frozenset(self._asked)
        self._asked.clear()
        look = await self._ask(asked) if lives else None
        if desired is not None and look is not None:
            self._known = followed(self._known, look, 2 * seconds, desired)
            self._is_told = True
            self._tell(reported_uses(self._known, look.revision, lives))
        elif self._is_told and (not lives or self._clock.monotonic() - self._known.looked_at > 2 * seconds):
            self._is_told = False
            self._tell(None)
        if lives and look is None:
            self._asked |= asked
        return seconds if look is not None or not lives else IDLE_SECONDS

    async def _ask(self, asked: frozenset[str]) -> UseLook | None:
        """None: the store or the engine does not answer, or nothing in that knows of uses."""
        at = self._clock.monotonic()
        try:
            read = await self._client.range(Range(self._key, keys_only=True), timeout_seconds=_ETCD_SECONDS)
            activity = await self._engine.activity()
            answered_at = self._clock.monotonic()
            # After it: where the process is the same as at the look before, the answer is of that one.
            incarnation = await self._engine.incarnation()
        except (EtcdError, EngineError):
            return None
        if activity.last_used is None or activity.adapter_in_flight is None:
            return None
        return UseLook(incarnation, activity, read.revision, at, answered_at, asked)
