"""What is found out once of each process of a vLLM server: that it can be driven at all, how, and what it can hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sidecar.engines import plugin_calls as plugin
from sidecar.engines import vllm_answers as answers
from sidecar.engines.driver import EngineUnusable
from sidecar.engines.vllm_http import VllmHttp
from sidecar.observed import EngineFacts, EngineLimits, SwapStrategy

LOAD_PATH = "/v1/load_lora_adapter"
UNLOAD_PATH = "/v1/unload_lora_adapter"


@dataclass(frozen=True, slots=True)
class VllmProcess:
    """A process that can be driven. `about` is what our plugin inside it says; None: it has none."""

    incarnation: str
    version: str
    about: plugin.About | None

    @property
    def tells_uses(self) -> bool:
        """True if it can be asked when each adapter was last used."""
        return self.about is not None and self.about.tells_uses

    def facts(self, url: str, configured: EngineLimits, max_loras: int | None) -> EngineFacts:
        """What stays the same of it. `max_loras` is what its metrics say, once it has served an adapter."""
        told = self.about.limits if self.about else EngineLimits()
        limits = joined(configured, told)
        seen = replace(limits, max_loras=max_loras or limits.max_loras)
        resolves = self.about is not None and self.about.resolves
        return EngineFacts("vllm", self.version, url, self.incarnation, seen, self._swap, resolves)

    @property
    def remembers_names(self) -> bool:
        """True if it answers from what it remembers of other weights that had the same name."""
        return answers.remembers_names(self.version)

    @property
    def _swap(self) -> SwapStrategy:
        if self.remembers_names:
            return "refused"
        return "plugin" if self.about else "pipelined"


def joined(configured: EngineLimits, told: EngineLimits) -> EngineLimits:
    """What is configured, and beside it what the engine tells; of two ranks the lower one."""
    ranks = [rank for rank in (configured.max_lora_rank, told.max_lora_rank) if rank is not None]
    return EngineLimits(
        max_loras=configured.max_loras or told.max_loras,
        max_cpu_loras=configured.max_cpu_loras or told.max_cpu_loras,
        max_lora_rank=min(ranks, default=None),
        target_modules=configured.target_modules,
    )


async def examine(http: VllmHttp, metrics: answers.Metrics, seconds: float) -> VllmProcess:
    """Asks the process that `metrics` are of; each question may take `seconds`.

    Raises:
        EngineUnreachable: it did not answer in time.
        EngineUnusable: it cannot be driven.
    """
    [body] = await http.get(["/version"], seconds)
    version = answers.read_version(body, http.url)
    if metrics.has_lora is False:
        raise EngineUnusable("lora_disabled", f"{http.url} serves no adapters: {answers.ENABLE_HINT}")
    for path in (LOAD_PATH, UNLOAD_PATH):
        if not await http.has_route(path, seconds):
            reason = f"{http.url} has no route {path}: {answers.ENABLE_HINT}"
            raise EngineUnusable("runtime_lora_disabled", reason)
    about = await http.find(plugin.ABOUT_PATH, seconds)
    return VllmProcess(metrics.incarnation, version, plugin.read_about(about) if about is not None else None)
