"""The plugin declines where vLLM is not as it was read."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from sidecar.vllm_plugin.entry import Endpoints
from sidecar.vllm_plugin.usage import NameLocks, Usage
from sidecar.vllm_plugin.vllm_internals import VllmServer, are_told_apart, complaints, settings_against, tell_apart


def request_class() -> type:
    """A class like vLLM's `LoRARequest`, anew."""

    class LoRARequest:
        __struct_fields__ = ("lora_name", "lora_int_id", "lora_path", "base_model_name", "is_3d_lora_weight")

        def __init__(self, lora_name, lora_int_id, lora_path, base_model_name=None, is_3d_lora_weight=False):
            self.lora_name, self.lora_int_id, self.lora_path = lora_name, lora_int_id, lora_path
            self.base_model_name, self.is_3d_lora_weight = base_model_name, is_3d_lora_weight

        def __eq__(self, other):
            return type(self) is type(other) and self.lora_name == other.lora_name

        def __hash__(self):
            return hash(self.lora_name)

    return LoRARequest


class RequestState:
    """Like vLLM's."""

    def __init__(self, lora_request):
        self.lora_request = lora_request


class Engine:
    """Like vLLM's client of its engine."""

    def __init__(self) -> None:
        self.output_processor = SimpleNamespace(request_states={})
        self.takes = True

    async def add_lora(self, lora_request):
        return self.takes

    async def remove_lora(self, lora_id):
        self.removed = lora_id
        return True

    async def list_loras(self):
        return {1, 2}


class Models(SimpleNamespace):
    """Like vLLM's served models."""

    async def show_available_models(self):
        cards = [{"id": "base", "root": self.base}, *({"id": name} for name in self.lora_requests)]
        return SimpleNamespace(model_dump=lambda: {"object": "list", "data": cards})


def models() -> SimpleNamespace:
    counter = SimpleNamespace(inc=lambda number: 7)
    locks = defaultdict(asyncio.Lock)
    return Models(lora_requests={}, lora_resolver_lock=locks, lora_id_counter=counter, base="/base")


async def test_the_server_writes_its_list_for_the_adapters_that_are_asked_for():
    """By vLLM's own code, whatever is registered."""
    served = models()
    served.lora_requests["there"] = object()
    server = VllmServer(Engine(), served, request_class())
    assert server.lister is not None
    asked = server.make("asked", "/a", None)
    found = await server.lister({"asked": asked})
    assert found == {"object": "list", "data": [{"id": "base", "root": "/base"}, {"id": "asked"}]}
    assert VllmServer(Engine(), SimpleNamespace(**vars(models())), request_class()).lister is None


def test_versions_are_told_apart_by_number_and_path():
    """One member of a set each, as vLLM's worker needs it."""
    kind = request_class()
    assert not are_told_apart(kind)
    tell_apart(kind)
    tell_apart(kind)
    assert are_told_apart(kind)
    assert kind("x", 1, "/a") == kind("x", 1, "/a") != kind("x", 1, "/b")
    assert kind("x", 1, "/a") != "x"


def test_a_class_that_is_not_as_it_was_is_not_touched():
    class Other:
        __struct_fields__ = ("name",)

    class Plain:
        __struct_fields__ = ("lora_name", "lora_int_id", "lora_path")

    class OnlyHashed(Plain):  # whatever it inherits is not its own
        __hash__ = object.__hash__

    class Fewer:
        __struct_fields__ = ("lora_name", "lora_int_id")
        __eq__ = object.__eq__
        __hash__ = object.__hash__

    only_compared = type("OnlyCompared", (Plain,), {"__eq__": object.__eq__})
    del only_compared.__hash__  # type: ignore[attr-defined] - Python takes it away from who compares
    for kind in (Other, Plain, OnlyHashed, only_compared, Fewer):
        before = dict(vars(kind))
        with pytest.raises(AttributeError):
            tell_apart(kind)
        assert dict(vars(kind)) == before


def test_a_class_that_goes_on_comparing_by_its_name_is_told():
    """Whatever keeps it so: a step of the engine would end it, see the module."""

    class Fixed(type):
        def __setattr__(cls, _name, _value):
            pass

    kept = Fixed("LoRARequest", (), dict(vars(request_class())))
    with pytest.raises(AttributeError, match="cannot be made to compare"):
        tell_apart(kept)


class NoSignature:
    """A class of which Python cannot tell what it is made with."""

    __init__ = type.__call__


