"""The simulated engine: what those who test with it rely on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from registry.runtime.http import listen
from sidecar.engines.simulated.app import make_app, served
from sidecar.engines.simulated.engine import Card, Rejection, SimulatedCall, SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.engines.simulated.weights import AdapterMissing, AdapterRefused, read_weights
from tests.support.adapters import adapter_config, adapter_weights, write_files


def test_a_fresh_one_has_done_nothing_and_tells_of_each_call():
    heard: list[SimulatedCall] = []
    engine = SimulatedVllm(on_call=heard.append)
    assert (engine.tokens, engine.prompt_tokens, engine.ended) == (0, 0, 0)
    call = SimulatedCall("load", "a", "/a", "", 0.0)
    engine.note(call)
    SimulatedVllm().note(call)
    assert (heard, list(engine.calls)) == ([call], [call])


def written(folder: Path, **changes: object) -> str:
    config = json.loads(adapter_config(rank=4)) | changes
    return str(write_files(folder, json.dumps(config).encode(), adapter_weights(rank=4)).directory)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, ""),
        ({"r": 8}, ""),
        *(({"init_lora_weights": one}, "") for one in (True, False, "Gaussian")),
        ({"rank_pattern": {"q_proj": 8}, "alpha_pattern": {"q_proj": 2.5, "v_proj": None}}, ""),
        ({"rank_pattern": None, "alpha_pattern": None, "modules_to_save": None}, ""),
        ({"modules_to_save": ["score"], "use_dora": False, "bias": "none"}, ""),
        ({"modules_to_save": ["score", "classifier"]}, ""),
        ({"r": 9}, "greater than max_lora_rank 8"),
        ({"r": 0}, "must be a positive integer"),
        ({"rank_pattern": {"q_proj": 9}}, "greater than max_lora_rank 8"),
        ({"lora_alpha": None}, "lora_alpha must be a number"),
        ({"alpha_pattern": {"q_proj": "2"}}, "lora_alpha must be a number"),
        ({"bias": "lora_only"}, "bias is not supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
        ({"modules_to_save": ["score", "lm_head"]}, "modules_to_save"),
        ({"use_dora": True}, "use_dora"),
        ({"r": "8"}, "not supported between"),
        ({"target_modules": None, "use_bdlora": {}, "use_qalora": True}, "use_qalora"),
        ({"rank_pattern": "q"}, "no attribute"),
        ({"rank_pattern": {"q_proj": -1}}, "must be a positive integer"),
    ],
    ids=str,
)
def test_it_takes_and_refuses_what_vllm_does(tmp_path, changes, message):
    """What it takes answers by its files alone."""
    folder = written(tmp_path / "a", **changes)
    if message:
        with pytest.raises(AdapterRefused, match=message):
            read_weights(folder, 8)
        return
    assert read_weights(folder, 8) == read_weights(written(tmp_path / "b", **changes), 8)
    assert read_weights(folder, 8) != read_weights(written(tmp_path / "c", **changes, more=1), 8)


def test_it_tells_what_is_missing_from_what_is_refused(tmp_path):
    """R12: only a configuration that is not there is a missing adapter, as vLLM has it; nothing ends the engine."""
    (tmp_path / "file").write_text("")
    for path in (str(tmp_path / "file"), "/a\0b", "/\udcff"):
        with pytest.raises(AdapterRefused):
            read_weights(path, 8)
    folder = Path(written(tmp_path / "a"))
    for path in (str(tmp_path / "none"), "a", str(folder.relative_to("/"))):
        with pytest.raises(AdapterMissing):
            read_weights(path, 8)
    weights = folder / "adapter_model.safetensors"
    whole = weights.read_bytes()
    for content in (whole[:-1], whole + b"x", whole[:9], whole[:7], b"", whole[:8] + b"x" * (len(whole) - 8)):
        weights.write_bytes(content)
        with pytest.raises(AdapterRefused, match="deserializing header"):
            read_weights(str(folder), 8)
    weights.unlink()
    with pytest.raises(AdapterRefused, match="contain tensors"):
        read_weights(str(folder), 8)
    (folder / "adapter_config.json").write_bytes(b"{")
    weights.write_bytes(whole)
    with pytest.raises(AdapterRefused):
        read_weights(str(folder), 8)
    (folder / "adapter_config.json").unlink()
    with pytest.raises(AdapterMissing):
        read_weights(str(folder), 8)


@pytest.mark.parametrize(
    ("version", "is_flat", "refused", "remembers"),
    [
        ("0.10.0", True, (400, "BadRequestError"), True),
        ("0.10.1", False, (400, "BadRequestError"), True),
        ("0.22.9", False, (400, "BadRequestError"), True),
        ("0.23.0", False, (500, "InternalServerError"), True),
        ("0.30.2", False, (500, "InternalServerError"), True),
        ("0.31.0", False, (500, "InternalServerError"), False),
        ("0.31", False, (500, "InternalServerError"), False),
    ],
)
async def test_it_plays_releases(tmp_path, version, is_flat, refused, remembers):
    """What each answers to files that it does not take, and whether a name keeps what its first weights computed."""
    engine = SimulatedVllm(Options(version=version))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(make_app(engine)), base_url="http://e") as client:
        asked = {"lora_name": "x", "lora_path": written(tmp_path / "bad", r=99)}
        reply = await client.post("/v1/load_lora_adapter", json=asked)
    body = reply.json()
    assert ("error" in body) is not is_flat
    error = body if is_flat else body["error"]
    assert (reply.status_code, error["code"], error["type"]) == (refused[0], *refused)
    paths = [written(tmp_path / name, name=name) for name in "ab"]
    first, second = [await engine.generate(engine.card("x", path), "prompt", 4) for path in paths]
    assert (first == second) is remembers
    assert await engine.generate(engine.card("y", paths[1]), "prompt", 4) != first


DEEP = b"[" * 100_000
ENTRY = b'{"a": {"data_offsets": [0, 4]}}'


@pytest.mark.parametrize(
    "config",
    [b"", b"{", b"\xff", b"[]", b"7", b"null", b"{}", b'{"r": 4, "lora_alpha": 8}', DEEP],
    ids=lambda value: f"{value[:20]}",
)
def test_a_configuration_that_is_none_is_refused(tmp_path, config):
    """X2: as vLLM's own code stumbles over it."""
    folder = write_files(tmp_path / "a", config, adapter_weights(rank=4)).directory
    with pytest.raises(AdapterRefused):
        read_weights(str(folder), 8)


