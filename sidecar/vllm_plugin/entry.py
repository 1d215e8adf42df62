"""Entry points of the plugin: every process of vLLM, and its API server."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

from .adapters import Adapters, SidecarResolver
from .answers import AnswerProofs
from .coverage import install
from .gauges import MEMORY_METHOD, NAMES, ResidencyGauges, memory
from .guard import guard_of_environment
from .listing import HIDE_SECONDS, hide_seconds_of
from .resolver import ResolverClient, socket_problem
from .routes import Plugin, listing_route, routes
from .vllm_internals import VllmServer, complaints, resolver_complaints, resolver_in, settings_against, tell_apart

_log = logging.getLogger("vllm.loraplane")
VARIABLE = "LORAPLANE_PLUGIN"
RESOLVER_VARIABLE = "LORAPLANE_RESOLVER"
HIDE_VARIABLE = "LORAPLANE_HIDE_SECONDS"
GAUGES_VARIABLE = "LORAPLANE_RESIDENCY_GAUGES"
PROVE_ON_CPU_VARIABLE = "LORAPLANE_PROVE_ON_CPU"
RUNTIME_LORA_VARIABLE = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
RESOLVER_NAME = "loraplane"
# As the distribution says, which may have been copied to where another Python runs.
_PYTHON = (3, 11)
# Where it is set vLLM shows what several processes write there, and nothing else.
_SHARED_METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def is_on(variable: str = VARIABLE) -> bool:
    """True if the operator wants it."""
    return os.environ.get(variable, "").strip().lower() in {"1", "true"}


def resolver_socket() -> str:
    """The sidecar's socket, as the operator names it; empty: unknown names are not to be resolved."""
    return os.environ.get(RESOLVER_VARIABLE, "").strip()


def prepare_process() -> None:
    """For ``vllm.general_plugins``, in every process of vLLM; may be called again.

    The API server reads the registered resolvers when it is made, later than this and before `Endpoints` is asked for
    anything. In all other processes nobody asks the resolver, and it would find nothing.
    """
    if not is_on():
        return
    from vllm.lora.request import LoRARequest  # noqa: PLC0415 - only inside vLLM

    try:
        tell_apart(LoRARequest)
    except AttributeError as error:
        _log.error("loraplane: the plugin declines, versions of an adapter cannot be told apart: %s", error)
    _install_coverage()
    if resolver_socket():
        _register_resolver()


def _install_coverage() -> None:
    """Without it the engine does not say what it applies, and all else is as it was."""
    try:
        from vllm.v1.worker.worker_base import WorkerBase  # noqa: PLC0415 - only inside vLLM
    except ImportError as error:
        _log.warning("loraplane: the engine cannot be asked what it applies of adapters: %s", error)
        return
    install(WorkerBase)
    setattr(WorkerBase, MEMORY_METHOD, memory)


def _register_resolver() -> None:
    try:
        from vllm.lora.resolver import LoRAResolverRegistry  # noqa: PLC0415 - only inside vLLM

        if RESOLVER_NAME not in LoRAResolverRegistry.get_supported_resolvers():
            LoRAResolverRegistry.register_resolver(RESOLVER_NAME, SidecarResolver())
    except (ImportError, AttributeError, TypeError) as error:
        _log.error("loraplane: the plugin cannot resolve names, vLLM registers resolvers otherwise: %s", error)


class Endpoints:
    """For ``vllm.endpoint_plugins``: registers the routes, and serves them if vLLM is as it was read."""

    name = "loraplane"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._plugin = Plugin(guard=guard_of_environment())
        self._app: Any = None
        self._looking: asyncio.Task[None] | None = None

    def attach_router(self, app: Any) -> None:  # noqa: ANN401 - fastapi's application
        """Called once while the server is made. Without the variable there are no routes."""
        if is_on():
            app.router.routes.extend(routes(self._plugin))
            app.add_middleware(AnswerProofs)
            self._app = app

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:  # noqa: ANN401, ARG002 - vLLM's form
        """Called once when the engine is there."""
        if not is_on():
            return
        problems = list(_problems(engine_client, state))
        if problems:
            _log.error("loraplane: the plugin declines: %s", "; ".join(problems))
            return
        from vllm.lora.request import LoRARequest  # noqa: PLC0415 - only inside vLLM

        models = state.openai_serving_models
        server = VllmServer(engine_client, models, LoRARequest, _params_class())
        self._plugin.adapters = adapters = _adapters(server, models, self._plugin.guard.store)
        adapters.read_base()
        self._take_over_listing(adapters)
        if is_on(GAUGES_VARIABLE) and (gauges := _residency_gauges(server, adapters)) is not None:
            self._looking = asyncio.create_task(gauges.run(), name="loraplane gauges")
        _log.info("loraplane: the plugin serves its routes")

    def _take_over_listing(self, adapters: Adapters) -> None:
        """Before the server's own route, which stays for a plugin that declines."""
        if not adapters.listing.is_there:
            _log.error("loraplane: the server lists its models otherwise: names stop to answer as they leave the list")
        elif self._app is not None:
            self._app.router.routes.insert(0, listing_route(adapters))


