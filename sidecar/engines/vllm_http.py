"""How vLLM is spoken to: every call has a connection of its own, on which its requests go out together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sidecar.engines.driver import EngineUnreachable, EngineUnusable
from sidecar.engines.exchange import Change, Exchange, Get, JsonPost, Lost, NotSent, Reply, unheard
from sidecar.engines.vllm_answers import is_vllms_error, not_an_engine, said, unauthorized

# Only a ceiling: whoever waits for a completion has a shorter deadline.
SILENCE_SECONDS = 120.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024


class VllmHttp:
    """One server. `api_key_file` is read at each use; None: there is no key. `kind` is what should answer."""

    def __init__(self, url: str, api_key_file: Path | None, kind: str = "vLLM") -> None:
        self.url = url.rstrip("/")
        self._key_file = api_key_file
        self._kind = kind
        self._exchange = Exchange(self.url)

    async def get(self, paths: Sequence[str], timeout_seconds: float, *, optional: str = "") -> list[bytes]:
        """The bodies of replies 200, all asked for at once and answered in order.

        Args:
            paths: of the pages.
            timeout_seconds: for all of them together.
            optional: one of the pages, whose body is empty where it is not to be had.

        Raises:
            EngineUnreachable: a whole reply is missing, or says "not now".
            EngineUnusable: the key is wrong, or what replies is no engine.
        """
        replies = await self._ask(paths, timeout_seconds)
        both = zip(paths, replies, strict=True)
        return [b"" if path == optional and reply.status != 200 else self._body(path, reply) for path, reply in both]

    def _body(self, path: str, reply: Reply) -> bytes:
        match reply.status:
            case 200:
                return reply.body
            case 404 | 405:
                raise not_an_engine(self.url, f"its {path} answers HTTP {reply.status}: {said(reply.body)}", self._kind)
            case status:
                raise EngineUnreachable(f"{self.url}{path} answers HTTP {status}: {said(reply.body)}")

    async def find(self, path: str, timeout_seconds: float) -> bytes | None:
        """The body of `path`; None if there is no such page.

        Raises:
            EngineUnreachable, EngineUnusable: see `get`.
        """
        [reply] = await self._ask([path], timeout_seconds)
        return None if reply.status in {404, 405} else self._body(path, reply)

    async def has_route(self, path: str, timeout_seconds: float) -> bool:
        """True if `path` is served. It is asked with GET: a route for POST answers 405 to that, and does nothing.

        Raises:
            EngineUnreachable, EngineUnusable: see `get`.
        """
        [reply] = await self._ask([path], timeout_seconds)
        if reply.status not in {404, 405}:
            raise EngineUnreachable(f"{self.url}{path} answers HTTP {reply.status}: {said(reply.body)}")
        return reply.status == 405 or await self._takes_post(path, timeout_seconds)

    async def _takes_post(self, path: str, timeout_seconds: float) -> bool:
        """For what stands between and answers 404 to GET. A request that names no adapter does nothing either."""
        [answer] = await self.post([JsonPost(path, {})], "", timeout_seconds)
        if isinstance(answer, NotSent):
            raise EngineUnreachable(f"{self.url}: {answer.message}")
        reply = self._reply(path, answer)
        match reply.status:
            case 400 | 422 | 500:
                return True
            case 404 | 405 | 501:
                return is_vllms_error(reply.body)
            case status:
                raise EngineUnreachable(f"{self.url}{path} answers HTTP {status}: {said(reply.body)}")

    async def completes(self, model: str) -> bool:
        """True if the shortest completion of a model succeeds. It has no deadline of its own."""
        body = {"model": model, "prompt": ".", "max_tokens": 1, "temperature": 0}
        [reply] = await self.post([JsonPost("/v1/completions", body)], "", SILENCE_SECONDS)
        return isinstance(reply, Reply) and reply.status == 200

    async def post(
        self,
        requests: Sequence[Change],
        request_id: str,
        timeout_seconds: float,
        on_sent: Callable[[], None] = unheard,
    ) -> Sequence[Reply | Lost | NotSent]:
        """Sends requests in one piece; one answer for each, in order. `on_sent` is called once all is on its way."""
        try:
            headers = self._key_header()
        except EngineUnusable as error:
            return [NotSent(error.message)] * len(requests)
        if request_id:
            headers["X-Request-Id"] = request_id
        answer = await self._exchange.send(requests, headers, timeout_seconds=timeout_seconds, on_sent=on_sent)
        return [answer] * len(requests) if isinstance(answer, NotSent) else answer

    async def _ask(self, paths: Sequence[str], timeout_seconds: float) -> list[Reply]:
        """GETs all of them at once, bounded in time and size."""
        answers = await self._exchange.send(
            [Get(path) for path in paths],
            self._key_header(),
            timeout_seconds=timeout_seconds,
            max_reply_bytes=MAX_ANSWER_BYTES,
        )
        if isinstance(answers, NotSent):
            raise EngineUnreachable(f"{self.url}: {answers.message}")
        return [self._reply(path, answer) for path, answer in zip(paths, answers, strict=True)]

    def _reply(self, path: str, answer: Reply | Lost) -> Reply:
        match answer:
            case Lost(message):
                raise EngineUnreachable(f"{self.url}{path}: {message}")
            case Reply(status=401 | 403):
                raise unauthorized(self.url)
            case reply:
                return reply

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
