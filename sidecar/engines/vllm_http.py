"""How vLLM is spoken to: reads over kept-alive connections, changes each over a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from sidecar.engines.driver import EngineUnreachable, EngineUnusable
from sidecar.engines.exchange import Exchange, JsonPost, Lost, NotSent, Reply
from sidecar.engines.vllm_answers import not_an_engine, said, unauthorized

# Shorter than the 5 s after which vLLM closes idle connections, so that none is used that is being closed.
IDLE_SECONDS = 2.0
# Only a ceiling: each call has a shorter deadline.
SILENCE_SECONDS = 120.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024


class VllmHttp:
    """The connections to one server. `api_key_file` is read at each use; None: there is no key."""

    def __init__(self, url: str, api_key_file: Path | None) -> None:
        self.url = url.rstrip("/")
        self._key_file = api_key_file
        self._exchange = Exchange(self.url)
        # No proxy from the environment: the engine is beside us, and its key must not go elsewhere.
        self._client = httpx.AsyncClient(
            base_url=self.url,
            trust_env=False,
            timeout=SILENCE_SECONDS,
            limits=httpx.Limits(keepalive_expiry=IDLE_SECONDS),
        )

    async def get(self, path: str, timeout_seconds: float) -> bytes:
        """The body of a reply 200.

        Raises:
            EngineUnreachable: there is no whole reply, or one that says "not now".
            EngineUnusable: the key is wrong, or what replies is no engine.
        """
        reply = await self._ask(path, timeout_seconds)
        match reply.status:
            case 200:
                return reply.body
            case 404 | 405:
                raise not_an_engine(self.url, f"its {path} answers HTTP {reply.status}: {said(reply.body)}")
            case status:
                raise EngineUnreachable(f"{self.url}{path} answers HTTP {status}: {said(reply.body)}")

    async def has_route(self, path: str, timeout_seconds: float) -> bool:
        """True if `path` is served. It is asked with GET: a route for POST answers 405 to that, and does nothing.

        Raises:
            EngineUnreachable, EngineUnusable: see `get`.
        """
        reply = await self._ask(path, timeout_seconds)
        if reply.status not in {404, 405}:
            raise EngineUnreachable(f"{self.url}{path} answers HTTP {reply.status}: {said(reply.body)}")
        return reply.status == 405

    async def completes(self, body: Mapping[str, object]) -> bool:
        """True if a completion succeeds. It has no deadline of its own.

        Raises:
            EngineUnusable: the file with the key cannot be used.
        """
        try:
            reply = await self._client.post("/v1/completions", json=body, headers=self._key_header())
        except httpx.HTTPError:
            return False
        return reply.status_code == 200

    async def post(
        self, requests: Sequence[JsonPost], request_id: str, timeout_seconds: float
    ) -> Sequence[Reply | Lost | NotSent]:
        """Sends requests in one piece; one answer for each, in order."""
        try:
            headers = self._key_header()
        except EngineUnusable as error:
            return [NotSent(error.message)] * len(requests)
        if request_id:
            headers["X-Request-Id"] = request_id
        answer = await self._exchange.post(requests, headers, timeout_seconds=timeout_seconds)
        return [answer] * len(requests) if isinstance(answer, NotSent) else answer

    async def aclose(self) -> None:
        """Closes the kept-alive connections."""
        await self._client.aclose()

    async def _ask(self, path: str, timeout_seconds: float) -> Reply:
        """GETs `path`, bounded in time and size."""
        body = bytearray()
        try:
            async with (
                asyncio.timeout(timeout_seconds),
                self._client.stream("GET", path, headers=self._key_header()) as response,
            ):
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        raise EngineUnreachable(f"{self.url}{path} answers more than {MAX_ANSWER_BYTES} bytes")
        except TimeoutError as error:
            raise EngineUnreachable(f"{self.url}{path} did not answer within {timeout_seconds:g} s") from error
        except httpx.HTTPError as error:
            raise EngineUnreachable(f"{self.url}: {error or type(error).__name__}") from error
        if response.status_code in {401, 403}:
            raise unauthorized(self.url)
        return Reply(response.status_code, bytes(body))

    def _key_header(self) -> dict[str, str]:
        """The header with the key, if there is one.

        Raises:
            EngineUnusable: the file cannot be read, or holds no key.
        """
        if self._key_file is None:
            return {}
        try:
            key = self._key_file.read_text(errors="replace").strip()
        except OSError as error:
            raise self._bad_key(error.strerror or type(error).__name__) from error
        if not key or not key.isascii() or not key.isprintable():
            raise self._bad_key("it must hold one line of ASCII")
        return {"Authorization": f"Bearer {key}"}

    def _bad_key(self, why: str) -> EngineUnusable:
        return EngineUnusable("engine_unauthorized", f"--engine-api-key-file {self._key_file} cannot be used: {why}")
