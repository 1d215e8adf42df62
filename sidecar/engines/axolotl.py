"""What axolotl's server is asked and answers. Pure.

Read in axolotl-ai-cloud/axolotl, ``src/axolotl/scripts/vllm_serve_lora.py`` at 02063210 and ``process_cleanup.py``:

- POST /set_lora_adapter/ keeps name, number and path in one variable and answers 200 ``{"status": "ok"}``, whatever
  they are. POST /clear_lora_adapter/ empties it. Nothing reads it back.
- /generate/, /chat/ and /v1/chat/completions hand each request to a worker with what the variable holds then, whichever
  model the request names. The worker reads the files then, and ends with its engine if it cannot; so does the server.
- /v1/models names the base model alone, ``owned_by`` axolotl; releases without that page are refused. /health/ is 503
  once a worker has ended.
- Answers are taken out of a worker's pipe by whichever request waits first, so a request of ours could take another's.
"""

from __future__ import annotations

from sidecar.engines.bodies import json_of
from sidecar.engines.exchange import JsonPost, Lost, NotSent, Reply
from sidecar.engines.slot import Active
from sidecar.engines.vllm_answers import KEY_HINT, MAX_MESSAGE_LENGTH, not_an_engine
from sidecar.observed import Done, Gone, Outcome, Transient, Unknown

KIND = "axolotl"
HEALTH = "/health/"
MODELS = "/v1/models"
CLEAR = JsonPost("/clear_lora_adapter/", {})


def set_adapter(active: Active) -> JsonPost:
    """The request that makes it answer everything with an adapter."""
    fields = {"lora_name": active.label, "lora_int_id": active.number, "lora_path": active.path}
    return JsonPost("/set_lora_adapter/", {**fields, "load_inplace": False})


def outcome_of(answer: Reply | Lost | NotSent) -> Outcome:
    """What either request came to."""
    match answer:
        case NotSent(message):
            return Gone(message)
        case Lost(message):
            return Unknown(message)
        case Reply(200, body) if json_of(body) == {"status": "ok"}:
            return Done()
        case Reply(401 | 403, _):
            return Transient(f"something before the engine refuses our key, or wants one: {KEY_HINT}")
        case Reply(404 | 405, _):
            return Transient("the engine has no such route: serve with axolotl.scripts.vllm_serve_lora")
        case reply:
            text = " ".join(reply.body.decode(errors="replace").split())[:MAX_MESSAGE_LENGTH]
            return Unknown(f"HTTP {reply.status}: {text or 'no text'}")


def read_base_models(body: bytes, url: str) -> tuple[str, ...]:
    """Reads /v1/models.

    Raises:
        EngineUnusable: it is not axolotl's.
    """
    match json_of(body):
        case {"object": "list", "data": [*cards]} if cards:
            names = [_name(card) for card in cards]
            if None not in names:
                return tuple(name for name in names if name is not None)
    raise not_an_engine(url, f"its {MODELS} does not name a base model as axolotl does", KIND)


def _name(card: object) -> str | None:
    match card:
        case {"id": str(name), "owned_by": "axolotl"}:
            return name
        case _:
            return None
