"""Reads the bodies of requests, bounded in size, time and length of every field."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from sidecar.vllm_plugin.errors import DeadlinePassed, InvalidRequest

MAX_BODY_BYTES = 64 * 1024
MAX_NAME_LENGTH = 256
MAX_PATH_LENGTH = 4096
BODY_SECONDS = 10.0


async def read_fields(stream: AsyncIterator[bytes], *names: str) -> dict[str, str]:
    """The named text fields of the JSON object that `stream` brings.

    Raises:
        InvalidRequest: it is too large, no JSON object, or a field is missing, no text, empty or too long.
        DeadlinePassed: it did not come in time.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await _read(stream)
    except TimeoutError as error:
        raise DeadlinePassed(f"the body did not come within {BODY_SECONDS:g} s") from error
    fields = _object(body)
    return {name: _text(name, fields.get(name)) for name in names}


async def _read(stream: AsyncIterator[bytes]) -> bytes:
    body = bytearray()
    async for chunk in stream:
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise InvalidRequest(f"a body of more than {MAX_BODY_BYTES} bytes", field="body")
    return bytes(body)


def _object(body: bytes) -> dict[str, object]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is no JSON: {error}", field="body") from error
    if not isinstance(fields, dict):
        raise InvalidRequest("the body is no JSON object", field="body")
    return fields


def _text(name: str, value: object) -> str:
    limit = MAX_NAME_LENGTH if name == "lora_name" else MAX_PATH_LENGTH
    if not isinstance(value, str) or not 0 < len(value) <= limit or "\0" in value:
        raise InvalidRequest(f"{name} must be text of 1 to {limit} characters", field=name)
    if name != "lora_name" and not value.startswith("/"):
        raise InvalidRequest(f"{name} must be an absolute path", field=name)
    return value
