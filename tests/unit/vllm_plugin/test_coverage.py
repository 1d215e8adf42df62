"""What the workers say that they apply, with a model that is played."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from registry.lora.base import expand
from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.coverage import WORKER_METHOD, compressed, coverage, install, merged
from sidecar.vllm_plugin.server import DeadlinePassed, EngineRefused
from tests.unit.vllm_plugin.played import PlayedServer


class Module:
    """Like torch's: children by name, each of which may be a child of several."""

    def __init__(self, **children: Module) -> None:
        self._modules = children

    def modules(self):
        yield self
        for child in self._modules.values():
            yield from child.modules()


class Wrapper(Module):
    """Like vLLM's layers with LoRA."""

    def __init__(self, bare: Module) -> None:
        super().__init__(base_layer=bare)
        self.base_layer = bare


class FusedMoE3DWithLoRA(Wrapper):
    """Named as vLLM's."""


class MoeForCausalLM(Module):
    """Named as vLLM's, without a mapper."""


def worker(model: Module, modules: dict[str, Wrapper], supported: list[str], packed: dict[str, list[str]]) -> Any:
    full = {
        name: [f"{name.rpartition('.')[0]}.{part}" for part in packed[name.rpartition(".")[2]]]
        for name in modules
        if len(packed.get(name.rpartition(".")[2], ())) > 1
    }
    manager = SimpleNamespace(
        model=model,
        modules=modules,
        supported_lora_modules=supported,
        packed_modules_mapping=packed,
        packed_modules=full,
    )
    return SimpleNamespace(model_runner=SimpleNamespace(lora_manager=SimpleNamespace(_adapter_manager=manager)))


def moe(*, bypassed: bool) -> Any:
    """A layer whose shared expert keeps the bare gate beside the wrapped one, as Qwen2-MoE's does; or not."""
    bare, head, table = Module(), Module(), Module()
    gate, qkv, embedding = Wrapper(bare), Wrapper(Module()), Wrapper(table)
    experts = FusedMoE3DWithLoRA(Module(gate=bare if bypassed else gate))
    model = MoeForCausalLM(
        gate=gate, shared=Module(expert_gate=bare if bypassed else gate), qkv=qkv, experts=experts, embed=embedding,
        lm_head=table, head=head,
    )  # fmt: skip
    modules = {
        "l.0.mlp.shared_expert_gate": gate,
        "l.0.qkv_proj": qkv,
        "l.0.mlp.experts": experts,
        "embed_tokens": embedding,
    }
    supported = ["shared_expert_gate", "qkv_proj", "experts", "embed_tokens"]
    return worker(model, modules, supported, {"qkv_proj": ["q_proj", "v_proj"]})


def test_a_module_whose_bare_layer_hangs_elsewhere_is_not_applied():
    """R22 applied-whole: S2 and S3 without a table; a head that is tied to an embedding is no way past it."""
    always = {"embed_tokens", "l.0.q_proj", "l.0.v_proj", "l.0.mlp.experts", "l.0.mlp.experts.base_layer"}
    told = coverage(moe(bypassed=True))
    assert set(told["applied"]) == always
    assert set(coverage(moe(bypassed=False))["applied"]) == {*always, "l.0.mlp.shared_expert_gate"}
    assert told["taken"] == ["embed_tokens", "experts", "q_proj", "shared_expert_gate", "v_proj"]
    assert (told["architecture"], told["renames"]) == ("MoeForCausalLM", [{}, {}, {}])


def test_experts_that_are_packed_are_taken_by_their_parts_and_by_their_name():
    """R22: as vLLM reads an adapter."""
    one = moe(bypassed=False)
    manager = one.model_runner.lora_manager._adapter_manager
    manager.packed_modules_mapping["experts"] = ["experts.0.up", "experts.0.down"]
    assert coverage(one)["taken"] == [
        "embed_tokens", "experts", "experts.0.down", "experts.0.up", "q_proj", "shared_expert_gate", "v_proj",
    ]  # fmt: skip