@pytest.mark.parametrize(
    ("header", "size", "is_taken"),
    [
        (ENTRY, 4, True),
        (ENTRY, 3, False),
        (ENTRY, 5, False),
        (b'{"a": {"data_offsets": [0, 4]}, "b": {"data_offsets": [4, 8]}, "__metadata__": {}}', 8, True),
        (b'{"a": {"data_offsets": [0, 4]}, "b": {"data_offsets": [4, 8]}}', 4, False),
        (b"{}", 0, False),
        (b"[]", 0, False),
        (b"null", 0, False),
        (b'{"a": 7}', 0, False),
        (b'{"a": {}}', 0, False),
        (b'{"a": {"data_offsets": [0]}}', 0, False),
        (b'{"a": {"data_offsets": [0, "4"]}}', 0, False),
        (b'{"a": {"data_offsets": [0, 4]}, "b": {"data_offsets": [0, "4"]}}', 4, False),
        (DEEP, 0, False),
        (b"\xff", 0, False),
    ],
    ids=lambda value: f"{value}"[:60],
)
def test_weights_whose_header_does_not_say_where_they_end_are_refused(tmp_path, header, size, is_taken):
    """X2: only the header is read, and that the file is as long as it says."""
    content = len(header).to_bytes(8, "little") + header + bytes(size)
    folder = str(write_files(tmp_path / "a", adapter_config(rank=4), content).directory)
    if is_taken:
        assert read_weights(folder, 8)
        return
    with pytest.raises(AdapterRefused, match="deserializing header"):
        read_weights(folder, 8)


