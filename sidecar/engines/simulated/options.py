"""Options of a simulated engine: flags and releases of vLLM."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sidecar.vllm_plugin.guard import ANYONE_BESIDE, Guard


@dataclass(frozen=True, slots=True)
class Manners:
    """Behaviour of a release.

    Attributes:
        flat_errors: error replies have no ``error`` object around them.
        failed_load: status and type of the reply to a load that the worker refuses.
        remembers_names: the prefix cache knows an adapter by its name only.
    """

    flat_errors: bool
    failed_load: tuple[int, str]
    remembers_names: bool


def manners(version: str) -> Manners:
    """Behaviour of the release of that number."""
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    return Manners(
        flat_errors=found < (0, 10, 1),
        failed_load=(400, "BadRequestError") if found < (0, 23) else (500, "InternalServerError"),
        remembers_names=found < (0, 31),
    )


@dataclass(frozen=True, slots=True)
class Options:
    """Flags of a simulated engine.

    Attributes:
        served_model_name: what requests call the base model.
        model: directory of the base model as the listing shows it; read by the plugin alone, if it is there.
        max_loras: adapters that one batch may mix; only reported.
        max_cpu_loras: adapters that stay in memory; the least recently used makes room.
        max_lora_rank: adapters above it are refused.
        runtime_lora: False: the routes that load and unload do not exist.
        plugin: True: it has our plugin, with the routes below ``/v1/loraplane``.
        proves: True: the plugin may ask it short prompts.
        resolver: the socket that our plugin asks for names which are not loaded; None: they are not asked for.
        guard: of the plugin's routes.
        hide_seconds: for how long an adapter that the plugin unloads answers on after it left the list.
        version: what /version says; an earlier release's is played as far as `versions` tells.
        development: True: it has the pages that pause it, as with VLLM_SERVER_DEV_MODE=1.
        kv_connectors: through which it shares what it computes.
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
    proves: bool = False
    resolver: str | None = None
    guard: Guard = ANYONE_BESIDE
    hide_seconds: float = 0.0
    version: str = "0.32.0"
    development: bool = False
    kv_connectors: tuple[str, ...] = ()
    load_seconds: float = 0.0
    token_seconds: float = 0.0


DEFAULTS = Options()
