"""Pages of sidecars, for commands that show what one says of itself."""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from registry.cli.failure import CliError, unavailable, usage
from registry.client.address import Tls, is_of_this_host
from registry.model.errors import Reason
from registry.model.messages import Plain
from registry.model.stored import read_json
from registry.runtime.local_files import MAX_SECRET_BYTES, read_followed

_MAX_PAGE_BYTES = 4 * 1024 * 1024
_MAX_REFUSAL_BYTES = 4096
_ADDRESS = re.compile(r"(?:https?://)?(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_OK = 200


@dataclass(frozen=True, slots=True)
class SidecarAccess:
    """Credentials for sidecars: the certificate that the admin service is shown too, and a token of their own.

    The admin service's token is not: it would be for whoever runs a replica.
    """

    tls: Tls
    token_file: Path | None = None

    def context(self) -> ssl.SSLContext:
        """The context of connections with TLS.

        Raises:
            CliError: a file cannot be used.
        """
        tls = self.tls
        try:
            context = ssl.create_default_context(cafile=tls.ca)
            if tls.cert is not None:
                context.load_cert_chain(tls.cert, tls.key, password="")  # nobody is there to be asked for one
        except OSError as error:
            files = ", ".join(str(one) for one in (tls.ca, tls.cert, tls.key) if one)
            raise usage(f"{files} cannot be used for a sidecar: {error.strerror or error}") from error
        return context

    def headers(self, url: str) -> dict[str, str]:
        """The token's header; a token goes over TLS or to our own host alone.

        Raises:
            CliError: the token cannot be read, or would be told to others.
        """
        if self.token_file is None:
            return {}
        if not url.startswith("https:") and not is_of_this_host(url.removeprefix("http://").partition("/")[0]):
            raise usage("--sidecar-token-file: the token would go unencrypted; name https://HOST:PORT")
        try:
            token = read_followed(self.token_file, max_bytes=MAX_SECRET_BYTES).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise usage(f"--sidecar-token-file {self.token_file} cannot be read as one line of text") from error
        return {"Authorization": f"Bearer {token}"}


def sidecar_address(text: str) -> str:
    """HOST:PORT of what --sidecar names, with its scheme if it names one.

    Raises:
        CliError: it is no HOST:PORT.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise usage(f"--sidecar {text}: write HOST:PORT, such as 127.0.0.1:7602, or https://HOST:PORT")
    return text


def ask_sidecar(address: str, path: str, seconds: float, access: SidecarAccess) -> Plain:
    """Answer of a sidecar at a path of its port.

    Raises:
        CliError: it does not answer in that time, or not with a JSON object.
    """
    import httpx  # noqa: PLC0415 - most commands that may fetch do not, and its import is long

    try:
        url = f"{'' if '://' in address else 'http://'}{address}{path}"
        status, body = asyncio.run(_page(url, seconds, access))
        answer = read_json(body) if status == _OK and len(body) <= _MAX_PAGE_BYTES else None
    except (TimeoutError, httpx.TimeoutException) as error:
        raise _unreached(address, path, f"no whole answer within {seconds:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise _unreached(address, path, _said(error)) from error
    if not isinstance(answer, dict):
        why = _refusal(body) or f"status {status}, and no {path[1:]}: is it a sidecar, and of this release?"
        raise _unreached(address, path, why)
    return answer


async def _page(url: str, seconds: float, access: SidecarAccess) -> tuple[int, bytes]:
    """Status and body of a page; of a body that is too long, its beginning.

    Raises:
        TimeoutError: it is not there after the time, however many bytes are.
        httpx.HTTPError: nobody answers, or not with HTTP.
        httpx.InvalidURL: the host is none.
        CliError: what it is to be shown cannot be used.
    """
    import httpx  # noqa: PLC0415

    body = bytearray()
    # httpx would read authorities for each client, also for one that speaks plain HTTP; and no proxy is asked.
    context = access.context() if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    headers = {"Accept-Encoding": "identity", **access.headers(url)}
    async with (
        asyncio.timeout(seconds),
        httpx.AsyncClient(trust_env=False, timeout=seconds, verify=context) as client,
        client.stream("GET", url, headers=headers) as reply,
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
    return unavailable(Reason.SIDECAR_UNAVAILABLE, message)
