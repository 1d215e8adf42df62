"""The private parts of vLLM that the plugin touches, all of them, and the check that they are as they were read."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sidecar.vllm_plugin.asked import SidecarResolver
from sidecar.vllm_plugin.locks import Locks
from sidecar.vllm_plugin.registered import Registered
from sidecar.vllm_plugin.server import Adapter
from sidecar.vllm_plugin.versions import are_told_apart

_LIMITS = ("max_loras", "max_cpu_loras", "max_lora_rank")
_CALLS = {"add_lora": ["lora_request"], "remove_lora": ["lora_id"], "list_loras": []}


class VllmServer:
    """vLLM's API server. Implements `sidecar.vllm_plugin.server.ApiServer`."""

    def __init__(self, engine: Any, models: Any, request_class: type[Any]) -> None:  # noqa: ANN401 - vLLM's own
        """Takes parts that `complaints` has nothing against, and puts dictionaries of ours in place of two of them."""
        self._engine = engine
        self._models = models
        self._request_class = request_class
        models.lora_requests = Registered(models.lora_requests)
        models.lora_resolver_lock = Locks(models.lora_resolver_lock)

    @property
    def registered(self) -> Registered[Adapter]:
        """See `ApiServer.registered`."""
        requests: Registered[Adapter] = self._models.lora_requests
        return requests

    def lock(self, name: str) -> asyncio.Lock:
        """See `ApiServer.lock`."""
        lock: asyncio.Lock = self._models.lora_resolver_lock[name]
        return lock

    @property
    def limits(self) -> Mapping[str, int | None]:
        """See `ApiServer.limits`."""
        found = {name: _at(self._engine, "vllm_config", "lora_config", name) for name in _LIMITS}
        return {name: value if type(value) is int else None for name, value in found.items()}

    def make(self, name: str, path: str, like: Adapter | None) -> Adapter:
        """See `ApiServer.make`."""
        fields = ("base_model_name", "is_3d_lora_weight") if like is not None else ()
        kept = {field: getattr(like, field) for field in fields}
        number = self._models.lora_id_counter.inc(1)
        made: Adapter = self._request_class(lora_name=name, lora_int_id=number, lora_path=path, **kept)
        return made

    async def add(self, adapter: Adapter) -> None:
        """See `ApiServer.add`."""
        if not await self._engine.add_lora(adapter):
            raise RuntimeError("the engine did not take it, and does not say why")

    async def remove(self, number: int) -> None:
        """See `ApiServer.remove`."""
        await self._engine.remove_lora(number)

    async def resident(self) -> set[int]:
        """See `ApiServer.resident`."""
        return set(await self._engine.list_loras())

    def in_flight(self) -> Iterable[Adapter]:
        """See `ApiServer.in_flight`."""
        states = self._engine.output_processor.request_states.values()
        return [state.lora_request for state in states if state.lora_request is not None]


def complaints(engine: Any, models: Any, request_class: Any, state_class: Any) -> Iterator[str]:  # noqa: ANN401 - vLLM's
    """What is not as it was read in vLLM 0.32; nothing: the plugin may run.

    Args:
        engine: the server's engine client.
        models: what holds the registered adapters.
        request_class: `LoRARequest`.
        state_class: of the requests that are with the engine.
    """
    for name, parameters in _CALLS.items():
        if _parameters(getattr(engine, name, None)) != parameters:
            yield f"the engine client has no {name}({', '.join(parameters)})"
    if not isinstance(_at(engine, "output_processor", "request_states"), dict):
        yield "the output processor keeps no request_states"
    if "lora_request" not in (_parameters(getattr(state_class, "__init__", None)) or []):
        yield "the state of a request has no lora_request"
    if not isinstance(_at(models, "lora_requests"), dict):
        yield "the served models keep no lora_requests"
    if getattr(_at(models, "lora_resolver_lock"), "default_factory", None) is not asyncio.Lock:
        yield "the served models keep no lock for each name"
    if not callable(_at(models, "lora_id_counter", "inc")):
        yield "the served models count no adapter ids"
    yield from _complaints_about(request_class)


def _complaints_about(request_class: Any) -> Iterator[str]:  # noqa: ANN401 - a class of vLLM's
    wanted = {"lora_name", "lora_int_id", "lora_path", "base_model_name", "is_3d_lora_weight"}
    missing = wanted - set(getattr(request_class, "__struct_fields__", ()))
    if missing:
        yield f"LoRARequest has no {', '.join(sorted(missing))}"
    elif not are_told_apart(request_class):
        yield "two versions of an adapter are not told apart: the general plugin did not run"


def resolver_complaints(models: Any, resolver_class: Any) -> Iterator[str]:  # noqa: ANN401 - vLLM's own
    """Why names cannot be resolved in this vLLM; nothing: they can.

    Args:
        models: what holds the registered adapters.
        resolver_class: `LoRAResolver`.
    """
    if _parameters(getattr(resolver_class, "resolve_lora", None)) != ["base_model_name", "lora_name"]:
        yield "vLLM asks a resolver for other things"
    if resolver_in(models) is None:
        yield "the served models do not ask the resolver that the plugin registered"


def resolver_in(models: Any) -> SidecarResolver | None:  # noqa: ANN401 - vLLM's own
    """Ours among those that vLLM asks; None: it is not asked."""
    return next((one for one in _at(models, "lora_resolvers") or () if isinstance(one, SidecarResolver)), None)


def settings_against(config: Any) -> Iterator[str]:  # noqa: ANN401 - vLLM's configuration
    """Why the plugin must not run in a server with this configuration, and what to change."""
    if _at(config, "parallel_config", "_api_process_count") != 1:
        yield "there may be only one API server: start vLLM with --api-server-count 1"
    if _at(config, "lora_config") is None:
        yield "adapters are off: start vLLM with --enable-lora"


def _at(start: Any, *names: str) -> Any:  # noqa: ANN401 - anything
    for name in names:
        start = getattr(start, name, None)
    return start


def _parameters(function: Any) -> list[str] | None:  # noqa: ANN401 - anything
    """Names of what it is called with, without self; None: it cannot be called."""
    if not callable(function):
        return None
    return [name for name in inspect.signature(function).parameters if name != "self"]
