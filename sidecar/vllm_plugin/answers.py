"""Proof in an answer of the version whose weights made it.

vLLM binds a request to an adapter, by number and path, before anything of it is computed, and never again. So the proof
is taken in that step, and carried to where the answer begins. What the name has got since is another matter: a swap
while a request runs must not change what its answer says (R26).

- The sidecar tells the version of each pair of name and path before it has the engine load it. A path has one content
  for ever, so that an untold pair has no proof, and a told one cannot have a wrong digest.
- The binding happens in the request's own context, perhaps in a task of its own. What is noted there reaches the answer
  by an object that both contexts have, and not by a variable that one of them sets.
- A request that is bound to nothing, as all for the base model, has no proof.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from .protocol import plain_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .server import EngineAdapter

HEADER = "x-loraplane-adapter"
PROVEN_PATHS = ("/v1/completions", "/v1/chat/completions")
MAX_VERSIONS = 16_384
MAX_VERSION_LENGTH = 512
_VERSION = re.compile(r"[!-?A-~]+@[1-9][0-9]* sha256:[0-9a-f]{64}", re.ASCII)
_FIRST_ERROR = 400
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Mapping[str, Any], Any, Send], Awaitable[None]]


class BoundVersion:
    """The version that a request was bound to; empty: to none that is known."""

    __slots__ = ("version",)

    def __init__(self) -> None:
        self.version = ""


_binding: ContextVar[BoundVersion | None] = ContextVar("loraplane_binding", default=None)


@contextmanager
def answering() -> Iterator[BoundVersion]:
    """A request within the body: what it is bound to there, or in tasks that begin there, is noted."""
    binding = BoundVersion()
    token = _binding.set(binding)
    try:
        yield binding
    finally:
        _binding.reset(token)


def is_version(text: str) -> bool:
    """True for what a header may say: ``name@generation sha256:…``."""
    return len(text) <= MAX_VERSION_LENGTH and _VERSION.fullmatch(text) is not None


class Versions:
    """Versions of adapters by name and path, as far as they were told: of too many, those that were told last."""

    def __init__(self, capacity: int = MAX_VERSIONS) -> None:
        self._capacity = capacity
        self._told: OrderedDict[tuple[str, str], str] = OrderedDict()

    def tell(self, name: str, path: str, version: str) -> None:
        """From now on a request that is bound to these has that version."""
        key = (name, plain_path(path))
        self._told[key] = version
        self._told.move_to_end(key)
        if len(self._told) > self._capacity:
            self._told.popitem(last=False)

    def of(self, adapter: EngineAdapter) -> str:
        """Version of an adapter; empty: it was not told."""
        return self._told.get((adapter.lora_name, plain_path(adapter.lora_path)), "")

    def note(self, adapter: EngineAdapter) -> None:
        """Notes that the request of this context is bound to an adapter."""
        binding = _binding.get()
        if binding is not None:
            binding.version = self.of(adapter)


class AnswerProofs:
    """An ASGI middleware that puts the header on answers, streams too; errors have none."""

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Send) -> None:  # noqa: ANN401 - of ASGI
        """One connection."""
        if scope["type"] != "http" or not scope["path"].endswith(PROVEN_PATHS):
            await self.app(scope, receive, send)
            return
        with answering() as binding:

            async def proving(message: Message) -> None:
                if message["type"] == "http.response.start" and message["status"] < _FIRST_ERROR and binding.version:
                    proof = (HEADER.encode(), binding.version.encode("ascii"))
                    message = {**message, "headers": [*message.get("headers", ()), proof]}
                await send(message)

            await self.app(scope, receive, proving)
