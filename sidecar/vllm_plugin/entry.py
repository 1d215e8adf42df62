"""The entry points: vLLM loads `tell_versions_apart` in all its processes, and `Endpoints` in its API server."""

from __future__ import annotations

import logging
import os
from typing import Any

from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.inside import VllmServer, complaints, settings_against
from sidecar.vllm_plugin.routes import Plugin, routes
from sidecar.vllm_plugin.versions import tell_apart

_log = logging.getLogger("vllm.loraplane")
VARIABLE = "LORAPLANE_PLUGIN"
RUNTIME_LORA_VARIABLE = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"


def is_on(variable: str = VARIABLE) -> bool:
    """True if the operator wants it."""
    return os.environ.get(variable, "").strip().lower() in {"1", "true"}


def tell_versions_apart() -> None:
    """For ``vllm.general_plugins``, in every process of vLLM; may be called again."""
    if not is_on():
        return
    from vllm.lora.request import LoRARequest  # noqa: PLC0415 - only inside vLLM

    try:
        tell_apart(LoRARequest)
    except AttributeError as error:
        _log.error("loraplane: the plugin declines, versions of an adapter cannot be told apart: %s", error)


class Endpoints:
    """For ``vllm.endpoint_plugins``: registers the routes, and serves them if vLLM is as it was read."""

    name = "loraplane"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._plugin = Plugin()

    def attach_router(self, app: Any) -> None:  # noqa: ANN401 - fastapi's application
        """Called once while the server is made. Without the variable there are no routes."""
        if is_on():
            app.router.routes.extend(routes(self._plugin))

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:  # noqa: ANN401, ARG002 - vLLM's form
        """Called once when the engine is there."""
        if not is_on():
            return
        problems = list(self._problems(engine_client, state))
        if problems:
            _log.error("loraplane: the plugin declines: %s", "; ".join(problems))
            return
        from vllm.lora.request import LoRARequest  # noqa: PLC0415 - only inside vLLM

        self._plugin.adapters = Adapters(VllmServer(engine_client, state.openai_serving_models, LoRARequest))
        _log.info("loraplane: the plugin serves its routes")

    def _problems(self, engine: Any, state: Any) -> list[str]:  # noqa: ANN401 - vLLM's own
        if not is_on(RUNTIME_LORA_VARIABLE):
            return [f"{RUNTIME_LORA_VARIABLE}=1 is not set"]
        against = list(settings_against(getattr(engine, "vllm_config", None)))
        if against:
            return against
        try:
            from vllm.lora.request import LoRARequest  # noqa: PLC0415 - only inside vLLM
            from vllm.v1.engine.output_processor import RequestState  # noqa: PLC0415 - only inside vLLM
        except ImportError as error:
            return [f"{error}"]
        return list(complaints(engine, getattr(state, "openai_serving_models", None), LoRARequest, RequestState))
