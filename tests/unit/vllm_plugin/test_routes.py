"""What is read of a request's body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sidecar.vllm_plugin.routes import MAX_BODY_BYTES, read_fields
from sidecar.vllm_plugin.server import DeadlinePassed, InvalidRequest
from tests.support.engine_in_memory import virtual


@virtual
async def test_a_body_is_waited_for_ten_seconds():
    """X2 unbreakable: whoever opens requests and sends nothing holds none of them for ever."""

    async def slow(seconds: float) -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(seconds)
        yield b'"lora_name": "a"}'

    assert await read_fields(slow(9.9), "lora_name") == {"lora_name": "a"}
    with pytest.raises(DeadlinePassed, match="did not come within 10 s"):
        await read_fields(slow(99.0), "lora_name")
    assert asyncio.get_running_loop().time() == pytest.approx(19.9)


@pytest.mark.parametrize(("size_bytes", "is_taken"), [(MAX_BODY_BYTES, True), (MAX_BODY_BYTES + 1, False)])
async def test_a_body_may_have_so_many_bytes_however_it_is_cut(size_bytes, is_taken):
    """R16 bounded."""
    text = b'{"lora_name": "a"}'
    body = text + b" " * (size_bytes - len(text))

    async def cut() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1000):
            yield body[start : start + 1000]

    if is_taken:
        assert await read_fields(cut(), "lora_name") == {"lora_name": "a"}
    else:
        with pytest.raises(InvalidRequest, match="a body of more than"):
            await read_fields(cut(), "lora_name")
