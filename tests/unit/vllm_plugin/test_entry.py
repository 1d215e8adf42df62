"""What the entry points do in each process of vLLM, with a vLLM that is played."""

from __future__ import annotations

import asyncio
import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from sidecar.vllm_plugin import entry
from sidecar.vllm_plugin.adapters import SidecarResolver
from sidecar.vllm_plugin.answers import AnswerProofs
from sidecar.vllm_plugin.coverage import coverage
from sidecar.vllm_plugin.entry import Endpoints, prepare_process
from sidecar.vllm_plugin.gauges import NAMES
from tests.unit.vllm_plugin.test_inside import Engine, Models, RequestState, models, request_class


class Registry:
    """Like vLLM's `LoRAResolverRegistry`."""

    def __init__(self) -> None:
        self.resolvers: dict[str, object] = {}

    def get_supported_resolvers(self):
        return self.resolvers.keys()

    def register_resolver(self, resolver_name, resolver):
        assert resolver_name not in self.resolvers
        self.resolvers[resolver_name] = resolver


class LoRAResolver:
    """Like vLLM's."""

    async def resolve_lora(self, base_model_name, lora_name):
        """For others to override; what is looked at are the names of its arguments."""


@pytest.fixture
def registry(monkeypatch) -> Registry:
    """Played modules of vLLM, and the variables of an operator who wants everything."""
    registry = Registry()
    modules = {
        "vllm": {"SamplingParams": dict},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: False)},
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": request_class()},
        "vllm.lora.resolver": {"LoRAResolverRegistry": registry, "LoRAResolver": LoRAResolver},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.output_processor": {"RequestState": RequestState},
        "vllm.v1.worker": {},
        "vllm.v1.worker.worker_base": {"WorkerBase": type("WorkerBase", (), {})},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("LORAPLANE_PLUGIN", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("LORAPLANE_RESOLVER", "/run/loraplane.sock")
    return registry


def application(routes: list[object]) -> SimpleNamespace:
    """Like fastapi's, as far as the plugin touches it."""
    middlewares: list[object] = []
    router = SimpleNamespace(routes=routes)
    return SimpleNamespace(router=router, middlewares=middlewares, add_middleware=middlewares.append)


async def init(
    registry: Registry,
    processes: int = 1,
    *,
    app: object = None,
    kind: type = Models,
    engines: int | None = 1,
    **parts: object,
) -> tuple[Endpoints, SimpleNamespace]:
    """An API server that was started after the resolvers were registered."""
    engine, served, endpoints = Engine(), kind(**vars(models())), Endpoints()
    if app is not None:
        endpoints.attach_router(app)
    parallel = SimpleNamespace(_api_process_count=processes, data_parallel_size=engines)
    engine.vllm_config = SimpleNamespace(parallel_config=parallel, lora_config=SimpleNamespace(max_loras=4))
    vars(served).update({"lora_resolvers": list(registry.resolvers.values())} | parts)
    await endpoints.init_state(engine, SimpleNamespace(openai_serving_models=served), None)
    return endpoints, served


async def prepared(registry: Registry, **more: Any) -> tuple[Endpoints, SimpleNamespace]:
    """See `init`, in a process of vLLM's that was prepared."""
    prepare_process()
    return await init(registry, **more)


@pytest.mark.parametrize("missing", ["LORAPLANE_PLUGIN", "LORAPLANE_RESOLVER"])
async def test_without_either_variable_there_is_no_resolver_and_no_complaint(registry, monkeypatch, missing, caplog):
    monkeypatch.delenv(missing)
    prepare_process()
    assert registry.resolvers == {}
    endpoints, _ = await init(registry)
    assert endpoints._plugin.adapters is None or "resolve" not in endpoints._plugin.adapters.abilities
    assert not caplog.records


async def test_the_api_server_resolves_once_it_is_there(registry):
    """In the core and the workers nobody gives the one resolver adapters."""
    prepare_process()
    assert isinstance(registry.resolvers["loraplane"], SidecarResolver)
    assert await registry.resolvers["loraplane"].resolve_lora("/base", "x") is None
    endpoints, served = await prepared(registry)
    adapters = endpoints._plugin.adapters
    assert registry.resolvers["loraplane"].adapters is adapters
    assert "resolve" in adapters.abilities
    assert adapters.limits["max_loras"] == 4
    assert not isinstance(served.lora_resolver_lock, dict)


async def test_beside_other_api_servers_it_finds_nothing(registry, caplog):
    """Each of them would know other adapters."""
    endpoints, served = await prepared(registry, processes=2)
    assert endpoints._plugin.adapters is None
    assert await registry.resolvers["loraplane"].resolve_lora("/base", "x") is None
    assert type(served.lora_requests) is dict
    [line] = caplog.messages
    assert line.endswith("--api-server-count 1"), "one thing is to be changed, and is named alone"


async def test_an_earlier_python_gets_no_plugin_that_fails_at_each_call(registry, monkeypatch, caplog):
    """A folder that was copied, as from the plugin's image, asks no installer."""
    monkeypatch.setattr(entry, "sys", SimpleNamespace(version_info=(3, 10, 13), version="3.10.13 (main)"))
    endpoints, served = await prepared(registry)
    assert endpoints._plugin.adapters is None
    assert type(served.lora_requests) is dict
    assert caplog.messages == ["loraplane: the plugin declines: it needs Python 3.11, and this is 3.10.13"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda patch, _: patch.setenv("LORAPLANE_RESOLVER", "relative.sock"), "LORAPLANE_RESOLVER: 'relative.sock'"),
        (lambda _, registry: registry.resolvers.clear(), "do not ask the resolver"),
        (lambda patch, _: patch.delattr(LoRAResolver, "resolve_lora"), "for other things"),
        (lambda patch, _: patch.delattr(sys.modules["vllm.lora.resolver"], "LoRAResolver"), "LoRAResolver"),
    ],
)
async def test_where_it_cannot_resolve_it_says_so_and_does_the_rest(registry, monkeypatch, caplog, change, said):
    """Swaps do not depend on it."""
    prepare_process()
    change(monkeypatch, registry)
    endpoints, _ = await init(registry)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.message.startswith("loraplane: the plugin does not resolve names: ")
    assert said in record.message
    assert "resolve" not in endpoints._plugin.adapters.abilities


