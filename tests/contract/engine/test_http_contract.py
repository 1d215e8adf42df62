"""What vLLM answers to each kind of request: the table that driver and simulated engine stand on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.engines import BASE_MODEL
from tests.support.waiting import eventually


def fault(reply) -> tuple[int, str]:
    """Status and type of an error reply in vLLM's form."""
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == reply.status_code
    assert isinstance(error["message"], str)
    return reply.status_code, error["type"]


async def test_load_and_unload_are_answered_200(asker, tiny):
    assert (await asker.load("a", tiny.adapter("a"))).status_code == 200
    assert await asker.adapters() == {"a": tiny.adapter("a")}
    assert (await asker.unload("a")).status_code == 200
    assert await asker.adapters() == {}


@pytest.mark.parametrize("second", ["a", "b"])
async def test_a_name_that_is_loaded_is_400_whatever_the_path(asker, tiny, second):
    await asker.load("a", tiny.adapter("a"))
    reply = await asker.load("a", tiny.adapter(second))
    assert fault(reply) == (400, "InvalidUserInput")
    assert reply.json()["error"]["param"] is None
    assert await asker.adapters() == {"a": tiny.adapter("a")}


@pytest.mark.parametrize(("name", "path"), [("", "/x"), ("a", ""), (BASE_MODEL, "/x")])
async def test_empty_names_and_the_base_models_are_400(asker, name, path):
    assert fault(await asker.load(name, path)) == (400, "InvalidUserInput")


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"{bad", "body.1"),
        (b'{"lora_name": "a"}', "body.lora_path"),
        (b'{"lora_path": "/x"}', "body.lora_name"),
        (b'{"lora_name": 3, "lora_path": "/x"}', "body.lora_name"),
        (b"[1]", "body"),
    ],
)
async def test_malformed_requests_are_400_and_name_the_field(asker, content, param):
    headers = {"content-type": "application/json"}
    reply = await asker.client.post("/v1/load_lora_adapter", content=content, headers=headers)
    assert fault(reply) == (400, "Bad Request")
    assert reply.json()["error"]["param"] == param


async def test_missing_files_are_404(asker, tiny, tmp_path):
    assert fault(await asker.load("a", str(tmp_path / "missing"))) == (404, "NotFoundError")
    folder = tmp_path / "no-config"
    shutil.copytree(tiny.adapter("a"), folder)
    (folder / "adapter_config.json").unlink()
    assert fault(await asker.load("a", str(folder))) == (404, "NotFoundError")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("rank", {"rank": 32}),
        ("dora", {"use_dora": True}),
        ("bias", {"bias": "all"}),
        ("saved", {"modules_to_save": ["lm_head"]}),
        ("init", {"init_lora_weights": "pissa"}),
        ("none", {"r": 0}),
        ("one", {"rank_pattern": {"q_proj": 32}}),
        ("alpha", {"lora_alpha": "16"}),
        ("modules", {"alpha_pattern": {"q_proj": "16"}}),
    ],
)
async def test_adapters_that_vllm_does_not_take_are_500(asker, tiny, name, changes):
    assert fault(await asker.load(name, tiny.changed(name, **changes))) == (500, "InternalServerError")
    assert await asker.adapters() == {}


async def test_what_is_there_and_cannot_be_read_is_500(asker, tiny, tmp_path):
    """Only a file that is not there is a missing one."""
    shutil.copytree(tiny.adapter("a"), tmp_path / "folder")
    (tmp_path / "folder/adapter_config.json").rename(tmp_path / "file")
    (tmp_path / "folder/adapter_config.json").mkdir()
    for path in (tmp_path / "folder", tmp_path / "file", "/\0", f"/{'long' * 100}"):
        assert fault(await asker.load("a", str(path))) == (500, "InternalServerError")
    assert await asker.adapters() == {}


@pytest.mark.parametrize("kept_bytes", [0, 1000])
async def test_a_truncated_or_missing_file_is_500(asker, tiny, tmp_path, kept_bytes):
    folder = truncated(tiny.adapter("a"), tmp_path / "cut", kept_bytes)
    assert fault(await asker.load("cut", str(folder))) == (500, "InternalServerError")
    assert await asker.adapters() == {}


def truncated(adapter: str, folder: Path, kept_bytes: int) -> Path:
    """A copy of an adapter with the beginning of its weights only; 0: without the file."""
    shutil.copytree(adapter, folder)
    weights = folder / "adapter_model.safetensors"
    beginning = weights.read_bytes()[:kept_bytes]
    weights.unlink()
    if beginning:
        weights.write_bytes(beginning)
    return folder


async def test_unload_of_an_unknown_name_is_404(asker):
    assert fault(await asker.unload("nobody")) == (404, "NotFoundError")
    assert fault(await asker.unload("")) == (400, "InvalidUserInput")


async def test_an_unknown_model_is_404_and_never_the_base_model(asker):
    """R5 no-silent-base: an adapter that is absent is an error, never the base's output."""
    reply = await asker.complete("nobody", "x")
    assert fault(reply) == (404, "NotFoundError")
    assert reply.json()["error"]["param"] == "model"


async def test_routes_answer_405_to_another_method_and_unknown_ones_404(asker):
    assert (await asker.client.get("/v1/load_lora_adapter")).status_code == 405
    assert (await asker.client.get("/v1/unload_lora_adapter")).status_code == 405
    unknown = await asker.client.get("/v1/nowhere")
    assert (unknown.status_code, unknown.json()) == (404, {"detail": "Not Found"})


async def test_cards_say_base_and_path(asker, tiny):
    await asker.load("a", tiny.adapter("a"))
    cards = (await asker.client.get("/v1/models")).json()["data"]
    assert [(card["id"], card["root"], card["parent"]) for card in cards] == [
        (BASE_MODEL, str(tiny.model), None),
        ("a", tiny.adapter("a"), BASE_MODEL),
    ]


async def test_openapi_has_both_routes(asker):
    paths = (await asker.client.get("/openapi.json")).json()["paths"]
    assert {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"} <= set(paths)


async def test_metrics_name_the_process_and_tell_that_there_is_lora(asker, tiny):
    await asker.load("a", tiny.adapter("a"))

    async def seen_running() -> str | None:
        """The sample is of a moment, and another request may be needed to be seen in it."""
        await asker.text("a", "x", tokens=8)
        text = (await asker.client.get("/metrics")).text
        return text if 'running_lora_adapters="a"' in text else None

    text = await eventually(seen_running)
    for start in ("process_start_time_seconds ", "vllm:num_requests_running{", "vllm:num_requests_waiting{"):
        assert any(line.startswith(start) for line in text.splitlines()), start
    assert 'vllm:lora_requests_info{max_lora="4"' in text