def hide_seconds() -> float:
    """For how long a name answers on after it left the list, as the operator says; what is no time is not followed."""
    try:
        return hide_seconds_of(os.environ.get(HIDE_VARIABLE, ""))
    except ValueError as error:
        _log.error("loraplane: %s: %s; it is %g", HIDE_VARIABLE, error, HIDE_SECONDS)
        return HIDE_SECONDS


def _residency_gauges(server: VllmServer, adapters: Adapters) -> ResidencyGauges | None:
    """In the registry that the server's page ``/metrics`` shows; None: they are not to be told."""
    ask = server.ask_memory
    if ask is None:
        _log.error("loraplane: %s: not all workers can be asked for their adapters; there are none", GAUGES_VARIABLE)
        return None
    if os.environ.get(_SHARED_METRICS_VARIABLE) is not None:
        _log.error("loraplane: %s: there are none beside %s; unset that", GAUGES_VARIABLE, _SHARED_METRICS_VARIABLE)
        return None
    from prometheus_client import REGISTRY  # noqa: PLC0415 - only inside vLLM
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415

    theirs = {one.name for one in REGISTRY.collect()} & NAMES
    if theirs:
        _log.info("loraplane: these metrics are left to the engine: %s", ", ".join(sorted(theirs)))
    if len(theirs) == len(NAMES):
        return None
    listing, model = adapters.listing, server.model_name
    gauges = ResidencyGauges(server, listing, ask, GaugeMetricFamily, theirs=frozenset(theirs), model=model)
    REGISTRY.register(gauges)
    return gauges


def _params_class() -> type[Any] | None:
    """Without it the engine is not asked for answers, and all else is as it was.

    vLLM's CPU build applies the adapter in its last slot to the base's requests in the same step: there a proof would
    spoil what somebody else asks the base at that moment.
    """
    try:
        from vllm import SamplingParams  # noqa: PLC0415 - only inside vLLM
        from vllm.platforms import current_platform  # noqa: PLC0415
    except ImportError as error:
        _log.warning("loraplane: adapters cannot be proven to have an effect: %s", error)
        return None
    if current_platform.is_cpu() and not is_on(PROVE_ON_CPU_VARIABLE):
        _log.info("loraplane: adapters are not proven to have an effect on CPUs, where a proof could spoil answers")
        return None
    params_class: type[Any] = SamplingParams
    return params_class


def _adapters(server: VllmServer, models: Any, store: str | None) -> Adapters:  # noqa: ANN401 - vLLM's own
    """With a resolver if one is wanted and vLLM asks it."""
    socket = resolver_socket()
    seconds = hide_seconds()
    if not socket:
        return Adapters(server, hide_seconds=seconds)
    problems, asked = list(_resolver_problems(socket, models)), resolver_in(models)
    if problems or asked is None:
        _log.error("loraplane: the plugin does not resolve names: %s", "; ".join(problems))
        return Adapters(server, hide_seconds=seconds)
    asked.adapters = adapters = Adapters(server, ResolverClient(socket, store=store), hide_seconds=seconds)
    _log.info("loraplane: names are resolved through %s", socket)
    return adapters


def _problems(engine: Any, state: Any) -> Iterator[str]:  # noqa: ANN401 - vLLM's own
    """Why the plugin must not run here."""
    if tuple(sys.version_info) < _PYTHON:
        yield f"it needs Python 3.11, and this is {sys.version.partition(' ')[0]}"
        return
    if not is_on(RUNTIME_LORA_VARIABLE):
        yield f"{RUNTIME_LORA_VARIABLE}=1 is not set"
        return
    against = list(settings_against(getattr(engine, "vllm_config", None)))
    yield from against
    if against:
        return
    try:
        from vllm.lora.request import LoRARequest  # noqa: PLC0415 - only inside vLLM
        from vllm.v1.engine.output_processor import RequestState  # noqa: PLC0415 - only inside vLLM
    except ImportError as error:
        yield f"{error}"
        return
    yield from complaints(engine, getattr(state, "openai_serving_models", None), LoRARequest, RequestState)


def _resolver_problems(socket: str, models: Any) -> Iterator[str]:  # noqa: ANN401 - vLLM's own
    """Why names must not be resolved here."""
    problem = socket_problem(socket)
    if problem:
        yield f"{RESOLVER_VARIABLE}: {problem}"
    try:
        from vllm.lora.resolver import LoRAResolver  # noqa: PLC0415 - only inside vLLM
    except ImportError as error:
        yield f"{error}"
        return
    yield from resolver_complaints(models, LoRAResolver)
