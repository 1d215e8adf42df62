"""Private parts of vLLM that the plugin touches, with their checks.

vLLM's worker collects the adapters of a batch in a set, and compares them by their names. Where requests of the old
version still run beside some of the new one, one of the two is dropped from that set, and nobody makes sure that its
weights are in a slot. If they are not, because other adapters needed the slots, the step fails, and the engine with it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from .adapters import SidecarResolver
from .base_files import base_files
from .coverage import WORKER_METHOD
from .gauges import MEMORY_METHOD
from .protocol import Step
from .server import EngineAdapter, Lister, Prober
from .usage import NameLocks, RequestStates, Usage

_FIELDS = ("lora_name", "lora_int_id", "lora_path")


def tell_apart(request_class: type[Any]) -> None:
    """Makes instances of vLLM's `LoRARequest` equal only if name, number and path are.

    Raises:
        AttributeError: it is not the class that was read: it has not these fields, or compares otherwise.
    """
    fields = getattr(request_class, "__struct_fields__", ())
    if not set(_FIELDS) <= set(fields):
        raise AttributeError(f"LoRARequest has the fields {fields}, not {_FIELDS}")
    if "__eq__" not in vars(request_class) or "__hash__" not in vars(request_class):
        raise AttributeError("LoRARequest does not compare by its name any more")

    def key(request: Any) -> tuple[object, ...]:  # noqa: ANN401 - a class of vLLM's
        return tuple(getattr(request, field) for field in _FIELDS)

    def equals(self: Any, other: object) -> bool:  # noqa: ANN401 - a class of vLLM's
        return isinstance(other, request_class) and key(self) == key(other)

    def hashed(self: Any) -> int:  # noqa: ANN401 - a class of vLLM's
        return hash(key(self))

    request_class.__eq__ = equals  # type: ignore[assignment] # a class of vLLM's
    request_class.__hash__ = hashed  # type: ignore[assignment] # a class of vLLM's
    if not are_told_apart(request_class):
        raise AttributeError("LoRARequest cannot be made to compare by its number")


def are_told_apart(request_class: type[Any]) -> bool:
    """True if two versions under one name are two members of a set."""
    versions = {request_class("name", number, "/path") for number in (1, 2)}
    return len(versions) == 2


_LIMITS = ("max_loras", "max_cpu_loras", "max_lora_rank")
_CALLS = {"add_lora": ["lora_request"], "remove_lora": ["lora_id"], "list_loras": []}


class VllmServer:
    """vLLM's API server. Implements `server.ApiServer`."""

    def __init__(
        self,
        engine: Any,  # noqa: ANN401 - vLLM's own
        models: Any,  # noqa: ANN401 - vLLM's own
        request_class: type[Any],
        params_class: type[Any] | None = None,
    ) -> None:
        """Takes parts that `complaints` has nothing against, and puts dictionaries of ours in place of three of them.

        `params_class`: vLLM's `SamplingParams`; None: the engine is asked for no answers.
        """
        self._params_class = params_class
        self._engine = engine
        self._models = models
        self._request_class = request_class
        models.lora_requests = Usage(models.lora_requests)
        models.lora_resolver_lock = NameLocks(models.lora_resolver_lock)
        engine.output_processor.request_states = RequestStates(engine.output_processor.request_states, self._count)

    def _count(self, request: str, state: Any) -> None:  # noqa: ANN401 - vLLM's own
        adapter = getattr(state, "lora_request", None)
        if adapter is not None and not request.startswith(_PROOF):
            self.registered.count(adapter.lora_name)

    @property
    def registered(self) -> Usage[EngineAdapter]:
        requests: Usage[EngineAdapter] = self._models.lora_requests
        return requests

    def lock(self, name: str) -> asyncio.Lock:
        lock: asyncio.Lock = self._models.lora_resolver_lock[name]
        return lock

    @property
    def limits(self) -> Mapping[str, int | None]:
        found = {name: _at(self._engine, "vllm_config", "lora_config", name) for name in _LIMITS}
        return {name: value if type(value) is int else None for name, value in found.items()}

    @property
    def kv_connectors(self) -> list[str]:
        config = _at(self._engine, "vllm_config", "kv_transfer_config")
        fields = ("kv_connector", "kv_connector_module_path", "kv_connector_extra_config")
        return list(_connectors({field: _at(config, field) for field in fields}))

    def make(self, name: str, path: str, like: EngineAdapter | None) -> EngineAdapter:
        fields = ("base_model_name", "is_3d_lora_weight") if like is not None else ()
        kept = {field: getattr(like, field) for field in fields}
        number = self._models.lora_id_counter.inc(1)
        made: EngineAdapter = self._request_class(lora_name=name, lora_int_id=number, lora_path=path, **kept)
        return made

    async def add(self, adapter: EngineAdapter) -> None:
        if not await self._engine.add_lora(adapter):
            raise RuntimeError("the engine did not take it, and does not say why")

    async def remove(self, number: int) -> None:
        await self._engine.remove_lora(number)

    async def resident(self) -> set[int]:
        return set(await self._engine.list_loras())

    @property
    def ask_workers(self) -> Callable[[], Awaitable[list[dict[str, Any]]]] | None:
        call = getattr(self._engine, "collective_rpc", None)
        return partial(call, WORKER_METHOD) if callable(call) else None

    @property
    def ask_memory(self) -> Callable[[], Awaitable[list[dict[str, Any]]]] | None:
        """See `ApiServer.ask_memory`. Of several engines vLLM gives the first one's answer alone."""
        call = getattr(self._engine, "collective_rpc", None)
        engines = _at(self._engine, "vllm_config", "parallel_config", "data_parallel_size")
        return partial(call, MEMORY_METHOD) if callable(call) and engines == 1 else None

    @property
    def model_name(self) -> str:
        name = _at(self._engine, "vllm_config", "model_config", "served_model_name")
        return name if isinstance(name, str) else ""

    @property
    def read_base(self) -> Callable[[], dict[str, Any]]:
        return partial(_read_base, _at(self._engine, "vllm_config"))

    @property
    def prober(self) -> Prober | None:
        if self._params_class is None or not callable(getattr(self._engine, "generate", None)):
            return None
        return partial(_probe, self._engine, self._params_class)

    @property
    def lister(self) -> Lister | None:
        show = getattr(type(self._models), "show_available_models", None)
        return partial(_listed, show, self._models) if _parameters(show) == [] else None

    @property
    def is_full(self) -> bool:
        """See `ApiServer.is_full`. Half of what it runs at once: a proof is two requests, and others come meanwhile."""
        most = _at(self._engine, "vllm_config", "scheduler_config", "max_num_seqs")
        requests = len(self._engine.output_processor.request_states)
        return requests >= max(1, (most if type(most) is int else USUAL_REQUESTS) // 2)

    @property
    def vocabulary(self) -> int | None:
        tell = _at(self._engine, "vllm_config", "model_config", "get_vocab_size")
        size = tell() if callable(tell) else None
        return size if type(size) is int and size > 0 else None

    def in_flight(self) -> Iterable[EngineAdapter]:
        states = self._engine.output_processor.request_states.values()
        return [state.lora_request for state in states if state.lora_request is not None]


def _read_base(config: Any) -> dict[str, Any]:  # noqa: ANN401 - vLLM's configuration
    """Facts of the files that vLLM was given; of a model on a hub, those that it has in its cache."""
    model = f"{_at(config, 'model_config', 'model')}"
    directory = Path(model)
    if not directory.is_dir():
        try:
            from huggingface_hub import snapshot_download  # noqa: PLC0415 - only inside vLLM

            revision, cache = _at(config, "model_config", "revision"), _at(config, "load_config", "download_dir")
            directory = Path(snapshot_download(model, revision=revision, cache_dir=cache, local_files_only=True))
        except (ImportError, OSError, ValueError) as error:
            return {"path": model, "problem": f"{error}"[:400]}
    return base_files(directory)


class _With:
    """vLLM's served models as if they had other adapters."""

    def __init__(self, models: Any, lora_requests: Mapping[str, EngineAdapter]) -> None:  # noqa: ANN401 - vLLM's own
        self._models = models
        self.lora_requests = lora_requests

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - vLLM's own
        return getattr(self._models, name)


async def _listed(show: Any, models: Any, adapters: Mapping[str, EngineAdapter]) -> dict[str, Any]:  # noqa: ANN401 - vLLM's own
    """The list by vLLM's own code, as vLLM hands it to what writes JSON."""
    found: dict[str, Any] = (await show(_With(models, adapters))).model_dump()
    return found


# vLLM puts a dash and letters of its own behind it.
_PROOF = "loraplane-proof-"
LIKELY = 5
USUAL_REQUESTS = 256


async def _probe(
    engine: Any,  # noqa: ANN401 - vLLM's own
    params_class: type[Any],
    adapter: EngineAdapter | None,
    prompt: Sequence[int],
    tokens: int,
) -> tuple[Step, ...]:
    # Not the prompt's logprobs: on CPUs vLLM 0.32 computes them with the sampler's rows, and two requests of which one
    # has an adapter end the engine.
    params = params_class(temperature=0, max_tokens=tokens, logprobs=LIKELY, detokenize=False, ignore_eos=True)
    request = f"{_PROOF}{uuid4().hex}"
    last: Any = None
    async for output in engine.generate({"prompt_token_ids": list(prompt)}, params, request, lora_request=adapter):
        last = output
    made = last.outputs[0]
    rows = [{token: found.logprob for token, found in row.items()} for row in made.logprobs]
    return tuple(zip(made.token_ids, rows, strict=True))


_MULTI = "MultiConnector"


def _connectors(config: Mapping[str, Any]) -> Iterator[str]:
    """Of several in one, each; whatever has another form than was read in vLLM 0.32 is named as a whole."""
    name, module = config.get("kv_connector"), config.get("kv_connector_module_path")
    if not name:
        return
    more = config.get("kv_connector_extra_config")
    parts = more.get("connectors") if name == _MULTI and not module and isinstance(more, dict) else None
    if isinstance(parts, list) and parts and all(isinstance(one, dict) for one in parts):
        for one in parts:
            yield from _connectors(one)
        return
    yield f"{module}.{name}" if module else f"{name}"


def complaints(engine: Any, models: Any, request_class: Any, state_class: Any) -> Iterator[str]:  # noqa: ANN401 - vLLM's
    """Deviations from vLLM 0.32 as it was read; none: the plugin may run.

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