CHANGES: dict[str, Callable[[SimpleNamespace], object]] = {
    "add_lora": lambda parts: setattr(parts.engine, "add_lora", lambda name, path: True),
    "request_states": lambda parts: setattr(parts.engine, "output_processor", None),
    "lora_request": lambda parts: setattr(parts, "state_class", object),
    "state of a request": lambda parts: setattr(parts, "state_class", NoSignature),
    "told apart": lambda parts: setattr(parts, "request_class", request_class()),
    "base_model_name": lambda parts: setattr(parts, "request_class", SimpleNamespace(__struct_fields__=("lora_name",))),
    "lock": lambda parts: setattr(parts.models, "lora_resolver_lock", {}),
    "ids": lambda parts: setattr(parts.models, "lora_id_counter", None),
    "lora_requests": lambda parts: setattr(parts.models, "lora_requests", None),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_each_part_that_changed_is_named(changed):
    """It declines rather than to guess."""
    parts = SimpleNamespace(engine=Engine(), models=models(), request_class=request_class(), state_class=RequestState)
    tell_apart(parts.request_class)
    assert list(complaints(**vars(parts))) == []
    CHANGES[changed](parts)
    (complaint,) = complaints(**vars(parts))
    assert changed in complaint


@pytest.mark.parametrize(("count", "lora", "said"), [(2, object(), "--api-server-count 1"), (1, None, "--enable-lora")])
def test_a_server_that_must_not_have_it_is_told_what_to_change(count, lora, said):
    config = SimpleNamespace(parallel_config=SimpleNamespace(_api_process_count=count), lora_config=lora)
    (against,) = settings_against(config)
    assert said in against
    assert len(list(settings_against(None))) == 2


async def test_the_server_is_vllms_own_parts():
    kind, engine, served = request_class(), Engine(), models()
    server = VllmServer(engine, served, kind)
    served.lora_requests["x"] = like = kind("x", 1, "/a", "base", is_3d_lora_weight=True)
    made = server.make("x", "/b", like)
    assert (made.lora_name, made.lora_int_id, made.lora_path, made.base_model_name) == ("x", 7, "/b", "base")
    assert made.is_3d_lora_weight
    assert server.registered is served.lora_requests
    assert (type(served.lora_requests), type(served.lora_resolver_lock)) == (Usage, NameLocks), "uses are seen"
    lock = server.lock("x")
    assert lock is served.lora_resolver_lock["x"]
    assert server.make("y", "/c", None).base_model_name is None
    assert server.limits == {"max_loras": None, "max_cpu_loras": None, "max_lora_rank": None}
    engine.vllm_config = SimpleNamespace(
        lora_config=SimpleNamespace(max_loras=4, max_cpu_loras=None, max_lora_rank="x")
    )
    assert server.limits == {"max_loras": 4, "max_cpu_loras": None, "max_lora_rank": None}
    assert server.vocabulary is None
    for told, known in ((32_000, 32_000), (0, None), (None, None)):
        engine.vllm_config.model_config = SimpleNamespace(get_vocab_size=lambda told=told: told)
        assert server.vocabulary == known
    assert await server.resident() == {1, 2}
    await server.add(made)
    await server.remove(1)
    assert engine.removed == 1
    engine.takes = False
    with pytest.raises(RuntimeError, match="did not take"):
        await server.add(made)
    states = {"r1": RequestState(made), "r2": RequestState(None)}
    engine.output_processor.request_states = states
    assert list(server.in_flight()) == [made]


def test_requests_that_end_are_counted_for_the_adapters_that_they_name():
    """Those that the plugin itself sends to prove an adapter are nobody's."""
    kind, engine, served = request_class(), Engine(), models()
    engine.output_processor.request_states = {"before": RequestState(kind("x", 1, "/a"))}
    server = VllmServer(engine, served, kind)
    states = engine.output_processor.request_states
    assert list(states) == ["before"]
    served.lora_requests["x"] = kind("x", 1, "/a")
    states |= {"base": RequestState(None), "loraplane-proof-1-ab": RequestState(kind("x", 2, "/b")), "odd": object()}
    states["gone"] = RequestState(kind("gone", 3, "/c"))
    for request in list(states):
        states.pop(request)
    assert server.registered.counts() == {"x": 1}


async def test_it_declines_in_one_line(monkeypatch, caplog):
    """Without the permission to change adapters, beside other API servers, and where there is no vLLM."""
    monkeypatch.setenv("LORAPLANE_PLUGIN", "1")
    monkeypatch.delenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", raising=False)
    engine = Engine()
    engine.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(_api_process_count=2), lora_config=object())
    with caplog.at_level(logging.ERROR):
        await Endpoints().init_state(engine, SimpleNamespace(), None)
        monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
        await Endpoints().init_state(engine, SimpleNamespace(), None)
        engine.vllm_config.parallel_config._api_process_count = 1
        await Endpoints().init_state(engine, SimpleNamespace(), None)
    said = [record.message for record in caplog.records]
    assert len(said) == 3
    for line, why in zip(said, ("RUNTIME_LORA_UPDATING", "--api-server-count", "vllm"), strict=True):
        assert line.startswith("loraplane: the plugin declines: ")
        assert why in line


