"""An adapter as the simulated engine keeps it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """A loaded adapter. `number` is new with each load. Implements `sidecar.vllm_plugin.server.Adapter`."""

    name: str
    path: str
    number: int

    @property
    def lora_name(self) -> str:
        """See `Adapter.lora_name`."""
        return self.name

    @property
    def lora_int_id(self) -> int:
        """See `Adapter.lora_int_id`."""
        return self.number

    @property
    def lora_path(self) -> str:
        """See `Adapter.lora_path`."""
        return self.path