@pytest.mark.parametrize("is_there", [True, False])
def test_a_registry_that_changed_ends_no_process(registry, monkeypatch, caplog, is_there):
    """vLLM itself does not guard what it calls at its start."""
    if is_there:
        monkeypatch.delattr(Registry, "register_resolver")
    else:
        monkeypatch.delattr(sys.modules["vllm.lora.resolver"], "LoRAResolverRegistry")
    prepare_process()
    assert "cannot resolve names" in caplog.text


@pytest.mark.parametrize("is_wanted", [True, False])
def test_the_routes_are_there_where_they_are_wanted(registry, monkeypatch, is_wanted):
    if not is_wanted:
        monkeypatch.setenv("LORAPLANE_PLUGIN", "0")
    routes: list[object] = []
    app = application(routes)
    Endpoints().attach_router(app)
    assert len(routes) == (12 if is_wanted else 0)
    assert app.middlewares == ([AnswerProofs] if is_wanted else [])


@pytest.mark.parametrize(
    ("told", "seconds", "complaints"), [("", 5.0, 0), ("0", 0.0, 0), ("9", 9.0, 0), ("soon", 5.0, 1)]
)
async def test_the_list_of_models_is_ours_before_the_servers(registry, monkeypatch, caplog, told, seconds, complaints):
    """Its own stays behind: a plugin that declines has none."""
    monkeypatch.setenv("LORAPLANE_HIDE_SECONDS", told)
    app = application(["vLLM's own"])
    endpoints, _ = await prepared(registry, app=app)
    assert [getattr(route, "path", route) for route in app.router.routes[:2]] == ["/v1/models", "vLLM's own"]
    assert endpoints._plugin.adapters.listing.hide_seconds == seconds
    assert caplog.text.count("LORAPLANE_HIDE_SECONDS") == complaints


async def test_a_server_that_lists_otherwise_keeps_its_list(registry, caplog):
    app = application([])
    endpoints, _ = await prepared(registry, app=app, kind=SimpleNamespace)
    assert "lists its models otherwise" in caplog.text
    assert "/v1/models" not in [route.path for route in app.router.routes]
    assert endpoints._plugin.adapters.listing.hide_seconds == 0


def test_a_class_that_cannot_be_told_apart_is_said(registry, monkeypatch, caplog):
    """The plugin declines then, and vLLM goes on."""
    monkeypatch.setitem(sys.modules["vllm.lora.request"].__dict__, "LoRARequest", type("LoRARequest", (), {}))
    prepare_process()
    assert "versions of an adapter cannot be told apart" in caplog.text
    assert "loraplane" in registry.resolvers


