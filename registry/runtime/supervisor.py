"""Supervisor of a daemon's long-lived parts: tells what failed, and runs it again.

A broken invariant of ours, or a value that nobody foresaw, is a fault of one part. The others have a lease to keep and
an engine to serve, and a process that ended over it would end again at each start.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from registry.etcd3.backoff import Backoff

_log = structlog.get_logger()
_RETRY = Backoff(base_seconds=1.0, cap_seconds=15.0)
# A part that has run for so long since it failed is well again; a round that succeeds is at once.
WELL_SECONDS = 30.0
# Runs a part of this name for as long as it has to run: see `Supervisor.keep`.
Keep = Callable[[str, Callable[[], Awaitable[None]]], Coroutine[Any, Any, None]]


async def keep_once(_part: str, work: Callable[[], Awaitable[None]]) -> None:
    """A `Keep` for parts that nobody supervises: what they raise is raised."""
    await work()


@dataclass(slots=True)
class Trouble:
    """A part that fails: the kind of its last error, since when (monotonic seconds), and how often in a row."""

    error: str
    since: float
    failures: int = 0


class Supervisor:
    """Keeps parts of one process running.

    Args:
        count: is told the name of a part at each failure, for a metric.
        rng: for jitter.
        fatal: errors that end the process, as their messages say.
    """

    def __init__(
        self,
        count: Callable[[str], None],
        rng: random.Random,
        *,
        fatal: tuple[type[Exception], ...] = (),
    ) -> None:
        self._count = count
        self._rng = rng
        self._fatal = fatal
        self._on_change: Callable[[], None] = lambda: None
        self._troubles: dict[str, Trouble] = {}

    def heed(self, on_change: Callable[[], None]) -> None:
        """Has this called when a part fails or is well again: whoever tells of `troubles`, so it is made later."""
        self._on_change = on_change

    @property
    def troubles(self) -> Mapping[str, Trouble]:
        """The parts that fail at present; always the same mapping, which changes."""
        return self._troubles

    async def keep(self, part: str, work: Callable[[], Awaitable[None]]) -> None:
        """Runs `work` until it returns. Whenever it fails, it is run again after a pause. Raises `fatal` errors."""
        while True:
            well = asyncio.get_running_loop().call_later(WELL_SECONDS, self._mend, part)
            try:
                return await work()
            except self._fatal:
                raise
            except Exception as error:  # noqa: BLE001 - the supervisor: whatever it was, the other parts go on
                pause = self._fail(part, error)
            finally:
                well.cancel()
            await asyncio.sleep(pause)

    async def paced(self, part: str, work: Callable[[], Awaitable[float]]) -> float:
        """Runs one round, and gives the seconds until the next: as the round says, or a back-off if it failed."""
        try:
            pause = await work()
        except self._fatal:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            return self._fail(part, error)
        self._mend(part)
        return pause

    def survives(self, part: str, work: Callable[[], None]) -> bool:
        """Runs something once that is done without if it fails; False: it did."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(part, error)
            return False
        return True

    def _fail(self, part: str, error: Exception) -> float:
        trouble = self._troubles.setdefault(part, Trouble("", asyncio.get_running_loop().time()))
        trouble.error, trouble.failures = type(error).__name__, trouble.failures + 1
        pause = _RETRY.delay(trouble.failures, self._rng.uniform)
        _log.error("part_failed", part=part, failures=trouble.failures, again_in_seconds=pause, exc_info=error)
        self._count(part)
        self._on_change()
        return pause

    def _mend(self, part: str) -> None:
        if self._troubles.pop(part, None) is not None:
            _log.info("part_well", part=part)
            self._on_change()