async def test_a_name_that_is_not_loaded_is_asked_for_once_and_never_answered_by_the_base(tmp_path):
    """R5 no-silent-base; as our plugin in it is asked, by however many requests at once."""
    engine, asked = SimulatedVllm(Options(max_lora_rank=8)), list[str]()
    paths = {"x": written(tmp_path / "x"), "bad": written(tmp_path / "bad", r=99)}

    async def resolve(name: str) -> Card | None:
        asked.append(name)
        await asyncio.sleep(0)
        return engine.card(name, paths[name]) if name in paths else None

    assert await engine.card_of("tiny") is None
    with pytest.raises(Rejection) as unknown:
        await engine.card_of("x")
    assert unknown.value.status == 404
    engine.resolve = resolve
    first, second = await asyncio.gather(engine.card_of("x"), engine.card_of("x"))
    assert first is second is await engine.card_of("x")
    assert (first.name, first.path, await engine.resident()) == ("x", paths["x"], {first.number})
    for name, status in (("bad", 400), ("nobody", 404)):
        with pytest.raises(Rejection) as refused:
            await engine.card_of(name)
        assert refused.value.status == status
        assert name not in engine.cards
    assert asked == ["x", "bad", "nobody"]


@pytest.mark.parametrize(
    ("running", "asked", "waits"),
    [
        ([], "c", False),
        (["a", ""], "c", False),
        (["a", "b"], "c", True),
        (["a", "b"], "b", False),
        (["a", "b"], "", False),
    ],
)
async def test_as_many_adapters_run_at_once_as_one_batch_mixes(running, asked, waits):
    """The base model and adapters that run already are no more of them; one that died keeps nobody waiting."""
    engine = SimulatedVllm(Options(max_loras=2))
    engine.running += running
    card = Card(asked, "/a", 1) if asked else None
    work = asyncio.create_task(engine.generate(card, "x", 0))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (work.done(), engine.waiting) == (not waits, [asked] if waits else [])
    engine.die()
    engine.pause(is_paused=False)
    async with asyncio.timeout(60):
        assert await work == []
    assert (engine.running, engine.waiting, engine.bound) == (running, [], [])


async def test_one_that_ends_breaks_its_connections_as_a_killed_process_does():
    app = Starlette(routes=[Route("/", lambda _: PlainTextResponse("there"))])
    listener = listen("127.0.0.1", 0)
    async with served(app, listener) as serving:
        half, other = [await asyncio.open_connection(*listener.getsockname()) for _ in range(2)]
        half[1].write(b"GET / HTTP/1.1\r\n")
        other[1].write(b"GET / HTTP/1.1\r\nHost: e\r\n\r\n")
        await other[0].readuntil(b"there")
    assert serving.done()
    async with asyncio.timeout(30):
        assert await half[0].read() == b""
    for _, writer in (half, other):
        writer.close()


async def test_a_fault_of_its_own_is_no_answer_of_a_vllm(tmp_path, monkeypatch):
    """R12: neither at a load, nor at one that a request brings about, nor within a step."""
    folder = written(tmp_path / "a")
    monkeypatch.setattr("sidecar.engines.simulated.engine.read_weights", Mock(side_effect=ZeroDivisionError))
    engine = SimulatedVllm(Options())
    with pytest.raises(ZeroDivisionError):
        await engine.load("x", folder)
    with pytest.raises(ZeroDivisionError):
        await engine.generate(Card("x", folder, 7), "p", 1)
    assert not engine.dead.is_set()
    monkeypatch.setattr(engine, "resolve", AsyncMock(return_value=Card("x", folder, 7)))
    with pytest.raises(ZeroDivisionError):
        await engine.card_of("x")
