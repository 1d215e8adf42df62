"""What vLLM asks about names that it does not know."""

from __future__ import annotations

from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.server import Adapter


class SidecarResolver:
    """Implements vLLM's `LoRAResolver`. Until it is given `adapters`, as only an API server's is, it finds nothing."""

    adapters: Adapters | None = None

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> Adapter | None:
        """Called under the name's lock; vLLM loads what it gets, under a number of its own, and registers it."""
        return None if self.adapters is None else await self.adapters.resolve(lora_name, base_model_name)
