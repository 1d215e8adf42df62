"""HTTP connections to vLLM: one for each call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from registry.model.errors import InvalidArgument
from registry.model.names import check_request_id
from registry.runtime.local_files import MAX_SECRET_BYTES, read_followed
from sidecar.engines.driver import EngineAbsent, EngineUnreachable, EngineUnusable
from sidecar.engines.transport import GetRequest, Lost, MetricLines, NotSent, PostRequest, Reply, Transport, unheard
from sidecar.engines.vllm.responses import is_vllms_error, not_an_engine, said, unauthorized
from sidecar.vllm_plugin.guard import CONTROL_HEADER, WITHOUT_TOKEN

# Only a ceiling: whoever waits for a completion has a shorter deadline.
SILENCE_SECONDS = 120.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
# A page of metrics that is not larger is read in less time than it takes to hand it to a worker thread.
MAX_AT_ONCE_METRICS_BYTES = 256 * 1024


async def metric_lines(page: bytes, wanted: MetricLines, url: str) -> str:
    """The lines of /metrics that are read. A large page is looked through beside the event loop.

    Raises:
        EngineUnreachable: they are too many.
    """
    try:
        if len(page) <= MAX_AT_ONCE_METRICS_BYTES:
            return wanted.of(page)
        return await asyncio.to_thread(wanted.of, page)
    except ValueError as error:
        raise EngineUnreachable(f"{url}/metrics cannot be read in full: {error}") from error


class VllmHttp:
    """One server."""

    def __init__(
        self, url: str, api_key_file: Path | None, kind: str = "vLLM", *, control_token_file: Path | None = None
    ) -> None:
        """Connects to nothing yet. Both files are read at each use.

        Args:
            url: of the server.
            api_key_file: holds its key; None: it has none.
            kind: what should answer.
            control_token_file: holds the token that our plugin in it asks for; None: it asks for none.
        """
        self.url = url.rstrip("/")
        self._key_file = api_key_file
        self._token_file = control_token_file
        self._kind = kind
        self._exchange = Transport(self.url)

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
        replies = await self._ask(paths, timeout_seconds, optional)
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
        [answer] = await self.post([PostRequest(path, {})], "", timeout_seconds)
        if isinstance(answer, NotSent):
            raise EngineAbsent(f"{self.url}: {answer.message}")
        reply = self._reply(path, answer)
        match reply.status:
            case 400 | 422 | 500:
                return True
            case 404 | 405 | 501:
                return is_vllms_error(reply.body)
            case status:
                raise EngineUnreachable(f"{self.url}{path} answers HTTP {status}: {said(reply.body)}")

    async def completes(self, model: str) -> bool | None:
        """True if the shortest completion of a model succeeds. It has no deadline of its own.

        None: it is refused without being tried, as by an engine that has no completions, so it says nothing.
        """
        body = {"model": model, "prompt": ".", "max_tokens": 1, "temperature": 0}
        [reply] = await self.post([PostRequest("/v1/completions", body)], "", SILENCE_SECONDS)
        match reply:
            case Reply(status=200):
                return True
            case Reply(status=status) if 400 <= status < 500 or status == 501:
                return None
            case _:
                return False

    async def post(
        self,
        requests: Sequence[PostRequest],
        request_id: str,
        timeout_seconds: float,
        on_sent: Callable[[], None] = unheard,
    ) -> Sequence[Reply | Lost | NotSent]:
        """Sends requests in one piece; one answer for each, in order. `on_sent` is called once all is on its way."""
        try:
            headers = self._headers()
        except EngineUnusable as error:
            return [NotSent(error.message)] * len(requests)
        with suppress(InvalidArgument):  # none, or what no admin service takes
            check_request_id(request_id)
            headers["X-Request-Id"] = request_id
        answer = await self._exchange.send(requests, headers, timeout_seconds=timeout_seconds, on_sent=on_sent)
        return [answer] * len(requests) if isinstance(answer, NotSent) else answer

    async def _ask(self, paths: Sequence[str], timeout_seconds: float, optional: str = "") -> list[Reply]:
        """GETs all of them at once, bounded in time and size. The key need not be taken for the `optional` one."""
        answers = await self._exchange.send(
            [GetRequest(path) for path in paths],
            self._headers(),
            timeout_seconds=timeout_seconds,
            max_reply_bytes=MAX_ANSWER_BYTES,
        )
        if isinstance(answers, NotSent):
            raise EngineAbsent(f"{self.url}: {answers.message}")
        both = zip(paths, answers, strict=True)
        return [self._reply(path, answer, is_optional=path == optional) for path, answer in both]

    def _reply(self, path: str, answer: Reply | Lost, *, is_optional: bool = False) -> Reply:
        match answer:
            case Lost(message):
                raise EngineUnreachable(f"{self.url}{path}: {message}")
            case Reply(status=401 | 403, body=body) if not is_optional:
                raise unauthorized(self.url, body)
            case reply:
                return reply

    def _headers(self) -> dict[str, str]:
        """The headers with the key and the control token, as far as there are any.

        Raises:
            EngineUnusable: a file cannot be read, or holds no key.
        """
        token = read_secret("--control-token-file", self._token_file) if self._token_file else WITHOUT_TOKEN
        if self._key_file is None:
            return {CONTROL_HEADER: token}
        key = read_secret("--engine-api-key-file", self._key_file)
        return {"Authorization": f"Bearer {key}", CONTROL_HEADER: token}


def read_secret(flag: str, file: Path) -> str:
    """The key or token in the file of a flag, read anew each time so that it may change.

    Raises:
        EngineUnusable: the file cannot be read, or does not hold one line.
    """
    try:
        secret = read_followed(file, max_bytes=MAX_SECRET_BYTES).decode(errors="replace").strip()
    except OSError as error:
        raise _bad_file(flag, file, error.strerror or type(error).__name__) from error
    if not secret or not secret.isascii() or not secret.isprintable():
        raise _bad_file(flag, file, "it must hold one line of ASCII")
    return secret


def _bad_file(flag: str, file: Path, why: str) -> EngineUnusable:
    return EngineUnusable("engine_unauthorized", f"{flag} {file} cannot be used: {why}")
