"""The methods that stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from registry.admin import wire_out
from registry.admin.calls import Call
from registry.admin.residency import Residency
from registry.admin.wire_residency import STATES
from registry.errors import InvalidArgument, Reason, RegistryError
from registry.etcd3.ops import Event
from registry.keys import last_part
from registry.model.names import check_adapter_name, check_segment, name_of_key
from registry.store.rollout import Question, Rollout
from registry.store.watching import Batch, Watcher
from registry.transactions.stored import read_adapter
from registry.v1 import registry_pb2 as pb

_EVENTS_AT_ONCE = 500


class Streams:
    """Handlers: each takes a request and its call, and raises RegistryError where it refuses."""

    def __init__(self, watcher: Watcher, residency: Residency) -> None:
        self._watcher = watcher
        self.residency = residency

    async def watch_adapters(
        self, request: pb.WatchAdaptersRequest, call: Call
    ) -> AsyncGenerator[pb.WatchAdaptersResponse, None]:
        check_segment(request.pool, field="pool")
        start = _not_negative(request.start_revision, "start_revision")
        async with aclosing(self._watcher.adapters(request.pool, start, call.budget)) as batches:
            async for batch in batches:
                for response in _responses(request.pool, batch):
                    yield response

    async def watch_rollout(self, request: pb.WatchRolloutRequest, call: Call) -> AsyncGenerator[pb.Rollout, None]:
        check_segment(request.pool, field="pool")
        check_adapter_name(request.name)
        question = Question(request.pool, request.name, _not_negative(request.generation, "generation"))
        async with aclosing(self._watcher.rollout(question, call.budget)) as rollouts:
            async for rollout in rollouts:
                yield _rollout(rollout)


def _not_negative(number: int, field: str) -> int:
    if number < 0:
        raise InvalidArgument(Reason.INVALID_FIELD, "use 0 or a positive number", field=field)
    return number


def _responses(pool: str, batch: Batch) -> Iterator[pb.WatchAdaptersResponse]:
    """A batch in messages that are small enough; an empty snapshot is told as well."""
    for start in range(0, max(1, len(batch.events)), _EVENTS_AT_ONCE):
        events = batch.events[start : start + _EVENTS_AT_ONCE]
        yield pb.WatchAdaptersResponse(
            revision=batch.revision,
            events=[_event(pool, event) for event in events],
            snapshot=batch.snapshot,
            more=start + _EVENTS_AT_ONCE < len(batch.events),
        )


def _event(pool: str, event: Event) -> pb.AdapterEvent:
    name = name_of_key(last_part(event.key))
    if event.kv is None:
        return pb.AdapterEvent(deleted=name)
    try:
        record = read_adapter(pool, event.kv)
    except RegistryError:
        return pb.AdapterEvent(unreadable=name)
    return pb.AdapterEvent(put=wire_out.adapter(record, event.kv.mod_revision))


def _rollout(rollout: Rollout) -> pb.Rollout:
    replicas = [
        pb.RolloutReplica(
            replica=one.replica,
            state=STATES[one.state],
            reason=one.reason,
            message=one.message,
            canary=one.canary,
            generation=one.generation,
        )
        for one in rollout.replicas
    ]
    return pb.Rollout(
        name=rollout.name,
        generation=rollout.generation,
        replicas=replicas,
        done=rollout.done,
        failure=rollout.failure.value if rollout.failure else "",
        waiting=rollout.waiting,
        canary=wire_out.canary_rollout(rollout.canary) if rollout.canary else None,
        note=rollout.note,
    )
