"""What vLLM answers to each kind of request: the table that driver and simulated engine stand on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.engines import BASE_MODEL
from tests.support.waiting import eventually

INVALID, MALFORMED = (400, "InvalidUserInput", None), (400, "Bad Request")
MISSING, REFUSED = (404, "NotFoundError"), (500, "InternalServerError")
# Of which vLLM does not take an adapter.
CHANGES = {
    "rank": {"rank": 32},
    "dora": {"use_dora": True},
    "bias": {"bias": "all"},
    "saved": {"modules_to_save": ["lm_head"]},
    "init": {"init_lora_weights": "pissa"},
    "none": {"r": 0},
    "one": {"rank_pattern": {"q_proj": 32}},
    "alpha": {"lora_alpha": "16"},
    "modules": {"alpha_pattern": {"q_proj": "16"}},
}
BODIES = {
    b"{bad": "body.1",
    b'{"lora_name": "a"}': "body.lora_path",
    b'{"lora_path": "/x"}': "body.lora_name",
    b'{"lora_name": 3, "lora_path": "/x"}': "body.lora_name",
    b"[1]": "body",
}


def fault(reply) -> tuple[int, str]:
    """Status and type of an error reply in vLLM's form."""
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == reply.status_code
    assert isinstance(error["message"], str)
    return reply.status_code, error["type"]


async def test_names_are_loaded_once_listed_and_unloaded(asker, tiny):
    """A name that is loaded is 400 whatever the path, as are empty names and the base model's."""
    a = tiny.adapter("a")
    assert (await asker.load("a", a)).status_code == 200
    for second in ("a", "b"):
        reply = await asker.load("a", tiny.adapter(second))
        assert (*fault(reply), reply.json()["error"]["param"]) == INVALID
    for name, path in (("", "/x"), ("b", ""), (BASE_MODEL, "/x")):
        assert fault(await asker.load(name, path)) == INVALID[:2]
    cards = (await asker.client.get("/v1/models")).json()["data"]
    base, own = (BASE_MODEL, str(tiny.model), None), ("a", a, BASE_MODEL)
    assert [(card["id"], card["root"], card["parent"]) for card in cards] == [base, own]
    assert (await asker.unload("a")).status_code == 200
    assert await asker.adapters() == {}
    assert fault(await asker.unload("a")) == MISSING
    assert fault(await asker.unload("")) == INVALID[:2]


async def test_malformed_requests_are_400_and_name_the_field(asker):
    headers = {"content-type": "application/json"}
    for content, param in BODIES.items():
        reply = await asker.client.post("/v1/load_lora_adapter", content=content, headers=headers)
        assert (fault(reply), reply.json()["error"]["param"]) == (MALFORMED, param)


async def test_missing_files_are_404_and_what_cannot_be_read_500(asker, tiny, tmp_path):
    """Only a file that is not there is a missing one; weights that are not there, or cut off, are refused."""
    assert fault(await asker.load("a", str(tmp_path / "missing"))) == MISSING
    folder = Path(shutil.copytree(tiny.adapter("a"), tmp_path / "folder"))
    (folder / "adapter_config.json").rename(tmp_path / "file")
    assert fault(await asker.load("a", str(folder))) == MISSING
    (folder / "adapter_config.json").mkdir()
    for path in (folder, tmp_path / "file", "/\0", f"/{'long' * 100}"):
        assert fault(await asker.load("a", str(path))) == REFUSED
    for kept_bytes in (0, 1000):
        cut = Path(shutil.copytree(tiny.adapter("a"), tmp_path / f"cut{kept_bytes}"))
        weights = cut / "adapter_model.safetensors"
        beginning = weights.read_bytes()[:kept_bytes]
        weights.unlink()
        if beginning:
            weights.write_bytes(beginning)
        assert fault(await asker.load("cut", str(cut))) == REFUSED
    assert await asker.adapters() == {}


@pytest.mark.parametrize("name", CHANGES)
async def test_adapters_that_vllm_does_not_take_are_500(asker, tiny, name):
    assert fault(await asker.load(name, tiny.changed(name, **CHANGES[name]))) == REFUSED
    assert await asker.adapters() == {}


async def test_an_unknown_model_is_404_and_never_the_base_model_and_routes_are_those_of_vllm(asker):
    """R5 no-silent-base: an adapter that is absent is an error, never the base's output."""
    reply = await asker.complete("nobody", "x")
    assert (fault(reply), reply.json()["error"]["param"]) == (MISSING, "model")
    assert (await asker.client.get("/v1/load_lora_adapter")).status_code == 405
    assert (await asker.client.get("/v1/unload_lora_adapter")).status_code == 405
    unknown = await asker.client.get("/v1/nowhere")
    assert (unknown.status_code, unknown.json()) == (404, {"detail": "Not Found"})


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