MULTI = "MultiConnector"


def several(*named: object, **more: str) -> dict[str, object]:
    """A connector of several."""
    connectors = [{"kv_connector": one} if isinstance(one, str) else one for one in named]
    return {"kv_connector": MULTI, "kv_connector_extra_config": {"connectors": connectors}} | more


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (None, []),
        ({"kv_connector": None}, []),
        ({"kv_connector": "NixlConnector"}, ["NixlConnector"]),
        ({"kv_connector": "Own", "kv_connector_module_path": "mine.kv"}, ["mine.kv.Own"]),
        (several("A", "B"), ["A", "B"]),
        (several(), [MULTI]),
        (several("A", 7), [MULTI]),
        (several("A", kv_connector="Own"), ["Own"]),
        (several("A", kv_connector_module_path="mine"), [f"mine.{MULTI}"]),
        *(
            ({"kv_connector": MULTI, "kv_connector_extra_config": odd}, [MULTI])
            for odd in ({"connectors": "A"}, {}, None)
        ),
    ],
)
def test_the_connectors_that_the_engine_was_started_with(config, names):
    """Of several in one, each; what has another form is named as a whole."""
    engine = Engine()
    told = None if config is None else SimpleNamespace(**config)
    engine.vllm_config = SimpleNamespace(kv_transfer_config=told)  # type: ignore[attr-defined] # as vLLM's has it
    assert VllmServer(engine, models(), request_class()).kv_connectors == names


class Answering(Engine):
    """One that also answers prompts; `asked` are those with what they are bound to."""

    def __init__(self, most: object = 4) -> None:
        super().__init__()
        self.asked: list[tuple[object, object]] = []
        self.vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=most))

    async def generate(self, prompt, sampling_params, request_id, *, lora_request=None):
        self.asked.append((prompt["prompt_token_ids"], lora_request))
        row = {9: SimpleNamespace(logprob=-1.0), 3: SimpleNamespace(logprob=-2.0)}
        for made in ([], [row]):
            yield SimpleNamespace(outputs=[SimpleNamespace(logprobs=made, token_ids=[9] * len(made))])


async def test_an_engine_answers_a_prompt_bound_to_an_adapter_or_to_none():
    """R22 applied-whole: what is compared are logprobs of the next tokens, in one order.

    R8 isolation: never those of the prompt, with which two requests, one bound to an adapter, end vLLM 0.32 on CPUs.
    """
    engine, made = Answering(), []

    def params(**fields: object) -> dict[str, object]:
        made.append(fields)
        return fields

    assert VllmServer(Answering(), models(), request_class()).prober is None
    assert VllmServer(Engine(), models(), request_class(), dict).prober is None
    server = VllmServer(engine, models(), request_class(), params)
    adapter = server.make("x", "/a", None)
    assert server.prober is not None
    answers = [await server.prober(bound, (4, 5), 7) for bound in (adapter, None)]
    assert answers == [((9, {9: -1.0, 3: -2.0}),)] * 2
    assert engine.asked == [([4, 5], adapter), ([4, 5], None)]
    # What ends a text for others is a token as any other here.
    assert made[0] == {"temperature": 0, "max_tokens": 7, "logprobs": 5, "detokenize": False, "ignore_eos": True}


@pytest.mark.parametrize(
    ("most", "requests", "is_full"),
    [(4, 1, False), (4, 2, True), (1, 0, False), (1, 1, True), (None, 127, False), (None, 128, True)],
)
def test_an_engine_is_full_for_a_proof_when_half_of_its_places_are_taken(most, requests, is_full):
    """R19 not-held-up."""
    engine = Answering(most)
    engine.output_processor.request_states = dict.fromkeys(range(requests))
    assert VllmServer(engine, models(), request_class()).is_full is is_full
