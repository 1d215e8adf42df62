"""Pages of sidecars, for commands that show what one says of itself."""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import suppress

from registry.cli.failure import CliError, CommandFailure, Exit, usage
from registry.model.errors import Reason
from registry.model.messages import Plain
from registry.model.stored import read_json

_MAX_PAGE_BYTES = 4 * 1024 * 1024
_MAX_REFUSAL_BYTES = 4096
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_OK = 200


def sidecar_address(text: str) -> str:
    """HOST:PORT of what --sidecar names.

    Raises:
        CliError: it is no HOST:PORT.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise usage(f"--sidecar {text}: write HOST:PORT, such as 127.0.0.1:7602")
    return text


def ask_sidecar(address: str, path: str, seconds: float) -> Plain:
    """Answer of a sidecar at a path of its port.

    Raises:
        CliError: it does not answer in that time, or not with a JSON object.
    """
    import httpx  # noqa: PLC0415 - most commands that may fetch do not, and its import is long

    try:
        status, body = asyncio.run(_page(f"http://{address}{path}", seconds))
        answer = read_json(body) if status == _OK and len(body) <= _MAX_PAGE_BYTES else None
    except (TimeoutError, httpx.TimeoutException) as error:
        raise _unreached(address, path, f"no whole answer within {seconds:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise _unreached(address, path, _said(error)) from error
    if not isinstance(answer, dict):
        why = _refusal(body) or f"status {status}, and no {path[1:]}: is it a sidecar, and of this release?"
        raise _unreached(address, path, why)
    return answer


async def _page(url: str, seconds: float) -> tuple[int, bytes]:
    """Status and body of a page; of a body that is too long, its beginning.

    Raises:
        TimeoutError: it is not there after the time, however many bytes are.
        httpx.HTTPError: nobody answers, or not with HTTP.
        httpx.InvalidURL: the host is none.
    """
    import httpx  # noqa: PLC0415

    body = bytearray()
    # httpx would read authorities for each client, also for one that speaks plain HTTP; and no proxy is asked.
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    async with (
        asyncio.timeout(seconds),
        httpx.AsyncClient(trust_env=False, timeout=seconds, verify=plain) as client,
        client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as reply,
    ):
        async for chunk in reply.aiter_raw():
            body += chunk
            if len(body) > _MAX_PAGE_BYTES:
                break
        return reply.status_code, bytes(body)


def _said(error: BaseException) -> str:
    """The system's error text, which httpx leaves out."""
    first = error
    while (before := first.__cause__ or first.__context__) is not None:
        first = before
    return f"{first if isinstance(first, OSError) else error}" or type(error).__name__


def _refusal(body: bytes) -> str:
    """Message with which a sidecar refused a request; empty: none."""
    with suppress(ValueError):
        match read_json(body[:_MAX_REFUSAL_BYTES]):
            case {"error": {"message": str(message)}} | {"error": str(message)}:  # the latter of earlier releases
                return message
    return ""


def _unreached(address: str, path: str, why: str) -> CliError:
    message = f"no {path[1:]} of a sidecar at {address}: {why}; --sidecar takes what the sidecar's --http says"
    return CliError(CommandFailure(Exit.UNAVAILABLE, Reason.SIDECAR_UNAVAILABLE, message))