def test_workers_can_be_asked_what_they_apply(registry, monkeypatch, caplog):
    """R22 applied-whole: where vLLM's workers are elsewhere, all else is as it was."""
    prepare_process()
    assert sys.modules["vllm.v1.worker.worker_base"].WorkerBase.loraplane_coverage is coverage
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.worker_base", None)
    prepare_process()
    assert "cannot be asked what it applies" in caplog.text


@pytest.mark.parametrize("has_params", [True, False])
async def test_the_engine_is_asked_for_answers_where_vllm_has_what_that_takes(registry, has_params, caplog):
    """R22 applied-whole; where it has not, all else is as it was."""
    if not has_params:
        del sys.modules["vllm"].SamplingParams
    prepare_process()
    Engine.generate = lambda self: None
    try:
        endpoints, _ = await init(registry)
        assert ("proof" in endpoints._plugin.adapters.abilities) is has_params
    finally:
        del Engine.generate
    assert ("cannot be proven" in caplog.text) is not has_params


@pytest.mark.parametrize(("variable", "proves"), [("", False), ("1", True)])
async def test_on_cpus_nothing_is_proven_unless_the_operator_says_so(registry, monkeypatch, variable, proves):
    """R5, R8: there a proof would spoil what somebody asks the base in the same step."""
    monkeypatch.setattr(sys.modules["vllm.platforms"].current_platform, "is_cpu", lambda: True)
    monkeypatch.setenv("LORAPLANE_PROVE_ON_CPU", variable)
    monkeypatch.setattr(Engine, "generate", lambda self: None, raising=False)
    endpoints, _ = await prepared(registry)
    assert ("proof" in endpoints._plugin.adapters.abilities) is proves


@pytest.fixture
def metrics(monkeypatch) -> CollectorRegistry:
    """The registry that vLLM's page shows, anew; gauges are wanted, and one worker answers."""
    found = CollectorRegistry()
    monkeypatch.setattr("prometheus_client.REGISTRY", found)
    monkeypatch.setenv("LORAPLANE_RESIDENCY_GAUGES", "1")
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)

    async def call(self: Engine, method: str) -> list[dict[str, list[int]]]:
        assert method == "loraplane_memory"
        return [{"gpu": [1, 2], "cpu": [1, 2], "pinned": []}]

    monkeypatch.setattr(Engine, "collective_rpc", call, raising=False)
    return found


async def gauges_of(found: CollectorRegistry, registry: Registry, engines: int = 1) -> dict[str, float]:
    """What a scrape tells of counts, once there was a look."""
    endpoints, _ = await prepared(registry, engines=engines)
    if (task := endpoints._looking) is not None:
        await asyncio.sleep(0.01)
        task.cancel()
    return {sample.name: sample.value for metric in found.collect() for sample in metric.samples}


async def test_the_gauges_are_on_the_servers_page_where_they_are_wanted(registry, metrics, monkeypatch, caplog):
    """Alone what the engine itself lacks is ours; where it has all, its workers are not asked."""
    caplog.set_level(logging.INFO)
    on_gpu, most = "vllm:num_gpu_loaded_lora_adapters", "vllm:max_gpu_lora_adapters"
    assert await gauges_of(metrics, registry) == {on_gpu: 2, most: 4}
    monkeypatch.setattr("prometheus_client.REGISTRY", other := CollectorRegistry())
    Gauge(on_gpu, "vLLM's own", registry=other).set(7)
    assert await gauges_of(other, registry) == {on_gpu: 7, most: 4}
    assert f"left to the engine: {on_gpu}" in caplog.text
    monkeypatch.setattr("prometheus_client.REGISTRY", other := CollectorRegistry())
    for name in NAMES:
        Gauge(name, "vLLM's own", registry=other)
    endpoints, _ = await prepared(registry)
    assert endpoints._looking is None
    monkeypatch.setattr("prometheus_client.REGISTRY", other := CollectorRegistry())
    monkeypatch.delenv("LORAPLANE_RESIDENCY_GAUGES")
    assert await gauges_of(other, registry) == {}


@pytest.mark.parametrize(
    ("engines", "folder", "said"),
    [
        (2, None, "not all workers can be asked"),
        (None, None, "not all workers can be asked"),
        (1, "/folder", "PROMETHEUS_MULTIPROC_DIR; unset that"),
    ],
)
async def test_where_gauges_cannot_be_told_there_are_none(
    registry, metrics, monkeypatch, caplog, engines, folder, said
):
    """Beside a folder of metrics vLLM's page shows that alone."""
    if folder is not None:
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", folder)
    assert await gauges_of(metrics, registry, engines) == {}
    assert said in caplog.text