def test_names_that_cannot_be_told_from_outside_are_not():
    one = moe(bypassed=False)
    model = one.model_runner.lora_manager._adapter_manager.model
    rules = {"orig_to_new_substr": {"a": "b", "c": None}, "orig_to_new_prefix": {}, "orig_to_new_suffix": {}}
    model.hf_to_vllm_mapper = SimpleNamespace(orig_to_new_regex={}, orig_to_new_renaming=[], **rules)
    assert coverage(one)["renames"] == [{"a": "b"}, {}, {}]
    model.hf_to_vllm_mapper.orig_to_new_regex = {"x": "y"}
    assert coverage(one)["renames"] is None


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        (["a.0.q", "a.1.q", "a.3.q"], ["a.{0-1,3}.q"]),
        (["a.0.e.0.u", "a.0.e.1.u", "a.1.e.0.u", "a.1.e.1.u"], ["a.{0-1}.e.{0-1}.u"]),
        (["a.0.e.0.u", "a.0.e.1.u", "a.1.e.0.u"], ["a.0.e.{0-1}.u", "a.1.e.0.u"]),
        (["lm_head", "layer1.q"], ["layer1.q", "lm_head"]),
        ([], []),
    ],
)
def test_numbers_that_run_through_are_one_pattern(names, patterns):
    assert compressed(names) == patterns
    assert set(expand(dict.fromkeys(patterns, (1, 1)))) == set(names)


def test_a_large_model_is_told_soon():
    """An engine does not stand still for it: 48 layers of 128 experts."""
    names = [f"m.layers.{i}.mlp.experts.{j}.{part}" for i in range(48) for j in range(128) for part in ("u", "g", "d")]
    started = time.process_time()
    assert len(compressed(names)) == 3
    assert time.process_time() - started < 1


async def test_the_engine_is_asked_once_and_all_workers_count():
    """Each worker of a pipeline has its own layers."""
    server, asked = PlayedServer(), []

    async def ask():
        asked.append(1)
        one = {"architecture": "A", "taken": ["q"], "renames": [{}, {}, {}]}
        shapes = {"2 4": ["l.1.q"]}
        return [one | {"applied": ["l.0.q"]}, one | {"applied": ["l.1.q"], "shapes": shapes}]

    assert "coverage" not in Adapters(server).abilities
    with pytest.raises(EngineRefused, match="cannot be asked"):
        await Adapters(server).coverage()
    server.ask_workers = ask
    adapters = Adapters(server)
    assert "coverage" in adapters.abilities
    assert (await adapters.coverage())["applied"] == ["l.0.q", "l.1.q"]
    await adapters.coverage()
    assert asked == [1]


@pytest.mark.parametrize(("error", "kind"), [(TimeoutError(), DeadlinePassed), (AttributeError("x"), EngineRefused)])
async def test_an_engine_that_cannot_say_it_is_said_to(error, kind):
    server = PlayedServer(ask_workers=AsyncMock(side_effect=error))
    with pytest.raises(kind):
        await Adapters(server).coverage()


def test_workers_get_a_method():
    class Worker:
        """Like vLLM's."""

    install(Worker)
    assert getattr(Worker, WORKER_METHOD) is coverage
    one = {"architecture": "A", "applied": ["b", "a"], "taken": [], "renames": None, "shapes": {"1 2": ["a"]}}
    assert merged([one, one]) == one | {"applied": ["a", "b"]}


class Layer(Module):
    """Like vLLM's linear layers and embeddings, which say their whole sizes."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__()
        vars(self).update(sizes)


def test_shapes_are_those_of_a_checkpoint_and_only_what_is_certain():
    """R23: of what was packed each part; where workers share a layer, sizes may be rounded up, and none is told."""
    packed = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "in_proj": ["a_proj", "b_proj"], "fused": ["fused"]}
    modules = {
        "l.0.qkv_proj": Layer(input_size=8, output_size=16, output_sizes=[8, 4, 4]),
        "l.1.qkv_proj": Layer(input_size=8, output_size=16, output_sizes=[8, 4, 4]),
        "l.0.fused": Layer(input_size=8, output_size=16, output_sizes=[8, 8]),
        "l.0.o_proj": Layer(input_size=8, output_size=6, tp_size=1),
        "l.0.shared": Layer(input_size=8, output_size=6, tp_size=2),
        "l.0.in_proj": Layer(input_size=8, output_size=9, output_sizes=[3, 3, 3]),
        "l.0.experts": Layer(embedding_dim=8),
        "embed": Layer(org_vocab_size=100, embedding_dim=8),
    }
    told = coverage(worker(MoeForCausalLM(), {name: Wrapper(layer) for name, layer in modules.items()}, [], packed))
    assert told["shapes"] == {
        "8 8": ["l.{0-1}.q_proj"],
        "4 8": ["l.{0-1}.k_proj", "l.{0-1}.v_proj"],
        "16 8": ["l.0.fused"],
        "6 8": ["l.0.o_proj"],
        "100 8": ["embed"],
    }
