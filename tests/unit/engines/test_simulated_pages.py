"""The pages of the simulated engine, as vLLM writes them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sidecar.engines.simulated.app import make_app
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.engines.transport import Lost, Reply
from sidecar.vllm_plugin.answers import AnswerProofs
from tests.support.engine_in_memory import PLAIN, InMemory, answer_of

LOAD, UNLOAD, COMPLETIONS = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/completions"


def served(options: Options = PLAIN) -> tuple[SimulatedVllm, InMemory]:
    engine = SimulatedVllm(options)
    return engine, InMemory(make_app(engine))


def read(reply: Reply | Lost) -> tuple[int, Any]:
    """Its status and its JSON."""
    assert isinstance(reply, Reply)
    return reply.status, json.loads(reply.body)


async def test_its_pages_say_what_it_was_started_with(a):
    engine, way = served()
    assert await way.ask("GET", "/health") == Reply(200, b"")
    assert read(await way.ask("GET", "/version")) == (200, {"version": "0.32.0"})
    await engine.load("x", a)
    cards = read(await way.ask("GET", "/v1/models"))[1]["data"]
    told = [(card["id"], card["root"], card["parent"], card["max_model_len"]) for card in cards]
    assert told == [("base", "/models/base", None, 512), ("x", a, "base", None)]


@pytest.mark.parametrize(("plugin", "runtime_lora"), [(True, True), (True, False), (False, True)])
def test_only_a_plugin_puts_proofs_on_answers(plugin, runtime_lora):
    """R26: and without updates at run time it is not asked."""
    app = make_app(SimulatedVllm(replace(PLAIN, plugin=plugin, runtime_lora=runtime_lora)))
    assert [one.cls for one in app.user_middleware] == ([AnswerProofs] if plugin and runtime_lora else [])


async def test_a_completion_is_of_the_model_that_it_names(a):
    """R5: and never of the base, where there is no such model."""
    engine, way = served()
    await engine.load("x", a)
    status, of_base = read(await way.ask("POST", COMPLETIONS, {"prompt": "p"}))
    [choice] = of_base["choices"]
    assert (status, of_base["model"], choice["index"], choice["logprobs"]) == (200, "base", 0, None)
    assert len(choice["text"]) == 16 == of_base["usage"]["completion_tokens"]
    body = {"model": "x", "prompt": "p", "max_tokens": 3, "logprobs": 1}
    [of_adapter] = read(await way.ask("POST", COMPLETIONS, body))[1]["choices"]
    assert of_adapter["text"] not in choice["text"]
    logprobs = of_adapter["logprobs"]
    assert logprobs["tokens"] == list(of_adapter["text"])
    assert logprobs["text_offset"] == [0, 1, 2]
    pairs = zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)
    assert logprobs["top_logprobs"] == [{letter: value} for letter, value in pairs]
    as_ids = read(await way.ask("POST", COMPLETIONS, body | {"return_tokens_as_token_ids": True}))[1]["choices"][0]
    assert as_ids["text"] == of_adapter["text"]
    assert as_ids["logprobs"]["tokens"] == [f"token_id:{ord(letter)}" for letter in as_ids["text"]]
    missing = read(await way.ask("POST", COMPLETIONS, {"model": "none", "prompt": "p"}))
    assert (missing[0], missing[1]["error"]["param"]) == (404, "model")
    assert engine.cards.counts() == {"x": 2}
    engine.die()
    assert read(await way.ask("POST", COMPLETIONS, body))[0] == 500
    assert engine.cards.counts() == {"x": 3}, "whatever came of it"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"prompt": "p", "max_tokens": 1}, 200),
        ({"prompt": "", "max_tokens": 2}, 200),
        ({"max_tokens": 1}, 400),
        ({"prompt": "p", "max_tokens": 0}, 400),
        ({"prompt": "p", "max_tokens": "1"}, 400),
    ],
    ids=str,
)
async def test_a_completion_that_is_not_well_formed_is_refused(body, status):
    _, way = served()
    told = read(await way.ask("POST", COMPLETIONS, body))
    assert told[0] == status
    assert status == 200 or told[1]["error"]["param"] == "body.prompt"


@pytest.mark.parametrize(
    ("content", "kind", "param"),
    [
        (b'{"lora_name": "x"', "application/json", "body.17"),
        (b"\xff", "application/json", "body.0"),
        (b"[]", "application/json", "body"),
        (b"{}", "text/plain", None),
        (b"{}", "application/json; charset=utf-8", "body.lora_name"),
        (b'{"lora_name": 1}', "application/json", "body.lora_name"),
        (b'{"lora_name": "x"}', "application/json", "body.lora_path"),
        (b'{"lora_name": "x", "lora_path": null}', "application/json", "body.lora_path"),
    ],
    ids=str,
)
async def test_a_body_that_vllm_does_not_take_is_refused_by_its_place(content, kind, param):
    engine, way = served()
    status, told = read(await answer_of(way.app, "POST", LOAD, {"content-type": kind}, content))
    assert (status, told["error"]["code"], told["error"]["type"]) == (400, 400, "Bad Request")
    assert told["error"]["param"] == param
    is_missing = b"lora_path" not in content
    if param is not None and param.startswith("body.lora"):
        assert ("Field required" in told["error"]["message"]) is (is_missing and b": 1" not in content)
    assert list(engine.calls) == []


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        (LOAD, {"lora_name": "", "lora_path": "/a"}, 400, "InvalidUserInput"),
        (LOAD, {"lora_name": "y", "lora_path": ""}, 400, "InvalidUserInput"),
        (LOAD, {"lora_name": "base", "lora_path": "/a"}, 400, "InvalidUserInput"),
        (LOAD, {"lora_name": "x", "lora_path": "/a"}, 400, "InvalidUserInput"),
        (LOAD, {"lora_name": "y", "lora_path": "/none"}, 404, "NotFoundError"),
        (UNLOAD, {"lora_name": ""}, 400, "InvalidUserInput"),
        (UNLOAD, {"lora_name": "y"}, 404, "NotFoundError"),
        (UNLOAD, {"lora_name": "x"}, 200, ""),
    ],
    ids=str,
)
async def test_what_cannot_be_done_is_refused_in_vllms_form_and_remembered(a, path, body, status, kind):
    """A call is noted before it is carried out, whatever comes of it."""
    engine, way = served()
    await engine.load("x", a)
    reply = await way.ask("POST", path, body, **{"X-Request-Id": "r1"})
    assert isinstance(reply, Reply)
    assert reply.status == status
    assert not kind or json.loads(reply.body)["error"]["type"] == kind
    assert ("x" in engine.cards) is (status != 200)
    [call] = engine.calls
    assert (call.name, call.path, call.request_id) == (body["lora_name"], body.get("lora_path", ""), "r1")
    assert call.kind == ("load" if path == LOAD else "unload")
