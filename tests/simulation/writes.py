"""W1 to W9: what callers were told, against etcd's history; and R10: who wrote there for which replica."""

from __future__ import annotations

from collections import defaultdict

from tests.simulation.clients import Answer
from tests.simulation.world import KEYS, World
from tests.support.history_check import History, check_history

# What the ids of dry runs begin with.
DRY = "dry-"
_REQUESTS = f"{KEYS.prefix}/requests/".encode()
_KINDS = ("adapters", "pools", "tenants", "requests", "replicas", "status", "drains")
_FOLDED = tuple(f"{KEYS.prefix}/{kind}/".encode() for kind in _KINDS)


def check_writes(world: World) -> None:
    """Folds the whole history, and looks up every answer in it."""
    history = [
        (revision, events)
        for revision, events in world.store.history
        if revision not in world.hand_written and any(event.key.startswith(_FOLDED) for event in events)
    ]
    try:
        check_history(KEYS, history)
    except AssertionError as error:
        world.checks.violated(str(error))
    applied = _applied(history)
    for request_id, revisions in applied.items():
        if request_id.startswith(DRY):
            world.checks.violated(f"W9 {request_id} was applied at {revisions}")
    for answer in world.answers:
        if wrong := _wrong(answer, applied.get(answer.request_id, [])):
            world.checks.violated(wrong)


def _applied(history: History) -> dict[str, list[int]]:
    """Revisions that carried each request out; the record of one that was refused has no reply."""
    found: dict[str, list[int]] = defaultdict(list)
    for revision, events in history:
        for event in events:
            is_reply = event.kv is not None and b'"reply":null' not in event.kv.value
            if is_reply and event.key.startswith(_REQUESTS):
                found[event.key.rpartition(b"/")[2].decode()].append(revision)
    return found


def _wrong(answer: Answer, revisions: list[int]) -> str:
    if len(revisions) > 1:
        return f"W3 {answer.request_id} was applied at {revisions}"
    if answer.revision and revisions != [answer.revision]:
        return f"W1 {answer}, but applied at {revisions}"
    if not answer.revision and revisions:
        return f"W8 {answer}, but applied at {revisions}"
    return ""
