"""The calls of our plugin inside vLLM, and what its answers mean. Pure; the plugin is `sidecar.vllm_plugin`."""

from __future__ import annotations

import json

from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.exchange import JsonPost, Lost, NotSent, Reply
from sidecar.engines.vllm_answers import said
from sidecar.observed import Done, Gone, NotThere, Outcome, PathMissing, Refused, Transient, Unknown

ABOUT_PATH = "/v1/loraplane/plugin"
STATE_PATH = "/v1/loraplane/state"
SCHEMA = 1
_NEEDED = {"swap", "unload", "state"}


def swap_call(name: str, old: str, new: str) -> JsonPost:
    """Replaces the weights behind `name` atomically, unless it has others than those of `old`."""
    return JsonPost("/v1/loraplane/swap", {"lora_name": name, "lora_path": new, "expected_path": old})


def unload_call(name: str) -> JsonPost:
    """Unloads `name`, and removes its weights once nobody uses them."""
    return JsonPost("/v1/loraplane/unload", {"lora_name": name})


def is_usable(about: bytes) -> bool:
    """True if the plugin that says this of itself is one that we can call."""
    match _json(about):
        case {"schema": int(schema), "capabilities": [*can]}:
            return schema == SCHEMA and {one for one in can if isinstance(one, str)} >= _NEEDED
        case _:
            return False


def plugin_outcome(answer: Reply | Lost | NotSent) -> Outcome:
    """What a call to the plugin came to."""
    match answer:
        case NotSent(message):
            return Gone(message)
        case Lost(message):
            return Unknown(message)
        case Reply(200, _):
            return Done()
        case Reply(status, body):
            return _refusal(_reason(body), f"HTTP {status}: {said(body)}")


def _refusal(reason: str | None, message: str) -> Outcome:
    match reason:
        case "not_loaded":
            return NotThere()
        case "path_missing":
            return PathMissing(message)
        case "refused":
            return Refused(message)
        case "deadline":
            return Unknown(message)
        case "conflict" | "busy":
            return Transient(message)
        case _:  # not our plugin's answer: whether it did anything, a listing tells
            return Unknown(message)


def read_paths_in_use(body: bytes) -> frozenset[str]:
    """Every path whose files the engine may still read, by what the plugin says of its state.

    Raises:
        EngineUnreachable: it cannot be read in full.
    """
    match _json(body):
        case {"schema": 1, "adapters": [*rows]}:
            return frozenset(_path(row) for row in rows)
        case _:
            raise EngineUnreachable(f"{STATE_PATH} cannot be read in full: it is no state of the plugin's")


def _path(row: object) -> str:
    match row:
        case {"path": str(path)}:
            return path
        case _:
            raise EngineUnreachable(f"{STATE_PATH} cannot be read in full: a row has no path")


def _reason(body: bytes) -> str | None:
    match _json(body):
        case {"error": {"type": str(reason)}}:
            return reason
        case _:
            return None


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
