"""Gauges of adapters in the engine's memory, named as in vLLM's open changes.

vLLM tells of adapters with requests alone (`vllm:lora_requests_info`); routers that score by residency need those that
are loaded and idle as well. The workers are asked every second, since a request that comes may move weights between
their slots and the memory of the host. What is told is what all workers have; what they said too long ago is not told,
and nothing is where the engine has metrics of these names itself.

A name is told with the weights that its next request is bound to. Names that leave the list are left out: a router must
not go there any more. The counts are of the memory, whatever the weights are called.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .listing import PublicListing
from .server import ApiServer

_log = logging.getLogger("vllm.loraplane")
MEMORY_METHOD = "loraplane_memory"
LOADED, ON_GPU, GPU_SLOTS = (
    "vllm:lora_adapter_loaded",
    "vllm:num_gpu_loaded_lora_adapters",
    "vllm:max_gpu_lora_adapters",
)
NAMES = frozenset({LOADED, ON_GPU, GPU_SLOTS})
LOOK_SECONDS = 1.0
CALL_SECONDS = 4.0
# Longer than a look may take: a number that is told is never older.
MAX_AGE_SECONDS = 6.0


def memory(worker: Any) -> dict[str, list[int]]:  # noqa: ANN401 - vLLM's own
    """Numbers of the weights in the slots of one worker, in its host's memory, and pinned there.

    Raises:
        AttributeError: vLLM is not as it was read.
    """
    manager = worker.model_runner.lora_manager._adapter_manager  # noqa: SLF001 - vLLM tells it nowhere else
    known = manager._registered_adapters  # noqa: SLF001
    active = manager._active_adapters  # noqa: SLF001
    return {"gpu": list(active.cache), "cpu": list(known.cache), "pinned": list(known.pinned_items)}


@dataclass(frozen=True, slots=True)
class WeightsInMemory:
    """Numbers of the weights that all workers have, at a time of the clock."""

    gpu: frozenset[int]
    cpu: frozenset[int]
    pinned: frozenset[int]
    at: float

    @classmethod
    def of(cls, workers: Iterable[dict[str, list[int]]], at: float) -> WeightsInMemory:
        """The weights that several workers have in common."""
        told = list(workers)

        def common(where: str) -> frozenset[int]:
            return frozenset.intersection(*(frozenset(one[where]) for one in told))

        return cls(common("gpu"), common("cpu"), common("pinned"), at)


class ResidencyGauges:
    """Collector for prometheus_client, in whose threads `collect` may run.

    Args:
        server: the API server.
        listing: which names are on their way out.
        ask: each worker for its `memory`.
        family: makes a gauge: name, help, names of its labels (prometheus_client's `GaugeMetricFamily`).
        theirs: names that the engine has metrics of; these are left to it.
        model: name of the base model, as the label ``model_name``.
        now: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        server: ApiServer,
        listing: PublicListing,
        ask: Callable[[], Awaitable[list[dict[str, list[int]]]]],
        family: Callable[..., Any],
        *,
        theirs: frozenset[str] = frozenset(),
        model: str = "",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._listing = listing
        self._ask = ask
        self._family = family
        self._theirs = theirs
        self._model = model
        self._now = now
        self._memory: WeightsInMemory | None = None
        self._is_silent = False

    async def run(self) -> None:
        """Looks every second until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Asks the workers; without an answer what they said last is told for as long as it may be."""
        begun = self._now()
        try:
            async with asyncio.timeout(CALL_SECONDS):
                self._memory = WeightsInMemory.of(await self._ask(), begun)
        except Exception as error:  # noqa: BLE001 - the engine's errors have no type of their own
            if not self._is_silent:
                _log.warning("loraplane: the engine does not say which adapters are in its memory: %s", error or "late")
            self._is_silent = True
            return
        self._is_silent = False

    def describe(self) -> Iterable[Any]:
        """Nothing: so that the names stay free for whoever registers them after us."""
        return ()

    def collect(self) -> Iterator[Any]:
        """The gauges, as far as they are known now and the engine has none of their names."""
        found = self._memory
        if found is None or self._now() - found.at > MAX_AGE_SECONDS:
            return
        on_gpu = self._number(ON_GPU, "Number of LoRA adapters in the engine's slots.", len(found.gpu))
        limit = self._server.limits.get("max_loras")
        slots = self._number(GPU_SLOTS, "Number of the engine's slots for LoRA adapters.", limit)
        for gauge in (self._loaded(found), on_gpu, slots):
            if gauge is not None and gauge.name not in self._theirs:
                yield gauge

    def _loaded(self, found: WeightsInMemory) -> Any:  # noqa: ANN401 - prometheus_client's
        labels = ("model_name", "adapter_name", "level", "pinned")
        gauge = self._family(LOADED, "1 for each LoRA adapter in the engine's memory.", labels=labels)
        for name, number in self._listed():
            if number in found.cpu:
                level = "gpu" if number in found.gpu else "cpu"
                gauge.add_metric((self._model, name, level, "true" if number in found.pinned else "false"), 1)
        return gauge

    def _listed(self) -> Iterator[tuple[str, int]]:
        """Names with the numbers of their weights. By `get`: what is looked at here is not used."""
        for name in list(self._server.registered):
            adapter = self._server.registered.get(name)
            if adapter is not None and not self._listing.is_leaving(adapter):
                yield name, adapter.lora_int_id

    def _number(self, name: str, about: str, value: int | None) -> Any:  # noqa: ANN401 - prometheus_client's
        if value is None:
            return None
        gauge = self._family(name, about, labels=("model_name",))
        gauge.add_metric((self._model,), value)
        return gauge
