"""W1 to W9: what callers were told, against etcd's history; and R5: what the admin services let into it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from google.protobuf.message import Message

from registry.etcd3.ops import Event, KeyValue
from registry.model.audit import RequestRecord
from registry.model.errors import Reason
from registry.model.keys import last_part
from registry.tools.verify.history import Revision
from registry.transactions.changes import AbortRollout, ApplyAdapters, Change, PromoteRollout
from registry.v1 import registry_pb2 as pb
from tests.simulation.clients import Answer
from tests.simulation.engines import BASE
from tests.simulation.history import POOL
from tests.simulation.services import reason_of
from tests.simulation.world import KEYS, World
from tests.support.checkers.calls import LoggedCall, check_calls
from tests.support.checkers.index import HistoryIndex

# What the ids of dry runs begin with.
DRY = "dry-"
# After these a change may have been made, by this call or by another of that request id.
_UNSETTLED = {Reason.OUTCOME_UNKNOWN, Reason.ADMIN_UNAVAILABLE, Reason.REQUEST_ID_REUSED, Reason.INTERNAL}
_REQUESTS = f"{KEYS.prefix}/requests/".encode()
_KINDS = ("adapters", "pools", "tenants", "requests", "replicas", "status", "drains")
_FOLDED = tuple(f"{KEYS.prefix}/{kind}/".encode() for kind in _KINDS)


def check_writes(world: World) -> None:
    """Folds the whole history, and looks up every answer in it."""
    told = [step for step in world.store.history if step[0] not in world.hand_written]
    folded = (Revision(*step) for step in told if any(event.key.startswith(_FOLDED) for event in step[1]))
    index = HistoryIndex(KEYS).replay(folded)
    for revision, events in told:
        if any(event.key == KEYS.adapter(POOL, BASE) and event.kv is not None for event in events):
            world.checks.violated(f"R5 at {revision} an adapter has got the name of the base model")
    calls = [_logged(answer) for answer in world.answers]
    dry = [
        LoggedCall(request_id=request, outcome="unknown", validate_only=True)
        for request in index.requests
        if request.startswith(DRY)
    ]
    world.told["W4"] += sum(len(call.etags) for call in calls)
    for found in (*index.findings, *check_calls(index, [*calls, *dry])[0]):
        world.checks.violated(f"{found.guarantee} at {found.revision}, {found.where}: {found.message}")


@dataclass
class Denials:
    """W8 no-false-fail: whoever is told that nothing was changed may believe it, until somebody asks the same again."""

    world: World
    _denied: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def noted(self, request: Message) -> Iterator[None]:
        """Around each call to an admin service, as its caller sees it: no repetition hides what it was told."""
        request_id = getattr(request, "request_id", "")
        self._denied.pop(request_id, None)
        try:
            yield
        except grpc.aio.AioRpcError as error:
            if request_id and (reason := reason_of(error)) and reason not in _UNSETTLED:
                self._deny(request_id, reason)
            raise

    def _deny(self, request_id: str, reason: str) -> None:
        self.world.told["W8"] += 1
        self._denied[request_id] = reason
        kv = self.world.store.kvs.get(KEYS.request(request_id))
        if kv is not None:
            self._check(kv)

    def on_commit(self, _revision: int, events: tuple[Event, ...]) -> None:
        """Each revision of etcd: what comes late comes too."""
        for event in events:
            if event.kv is not None and event.key.startswith(_REQUESTS):
                self._check(event.kv)

    def _check(self, kv: KeyValue) -> None:
        reason = self._denied.get(last_part(kv.key))
        if reason and RequestRecord.parse(kv.value).reply is not None:
            told = f"its caller was told {reason}"
            self.world.checks.violated(f"W8 {last_part(kv.key)} is applied at {kv.mod_revision}, and {told}")


def _logged(answer: Answer) -> LoggedCall:
    return LoggedCall(
        request_id=answer.request_id,
        outcome="ok" if answer.revision else "refused",
        revision=answer.revision,
        etags=answer.etags,
    )


def etags_of(change: Change, told: Message) -> dict[str, int]:
    """Key to the etag that was given for it, of what a change changed."""
    if not isinstance(told, pb.ApplyAdaptersResponse):
        return {}
    changed = {one.adapter.name for one in told.results if one.outcome != pb.AdapterResult.UNCHANGED}
    given = [(name, etag) for name, etag in _given(change) if etag is not None]
    return {KEYS.adapter(POOL, name).decode(): etag for name, etag in given if name in changed}


def _given(change: Change) -> Iterator[tuple[str, int | None]]:
    match change:
        case ApplyAdapters(changes=changes):
            yield from ((one.name, one.etag) for one in changes)
        case PromoteRollout(name=name, etag=etag) | AbortRollout(name=name, etag=etag):
            yield name, etag
