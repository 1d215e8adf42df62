"""What a simulated engine is started with, under the names of vLLM's own flags."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """Flags of a simulated engine.

    Attributes:
        served_model_name: what requests call the base model.
        model: directory of the base model as the listing shows it; it is not read.
        max_loras: adapters that one batch may mix; only reported.
        max_cpu_loras: adapters that stay in memory; the least recently used makes room.
        max_lora_rank: adapters above it are refused.
        runtime_lora: False: the routes that load and unload do not exist.
        plugin: True: it has our plugin, with the routes below ``/v1/loraplane``.
        resolver: the socket that our plugin asks for names which are not loaded; None: they are not asked for.
        api_key: guards /v1; None: nothing is guarded.
        version: what /version says; an earlier release's is played as far as `versions` tells.
        load_seconds: how long each load takes beside reading the files.
        token_seconds: how long each token takes.
    """

    served_model_name: str = "tiny"
    model: str = "/models/tiny"
    max_loras: int = 4
    max_cpu_loras: int = 16
    max_lora_rank: int = 16
    runtime_lora: bool = True
    plugin: bool = False
    resolver: str | None = None
    api_key: str | None = None
    version: str = "0.32.0"
    load_seconds: float = 0.0
    token_seconds: float = 0.0


DEFAULTS = Options()
