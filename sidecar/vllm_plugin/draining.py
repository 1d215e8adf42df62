"""Drain of adapters that are no longer registered but may be read.

A request is bound to an adapter as soon as it comes in, and is known to vLLM's output processor only when it has been
tokenized. Until then nothing but its own reference to the adapter tells of it. So an adapter is in use while a request
that is with the engine names its number, or while anybody but us refers to the object.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass

from .server import ApiServer, EngineAdapter

_log = logging.getLogger("vllm.loraplane")
SWEEP_SECONDS = 1.0
CALL_SECONDS = 30.0
# References that are ours: that of the record, and that of the call which counts.
_OUR_REFERENCES = 2


@dataclass(slots=True)
class Retired:
    """An adapter that no new request is bound to. `was_idle`: nobody used it when it was last looked at."""

    adapter: EngineAdapter
    was_idle: bool = False

    @property
    def references(self) -> int:
        """Number of others that refer to the adapter."""
        return sys.getrefcount(self.adapter) - _OUR_REFERENCES


class Drain:
    """The adapters that are retired. They leave when they are neither in use nor in the engine's memory."""

    def __init__(self, server: ApiServer, sweep_seconds: float = SWEEP_SECONDS) -> None:
        self._server = server
        self._sweep_seconds = sweep_seconds
        self._retired: dict[int, Retired] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._sweeping: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._retired)

    @property
    def retired(self) -> list[Retired]:
        """Adapters that are still draining."""
        return list(self._retired.values())

    def add(self, adapter: EngineAdapter) -> None:
        """Takes an adapter that was just unregistered, or is not registered yet."""
        self._retired[adapter.lora_int_id] = Retired(adapter)
        self._schedule()

    def _schedule(self) -> None:
        """By a timer, not by a task that sleeps: a swap may be cancelled, and retire, while the event loop ends."""
        if self._retired and self._timer is None and self._sweeping is None:
            self._timer = asyncio.get_running_loop().call_later(self._sweep_seconds, self._start)

    def _start(self) -> None:
        self._timer = None
        self._sweeping = asyncio.create_task(self._sweep_in_time(), name="loraplane drain")

    async def _sweep_in_time(self) -> None:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await self.sweep()
        except Exception as error:  # noqa: BLE001 - vLLM has no error tree; what is retired stays so
            _log.warning("loraplane: weights could not be removed from the engine, trying again: %s", error)
        finally:
            self._sweeping = None
            self._schedule()

    async def sweep(self) -> None:
        """Removes from the engine what is idle since the last sweep, and forgets what is not there any more.

        A request that ended may run for one more step, if it was ended in the API server: then the engine reads the
        files again. Calls reach the engine in order. So only an adapter that was idle one sweep ago, and is out of
        memory after that, can never come back.
        """
        self._forget_registered()
        before = {number for number, one in self._retired.items() if one.was_idle}
        self._look()
        idle = [number for number in before if self._retired[number].was_idle]
        if not idle:
            return
        for number in idle:
            await self._server.remove(number)
        resident = await self._server.resident()
        self._look()
        for number in idle:
            if self._retired[number].was_idle and number not in resident:
                del self._retired[number]

    def _forget_registered(self) -> None:
        for number, one in list(self._retired.items()):
            if self._server.registered.get(one.adapter.lora_name) is one.adapter:
                del self._retired[number]

    def _look(self) -> None:
        # In this order: what is in flight is referred to by its state, and by nothing of ours meanwhile.
        referred = {number for number, one in self._retired.items() if one.references > 0}
        bound = {adapter.lora_int_id for adapter in self._server.in_flight()}
        for number, one in self._retired.items():
            one.was_idle = number not in referred and number not in bound
