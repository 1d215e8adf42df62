"""pegainfer's part of the contract. Pure.

Read in pegainfer-project/pegainfer, ``pegainfer-frontend/src/vllm/lora.rs`` at 0f14c24c: vLLM's two routes; 200 with a
text; 400 ``{"error": text}`` for every refusal, a name that is loaded among them; 404 where the model takes no
adapters; 503 where the engine is gone. /v1/models gives ids alone, the base model's and the adapters' in one list.

So a name is an adapter of ours only if our own record says so. All others count as the base model's: they are left
alone, and none of ours may have such a name. How its caches tell weights is not documented: no name gets others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.observed import Done, Outcome, Refused, Unknown
from sidecar.engines.others.http_engine import EnginePages, HttpContract, HttpEngine, listed_names
from sidecar.engines.transport import Reply, json_of
from sidecar.engines.vllm.responses import MAX_MESSAGE_LENGTH, not_an_engine

KIND = "pegainfer"


def read(bodies: Sequence[bytes], ours: Mapping[str, str], url: str) -> EnginePages:
    """Reads its page; see `HttpContract`."""
    names = listed_names(bodies[0], _name)
    if names is None:
        raise not_an_engine(url, "its /v1/models is no list of ids alone", KIND)
    base_models = tuple(name for name in names if name not in ours)
    if not base_models:
        raise EngineUnreachable(f"{url}/v1/models cannot be read in full: it names no base model")
    return EnginePages("", base_models, {name: ours[name] for name in names if name in ours})


def outcome(reply: Reply) -> Outcome:
    """Outcome of a call."""
    match reply:
        case Reply(200, _):
            return Done()
        case Reply(400 | 404, body) if (said := _error(body)) is not None:
            return Refused(said)
        case Reply(status, body):
            return Unknown(f"HTTP {status}: {_error(body) or 'no text'}")


def _name(card: object) -> str | None:
    """The name on a card, which has no path. axolotl's cards are alike but for their owner."""
    match card:
        case {"root": _} | {"owned_by": "axolotl"}:
            return None
        case {"id": str(name)}:
            return name
        case _:
            return None


def _error(body: bytes) -> str | None:
    match json_of(body):
        case {"error": str(said)}:
            return " ".join(said.split())[:MAX_MESSAGE_LENGTH]
        case _:
            return None


CONTRACT = HttpContract(
    KIND, ("/v1/models",), "/v1/load_lora_adapter", "/v1/unload_lora_adapter", read, outcome, swap="refused"
)
make_engine = partial(HttpEngine, CONTRACT)
