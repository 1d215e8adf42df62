"""NVIDIA Dynamo's part of the contract: one worker's own system port. Pure.

Read in ai-dynamo/dynamo:

- ``lib/runtime/src/system_status_server.rs`` at 0116f785: POST and GET /v1/loras, DELETE /v1/loras/NAME, if the worker
  runs with DYN_LORA_ENABLED=true. What the worker refuses is 200 ``{"status": "error", "message": text}``; 500 where
  it did not answer, or has no such endpoint yet. No page tells the base model's name, or generates.
- ``components/src/dynamo/vllm/handlers.py``: the listing is name to a number made from the name; a load of a name that
  is there is a success, whatever the path, and in later releases gives it other weights; an unload waits for a load.

So a name is an adapter of ours only if our own record says so, and a name that is there is never loaded. Its vLLM tells
weights in its prefix cache by that number, by the name, or by name and path, as its release does, which is not told: no
name gets others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.observed import Done, EngineGone, Outcome, Refused, Unknown
from sidecar.engines.others.http_engine import EnginePages
from sidecar.engines.transport import DeleteRequest, Lost, NotSent, PostRequest, Reply, fields_of
from sidecar.engines.vllm.responses import MAX_MESSAGE_LENGTH, not_an_engine

_ROUTE = "/v1/loras"


class Dynamo:
    """Implements `sidecar.engines.others.http_engine.HttpContract`.

    `base_models` are the names of the base model, which it lacks.
    """

    kind = "dynamo"
    pages = (_ROUTE,)
    health = "/health"
    statistics = None
    can_swap = False
    tells_taken = False

    def __init__(self, base_models: Sequence[str]) -> None:
        self._base_models = tuple(base_models)

    def read(self, bodies: Sequence[bytes], ours: Mapping[str, str], url: str) -> EnginePages:
        """See `HttpContract.read`."""
        names = _names(bodies[0], url)
        if names is None:
            raise not_an_engine(url, f"its {_ROUTE} is no table of names", self.kind)
        return EnginePages(
            version="",
            base_models=(*self._base_models, *(name for name in names if name not in ours)),
            adapters={name: ours[name] for name in names if name in ours},
        )

    def load(self, name: str, path: str) -> PostRequest:
        """See `HttpContract.load`. A worker reads a file:// source where it is."""
        return PostRequest(_ROUTE, {"lora_name": name, "source": {"uri": f"file://{path}"}})

    def load_outcome(self, name: str, answer: Reply | Lost | NotSent) -> Outcome:
        """See `HttpContract.load_outcome`."""
        return _outcome(name, answer)

    def unload(self, name: str) -> DeleteRequest:
        """See `HttpContract.unload`."""
        return DeleteRequest(f"{_ROUTE}/{quote(name)}")

    def unload_outcome(self, name: str, answer: Reply | Lost | NotSent) -> Outcome:
        """See `HttpContract.unload_outcome`. An unknown name is not told from other refusals: a listing tells."""
        return _outcome(name, answer)


def _outcome(name: str, answer: Reply | Lost | NotSent) -> Outcome:
    match answer:
        case NotSent(message):
            return EngineGone(message)
        case Lost(message):
            return Unknown(message)
        case reply:
            return _said(name, reply.status, fields_of(reply.body))


def _said(name: str, status: int, fields: Mapping[str, object]) -> Outcome:
    message = " ".join(str(fields.get("message") or "no text").split())[:MAX_MESSAGE_LENGTH]
    match status, fields:
        case 200, {"status": "success", "lora_name": named} if named == name:
            return Done()
        case 200, {"status": "error"}:
            return Refused(message)
        case _:
            return Unknown(f"{name}: HTTP {status}: {message}")


def _names(body: bytes, url: str) -> list[str] | None:
    match fields_of(body):
        case {"status": "success", "loras": dict(numbers)}:
            return list(numbers)
        case {"status": "error", "message": str(said)}:
            raise EngineUnreachable(f"{url}{_ROUTE} cannot be read: {said[:MAX_MESSAGE_LENGTH]}")
        case _:
            return None
