"""The calls of our plugin inside vLLM, and what its answers mean. Pure; the plugin is `sidecar.vllm_plugin`."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.engines.bodies import json_of
from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.exchange import JsonPost, Lost, NotSent, Reply
from sidecar.engines.vllm_answers import said
from sidecar.observed import Done, EngineLimits, Gone, NotThere, Outcome, PathMissing, Refused, Transient, Unknown

ABOUT_PATH = "/v1/loraplane/plugin"
STATE_PATH = "/v1/loraplane/state"
USES_PATH = "/v1/loraplane/uses"
_UNTOLD = EngineLimits()
_NEEDED = {"swap", "unload", "state"}


def swap_call(name: str, old: str, new: str) -> JsonPost:
    """Replaces the weights behind `name` atomically, unless it has others than those of `old`."""
    return JsonPost("/v1/loraplane/swap", {"lora_name": name, "lora_path": new, "expected_path": old})


def unload_call(name: str) -> JsonPost:
    """Unloads `name`, and removes its weights once nobody uses them."""
    return JsonPost("/v1/loraplane/unload", {"lora_name": name})


@dataclass(frozen=True, slots=True)
class About:
    """What a plugin that can be called says of itself.

    Attributes:
        resolves: names that are not loaded are asked for through the sidecar's socket.
        tells_uses: it knows when each adapter was last used.
        limits: what the engine was started with, as far as the plugin tells.
    """

    resolves: bool = False
    tells_uses: bool = False
    limits: EngineLimits = _UNTOLD


def read_about(body: bytes) -> About | None:
    """What the plugin says of itself; None: it is none that we can call."""
    match json_of(body):
        case {"schema": 1, "capabilities": [*can], **more} if {one for one in can if isinstance(one, str)} >= _NEEDED:
            return About("resolve" in can, "uses" in can, _limits(more.get("limits")))
        case _:
            return None


def _limits(told: object) -> EngineLimits:
    """Numbers alone are believed; a plugin of an earlier version tells none."""
    numbers = {str(name): value for name, value in told.items() if type(value) is int} if isinstance(told, dict) else {}
    return EngineLimits(numbers.get("max_loras"), numbers.get("max_cpu_loras"), numbers.get("max_lora_rank"))


def read_last_used(body: bytes) -> dict[str, float]:
    """For each name that was used, how many seconds ago; nothing, where that cannot be read in full."""
    match json_of(body):
        case {"schema": 1, "last_used": dict(ages)} if all(_is_age(age) for age in ages.values()):
            return {str(name): float(age) for name, age in ages.items()}
        case _:
            return {}


def _is_age(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


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
    match json_of(body):
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
    match json_of(body):
        case {"error": {"type": str(reason)}}:
            return reason
        case _:
            return None
